//! What the server makes of requests, and how it answers.

use crate::device::{Failing, Recorder, Seen};
use crate::raw::{Answer, Raw};
use crate::served::{SIZE, Served};
use std::sync::Arc;
use udm_base::Sectors;
use udm_io::{Limits, Op, OpFlags, Status};
use udm_nbd::wire::consts::cmd_flag;
use udm_nbd::wire::{Command, NbdError};

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

#[test]
fn what_is_written_is_read() {
    let served = Served::memory();
    for structured in [false, true] {
        let mut raw = Raw::go(&served.socket(), "mem", structured);
        assert_eq!(raw.size, SIZE);
        // Around the sizes of receive chunks, socket buffers and pinned payloads.
        for (i, len) in [512, 4096, 65536, 65024, 262_144 - 512, 262_144, 262_656, 1 << 20, 32 << 20].iter().enumerate()
        {
            let (offset, data) = (i as u64 * 512, pattern(i as u64, *len));
            raw.write(offset, &data);
            assert!(raw.read(offset, *len as u32) == data, "{len} bytes differ");
        }
        assert_eq!(raw.ask(Command::Flush, 0, 0, 0, b""), Answer::Done);
        assert_eq!(raw.ask(Command::Cache, 0, 0, 4096, b""), Answer::Done);
        assert_eq!(raw.ask(Command::Trim, cmd_flag::FUA, 0, 4096, b""), Answer::Done);
        assert_eq!(raw.ask(Command::WriteZeroes, cmd_flag::NO_HOLE, 4096, 8192, b""), Answer::Done);
        assert_eq!(raw.read(4096, 8192), vec![0; 8192]);
        assert_eq!(raw.ask(Command::Read, 0, 0, 0, b""), if structured { Answer::Done } else { Answer::Data(vec![]) });
        assert_eq!(raw.ask(Command::Write, 0, 0, 0, b""), Answer::Done);
    }
}

/// Many requests of all sizes go out before any answer is taken; every answer fits its request.
#[test]
fn a_pipeline_of_mixed_requests() {
    let served = Served::memory();
    let mut raw = Raw::go(&served.socket(), "mem", true);
    let mut reader = Raw::go(&served.socket(), "mem", false);
    for round in 0..20u64 {
        let mut bytes = Vec::new();
        let mut expect = Vec::new();
        for i in 0..60u64 {
            let offset = (i * 1_048_576) & !511;
            let len = [512, 4096, 1024, 70_144, 4096][(i % 5) as usize];
            let data = pattern(round * 1000 + i, len);
            bytes.extend(raw.header(Command::Write as u16, 0, offset, len as u32));
            bytes.extend_from_slice(&data);
            expect.push((offset, data));
        }
        let mut stream = raw.stream.try_clone().expect("a clone");
        let sender = std::thread::spawn(move || std::io::Write::write_all(&mut stream, &bytes).expect("sent"));
        let mut cookies: Vec<u64> =
            (0..60).map(|_| raw.answer()).map(|(c, a)| (assert_eq!(a, Answer::Done), c).1).collect();
        sender.join().expect("sent");
        cookies.sort_unstable();
        assert!(cookies.windows(2).all(|w| w[0] + 1 == w[1]), "each request is answered once");
        let sent: Vec<_> = expect.iter().map(|(o, d)| reader.send(Command::Read, 0, *o, d.len() as u32, b"")).collect();
        for _ in &sent {
            let (cookie, answer) = reader.answer();
            let which = sent.iter().position(|c| *c == cookie).expect("a cookie that was sent");
            assert!(answer == Answer::Data(expect[which].1.clone()), "the data of request {which} differ");
        }
    }
}

#[test]
fn answers_come_as_requests_complete_not_as_they_came() {
    let device = Arc::new(Recorder::new(1 << 20, Limits::default()));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    device.hold();
    let sent: Vec<u64> = (0..8).map(|i| raw.send(Command::Write, 0, i * 4096, 4096, &pattern(i, 4096))).collect();
    device.await_held(8);
    device.release_in_reverse();
    let answered: Vec<u64> = (0..8).map(|_| raw.answer().0).collect();
    assert_eq!(answered, sent.into_iter().rev().collect::<Vec<_>>());
    for i in 0..8 {
        assert_eq!(raw.read(i * 4096, 4096), pattern(i, 4096));
    }
}

/// What the device is asked for a request.
#[track_caller]
fn asks(
    limits: Limits,
    (command, flags, offset, length): (Command, u16, u64, u32),
    expect: &[(Op, OpFlags, u64, u64)],
) {
    let device = Arc::new(Recorder::new(16 << 20, limits));
    let served = Served::device(device.clone());
    let mut raw = Raw::go(&served.socket(), "dev", true);
    let payload = if command == Command::Write { vec![7; length as usize] } else { vec![] };
    assert_eq!(raw.ask(command, flags, offset, length, &payload), Answer::Done);
    let seen = device.seen.lock().expect("unpoisoned").clone();
    let expect: Vec<_> =
        expect.iter().map(|&(op, flags, sector, sectors)| Seen { op, flags, sector, sectors }).collect();
    assert_eq!(seen, expect);
}

