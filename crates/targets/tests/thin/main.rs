//! The targets `thin-pool` and `thin`, as a table and a client see them.
#![allow(missing_docs)]

#[path = "../rig/mod.rs"]
mod rig;

mod lifecycle;
mod pools;
