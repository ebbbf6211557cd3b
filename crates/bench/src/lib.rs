//! `udm bench`: how fast a device is, and how fast beside another one.
//!
//! A [`Stack`] holds the devices of a concise specification, a [`Subject`] is what is measured (one of them, or
//! plain copies), a [`Load`] says how, and [`measure`] does it once. [`compare`] takes turns between two subjects,
//! since on a machine with other work on it only rounds that took turns can be compared. [`cli`] is the command.
//!
//! # Invariants
//! - One generator drives every subject, plain copies too: what it costs is in both figures.
//! - In steady state an I/O allocates nothing, locks nothing and reads no clock; the clock is read once a batch, and
//!   for the I/Os whose latency is sampled.
//! - A buffer belongs to the device or to the job, never to both: see `queue`.

pub mod cli;
mod crew;
pub mod error;
pub mod fill;
mod floor;
mod front;
mod job;
pub mod lane;
mod latency;
mod load;
mod pattern;
pub mod queue;
mod report;
pub mod rng;
mod rounds;
pub mod stack;
mod statistics;
mod subject;
mod verify;

pub use error::Error;
pub use latency::Latencies;
pub use load::{CompletionMode, Fill, Lat, Load, Rw, Verify};
pub use rounds::{Comparison, Round, compare};
pub use stack::{Setting, Stack};
pub use statistics::Spread;
pub use subject::{Outcome, Subject, Tally, measure};
