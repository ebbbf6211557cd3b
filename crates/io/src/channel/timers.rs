//! The timers of a channel: bios that something is to be done with at a later time.

use super::bio::Bio;
use super::cx::Cx;
use crate::Nanos;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What is done with a bio when its time has come.
pub(crate) type TimerFn = fn(&Cx<'_>, Bio);

struct Timer {
    at: Nanos,
    seq: u64,
    owner: usize,
    bio: Bio,
    func: TimerFn,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// A heap of timers; equal times run in the order they were set.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    seq: u64,
}

impl Timers {
    /// Sets one. `owner` is whoever may want all of its timers run early; 0 for nobody.
    pub(crate) fn set(&mut self, at: Nanos, owner: usize, bio: Bio, func: TimerFn) {
        self.seq += 1;
        self.heap.push(Reverse(Timer { at, seq: self.seq, owner, bio, func }));
    }

    /// Takes out all timers of an owner, in the order in which they would have run. Costs a look at every timer.
    pub(crate) fn take_of(&mut self, owner: usize) -> Vec<(Bio, TimerFn)> {
        self.take_if(|timer| timer.owner == owner)
    }

    /// The same of every owner.
    pub(super) fn take_owned(&mut self) -> Vec<(Bio, TimerFn)> {
        self.take_if(|timer| timer.owner != 0)
    }

    /// Whether there are some that nobody owns.
    pub(super) fn has_others(&self) -> bool {
        self.heap.iter().any(|timer| timer.0.owner == 0)
    }

    fn take_if(&mut self, which: impl Fn(&Timer) -> bool) -> Vec<(Bio, TimerFn)> {
        let all = std::mem::take(&mut self.heap).into_vec();
        let (mut taken, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|timer| which(&timer.0));
        self.heap = others.into();
        taken.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        taken.into_iter().map(|Reverse(timer)| (timer.bio, timer.func)).collect()
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|t| t.0.at)
    }

    /// The first timer whose time has come.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<(Bio, TimerFn)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(t)| (t.bio, t.func))
    }
}
