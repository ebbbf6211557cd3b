//! The throttle: the share of the time in which copies may be out (`dm_kcopyd_throttle`, `drivers/md/dm-kcopyd.c`,
//! 6.12).

use udm_io::Nanos;

/// Times are halved once they have come to this, so that what was long ago counts little.
const WINDOW_NS: u64 = 1_000_000_000;

pub(super) struct Throttle {
    /// Of 100; 100 is no throttle.
    pub(super) percent: u32,
    /// How many want all that is asked for done at once.
    pub(super) hurries: usize,
    seen: Nanos,
    busy_ns: u64,
    all_ns: u64,
    busy: bool,
}

impl Throttle {
    pub(super) fn new() -> Self {
        Self { percent: 100, hurries: 0, seen: Nanos(0), busy_ns: 0, all_ns: 0, busy: false }
    }

    /// Time has passed, and copies are out from now on or not.
    pub(super) fn note(&mut self, now: Nanos, busy: bool) {
        let passed = now.since(self.seen);
        self.seen = now;
        self.all_ns += passed;
        if self.busy {
            self.busy_ns += passed;
        }
        // What is done in a hurry need not be waited for afterwards.
        self.busy = busy && self.hurries == 0;
        while self.all_ns > WINDOW_NS {
            (self.all_ns, self.busy_ns) = (self.all_ns / 2, self.busy_ns / 2);
        }
    }

    /// When the next copy may start; `None`: now.
    pub(super) fn not_before(&self, now: Nanos) -> Option<Nanos> {
        if self.percent >= 100 || self.hurries > 0 {
            return None;
        }
        // So long that busy is the share of all: without any share, a thousandth.
        let share = u64::from(self.percent.max(1));
        let due = self.busy_ns.saturating_mul(100) / share;
        (due > self.all_ns).then(|| now.after(due - self.all_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_hurry_there_is_no_wait() {
        let mut throttle = Throttle::new();
        throttle.percent = 1;
        throttle.note(Nanos(0), true);
        throttle.note(Nanos(100), true);
        assert_eq!(throttle.not_before(Nanos(100)), Some(Nanos(10_000)));
        throttle.hurries = 1;
        throttle.note(Nanos(100), true);
        assert_eq!(throttle.not_before(Nanos(100)), None);
        throttle.note(Nanos(5000), false);
        throttle.hurries = 0;
        assert_eq!(throttle.not_before(Nanos(5000)), Some(Nanos(10_000)), "as if nothing had been done meanwhile");
    }

    #[test]
    fn busy_time_is_followed_by_idle_time() {
        for (percent, busy, wait) in
            [(100, 1000, None), (50, 1000, Some(1000)), (10, 1000, Some(9000)), (0, 10, Some(990))]
        {
            let mut throttle = Throttle::new();
            throttle.percent = percent;
            throttle.note(Nanos(0), true);
            throttle.note(Nanos(busy), false);
            assert_eq!(throttle.not_before(Nanos(busy)), wait.map(|w| Nanos(busy + w)), "{percent} %");
            if let Some(wait) = wait {
                throttle.note(Nanos(busy + wait), false);
                assert_eq!(throttle.not_before(Nanos(busy + wait)), None);
            }
        }
    }
}
