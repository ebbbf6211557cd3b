//! A seeded world in which storage can be broken on purpose: disks that lose power, clocks that jump, no threads.
//!
//! # Use
//! A [`Sim`] has a clock and a source of chance. Its [`domain`](Sim::domain) runs channels on that clock; its
//! [`SimDevice`]s keep bios for a random time, so that they complete in another order than they were submitted in.
//! [`Sim::power_cut`] takes the power from all of them at once, and returns what is on their platters: an [`Image`]
//! each, from which the devices of the next `Sim` are made.
//!
//! A [`RotatingDisk`] is for questions about time: its seeks, its revolutions and its elevator are modelled, and what
//! it takes is exact.
//!
//! # Invariants
//! - The same seed and the same calls on one thread give the same world, bit for bit.
//! - What a FLUSH or FUA that has completed covers is in every image. Of each other write, completed or in flight, an
//!   image holds nothing, all, or whole sectors of it; two writes to one sector may have reached it in either order.
//! - Time passes only when a channel has nothing to do.

mod device;
mod executor;
mod fault;
pub mod golden;
pub mod history;
mod image;
mod rng;
mod rotating;
mod world;

pub use device::{SimDevice, SimOptions};
pub use executor::SimExecutor;
pub use fault::Fault;
pub use image::Image;
pub use rng::Rng;
pub use rotating::{DiskModel, DiskStats, Head, Keep, RotatingDisk, RotatingOptions, Service};
pub use world::{Sim, SimClock};
