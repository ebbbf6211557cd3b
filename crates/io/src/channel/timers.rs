//! The timers of a channel: actions on bios at a later time.

use super::bio::Bio;
use super::cx::Cx;
use crate::Nanos;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// The action on a bio when its time has come.
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

/// The timers of a channel; equal times run in the order they were set.
#[derive(Default)]
pub(crate) struct Timers {
    /// Those that were each set for later than the one before: who delays all by the same time sets only such, and
    /// neither setting nor taking one looks at the others.
    line: VecDeque<Timer>,
    /// The others.
    heap: BinaryHeap<Reverse<Timer>>,
    seq: u64,
}

impl Timers {
    /// Sets a timer. `owner` can have all of its timers run early; 0 for no owner.
    pub(crate) fn set(&mut self, at: Nanos, owner: usize, bio: Bio, func: TimerFn) {
        self.seq += 1;
        let timer = Timer { at, seq: self.seq, owner, bio, func };
        if self.line.back().is_none_or(|last| last.at <= at) {
            self.line.push_back(timer);
        } else {
            self.heap.push(Reverse(timer));
        }
    }

    /// Takes out all timers of an owner, in the order in which they would have run. Costs a look at every timer.
    pub(crate) fn take_of(&mut self, owner: usize) -> Vec<(Bio, TimerFn)> {
        self.take_if(|timer| timer.owner == owner)
    }

    /// The same of every owner.
    pub(super) fn take_owned(&mut self) -> Vec<(Bio, TimerFn)> {
        self.take_if(|timer| timer.owner != 0)
    }

    /// Whether there are timers without an owner.
    pub(super) fn has_others(&self) -> bool {
        self.line.iter().chain(self.heap.iter().map(|timer| &timer.0)).any(|timer| timer.owner == 0)
    }

    fn take_if(&mut self, which: impl Fn(&Timer) -> bool) -> Vec<(Bio, TimerFn)> {
        let heap = std::mem::take(&mut self.heap).into_iter().map(|Reverse(timer)| timer);
        let (mut taken, others): (Vec<_>, Vec<_>) = heap.partition(&which);
        self.heap = others.into_iter().map(Reverse).collect();
        for timer in std::mem::take(&mut self.line) {
            if which(&timer) { taken.push(timer) } else { self.line.push_back(timer) }
        }
        taken.sort_unstable();
        taken.into_iter().map(|timer| (timer.bio, timer.func)).collect()
    }

    /// When the first one is due.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        match (self.line.front(), self.heap.peek()) {
            (Some(one), Some(Reverse(other))) => Some(one.at.min(other.at)),
            (Some(one), None) => Some(one.at),
            (None, other) => other.map(|timer| timer.0.at),
        }
    }

    /// The first timer whose time has come.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<(Bio, TimerFn)> {
        if self.next()? > now {
            return None;
        }
        let from_line = match (self.line.front(), self.heap.peek()) {
            (Some(one), Some(Reverse(other))) => one < other,
            (one, _) => one.is_some(),
        };
        let timer = if from_line { self.line.pop_front() } else { self.heap.pop().map(|Reverse(timer)| timer) };
        timer.map(|timer| (timer.bio, timer.func))
    }
}
