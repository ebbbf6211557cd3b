//! What is decided on requests.

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const READ: u16 = Command::Read as u16;
const WRITE: u16 = Command::Write as u16;
const FLUSH: u16 = Command::Flush as u16;
const TRIM: u16 = Command::Trim as u16;
const CACHE: u16 = Command::Cache as u16;
const ZEROES: u16 = Command::WriteZeroes as u16;
const STATUS: u16 = Command::BlockStatus as u16;
const FUA: u16 = cmd_flag::FUA;

fn session(limits: Limits) -> Session {
    let mut session = Session::new(Sectors::in_bytes(64 * MIB), &limits, false);
    session.structured = true;
    session.allocation = true;
    session
}

fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Request {
    Request { flags, kind, cookie: 0, offset, length }
}

#[track_caller]
fn check(session: &Session, (kind, flags, offset, length): (u16, u16, u64, u32), expect: Action) {
    assert_eq!(session.decide(&request(kind, flags, offset, length)), expect);
}

#[track_caller]
fn fails(session: &Session, (kind, flags, offset, length): (u16, u16, u64, u32), expect: NbdError) {
    match session.decide(&request(kind, flags, offset, length)) {
        Action::Fail(error, message) => assert!(error == expect && !message.is_empty(), "{error:?}: {message}"),
        other => panic!("{other:?}"),
    }
}

fn at(offset: u64) -> Sector {
    Sector::containing(offset)
}

fn len(length: u64) -> Sectors {
    Sectors::in_bytes(length)
}

#[test]
fn commands_become_operations() {
    use Durability::{Cached, FlushAfter, Fua};
    let s = session(Limits::default());
    check(&s, (READ, 0, 4096, 512), Action::Read(at(4096), len(512)));
    check(&s, (READ, cmd_flag::DF | FUA, 0, 1 << 25), Action::Read(at(0), len(32 * MIB)));
    check(&s, (WRITE, 0, 64 * MIB - 512, 512), Action::Write(at(64 * MIB - 512), len(512), Cached));
    check(&s, (WRITE, FUA, 0, 4096), Action::Write(at(0), len(4096), Fua));
    check(&s, (FLUSH, 0, 0, 0), Action::Range(Op::Flush, OpFlags::NONE, at(0), len(0), Cached));
    check(&s, (TRIM, 0, 512, 1024), Action::Range(Op::Discard, OpFlags::NONE, at(512), len(1024), Cached));
    check(&s, (TRIM, FUA, 512, 1024), Action::Range(Op::Discard, OpFlags::NONE, at(512), len(1024), FlushAfter));
    check(&s, (ZEROES, 0, 0, 1 << 26), Action::Range(Op::WriteZeroes, OpFlags::NONE, at(0), len(64 * MIB), Cached));
    let keep = Action::Range(Op::WriteZeroes, OpFlags::NO_UNMAP, at(0), len(512), FlushAfter);
    check(&s, (ZEROES, cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO | FUA, 0, 512), keep);
    check(&s, (CACHE, 0, 0, 1 << 26), Action::Done);
    check(&s, (STATUS, 0, 0, 1 << 26), Action::Status(at(0), len(64 * MIB), false));
    check(&s, (STATUS, cmd_flag::REQ_ONE, 512, 512), Action::Status(at(512), len(512), true));
    check(&s, (Command::Disc as u16, 0, 0, 0), Action::Disconnect);
}

#[test]
fn a_device_that_lacks_an_operation() {
    let lacking =
        Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, fua: false, ..Limits::default() };
    let s = session(lacking);
    assert_eq!(s.transmission_flags() & transmission::SEND_TRIM, 0);
    check(&s, (WRITE, FUA, 0, 512), Action::Write(at(0), len(512), Durability::FlushAfter));
    check(&s, (TRIM, 0, 0, 512), Action::Done);
    fails(&s, (ZEROES, cmd_flag::FAST_ZERO, 0, 512), NbdError::NotSup);
    let slow = Action::Range(Op::WriteZeroes, OpFlags::NONE, at(0), len(512), Durability::Cached);
    check(&s, (ZEROES, 0, 0, 512), slow);
}

