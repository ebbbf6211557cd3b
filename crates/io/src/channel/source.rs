//! What completes bios of a channel and has to be asked.

use super::cx::Cx;
use rustix::fd::{BorrowedFd, RawFd};
use std::any::Any;
use std::io;
use std::time::Duration;

/// Something that completes bios of a channel and has to be asked: a ring, a queue that is polled.
///
/// Threads that look after the channel in its owner's place use it too, one at a time.
pub trait Source: Any + Send {
    /// Starts what has been queued, and completes what is done. Returns how many bios moved. Must not block.
    fn poll(&self, cx: &Cx<'_>) -> usize;

    /// A descriptor that becomes readable when `poll` has something to do; `None` when it has to be asked in turns.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Whether bios are out there.
    fn is_busy(&self) -> bool;

    /// Whether the channel must not sleep now, because no descriptor would wake it.
    fn must_poll(&self) -> bool {
        false
    }

    /// A way to sleep in the kernel that ends when the source has something to complete or `others`, which stands for
    /// all else that the channel waits for, is readable. For a source that is busy; one that has it gives no
    /// [`fd`](Self::fd). Saves the system calls of sleeping elsewhere.
    fn prepare_sleep(&self, others: BorrowedFd<'_>) -> Option<Sleep> {
        let _ = others;
        None
    }

    /// Ends what [`prepare_sleep`](Self::prepare_sleep) began. Whether `others` was readable.
    fn after_sleep(&self) -> bool {
        true
    }
}

/// How to sleep on a source, outside of the channel: a remote poller may be inside meanwhile.
#[derive(Clone, Copy)]
pub struct Sleep {
    /// The source's descriptor, which stays open as long as its channel.
    pub fd: RawFd,
    /// Requests that are queued and not started, which the call starts before it sleeps.
    pub queued: u32,
    /// Given both and a timeout, blocks for that long at most; interrupted, it returns.
    pub sleep: fn(RawFd, u32, Option<Duration>) -> io::Result<()>,
}
