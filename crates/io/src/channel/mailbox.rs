//! The mailbox of a channel: bios that were ended elsewhere, and whether the owner sleeps.

use super::record::Record;
use crate::sync::{AtomicBool, AtomicPtr, Ordering, in_total_order};
use std::ptr::{self, NonNull};

/// Written by other threads: a line of its own.
#[repr(align(128))]
pub(super) struct Mailbox {
    /// Last first.
    head: AtomicPtr<Record>,
    sleeping: AtomicBool,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()), sleeping: AtomicBool::new(false) }
    }

    /// Puts a record in that this thread owns. Returns whether the owner has to be woken.
    pub(super) fn push(&self, mut record: NonNull<Record>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the record is this thread's until the exchange succeeds.
            unsafe { record.as_mut() }.next = head;
            match self.head.compare_exchange_weak(head, record.as_ptr(), Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        in_total_order();
        self.is_sleeping()
    }

    /// Takes everything out, as a list in the order in which it came. Inside only.
    pub(super) fn take(&self) -> *mut Record {
        let mut last = self.head.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut first: *mut Record = ptr::null_mut();
        while let Some(mut record) = NonNull::new(last) {
            // SAFETY: the list is this thread's since the swap.
            let r = unsafe { record.as_mut() };
            last = std::mem::replace(&mut r.next, first);
            first = record.as_ptr();
        }
        first
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire).is_null()
    }

    /// Announces that the owner is about to sleep. From here on mail, and a remote poller that moved something, wake
    /// it; what came before is for the owner to look at once more.
    pub(super) fn prepare_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        crate::sync::fence(Ordering::SeqCst);
    }

    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst)
    }
}
