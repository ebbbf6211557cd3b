//! Atomics and barriers: the system's, or with `--cfg loom` those of the model checker (see `channel/models.rs`).

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread::yield_now,
};

#[cfg(not(loom))]
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// A number that no other living thread has.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|t| std::ptr::from_ref(t) as usize)
}

#[cfg(loom)]
pub(crate) fn thread_token() -> usize {
    // The model's threads share one of the system's.
    loom::thread_local!(static TOKEN: Box<u8> = Box::new(0));
    TOKEN.with(|t| &raw const **t as usize)
}

/// Whether [`heavy_barrier`] can make other threads pass a barrier, so that [`light_barrier`] needs none of its own.
#[cfg(not(loom))]
pub(crate) fn is_asymmetric() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    })
}

#[cfg(loom)]
pub(crate) const fn is_asymmetric() -> bool {
    false
}

/// The frequent side of a pair of barriers: what this thread stored before, or what the other side did, is seen by the
/// loads that follow on at least one of the two sides.
#[inline]
pub(crate) fn light_barrier(asymmetric: bool) {
    #[cfg(not(loom))]
    if asymmetric {
        return compiler_fence(Ordering::SeqCst);
    }
    debug_assert!(!asymmetric, "the model has a fence on both sides");
    fence(Ordering::SeqCst);
}

/// The rare side: every thread of the process passes a full barrier, this one too (membarrier(2), about 1 µs).
#[cold]
pub(crate) fn heavy_barrier(asymmetric: bool) {
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if asymmetric {
        // Registered in is_asymmetric, so that it cannot fail.
        membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier is registered");
    }
    #[cfg(loom)]
    let _ = asymmetric;
}

/// Where two accesses with SeqCst are one after the other: the model takes these for AcqRel, and needs a fence.
#[inline(always)]
pub(crate) fn in_total_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
