//! The modules that may hold `unsafe`: buffers, rings and shared memory. A new name
//! here wants a reason in the commit that adds it.

/// Paths from the workspace's root.
pub(super) const UNSAFE_MODULES: &[&str] = &["crates/base/src/aligned.rs"];
