//! Snapshots: the targets `snapshot`, `snapshot-origin` and `snapshot-merge`.
//!
//! # Who does what
//! All targets on one device share an [`Origin`](shared::Origin). A [`Snapshot`](shared::Snapshot) is a COW device with
//! its store, independent of the target that has it now. A [`Holding`](holding::Holding) is one target's hold on a
//! snapshot. The table of exceptions is read without locks; all other state belongs to the origin's worker
//! ([`State`](state::State)). `udm_worker` runs the worker and does its internal I/O. kcopyd does the copies.
//!
//! # Invariants
//! - A write reaches the origin only when every active snapshot has the chunks beneath it, durably, or says on its
//!   device that it is invalid.
//! - Exceptions are committed in the order in which their places were allocated.
//! - A snapshot's read from the origin is counted while it is under way, and nobody writes there meanwhile.

mod body;
mod commit;
mod flight;
mod free;
mod holding;
mod last_chunk;
mod load;
mod merge;
mod merge_target;
mod origin_target;
mod radix;
mod shared;
mod snapshot_target;
mod state;
mod table;
mod unthrottled;

pub(crate) use merge_target::TYPE as MERGE;
pub(crate) use origin_target::TYPE as ORIGIN;
pub(crate) use snapshot_target::TYPE as SNAPSHOT;
