//! Thin provisioning: the targets `thin-pool` and `thin`.
//!
//! # Who does what
//! A [`Pool`](pool::Pool) is what all tables of one pool device and all its volumes share. A [`Volume`](volume::Volume)
//! maps what it can from the mapping cache, without a lock. Everything else is an [`Event`](worker::Event) in the
//! pool's inbox, and the [`Worker`](worker::Worker) takes these one after the other. Who polls it, and how it does I/O
//! of its own, is `udm_worker`'s.
//!
//! # Invariants
//! - Only the worker changes metadata and what the mapping cache says.
//! - Where a bio of a volume goes is decided on its own channel, within one section: the worker never maps it, but
//!   sends it to the volume again once the cache knows more. So whoever waits for sections and epochs has waited for
//!   every use of a mapping.
//! - A data block that something was unmapped from is allocated again only after a commit, and that waits until nothing
//!   is in flight that could have found the old mapping.
//! - What is durable refers to no data block that is still being prepared, and to none that was not flushed.

mod claims;
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
