//! Frames of clients' bios that a worker has to learn of: the part of the framework that has to vouch for pointers.

use crate::flights::Epoch;
use crate::worker::{Service, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_io::{Bio, Cx};

impl<S: Service> Worker<S> {
    /// Has a bio that has [entered](Self::enter) an epoch leave it when it has come back from where it is sent now.
    /// Allocates nothing.
    ///
    /// # Safety
    /// The worker stays while the bio is in flight.
    #[inline]
    pub unsafe fn carry(&self, bio: &mut Bio, epoch: Epoch) {
        const { assert!(std::mem::align_of::<Self>() >= 2, "the epoch's bit is free") };
        let word = std::ptr::from_ref(self).map_addr(|addr| addr | epoch.bit());
        // SAFETY: `landed` gets what it expects, and the worker stays: the contract.
        let pushed = unsafe { bio.push_frame(landed::<S>, word.cast()) };
        assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
    }

    /// Has the worker learn of a bio that has come back from where it is sent now, with the sector that it has now:
    /// `back` makes an event of it, and gives it back when it is to go on. Allocates a box for `back`.
    pub fn watch<F>(self: &Arc<Self>, bio: &mut Bio, back: F)
    where
        F: FnOnce(Bio) -> (S::Event, Option<Bio>) + Send + 'static,
    {
        self.watched.fetch_add(1, Ordering::AcqRel);
        let word = Box::into_raw(Box::new((self.clone(), back)));
        // SAFETY: the box is `came_back`'s.
        let pushed = unsafe { bio.push_frame(came_back::<S, F>, word.cast_const().cast()) };
        assert!(pushed, "core leaves room for a frame of a target that takes bios themselves");
    }
}

/// # Safety
/// `word` is a worker, its lowest bit the epoch, and the worker is there while the bio is in flight.
unsafe fn landed<S: Service>(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
    let epoch = Epoch::from_bit(word.addr() & 1);
    // SAFETY: the contract.
    let worker = unsafe { &*word.cast::<Worker<S>>().map_addr(|addr| addr & !1) };
    worker.leave_epoch(cx, epoch);
    Some(bio)
}

/// # Safety
/// `word` is the box that [`Worker::watch`] has made.
unsafe fn came_back<S, F>(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio>
where
    S: Service,
    F: FnOnce(Bio) -> (S::Event, Option<Bio>),
{
    // SAFETY: the contract.
    let (worker, back) = *unsafe { Box::from_raw(word.cast_mut().cast::<(Arc<Worker<S>>, F)>()) };
    let (event, bio) = back(bio);
    worker.leave(event);
    worker.watched.fetch_sub(1, Ordering::AcqRel);
    worker.kick(cx);
    bio
}
