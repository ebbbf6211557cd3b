//! What the kernel asks, out of bytes. The kernel is trusted with the machine; all the same nothing here panics.

use super::wire::{
    BatchForgetIn, FallocateIn, ForgetIn, ForgetOne, InHeader, InitIn, InitMore, LseekIn, OpenIn, ReadIn, ReleaseIn,
    SetattrIn, WriteIn, init, op,
};
use zerocopy::FromBytes;

/// Header and struct of a WRITE: what is received apart from its data.
pub(super) const HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// A request.
#[derive(Debug)]
pub(super) enum Request<'a> {
    /// The flags of the second word are 0 where the kernel sends none.
    Init(InitIn, u32),
    Lookup(&'a [u8]),
    /// Inodes, and how many lookups of each are forgotten. Gets no answer.
    Forget(Forgets<'a>),
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Open(OpenIn),
    Read(ReadIn),
    /// The data follows.
    Write(WriteIn),
    Statfs,
    Release(ReleaseIn),
    Fsync,
    Opendir,
    Readdir(ReadIn),
    Releasedir,
    /// Gets no answer; requests are short, or held for a reason.
    Interrupt,
    Destroy,
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    /// A change of the directory.
    Change,
    Unknown,
}

/// What FORGET and BATCH_FORGET carry.
#[derive(Debug)]
pub(super) enum Forgets<'a> {
    One(ForgetOne),
    Many(&'a [ForgetOne]),
}

impl Forgets<'_> {
    pub(super) fn as_slice(&self) -> &[ForgetOne] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Takes a request apart: `body` is what follows the header, for a WRITE its struct alone. `None` when it is shorter
/// than its operation says.
pub(super) fn parse<'a>(header: &InHeader, body: &'a [u8]) -> Option<Request<'a>> {
    fn take<T: FromBytes>(body: &[u8]) -> Option<T> {
        T::read_from_prefix(body).ok().map(|(value, _)| value)
    }
    Some(match header.opcode {
        op::INIT => {
            let (asked, more) = InitIn::read_from_prefix(body).ok()?;
            let InitMore { flags2 } = take(more).unwrap_or(InitMore { flags2: 0 });
            Request::Init(asked, if u64::from(asked.flags) & init::INIT_EXT != 0 { flags2 } else { 0 })
        }
        op::LOOKUP => Request::Lookup(body.split(|b| *b == 0).next()?),
        op::FORGET => {
            let ForgetIn { nlookup } = take(body)?;
            Request::Forget(Forgets::One(ForgetOne { nodeid: header.nodeid, nlookup }))
        }
        op::BATCH_FORGET => {
            let (BatchForgetIn { count, .. }, rest) = BatchForgetIn::read_from_prefix(body).ok()?;
            let (all, _) = <[ForgetOne]>::ref_from_prefix_with_elems(rest, count as usize).ok()?;
            Request::Forget(Forgets::Many(all))
        }
        op::GETATTR => Request::Getattr,
        op::SETATTR => Request::Setattr(take(body)?),
        op::READLINK => Request::Readlink,
        op::OPEN => Request::Open(take(body)?),
        op::READ => Request::Read(take(body)?),
        op::WRITE => Request::Write(take(body)?),
        op::STATFS => Request::Statfs,
        op::RELEASE => Request::Release(take(body)?),
        op::FSYNC => Request::Fsync,
        op::OPENDIR => Request::Opendir,
        op::READDIR => Request::Readdir(take(body)?),
        op::RELEASEDIR => Request::Releasedir,
        op::INTERRUPT => Request::Interrupt,
        op::DESTROY => Request::Destroy,
        op::FALLOCATE => Request::Fallocate(take(body)?),
        op::LSEEK => Request::Lseek(take(body)?),
        opcode if op::CHANGES.contains(&opcode) => Request::Change,
        _ => Request::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn header(opcode: u32) -> InHeader {
        InHeader { len: 0, opcode, unique: 1, nodeid: 7, uid: 0, gid: 0, pid: 0, extensions: 0, pad: 0 }
    }

    #[test]
    fn every_prefix_of_every_operation_is_taken_or_refused() {
        // Aligned for the list of a BATCH_FORGET, as what is received is.
        let memory: Vec<u64> = vec![0x0000_0003_0000_0003; 16];
        for opcode in 0..64 {
            for len in 0..memory.as_bytes().len() {
                let parsed = parse(&header(opcode), &memory.as_bytes()[..len]);
                if opcode == op::LOOKUP || opcode == op::STATFS {
                    assert!(parsed.is_some());
                }
                if opcode == op::WRITE {
                    assert_eq!(parsed.is_some(), len >= 40);
                }
            }
        }
    }

    #[test]
    fn forgets() {
        let list = |parsed: Option<Request<'_>>| match parsed {
            Some(Request::Forget(forgets)) => {
                forgets.as_slice().iter().map(|f| (f.nodeid, f.nlookup)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(list(parse(&header(op::FORGET), 5u64.as_bytes())), [(7, 5)]);
        let many = [2u64, 4, 1, 5, 6];
        assert_eq!(list(parse(&header(op::BATCH_FORGET), many.as_bytes())), [(4, 1), (5, 6)]);
        // More are promised than follow.
        assert!(parse(&header(op::BATCH_FORGET), [3u64, 4, 1, 5, 6].as_bytes()).is_none());
    }

    #[test]
    fn a_name_ends_at_its_zero() {
        let Some(Request::Lookup(name)) = parse(&header(op::LOOKUP), b"vol\0rest") else { panic!() };
        assert_eq!(name, b"vol");
    }
}
