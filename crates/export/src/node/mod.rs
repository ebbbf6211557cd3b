//! Nodes: devices as files of the host's file system.
//!
//! - [`fuse`]: a file for each device, in one FUSE mount. Works without root where fusermount3 is installed
//! - [`loopdev`]: a loop device of the kernel on top of such a file: a true block device, for root
//!
//! # Invariants
//! - Nothing of a dead daemon is used: its mount and loop devices are ended, not adopted.
//! - Another owner's mount, or another file's loop device, is left alone, with an error.

mod apart;
pub mod fuse;
pub mod loopdev;
pub mod mounted;
mod sys;

pub(crate) use sys::set_read_only;
