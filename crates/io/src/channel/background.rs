//! The domain's side of background work, which goes on even if no thread submits.
//!
//! Channels know nothing of such work but one hook, [`Background`]. Its implementation decides what is done and when.
//! Here is what it needs of a domain: a channel, polling of channels whose threads are elsewhere, and a way to run in a
//! simulated domain, which has no threads.

use super::shared::Domain;
use crate::Nanos;
use std::any::Any;

/// Does a domain's background work. Each domain has one at most.
pub trait Background: Any + Send + Sync {
    /// Internal I/O has been left on a channel that no longer has an owner: until it is home, the background work has
    /// to [poll it remotely](Domain::poll_remotely). Called outside of channels. Must not block.
    fn left_behind(&self);

    /// In a simulated domain: does the work that is due, whenever a channel is polled or waits. Returns when the next
    /// work is due. Called outside of channels.
    fn turn(&self, domain: &Domain) -> Option<Nanos>;
}
