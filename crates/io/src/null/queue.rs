//! The queue of a null device that is polled: bios that complete when someone asks, not before their time.

use crate::bio::{Bio, Record};
use crate::{Nanos, Status};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Bios that one hold of the queue completes at most.
const BATCH: usize = 32;

/// A device queue that several channels share.
///
/// Submitters push without a lock. Pollers take turns by a try-lock: who finds the queue held by another poller
/// skips it, since that one completes what is due. No bio is ended while the queue is held.
#[repr(align(128))]
pub(crate) struct PollQueue {
    /// What was pushed and not yet seen by a poller, last first.
    incoming: AtomicPtr<Record>,
    held: AtomicBool,
    /// Oldest first. Only touched by who holds the queue.
    waiting: UnsafeCell<VecDeque<Bio>>,
}

// SAFETY: `waiting` is only touched under `held`; the rest is atomic.
unsafe impl Sync for PollQueue {}
// SAFETY: bios may be sent to any thread, and `incoming` owns the records that it leads to.
unsafe impl Send for PollQueue {}

impl PollQueue {
    pub(crate) fn new() -> Self {
        Self { incoming: AtomicPtr::new(ptr::null_mut()), held: AtomicBool::new(false), waiting: UnsafeCell::default() }
    }

    /// Lets a bio wait until `due`. Lock-free, from any thread.
    #[inline]
    pub(crate) fn push(&self, mut bio: Bio, due: Nanos) {
        bio.set_word(due.0);
        let mut record = bio.into_record();
        let mut head = self.incoming.load(Ordering::Relaxed);
        loop {
            // SAFETY: the record is this thread's until the exchange succeeds.
            unsafe { record.as_mut() }.next = head;
            match self.incoming.compare_exchange_weak(head, record.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Completes what is due. Returns how many, or `None` when another poller holds the queue.
    #[inline]
    pub(crate) fn poll(&self, now: Nanos) -> Option<usize> {
        let mut moved = 0;
        loop {
            if self.held.swap(true, Ordering::Acquire) {
                return (moved > 0).then_some(moved);
            }
            let mut batch = [const { None }; BATCH];
            let n = {
                // SAFETY: `held` is this thread's; the reference ends before it is given back.
                let waiting = unsafe { &mut *self.waiting.get() };
                self.take_in(waiting);
                due(waiting, now, &mut batch)
            };
            self.held.store(false, Ordering::Release);
            batch.into_iter().flatten().for_each(|bio| bio.end(Status::Ok));
            moved += n;
            if n < BATCH {
                return Some(moved);
            }
        }
    }

    /// Moves what was pushed to the end of the line, in the order in which it came.
    fn take_in(&self, waiting: &mut VecDeque<Bio>) {
        if self.incoming.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut last = self.incoming.swap(ptr::null_mut(), Ordering::Acquire);
        let from = waiting.len();
        while let Some(mut record) = NonNull::new(last) {
            // SAFETY: the list is this thread's since the swap.
            last = std::mem::replace(&mut unsafe { record.as_mut() }.next, ptr::null_mut());
            waiting.push_back(Bio::from_record(record));
        }
        if waiting.len() - from > 1 {
            waiting.make_contiguous()[from..].reverse();
        }
    }
}

fn due(waiting: &mut VecDeque<Bio>, now: Nanos, batch: &mut [Option<Bio>; BATCH]) -> usize {
    let mut n = 0;
    while n < BATCH && waiting.front().is_some_and(|bio| bio.word() <= now.0) {
        batch[n] = waiting.pop_front();
        n += 1;
    }
    n
}
