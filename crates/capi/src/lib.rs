//! Layer 6: `libudm`, a stack of devices in a program of one's own, for C and whoever speaks it.
//!
//! The face is `include/udm.h`; what a function does, takes and answers is told there. A *stack* is the devices of one
//! concise specification and may be used by every thread. A *queue* is one thread's way to one device of a stack.
//!
//! # Invariants
//! - No call panics across the border: what a caller can get wrong is an errno with a text.
//! - A pointer that is null where one is needed is EINVAL. Other nonsense in place of a pointer cannot be found out.
//! - What the header declares is what is defined here, in both directions (`tests/header.rs`).

pub mod command;
pub mod error;
pub mod queue;
pub mod stack;
