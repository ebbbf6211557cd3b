//! What the rule of the kicks stands on: the system's atomics, or with `--cfg loom` those of the model checker
//! (`models.rs`).

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

#[cfg(loom)]
pub(crate) use {
    crate::models::try_lock::Mutex,
    loom::sync::atomic::{AtomicBool, Ordering},
};
