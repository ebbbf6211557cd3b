//! Snapshots: the targets `snapshot`, `snapshot-origin` and `snapshot-merge`.
//!
//! # Who does what
//! An [`Origin`](shared::Origin) is what all targets on one device share; a [`Snapshot`](shared::Snapshot) is a COW
//! device with its store, whichever target has it now; a [`Holding`](holding::Holding) is one target's hold on a
//! snapshot. Which chunks have their exceptions is read without locks; all else belongs to the origin's worker
//! ([`State`](state::State)). Who runs that, and how it does I/O of its own, is `udm_worker`'s. Copies are kcopyd's.
//!
//! # Invariants
//! - A write reaches the origin only when every active snapshot has the chunks beneath it, durably, or says on its
//!   device that it is invalid.
//! - Exceptions become true in the order in which their places were given away.
//! - What a snapshot reads from the origin is counted as long as it is on its way, and nobody writes there meanwhile.

mod body;
mod commit;
mod flight;
mod free;
mod holding;
mod hurry;
mod load;
mod merge;
mod merge_target;
mod origin_target;
mod radix;
mod shared;
mod slab;
mod snapshot_target;
mod state;
mod table;
mod tail;

pub(crate) use merge_target::TYPE as MERGE;
pub(crate) use origin_target::TYPE as ORIGIN;
pub(crate) use snapshot_target::TYPE as SNAPSHOT;
