//! Zero checks at the boundary: bios with segments of all sorts.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{Sector, Sectors};
use udm_io::*;

/// Ends every bio, and notes whether it was all zero.
#[derive(Default)]
struct Checker {
    zero: AtomicU64,
}

impl BlockDevice for Checker {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.zero.fetch_add(bio.is_zero().into(), Ordering::Relaxed);
        bio.end(Status::Ok);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(1000)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(0)
    }
    fn name(&self) -> String {
        "checker".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whether a bio of `op` is all zero whose segments lie at `(offset, bytes)` of memory where only `nonzero` is not.
fn check(op: Op, sectors: u64, segments: &[(usize, usize)], nonzero: &[usize]) -> bool {
    let domain = Domain::default();
    let (checker, channel) = (Arc::new(Checker::default()), domain.channel().unwrap());
    let dev = channel.attach(checker.clone());
    let mut memory = vec![0u8; 16384];
    nonzero.iter().for_each(|&at| memory[at] = 1);
    let base = memory.as_mut_ptr();
    let segs: Vec<_> = segments.iter().map(|&(at, len)| unsafe { Segment::new(base.add(at), len) }).collect();
    let len = Sectors::new(sectors);
    let sent = if op.has_payload() {
        unsafe { channel.submit_vectored(dev, op, OpFlags::default(), Sector::ZERO, len, &segs, 0) }
    } else {
        channel.submit_range(dev, op, OpFlags::default(), Sector::ZERO, len, 0)
    };
    assert!(sent && channel.completed().is_some_and(|c| c.status == Status::Ok));
    checker.zero.load(Ordering::Relaxed) == 1
}

#[test]
fn what_is_zero() {
    let odd: &[(usize, usize)] = &[(3, 1), (100, 0), (1001, 510), (5000, 1), (6007, 7), (8001, 2041)];
    for (segments, sectors) in [(&[(0, 4096)][..], 8), (&[(1, 4096)], 8), (odd, 5)] {
        assert!(check(Op::Write, sectors, segments, &[]), "{segments:?}");
        for &(at, len) in segments.iter().filter(|(_, len)| *len > 0) {
            for place in [at, at + len / 2, at + len / 3, at + len - 1] {
                assert!(!check(Op::Write, sectors, segments, &[place]), "{segments:?} with a one at {place}");
            }
        }
        let around: Vec<usize> = segments.iter().flat_map(|&(at, len)| [at.wrapping_sub(1), at + len]).collect();
        let around: Vec<usize> = around.into_iter().filter(|at| *at < 16384).collect();
        assert!(check(Op::Write, sectors, segments, &around), "{segments:?}: what lies around does not count");
    }
    // What lies in the last segment behind the bio's end does not count.
    assert!(check(Op::Write, 1, &[(0, 500), (1000, 500)], &[1012]));
}

#[test]
fn what_has_no_payload_is_not_checked() {
    for op in [Op::WriteZeroes, Op::Discard] {
        assert!(!check(op, 8, &[], &[]), "{op:?}");
    }
    assert!(!check(Op::Read, 8, &[(0, 4096)], &[]), "a read's memory is not its own yet");
    assert!(!check(Op::Flush, 0, &[], &[]));
}
