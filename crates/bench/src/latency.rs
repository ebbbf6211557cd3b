//! How long requests take, from their submission until their completion is taken.

use crate::load::Lat;
use hdrhistogram::Histogram;
use udm_io::{Clock, Op};

/// Latencies in nanoseconds, to three digits; what takes longer than an hour counts as an hour.
#[derive(Clone, Default)]
pub struct Latencies {
    /// None as long as nothing was measured: it takes a quarter of a megabyte.
    histogram: Option<Box<Histogram<u64>>>,
    sum: f64,
    squares: f64,
}

const LONGEST: u64 = 3_600_000_000_000;

/// The percentiles that fio prints.
pub(crate) const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

fn empty() -> Box<Histogram<u64>> {
    Box::new(Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are right"))
}

impl Latencies {
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.get_or_insert_with(empty).saturating_record(ns.max(1));
        self.sum += ns as f64;
        self.squares += ns as f64 * ns as f64;
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        if let Some(more) = &other.histogram {
            self.histogram.get_or_insert_with(empty).add(&**more).expect("all have the same bounds");
        }
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// How many were measured.
    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |h| h.len())
    }

    /// The shortest; 0 without any.
    pub fn min(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |h| h.min())
    }

    /// The longest; 0 without any.
    pub fn max(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |h| h.max())
    }

    /// Their mean; 0 without any.
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum / self.count() as f64 }
    }

    /// Their standard deviation; 0 without any.
    pub fn deviation(&self) -> f64 {
        if self.count() == 0 {
            return 0.0;
        }
        (self.squares / self.count() as f64 - self.mean().powi(2)).max(0.0).sqrt()
    }

    /// The latency that `percent` per cent do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.histogram.as_ref().map_or(0, |h| h.value_at_percentile(percent))
    }
}

/// Reads and writes apart.
#[derive(Clone, Default)]
pub(crate) struct ByOp {
    pub(crate) reads: Latencies,
    pub(crate) writes: Latencies,
}

/// What the generator tells of its requests.
pub(crate) trait Timing {
    /// Slot `slot` is about to be submitted.
    fn submitted(&mut self, slot: usize, op: Op);
    /// Its completion was taken.
    fn completed(&mut self, slot: usize);
    /// What was measured.
    fn result(self) -> ByOp;
}

/// Measures nothing, at no cost.
pub(crate) struct Untimed;

impl Timing for Untimed {
    #[inline(always)]
    fn submitted(&mut self, _: usize, _: Op) {}
    #[inline(always)]
    fn completed(&mut self, _: usize) {}
    fn result(self) -> ByOp {
        ByOp::default()
    }
}

/// Measures one request in so many.
pub(crate) struct Sampled<'a> {
    clock: &'a dyn Clock,
    every: u32,
    left: u32,
    /// For each slot: 0 when it is not measured, else twice its start in nanoseconds, plus 1 for a write.
    starts: Box<[u64]>,
    found: ByOp,
}

impl<'a> Sampled<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, every: u32, depth: usize) -> Self {
        let ready = || Latencies { histogram: Some(empty()), ..Latencies::default() };
        let found = ByOp { reads: ready(), writes: ready() };
        Self { clock, every, left: every, starts: vec![0; depth].into(), found }
    }

    #[inline(never)]
    fn start(&mut self, slot: usize, op: Op) {
        self.left = self.every;
        self.starts[slot] = self.clock.now().0.max(1) << 1 | u64::from(op == Op::Write);
    }

    #[inline(never)]
    fn end(&mut self, slot: usize) {
        let now = self.clock.now().0;
        let start = std::mem::take(&mut self.starts[slot]);
        let found = if start & 1 == 1 { &mut self.found.writes } else { &mut self.found.reads };
        found.record(now.saturating_sub(start >> 1));
    }
}

impl Timing for Sampled<'_> {
    #[inline(always)]
    fn submitted(&mut self, slot: usize, op: Op) {
        self.left -= 1;
        if self.left == 0 {
            self.start(slot, op);
        }
    }

    #[inline(always)]
    fn completed(&mut self, slot: usize) {
        if self.starts[slot] != 0 {
            self.end(slot);
        }
    }

    fn result(self) -> ByOp {
        self.found
    }
}

impl Lat {
    /// The text that follows `--lat=`.
    pub fn text(self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Sample(1) => "all".to_owned(),
            Self::Sample(n) => format!("sample:{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use udm_io::Nanos;

    #[derive(Default)]
    struct Ticks(AtomicU64);

    impl Clock for Ticks {
        fn now(&self) -> Nanos {
            Nanos(self.0.fetch_add(100, Ordering::Relaxed))
        }
    }

    #[test]
    fn one_in_so_many_is_measured() {
        for every in [1u32, 2, 64] {
            let clock = Ticks::default();
            let mut timing = Sampled::new(&clock, every, 4);
            for i in 0..640 {
                let op = if i % 3 == 0 { Op::Write } else { Op::Read };
                timing.submitted(i % 4, op);
                timing.completed(i % 4);
            }
            let found = timing.result();
            let measured = found.reads.count() + found.writes.count();
            assert_eq!(measured, 640 / u64::from(every));
            assert_eq!(clock.0.load(Ordering::Relaxed), 200 * measured, "the clock is read for no other");
            assert!(found.reads.count() > 0 && found.writes.count() > 0);
            assert!((found.reads.percentile(50.0)).abs_diff(100) <= 1);
            assert!((found.reads.mean() - 100.0).abs() < 1.0 && found.reads.deviation() < 1.0);
        }
    }

    #[test]
    fn nothing_measured() {
        let none = Latencies::default();
        assert_eq!((none.count(), none.min(), none.max(), none.percentile(99.0)), (0, 0, 0, 0));
        assert_eq!((none.mean(), none.deviation()), (0.0, 0.0));
    }
}
