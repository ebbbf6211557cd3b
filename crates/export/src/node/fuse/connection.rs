//! A connection to the kernel: what one mount's requests come by.
//!
//! The directory is a mount, and so is each node's file, on top of its place in the directory. `/dev/fuse` is one queue
//! for each mount, the first request first, and a request that was read has to be kept: so whoever shares a connection
//! with a device that does not answer waits behind it, sooner or later. A node's requests therefore wait in a queue of
//! its own, where their data is still the callers' memory.

use super::mount::Mounted;
use super::tree::{Node, lock};
use super::wire::{InvalInode, NOTIFY_INVAL_INODE, OutHeader, ROOT};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

/// A mount's connection. It ends with its last descriptor, of which this is one.
pub(super) struct Connection {
    /// By which handles know it; never used again.
    pub(super) id: u64,
    fd: OwnedFd,
    /// Whose file is mounted; `None` for the directory.
    pub(super) node: Option<Arc<Node>>,
    /// While its mount is to be seen.
    mounted: Mutex<Option<Mounted>>,
    /// Whether requests may come by io_uring.
    pub(super) rings: bool,
    /// They do.
    by_ring: AtomicBool,
    gone: AtomicBool,
}

impl Connection {
    pub(super) fn new(id: u64, fd: OwnedFd, node: Option<Arc<Node>>, mounted: Option<Mounted>, rings: bool) -> Self {
        let (by_ring, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { id, fd, node, mounted: Mutex::new(mounted), rings, by_ring, gone }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(super) fn is_of(&self, node: &Arc<Node>) -> bool {
        self.node.as_ref().is_some_and(|own| Arc::ptr_eq(own, node))
    }

    /// Takes its mount out of the caller's hands, or of sight.
    pub(super) fn take_mounted(&self) -> Option<Mounted> {
        lock(&self.mounted).take()
    }

    pub(super) fn by_ring(&self) -> bool {
        self.by_ring.load(Ordering::Acquire)
    }

    pub(super) fn set_by_ring(&self, on: bool) {
        self.by_ring.store(on, Ordering::Release);
    }

    /// Notes that the kernel has ended it. Whether that is news.
    pub(super) fn set_gone(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    /// Whether the kernel has ended it, as far as somebody has noticed.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Has the kernel forget the attributes of the node's file, if it knows of it here.
    pub(super) fn forget_attributes(&self, node: &Node) {
        let ino = if self.node.is_some() { ROOT } else { node.file_ino() };
        // Attributes alone; there are no pages but of shared mappings, which stay.
        let message = InvalInode { ino, off: -1, len: 0 };
        let len = size_of::<OutHeader>() + size_of::<InvalInode>();
        let header = OutHeader { len: len as u32, error: NOTIFY_INVAL_INODE, unique: 0 };
        // Fails when the kernel does not know the inode, which is as well.
        let _ = rustix::io::writev(&self.fd, &[IoSlice::new(header.as_bytes()), IoSlice::new(message.as_bytes())]);
    }
}
