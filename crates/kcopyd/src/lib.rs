//! Floor 2: work that goes on though nobody submits: the domain's [`Workqueue`], and what stands on it here,
//! [`Kcopyd`].
//!
//! kcopyd copies ranges between block devices, with bounded memory and in the order of asking
//! (`drivers/md/dm-kcopyd.c`, 6.12, has the same name and the same task).
//!
//! # How a copy goes
//! A job names where to read (or that there is nothing to read, but zeroes), how much, and any number of places to
//! write to: one read serves them all. Jobs wait in a queue. The first takes pages from the pool, reads, writes to each
//! place, gives the pages back, and tells who asked. A place may want a part of what is read only. Jobs that follow
//! each other and lie next to each other, everywhere alike, go as one read and one write each; a long job goes in
//! pieces. If what went together fails, the jobs are done again one by one, so that each learns of its own error only.
//!
//! Between devices that [lend](BlockDevice::direct_access) their memory it is copied at once, without the pages.
//!
//! # Order
//! A job that finds too few pages stays at the head of the queue, and nothing overtakes it. The kernel once put it back
//! at the tail, which shuffled sequential writes; [`Requeue::Tail`] does so still, for those who want to measure it.
//!
//! # Nobody's thread
//! It is driven by who brings jobs and by completions, inside their channels, one at a time; and by the domain's
//! workqueue when those do not come by. Nothing blocks.

mod copier;
mod job;
mod pages;
mod piece;
mod queue;
mod run;
mod slots;
mod throttle;
mod workqueue;

pub use copier::{Hurry, Kcopyd};
pub use job::{Copied, CopyFrom, CopyJob, CopyOptions, CopyStats, CopyTo, Requeue};
pub use workqueue::{Work, WorkItem, Workqueue, WorkqueueReport};
