//! The domain's side of background work: what goes on though no thread that submits comes by.
//!
//! Channels know nothing of such work but one hook, [`Background`]. What implements it decides what is done and when;
//! here is what it needs of a domain: a channel, a look at channels whose threads are elsewhere, and a place to run in
//! a simulated domain, which has no threads.

use super::shared::Domain;
use crate::Nanos;
use std::any::Any;

/// What does a domain's background work. Each domain has one at most.
pub trait Background: Any + Send + Sync {
    /// Internal I/O has been left on a channel that is nobody's any more: until it is home somebody has to
    /// [poll it remotely](Domain::poll_remotely). Called outside of channels. Must not block.
    fn left_behind(&self);

    /// In a simulated domain: does what is due, whenever a channel is polled or waits. Gives the time of what is due
    /// next. Called outside of channels.
    fn turn(&self, domain: &Domain) -> Option<Nanos>;
}
