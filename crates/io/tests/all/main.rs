//! Channels, bios and the devices in memory from outside, in one program.
#![allow(clippy::undocumented_unsafe_blocks)]

#[macro_use]
mod plain;

mod adaptive;
mod channel;
mod internal;
mod null;
mod orphans;
mod zero;
