//! Polled I/O: device queues, the channels that poll them, and the cookies that say which.
//!
//! # How a polled bio goes
//! A device that can be polled has a [`QueueSet`]; each channel maps to one of its queues, several perhaps to the same.
//! Submitted HIPRI, a bio is pushed to that queue without a lock. The submitter polls: it tries the queue's lock, takes
//! in what was pushed, and ends what is done. What it finds of other channels goes home by their mailboxes.
//!
//! # Which queues are polled
//! The bio as it was submitted, not its clones, has the [`Cookie`]. One that reached one queue names it: that queue is
//! polled and no other (fast path). One that was split and reached several has this channel's queues polled, those that
//! bios of the channel are on (sub-fast path). If somebody else submitted a part in the owner's place, or the queues of
//! a device were changed in between, all queues of the devices are polled (default path).
//!
//! # Invariants
//! - A poller never waits for a lock, unless it was told to ([`PollPolicy::skip_busy`]).
//! - No bio is ended while a queue is held: what completes may submit, and poll.
//! - A queue that is out of use is polled until its last bio has left it. Queues are freed with their set only, and an
//!   entry of a channel keeps the set while bios of the channel are on it.
//! - A cookie is advice where to look first. What is not found there is looked for everywhere after [`EVERYWHERE`]
//!   rounds, so that a stale or foreign one costs time and loses nothing.

mod cookie;
#[cfg(all(test, loom))]
mod models;
mod policy;
mod queue;
mod set;
mod source;

pub(crate) use cookie::Polled;
pub use cookie::{Cookie, PollPath};
pub(crate) use policy::{Policy, PollCounts};
pub use policy::{PollPolicy, PollTotals};
pub use queue::{Batch, Driver, Incoming};
pub use set::QueueSet;
pub use source::{Polls, again_by_interrupt};

/// After so many empty rounds in a row a channel looks into every queue.
const EVERYWHERE: u32 = 32;
