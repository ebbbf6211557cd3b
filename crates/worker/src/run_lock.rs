//! The lock under which a worker is polled, and the rule by which no kick is lost.
//!
//! # No kick is lost
//! A thread that has something for the worker leaves it and then *kicks* the worker. One word says whether a thread
//! holds the lock, and whether there was a kick since. A kick is one exchange of it: it takes the lock if that is free,
//! and is noted there otherwise. The holder takes the note away before it polls the worker, and can let go of the lock
//! only while there is none. All of these are read-modify-writes of one word, so a poll sees whatever was left before
//! the kicks that it takes.
//!
//! # The thread that holds it
//! A device that answers at once leads back to the worker while it is being run, further up the same thread's stack.
//! Such a thread knows that it holds the lock, because its number stands beside the word. Its kicks are plain stores,
//! and what it leaves or wants sent goes to a place that no other thread looks at (`near`).
//!
//! # Invariants
//! - `holder` is the number of the thread that holds the lock, or nothing. Only that thread writes it, and takes it
//!   back before it lets go. So a thread that reads its own number there holds the lock: what it reads is not older than
//!   what it has written itself.
//! - `again`, `near` and `value` are touched only by the thread that holds the lock; `value` only by way of [`Held`],
//!   of which there is one. `near` is not borrowed when the lock is let go of.

use crate::sync::{
    AtomicU8, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    thread_token,
};
use std::cell::{Cell, RefCell, RefMut, UnsafeCell};

/// Nobody holds the lock.
const FREE: u8 = 0;
/// A thread does.
const HELD: u8 = 1;
/// There was a kick that no poll has taken.
const KICKED: u8 = 2;
/// No thread's number.
const NOBODY: usize = 0;

/// A lock around `T`, with an `N` that the thread which holds it reaches without [`Held`].
pub(crate) struct RunLock<T, N> {
    word: AtomicU8,
    holder: AtomicUsize,
    /// A kick by the holder itself.
    again: Cell<bool>,
    near: RefCell<N>,
    value: UnsafeCell<T>,
    /// What the model checker watches in place of the three above.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

// SAFETY: what is not atomic is touched by the thread that holds the lock only, which passes from thread to thread by
// releases and acquisitions of the word.
unsafe impl<T: Send, N: Send> Sync for RunLock<T, N> {}

impl<T, N> RunLock<T, N> {
    pub(crate) fn new(value: T, near: N) -> Self {
        Self {
            word: AtomicU8::new(FREE),
            holder: AtomicUsize::new(NOBODY),
            again: Cell::new(false),
            near: RefCell::new(near),
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Tells the model checker that what is locked is being written.
    #[inline(always)]
    fn watch(&self) {
        #[cfg(loom)]
        self.watched.with_mut(|_| ());
    }

    /// Whether this thread holds the lock.
    #[inline]
    fn is_mine(&self) -> bool {
        self.holder.load(Relaxed) == thread_token()
    }

    /// What only the thread that holds the lock touches, if this is that thread. Not to be kept over a call of anybody.
    #[inline]
    pub(crate) fn near(&self) -> Option<RefMut<'_, N>> {
        self.is_mine().then(|| {
            self.watch();
            self.near.borrow_mut()
        })
    }

    /// Takes the lock, if it is free and there was no kick.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T, N>> {
        self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).ok().map(|_| Held::new(self))
    }

    /// Kicks. Some: this thread is to run the worker. None: the thread that holds the lock will poll it once more.
    #[inline]
    pub(crate) fn kick(&self) -> Option<Held<'_, T, N>> {
        if self.is_mine() {
            self.again.set(true);
            return None;
        }
        self.try_lock().or_else(|| {
            let before = self.word.swap(HELD | KICKED, AcqRel);
            (before & HELD == 0).then(|| Held::new(self))
        })
    }

    /// Notes a kick without taking the lock: the thread that holds it, or the next that takes it, polls the worker.
    pub(crate) fn want(&self) {
        if self.is_mine() {
            self.again.set(true);
        } else {
            self.word.fetch_or(KICKED, AcqRel);
        }
    }

    /// Whether there was a kick that no poll has taken. For people: it may be over.
    pub(crate) fn is_kicked(&self) -> bool {
        self.word.load(Relaxed) & KICKED != 0
    }
}

/// The lock, held by this thread. It is given back by [`unlock`](Self::unlock) or [`put_off`](Self::put_off); dropped
/// otherwise, as by a panic, it stays locked for good.
#[must_use = "the lock is held for good when nobody gives it back"]
pub(crate) struct Held<'a, T, N> {
    lock: &'a RunLock<T, N>,
    /// It does not leave its thread.
    _here: std::marker::PhantomData<*const ()>,
}

impl<'a, T, N> Held<'a, T, N> {
    #[inline]
    fn new(lock: &'a RunLock<T, N>) -> Self {
        lock.watch();
        lock.holder.store(thread_token(), Relaxed);
        Self { lock, _here: std::marker::PhantomData }
    }

    /// Takes the kicks until now: what was left before them is there to be seen.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.lock.again.set(false);
        // One that is not seen here keeps the lock from being let go of.
        if self.lock.is_kicked() {
            self.lock.word.swap(HELD, AcqRel);
        }
    }

    /// Whether there was a kick since.
    #[inline]
    pub(crate) fn is_kicked(&self) -> bool {
        self.lock.again.get() || self.lock.is_kicked()
    }

    /// What is locked.
    #[inline]
    pub(crate) fn value(&mut self) -> &mut T {
        self.lock.watch();
        // SAFETY: this thread holds the lock, by this alone, which is borrowed as long as what is returned.
        unsafe { &mut *self.lock.value.get() }
    }

    /// What the thread that holds the lock touches.
    #[inline]
    pub(crate) fn near(&mut self) -> RefMut<'_, N> {
        self.lock.watch();
        self.lock.near.borrow_mut()
    }

    fn let_go(&self) {
        // A borrow kept here would be shared with the next holder.
        assert!(self.lock.near.try_borrow_mut().is_ok(), "kept over the end of a run");
        self.lock.watch();
        self.lock.holder.store(NOBODY, Relaxed);
    }

    /// Lets go of the lock. Given back when there was a kick since [`begin`](Self::begin).
    #[inline]
    pub(crate) fn unlock(self) -> Result<(), Self> {
        if self.lock.again.get() {
            return Err(self);
        }
        self.let_go();
        match self.lock.word.compare_exchange(HELD, FREE, Release, Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Self::new(self.lock)),
        }
    }

    /// Lets go of the lock, though there may be more to do: the next to kick the worker polls it for that, too.
    pub(crate) fn put_off(self) {
        self.let_go();
        self.lock.word.swap(KICKED, AcqRel);
    }
}
