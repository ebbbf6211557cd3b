//! One file a target; [`crate::TARGETS`] lists them.

pub mod args;
