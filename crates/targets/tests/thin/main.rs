//! The targets `thin-pool` and `thin`, as a table and a client see them.
#![allow(missing_docs)]

#[path = "../rig/mod.rs"]
mod rig;

mod channels;
mod commits;
mod deletions;
mod discards;
mod doubts;
mod failures;
mod lifecycle;
mod many;
mod messages;
mod origins;
mod pools;
mod reuse;
mod shortage;
mod snapshots;
mod space;
mod stillness;
mod suspension;
mod tables;
mod threads;
mod zero_skip;
mod zero_writes;