#[test]
fn requests_that_are_refused() {
    let s = session(Limits::default());
    let end = 64 * MIB;
    for kind in [READ, TRIM, CACHE, STATUS] {
        fails(&s, (kind, 0, end, 512), NbdError::Inval);
        fails(&s, (kind, 0, end - 512, 1024), NbdError::Inval);
        fails(&s, (kind, 0, u64::MAX - 511, 512), NbdError::Inval);
    }
    for kind in [WRITE, ZEROES] {
        fails(&s, (kind, 0, end, 512), NbdError::NoSpc);
        fails(&s, (kind, 0, end - 512, 1024), NbdError::NoSpc);
        fails(&s, (kind, 0, u64::MAX - 511, 1024), NbdError::NoSpc);
    }
    for kind in [READ, WRITE, TRIM, ZEROES, CACHE, STATUS] {
        fails(&s, (kind, 0, 1, 512), NbdError::Inval);
        fails(&s, (kind, 0, 512, 511), NbdError::Inval);
        fails(&s, (kind, 1 << 15, 0, 512), NbdError::Inval);
        fails(&s, (kind, 1 << 5, 0, 512), NbdError::Inval);
    }
    for kind in [READ, WRITE] {
        fails(&s, (kind, 0, 0, (1 << 25) + 512), NbdError::Inval);
        fails(&s, (kind, 0, 0, u32::MAX), NbdError::Inval);
    }
    fails(&s, (READ, cmd_flag::DF, 0, (1 << 25) + 512), NbdError::Overflow);
    for kind in [8, 9, 1000, u16::MAX] {
        fails(&s, (kind, 0, 0, 512), NbdError::Inval);
    }
    fails(&s, (FLUSH, 0, 512, 0), NbdError::Inval);
    fails(&s, (FLUSH, 0, 0, 512), NbdError::Inval);
    fails(&s, (WRITE, cmd_flag::DF, 0, 512), NbdError::Inval);
    fails(&s, (READ, cmd_flag::FAST_ZERO, 0, 512), NbdError::Inval);
    fails(&s, (STATUS, 0, 0, 0), NbdError::Inval);
    let mut plain = s;
    plain.allocation = false;
    fails(&plain, (STATUS, 0, 0, 512), NbdError::Inval);
}

#[test]
fn nothing_is_done_at_once_if_it_lies_inside() {
    let s = session(Limits::default());
    for kind in [READ, WRITE, TRIM, ZEROES, CACHE] {
        check(&s, (kind, 0, 64 * MIB, 0), Action::Done);
        assert!(matches!(s.decide(&request(kind, 0, 64 * MIB + 512, 0)), Action::Fail(..)));
    }
}

#[test]
fn a_read_only_export_takes_no_writes() {
    let mut s = Session::new(len(MIB), &Limits::default(), true);
    s.structured = true;
    for kind in [WRITE, TRIM, ZEROES] {
        fails(&s, (kind, 0, 0, 512), NbdError::Perm);
    }
    check(&s, (READ, 0, 0, 512), Action::Read(at(0), len(512)));
    let flags = s.transmission_flags();
    let writes = transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO;
    assert_eq!((flags & transmission::READ_ONLY, flags & writes), (transmission::READ_ONLY, 0));
}

#[test]
fn block_sizes_follow_the_limits() {
    #[track_caller]
    fn check(logical: u32, physical: u32, io_min: u32, minimum: u32, preferred: u32) {
        let limits = Limits { logical_block_size: logical, physical_block_size: physical, io_min, ..Limits::default() };
        let sizes = Session::new(len(MIB), &limits, false).block_sizes;
        assert_eq!((sizes.minimum, sizes.preferred, sizes.maximum), (minimum, preferred, 1 << 25));
    }
    check(512, 512, 512, 512, 4096);
    check(4096, 4096, 4096, 4096, 4096);
    check(512, 4096, 65536, 512, 65536);
    check(512, 512, 3 << 20, 512, 1 << 20);
    check(65536, 65536, 0, 65536, 65536);
    check(1 << 20, 1 << 20, 0, 65536, 1 << 20);
    let big = session(Limits { logical_block_size: 4096, ..Limits::default() });
    fails(&big, (READ, 0, 512, 4096), NbdError::Inval);
    fails(&big, (READ, 0, 0, 512), NbdError::Inval);
}

proptest! {
    /// What is started lies within the export, on block borders, and has a bounded payload.
    #[test]
    fn what_is_started_is_in_range(
        kind in 0u16..10, flags in 0u16..32, offset in any::<u64>(), small in 0u64..140_000, length in any::<u32>(),
        near in any::<bool>(),
    ) {
        let s = session(Limits { logical_block_size: 4096, ..Limits::default() });
        let (offset, length) = if near { (small * 512, length % (1 << 26) / 512 * 512) } else { (offset, length) };
        let range = match s.decide(&request(kind, flags, offset, length)) {
            Action::Read(start, length) | Action::Write(start, length, _) => {
                prop_assert!(length.bytes() <= 1 << 25 && !length.is_zero());
                Some((start, length))
            }
            Action::Range(Op::Flush, ..) => None,
            Action::Range(_, _, start, length, _) | Action::Status(start, length, _) => Some((start, length)),
            Action::Done | Action::Fail(..) | Action::Disconnect => None,
        };
        if let Some((start, length)) = range {
            prop_assert_eq!((start.bytes(), length.bytes()), (offset, u64::from(request(0, 0, 0, length.bytes() as u32).length)));
            prop_assert!(start.bytes() + length.bytes() <= s.size);
            prop_assert_eq!((start.bytes() | length.bytes()) % 4096, 0);
        }
    }
}
