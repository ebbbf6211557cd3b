//! Time, as an interface that the simulator can implement.

use std::time::Instant;

/// Nanoseconds since the clock was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// `ns` later.
    #[inline]
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// How long after `earlier`, in nanoseconds; 0 if before.
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A clock that never goes back.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Nanos;

    /// The time some milliseconds ago at most, for who asks for each bio and need not be exact: about 5 ns. It never
    /// goes back, but may lie behind what [`now`](Self::now) gave before.
    fn coarse(&self) -> Nanos {
        self.now()
    }
}

/// The system's monotonic clock. About 25 ns a reading.
#[derive(Debug)]
pub struct MonotonicClock {
    start: Instant,
    /// The same by the system's coarse clock, which has the same zero.
    coarse_start: u64,
}

impl MonotonicClock {
    /// A clock that starts at 0 now.
    pub fn start() -> Self {
        Self { start: Instant::now(), coarse_start: ns_of(libc::CLOCK_MONOTONIC) }
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    #[inline]
    fn coarse(&self) -> Nanos {
        Nanos(ns_of(libc::CLOCK_MONOTONIC_COARSE).saturating_sub(self.coarse_start))
    }
}

/// The time of one of the system's clocks, which cannot fail for these: Linux has both. By the C library and not by
/// rustix, whose way to the vDSO does not work under valgrind.
#[inline]
fn ns_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the memory is a timespec, to be written to.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_follows_the_other() {
        let clock = MonotonicClock::start();
        let mut last = clock.coarse();
        assert!(last <= clock.now());
        // It moves on, in its own steps.
        while last == clock.coarse() {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            let next = clock.coarse();
            assert!(last <= next && next <= clock.now());
            last = next;
        }
    }
}
