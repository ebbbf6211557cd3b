//! Nodes: devices as files of the host's file system.
//!
//! - [`fuse`]: a file for each device, in one FUSE mount. Works without root where fusermount3 is installed
//! - [`loopdev`]: a loop device of the kernel on top of such a file: a true block device, for root
//!
//! # Invariants
//! - Nothing of a dead daemon is ever used: a mount or a loop device that is found is ended, not adopted.
//! - What belongs to somebody else (another mount, another file's loop device) is left alone, with an error.

mod apart;
pub mod fuse;
pub mod loopdev;
mod sys;

pub(crate) use sys::set_read_only;
