//! Polled I/O: device queues, the channels that poll them, and the cookies that say which.
//!
//! # How a polled bio goes
//! A device that can be polled has a [`QueueSet`]; each channel maps to one of its queues, several perhaps to the same.
//! Submitted HIPRI, a bio is pushed to that queue without a lock. The submitter polls: it tries the queue's lock, takes
//! in the pushed bios, and ends finished ones. Bios of other channels go home by their mailboxes.
//!
//! # Which queues are polled
//! The submitted bio, not its clones, has the [`Cookie`]. If the bio reached one queue, the cookie names it, and only
//! that queue is polled (fast path). If it was split and reached several, those queues are polled that have bios of
//! this channel (sub-fast path). If another thread submitted a part in the owner's place, or the queues of a device
//! were changed in between, all queues of the devices are polled (default path).
//!
//! # Invariants
//! - A poller never waits for a lock, unless it was told to ([`PollPolicy::skip_busy`]).
//! - No bio is ended while a queue is held, because a completion may submit and poll.
//! - A queue that is out of use is polled until its last bio has left it. Queues are only freed with their set, and a
//!   channel's entry keeps the set while bios of the channel are on it.
//! - A cookie is advice where to look first. After [`EVERYWHERE`] rounds without success, every queue is looked into,
//!   so a stale or foreign cookie costs time and loses nothing.

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
