//! The devices of one process: what lies beneath is opened, and polled through stacks.
#![allow(clippy::undocumented_unsafe_blocks)]

mod opening;
mod polling;
