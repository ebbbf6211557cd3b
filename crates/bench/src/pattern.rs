//! Which request comes next.

use crate::load::{Load, Span};
use crate::rng::Rng;
use udm_io::Op;

/// A job's sequence of requests. Endless.
pub(crate) struct Pattern {
    rng: Rng,
    blocks: u64,
    random: bool,
    /// Of 2^32, the part of reads.
    read_share: u64,
    mixed: bool,
    op: Op,
    next_read: u64,
    next_write: u64,
}

impl Pattern {
    /// The sequence of job `job` over `span`. Sequential jobs start evenly spread over it.
    pub(crate) fn new(load: &Load, span: Span, job: usize) -> Self {
        let start = (u128::from(span.blocks) * job as u128 / load.numjobs as u128) as u64;
        Self {
            rng: Rng::new(load.seed, job as u64),
            blocks: span.blocks,
            random: load.rw.is_random(),
            read_share: (u64::from(load.rwmixread) << 32) / 100,
            mixed: load.rw.reads() && load.rw.writes(),
            op: if load.rw.reads() { Op::Read } else { Op::Write },
            next_read: start,
            next_write: start,
        }
    }

    /// The next request: what, and the number of its block.
    #[inline]
    pub(crate) fn next(&mut self) -> (Op, u64) {
        let op = if self.mixed {
            if self.rng.draw() >> 32 < self.read_share { Op::Read } else { Op::Write }
        } else {
            self.op
        };
        if self.random {
            return (op, self.rng.below(self.blocks));
        }
        let next = if op == Op::Read { &mut self.next_read } else { &mut self.next_write };
        let block = *next;
        *next = if block + 1 == self.blocks { 0 } else { block + 1 };
        (op, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rw;

    fn take(load: &Load, blocks: u64, job: usize, n: usize) -> Vec<(Op, u64)> {
        let mut pattern = Pattern::new(load, Span { blocks, bs: load.bs }, job);
        (0..n).map(|_| pattern.next()).collect()
    }

    #[test]
    fn sequences() {
        let check = |rw, numjobs, job, expect: &[(Op, u64)]| {
            let load = Load { rw, numjobs, ..Load::default() };
            assert_eq!(take(&load, 4, job, expect.len()), expect, "{rw:?}");
        };
        let (r, w) = (Op::Read, Op::Write);
        check(Rw::Read, 1, 0, &[(r, 0), (r, 1), (r, 2), (r, 3), (r, 0)]);
        check(Rw::Write, 2, 1, &[(w, 2), (w, 3), (w, 0)]);
    }

    #[test]
    fn mixes_keep_their_share_and_their_range() {
        for (rw, rwmixread) in [(Rw::RandRw, 0), (Rw::RandRw, 30), (Rw::ReadWrite, 70), (Rw::RandRw, 100)] {
            let load = Load { rw, rwmixread, ..Load::default() };
            let got = take(&load, 10, 0, 100_000);
            let reads = got.iter().filter(|(op, _)| *op == Op::Read).count() as f64 / 1000.0;
            assert!((reads - f64::from(rwmixread)).abs() < 1.0, "{rw:?} {rwmixread}: {reads}");
            assert!(got.iter().all(|(_, block)| *block < 10));
            if rw == Rw::ReadWrite {
                for op in [Op::Read, Op::Write] {
                    let blocks = got.iter().filter(|(o, _)| *o == op).map(|(_, block)| *block);
                    assert!(blocks.zip((0..10).cycle()).all(|(a, b)| a == b), "each kind runs in sequence");
                }
            }
        }
    }

    #[test]
    fn pure_patterns_are_pure() {
        for (rw, op) in [(Rw::RandRead, Op::Read), (Rw::RandWrite, Op::Write)] {
            let load = Load { rw, ..Load::default() };
            assert!(take(&load, 1000, 0, 1000).iter().all(|(o, _)| *o == op), "{rw:?}");
        }
    }
}
