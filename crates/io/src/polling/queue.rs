//! A device queue: what was submitted to be polled for, and the try-lock of those who poll.

use crate::Bio;
use crate::channel::Record;
use crate::sync::{AtomicPtr, AtomicU32, Ordering, yield_now};
use crate::{Cx, Nanos};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

/// Bios that one hold of the queue ends at most.
const BATCH: usize = 32;
/// Looks at a queue that is held before the CPU is given away, where pollers wait in turn.
const LOOKS: u32 = 32;

/// Bios that are done, to be ended when the queue is not held any more. Room for them is not cleared before: polls that
/// bring little would spend their time on that.
pub struct Batch {
    bios: [MaybeUninit<Bio>; BATCH],
    /// So many from the front are there.
    len: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { bios: [const { MaybeUninit::uninit() }; BATCH], len: 0 }
    }

    /// Ends all, in their order, inside `cx`. Returns how many.
    #[inline]
    fn end(&mut self, cx: &Cx<'_>) -> usize {
        let len = std::mem::take(&mut self.len);
        for bio in &mut self.bios[..len] {
            // SAFETY: there, and read once, since `len` is 0 now.
            cx.end_noted(unsafe { bio.assume_init_read() });
        }
        len
    }

    /// Whether it takes no more.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Takes a bio, whose status is what it has noted. Not when full.
    #[inline]
    pub fn push(&mut self, bio: Bio) {
        self.bios[self.len].write(bio);
        self.len += 1;
    }
}

/// What was pushed to a queue, in the order in which it came. To be taken to its end.
pub struct Incoming(*mut Record);

impl Incoming {
    /// Turns the list around that ends with `last`, each of which leads to the one before.
    fn until(mut last: *mut Record) -> Self {
        let mut first: *mut Record = ptr::null_mut();
        while let Some(mut record) = NonNull::new(last) {
            // SAFETY: the list is the caller's, who took it out.
            let r = unsafe { record.as_mut() };
            last = std::mem::replace(&mut r.next, first);
            first = record.as_ptr();
        }
        Self(first)
    }
}

impl Iterator for Incoming {
    type Item = Bio;

    #[inline]
    fn next(&mut self) -> Option<Bio> {
        let mut record = NonNull::new(self.0)?;
        // SAFETY: the list's, which is of one owner.
        self.0 = std::mem::replace(&mut unsafe { record.as_mut() }.next, ptr::null_mut());
        Some(Bio::from_record(record))
    }
}

/// What a kind of device does with the bios of a queue. Called by who holds it.
pub trait Driver: Send + 'static {
    /// Takes a bio that was submitted, in order. Must not end it.
    fn take_in(&mut self, bio: Bio);

    /// Takes all that were submitted since it was asked last: one call through the trait object for all of them.
    #[inline]
    fn take_in_all(&mut self, bios: Incoming) {
        bios.for_each(|bio| self.take_in(bio));
    }

    /// Starts what was taken in and gives what is done, as far as there is room. Must not block.
    fn reap(&mut self, now: Nanos, batch: &mut Batch);
}

/// Who may touch the driver: a lock that is tried, or waited for in turn.
struct Turns {
    next: AtomicU32,
    serving: AtomicU32,
}

impl Turns {
    fn new() -> Self {
        Self { next: AtomicU32::new(0), serving: AtomicU32::new(0) }
    }

    /// Takes it if nobody has it or waits for it.
    #[inline]
    fn try_take(&self) -> bool {
        let serving = self.serving.load(Ordering::Acquire);
        self.next.load(Ordering::Relaxed) == serving
            && self
                .next
                .compare_exchange(serving, serving.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Waits for one's turn.
    #[cold]
    fn wait(&self) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        while self.serving.load(Ordering::Acquire) != mine {
            looks += 1;
            if looks % LOOKS == 0 || cfg!(loom) { yield_now() } else { std::hint::spin_loop() }
        }
    }

    #[inline]
    fn give_back(&self) {
        self.serving.store(self.serving.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// How an attempt to poll a queue went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Polled {
    /// So many bios were ended; whether another poller had to be waited for.
    Done { found: usize, waited: bool },
    /// Another poller holds it, and ends what is done.
    Skipped,
}

/// A queue of a device that is polled. Several channels may share it.
#[repr(align(128))]
pub(crate) struct DeviceQueue<D: ?Sized = dyn Driver> {
    /// What was pushed and not yet seen by a poller, last first.
    incoming: AtomicPtr<Record>,
    turns: Turns,
    /// Of this queue and no other of the process.
    pub(super) serial: u64,
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
    /// Only touched by who has the turn.
    driver: UnsafeCell<D>,
}

// SAFETY: `driver` is only touched by who has the turn; the rest is atomic or never changes.
unsafe impl<D: Driver + ?Sized> Sync for DeviceQueue<D> {}
// SAFETY: bios may be sent to any thread, and `incoming` owns the records that it leads to.
unsafe impl<D: Driver + ?Sized> Send for DeviceQueue<D> {}

impl<D: Driver> DeviceQueue<D> {
    pub(super) fn new(driver: D) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        Self {
            incoming: AtomicPtr::new(ptr::null_mut()),
            turns: Turns::new(),
            serial: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
            driver: UnsafeCell::new(driver),
        }
    }
}

impl<D: Driver + ?Sized> DeviceQueue<D> {
    /// Puts a bio on the queue. Lock-free, from any thread.
    #[inline]
    pub(super) fn push(&self, bio: Bio) {
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

    /// Ends what is done. With `skip` a queue that another poller holds is left to that one.
    #[inline]
    pub(super) fn poll(&self, cx: &Cx<'_>, now: Nanos, skip: bool) -> Polled {
        let (mut found, mut waited) = (0, false);
        let mut batch = Batch::new();
        loop {
            if !self.turns.try_take() {
                if skip {
                    return if found > 0 { Polled::Done { found, waited } } else { Polled::Skipped };
                }
                self.turns.wait();
                waited = true;
            }
            self.held(now, &mut batch);
            self.turns.give_back();
            let len = batch.end(cx);
            found += len;
            if len < BATCH {
                return Polled::Done { found, waited };
            }
        }
    }

    /// What is done by who has the turn.
    #[inline]
    fn held(&self, now: Nanos, batch: &mut Batch) {
        #[cfg(loom)]
        self.watched.with_mut(|_| ());
        // SAFETY: this thread has the turn, and the reference ends before it is given back.
        let driver = unsafe { &mut *self.driver.get() };
        if !self.incoming.load(Ordering::Relaxed).is_null() {
            driver.take_in_all(Incoming::until(self.incoming.swap(ptr::null_mut(), Ordering::Acquire)));
        }
        driver.reap(now, batch);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_one_at_a_time_and_in_order() {
        let turns = Turns::new();
        turns.next.store(u32::MAX, Ordering::Relaxed);
        turns.serving.store(u32::MAX, Ordering::Relaxed);
        assert!(turns.try_take());
        assert!(!turns.try_take(), "held");
        turns.give_back();
        turns.wait();
        assert!(!turns.try_take(), "held by who waited");
        turns.give_back();
        assert!(turns.try_take(), "free again, past the end of the numbers");
    }
}
