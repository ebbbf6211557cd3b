//! Floor 2: background work, which goes on even if no thread submits: the domain's [`Workqueue`], and [`Kcopyd`] on top
//! of it.
//!
//! kcopyd copies ranges between block devices, with bounded memory and in the order of requests
//! (`drivers/md/dm-kcopyd.c`, 6.12, has the same name and the same task).
//!
//! # How a copy goes
//! A job has a source (a range, or zeroes), a length, and any number of places to write to: one read serves them all.
//! Jobs wait in a queue. The first job takes pages from the pool, reads, writes to each place, gives the pages back,
//! and calls the asker. A place may take only a part of the data. Successive jobs that are neighbours on all their
//! devices are joined into one read and one write for each place; a long job is done in pieces. If joined jobs fail,
//! they are done again one by one, so that each gets only its own error.
//!
//! Between devices with [direct access](BlockDevice::direct_access) to their memory, data is copied at once, without
//! the pages.
//!
//! # Order
//! A job that finds too few pages stays at the head of the queue, and nothing overtakes it. The kernel once put it back
//! at the tail, which shuffled sequential writes; [`Requeue::Tail`] still does so, for measurements.
//!
//! # No thread of its own
//! It runs inside the channels of threads that bring jobs, and on completions, one thread at a time. When none of these
//! comes by, the domain's workqueue runs it. Nothing blocks.

mod copier;
mod job;
mod pages;
mod piece;
mod queue;
mod run;
mod slots;
mod throttle;
mod workqueue;

pub use copier::{Kcopyd, Unthrottled};
pub use job::{Copied, CopyFrom, CopyJob, CopyOptions, CopyStats, CopyTo, Requeue};
pub use workqueue::{Work, WorkItem, Workqueue, WorkqueueReport};
