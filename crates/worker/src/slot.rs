//! Where an awaited operation leaves its result: written once, taken once, without a lock.

use crate::sync::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::cell::UnsafeCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

struct Slot<T> {
    /// There is a result. Set once, by the one that has filled it in.
    done: AtomicBool,
    /// Before that the [`Filler`]'s, afterwards the [`Awaited`]'s.
    result: UnsafeCell<Option<T>>,
    /// What the model checker watches in its place.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

impl<T> Slot<T> {
    /// Tells the model checker that the result is being touched.
    #[inline(always)]
    fn watch(&self) {
        #[cfg(loom)]
        self.watched.with_mut(|_| ());
    }
}

// SAFETY: of two threads only the one that `done` says touches the result.
unsafe impl<T: Send> Sync for Slot<T> {}

/// The end of an operation that is under way. It goes on when this is dropped.
pub struct Awaited<T>(Arc<Slot<T>>);

/// What fills in the result.
pub(crate) struct Filler<T>(Arc<Slot<T>>);

/// An operation's two ends.
pub(crate) fn slot<T>() -> (Filler<T>, Awaited<T>) {
    let slot = Arc::new(Slot {
        done: AtomicBool::new(false),
        result: UnsafeCell::new(None),
        #[cfg(loom)]
        watched: loom::cell::UnsafeCell::new(()),
    });
    (Filler(slot.clone()), Awaited(slot))
}

impl<T> Filler<T> {
    pub(crate) fn fill(self, result: T) {
        self.0.watch();
        // SAFETY: there is one filler, this is its end, and nobody has been told that it is done.
        unsafe { *self.0.result.get() = Some(result) };
        self.0.done.store(true, Release);
    }
}

impl<T> Future for Awaited<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        if !self.0.done.load(Acquire) {
            return Poll::Pending;
        }
        self.0.watch();
        // SAFETY: it is done, so that the filler is gone; there is one that awaits it, and this has it.
        unsafe { &mut *self.0.result.get() }.take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_result_is_there_once() {
        let cx = &mut Context::from_waker(Waker::noop());
        let (filler, mut awaited) = slot();
        assert_eq!(Pin::new(&mut awaited).poll(cx), Poll::Pending, "not yet");
        filler.fill(7);
        assert_eq!(Pin::new(&mut awaited).poll(cx), Poll::Ready(7));
        assert_eq!(Pin::new(&mut awaited).poll(cx), Poll::Pending, "taken");
    }
}