#[test]
fn requests_become_bios() {
    let able = Limits::default();
    let unable = Limits { fua: false, max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..able };
    let (none, fua, keep) = (OpFlags::NONE, OpFlags::FUA, OpFlags::NO_UNMAP);
    let flush = (Op::Flush, none, 0, 0);
    asks(able, (Command::Write, cmd_flag::FUA, 512, 1024), &[(Op::Write, fua, 1, 2)]);
    asks(unable, (Command::Write, cmd_flag::FUA, 512, 1024), &[(Op::Write, none, 1, 2), flush]);
    asks(able, (Command::Flush, 0, 0, 0), &[flush]);
    asks(able, (Command::Trim, cmd_flag::FUA, 0, 4096), &[(Op::Discard, none, 0, 8), flush]);
    asks(able, (Command::WriteZeroes, cmd_flag::NO_HOLE, 0, 4096), &[(Op::WriteZeroes, keep, 0, 8)]);
    asks(unable, (Command::Trim, 0, 0, 4096), &[]);
    // Written out in pieces, then made durable.
    let pieces = [(Op::Write, none, 1, 2048), (Op::Write, none, 2049, 2048), (Op::Write, none, 4097, 1), flush];
    asks(unable, (Command::WriteZeroes, cmd_flag::FUA, 512, (2 << 20) + 512), &pieces);
    // A device that only finds out when asked.
    let late = Limits { max_write_zeroes: Sectors::new(1), ..able };
    asks(late, (Command::WriteZeroes, 0, 0, 512), &[(Op::WriteZeroes, none, 0, 1)]);
}

#[test]
fn extents_are_told() {
    let served = Served::device(Arc::new(Recorder::new(1 << 20, Limits::default())));
    let mut raw = Raw::go(&served.socket(), "dev", true);
    let mut status = |flags, offset, length| match raw.ask(Command::BlockStatus, flags, offset, length, b"") {
        Answer::Status(extents) => extents.iter().map(|e| (e.length, e.flags)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(0, 0, 1 << 20), [(4096, 0), (28_672, 3), ((1 << 20) - 32_768, 2)]);
    assert_eq!(status(cmd_flag::REQ_ONE, 2048, 1 << 19), [(2048, 0)]);
    assert_eq!(status(0, 8192, 4096), [(4096, 3)]);
    let mut plain = Raw::go(&served.socket(), "dev", false);
    assert_eq!(plain.ask(Command::BlockStatus, 0, 0, 512, b""), Answer::Failed(NbdError::Inval));
}

#[test]
fn a_devices_errors_reach_the_client() {
    let table = [
        (Status::Io, NbdError::Io),
        (Status::NoSpace, NbdError::NoSpc),
        (Status::ReadOnly, NbdError::Perm),
        (Status::Invalid, NbdError::Inval),
        (Status::Gone, NbdError::Io),
        (Status::TimedOut, NbdError::Io),
    ];
    for (status, expect) in table {
        let served = Served::device(Arc::new(Failing(status)));
        for structured in [false, true] {
            let mut raw = Raw::go(&served.socket(), "dev", structured);
            let failed = Answer::Failed(expect);
            assert_eq!(raw.ask(Command::Read, 0, 0, 4096, b""), failed);
            assert_eq!(raw.ask(Command::Write, 0, 0, 4096, &[1; 4096]), failed);
            assert_eq!(raw.ask(Command::Flush, 0, 0, 0, b""), failed);
            assert_eq!(raw.ask(Command::WriteZeroes, 0, 0, 4096, b""), failed);
        }
    }
    let served = Served::device(Arc::new(Failing(Status::NotSupported)));
    let mut raw = Raw::go(&served.socket(), "dev", true);
    assert_eq!(raw.ask(Command::Trim, 0, 0, 4096, b""), Answer::Done, "a hint");
    let fast = cmd_flag::FAST_ZERO;
    assert_eq!(raw.ask(Command::WriteZeroes, fast, 0, 4096, b""), Answer::Failed(NbdError::NotSup));
    assert_eq!(raw.ask(Command::WriteZeroes, 0, 0, 4096, b""), Answer::Failed(NbdError::Inval));
}

#[test]
fn a_read_only_export_refuses_writes_and_goes_on() {
    let served = Served::memory();
    let mut raw = Raw::go(&served.socket(), "ro", true);
    assert_eq!(raw.ask(Command::Write, 0, 0, 4096, &[1; 4096]), Answer::Failed(NbdError::Perm));
    assert_eq!(raw.ask(Command::Trim, 0, 0, 4096, b""), Answer::Failed(NbdError::Perm));
    assert_eq!(raw.ask(Command::WriteZeroes, 0, 0, 4096, b""), Answer::Failed(NbdError::Perm));
    assert_eq!(raw.read(0, 4096), vec![0; 4096]);
}
