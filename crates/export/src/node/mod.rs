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

use std::any::Any;
use std::sync::Arc;
use udm_base::Errno;
use udm_io::BlockDevice;

/// What a node is made of. Called from the server's threads; may block briefly.
pub trait NodeDevice: Send + Sync {
    /// The device. It must be the same at every call.
    fn device(&self) -> Arc<dyn BlockDevice>;

    /// Whether writes are refused now.
    fn read_only(&self) -> bool;

    /// Counts the device as open until the answer is dropped.
    ///
    /// # Errors
    /// What open(2) of the node is to fail with.
    fn open(&self) -> Result<Box<dyn Any + Send>, Errno>;

    /// What the device is known by, here and to a server that goes on in the place of this one.
    fn name(&self) -> String;

    /// Whether what was written can be lost with this process before a flush. A node that outlives the process writes through then.
    fn write_through(&self) -> bool {
        false
    }
}
