//! ublk: devices as block devices of the kernel, `/dev/ublkbN`.
//!
//! # How it goes
//! The driver (`drivers/block/ublk_drv.c`) gives each request to a slot of a queue, and hands its data to the slot's
//! buffer. A queue is a thread with a channel and a ring: a bio refers to the buffer, and its answer goes back with the
//! word that the slot may have the next request.
//!
//! # Layout
//! - `uapi`, `params`: the driver's numbers and structs, and what it is told of a device
//! - `control`: commands that begin and end devices
//! - `port`, `worker`: a queue as the driver has it, and the thread that serves it
//! - `device`: a device and its threads
//!
//! # Invariants
//! - A device is known by a mark that the driver keeps for its server, never by its number alone.
//! - Threads serve until the driver has let go of the block device: stopping it may need requests to be done.
//! - A server that goes leaves its requests to the next ([`Ublk::leave`], or a crash): the driver keeps those that
//!   come, and gives those that were not answered once more. Nothing is answered before it is done.

mod control;
mod device;
mod params;
mod port;
mod uapi;
mod worker;

pub use device::{Left, Mark, Removed, Resized, Ublk, available, delete, is_there, left, mark_of};
