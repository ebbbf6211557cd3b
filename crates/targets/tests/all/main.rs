//! The targets from outside, in one program: what they share is compiled once.
#![allow(missing_docs)]

mod bios;
mod come_back;
mod hazards;
mod kernel_made;
mod lending;
mod rig;
mod simulated_soak;
mod snapshot_crash;
mod snapshot_memory;
mod snapshots;
mod suspend;
mod tables;
mod thin;
mod thin_crash;
mod throttle;
