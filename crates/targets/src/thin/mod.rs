//! Thin provisioning: the targets `thin-pool` and `thin`.
//!
//! # Who does what
//! A [`Pool`](pool::Pool) is what all tables of one pool device and all its volumes share. A [`Volume`](volume::Volume)
//! maps what it can from the mapping cache, without a lock. Everything else is an [`Event`](event::Event) in the pool's
//! inbox, and the [`Worker`](worker::Worker) takes these one after the other. `udm_worker` runs the worker and does its
//! internal I/O.
//!
//! # Invariants
//! - Only the worker changes metadata and the mapping cache.
//! - The destination of a volume's bio is decided on its own channel, within one section: the worker never maps it, but
//!   sends it to the volume again once the cache knows more. So to wait for sections and epochs is to wait for every
//!   use of a mapping.
//! - A data block that was unmapped is allocated again only after a commit, and that commit waits until no bio is in
//!   flight that could have found the old mapping.
//! - The durable metadata refer to no data block that is still being prepared, and to none that was not flushed.

mod claims;
mod event;
mod features;
mod flight;
#[allow(dead_code, reason = "tests ask how large it is")]
mod mapping;
mod pool;
mod pool_target;
mod thin_target;
mod volume;
mod worker;

pub(crate) use pool_target::TYPE as POOL;
pub(crate) use thin_target::TYPE as THIN;
