//! The atomics for the kicks: the system's, or with `--cfg loom` those of the model checker (`models.rs`).

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
};

/// A number that no other living thread has. Not 0.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|t| std::ptr::from_ref(t).addr())
}

#[cfg(loom)]
pub(crate) fn thread_token() -> usize {
    // The model's threads share one of the system's.
    loom::thread_local!(static TOKEN: Box<u8> = Box::new(0));
    TOKEN.with(|t| std::ptr::from_ref(&**t).addr())
}
