//! How the channels of a domain poll: switches and budgets, and what came of them.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How the channels of a domain poll. May be changed at any time ([`Domain::poll_as`](crate::Domain::poll_as)); what is
/// off serves to measure what it is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollPolicy {
    /// A bio that was not split polls the one queue that its cookie names; else it is treated as one that was split.
    pub fast_path: bool,
    /// A poller that finds a queue held by another goes on to the next; else pollers wait for it in turn.
    pub skip_busy: bool,
    /// After so many polls in a row that brought nothing, the poller lets other threads have its CPU. 0: never.
    pub yield_after: u32,
    /// How long an adaptive channel polls before it sleeps ([`Channel::set_adaptive`](crate::Channel::set_adaptive)),
    /// where no device says otherwise.
    pub budget: Duration,
}

impl Default for PollPolicy {
    fn default() -> Self {
        Self { fast_path: true, skip_busy: true, yield_after: 64, budget: Duration::from_micros(20) }
    }
}

/// The policy of a domain, where its channels see it.
pub(crate) struct Policy {
    fast_path: AtomicBool,
    skip_busy: AtomicBool,
    yield_after: AtomicU32,
    budget_ns: AtomicU64,
}

impl Default for Policy {
    fn default() -> Self {
        let policy = Self {
            fast_path: AtomicBool::default(),
            skip_busy: AtomicBool::default(),
            yield_after: AtomicU32::default(),
            budget_ns: AtomicU64::default(),
        };
        policy.set(PollPolicy::default());
        policy
    }
}

impl Policy {
    pub(crate) fn set(&self, to: PollPolicy) {
        self.fast_path.store(to.fast_path, Ordering::Relaxed);
        self.skip_busy.store(to.skip_busy, Ordering::Relaxed);
        self.yield_after.store(to.yield_after, Ordering::Relaxed);
        self.budget_ns.store(u64::try_from(to.budget.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> PollPolicy {
        PollPolicy {
            fast_path: self.fast_path(),
            skip_busy: self.skip_busy(),
            yield_after: self.yield_after(),
            budget: self.budget(),
        }
    }

    #[inline]
    pub(crate) fn fast_path(&self) -> bool {
        self.fast_path.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn skip_busy(&self) -> bool {
        self.skip_busy.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn yield_after(&self) -> u32 {
        self.yield_after.load(Ordering::Relaxed)
    }

    pub(crate) fn budget(&self) -> Duration {
        Duration::from_nanos(self.budget_ns.load(Ordering::Relaxed))
    }
}

/// What polling came to, in all channels of a domain since it was made
/// ([`Domain::poll_totals`](crate::Domain::poll_totals)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PollTotals {
    /// Bios that a poller found, its own and others'.
    pub found: u64,
    /// Those of them that were handed over to the channel they belong to.
    pub handed_over: u64,
    /// Queues that were skipped because another poller held them.
    pub skipped: u64,
    /// Queues that were waited for, which happens only with `skip_busy` off.
    pub waited: u64,
    /// Times that a poller let others have its CPU.
    pub yielded: u64,
}

impl AddAssign for PollTotals {
    fn add_assign(&mut self, other: Self) {
        self.found += other.found;
        self.handed_over += other.handed_over;
        self.skipped += other.skipped;
        self.waited += other.waited;
        self.yielded += other.yielded;
    }
}

/// A channel's share of the [`PollTotals`]: written by who is inside it, read by anybody.
#[derive(Default)]
pub(crate) struct PollCounts {
    pub(crate) found: Count,
    pub(crate) handed_over: Count,
    pub(crate) skipped: Count,
    pub(crate) waited: Count,
    pub(crate) yielded: Count,
}

impl PollCounts {
    pub(crate) fn totals(&self) -> PollTotals {
        PollTotals {
            found: self.found.get(),
            handed_over: self.handed_over.get(),
            skipped: self.skipped.get(),
            waited: self.waited.get(),
            yielded: self.yielded.get(),
        }
    }
}

/// A number with one writer at a time.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
