//! The timers of a channel: bios that something is to be done with at a later time.

use crate::bio::Bio;
use crate::{Cx, Nanos};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What is done with a bio when its time has come.
pub(crate) type TimerFn = fn(&Cx<'_>, Bio);

struct Timer {
    at: Nanos,
    seq: u64,
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
    pub(crate) fn set(&mut self, at: Nanos, bio: Bio, func: TimerFn) {
        self.seq += 1;
        self.heap.push(Reverse(Timer { at, seq: self.seq, bio, func }));
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
