//! Time, so that the simulator can be its master.

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
}

/// The system's monotonic clock. About 25 ns a reading.
#[derive(Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// A clock that starts at 0 now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(self.0.elapsed().as_nanos() as u64)
    }
}
