//! ublk: devices as block devices of the kernel, `/dev/ublkbN`.
//!
//! # How it goes
//! The driver (`drivers/block/ublk_drv.c`) gives each request to a slot of a queue, and hands its data to the slot's
//! buffer. A queue is a thread with a channel and a ring: a bio refers to the buffer, and its answer also tells the
//! driver that the slot may have the next request.
//!
//! # Layout
//! - `uapi`, `params`: the driver's numbers and structs, and the parameters of a device
//! - `control`: commands that begin and end devices
//! - `port`, `worker`: a queue as the driver has it, and the thread that serves it
//! - `device`: a device and its threads
//!
//! # Invariants
//! - A device is recognised by a mark that the driver keeps for its server, never by its number alone.
//! - Threads serve until the driver has released the block device: stopping it may need requests to be served.
//! - A server that leaves or crashes leaves its requests to the next one ([`Ublk::leave`]): the driver keeps new
//!   requests, and sends unanswered ones again. No request is answered before it is done.

mod control;
mod device;
mod params;
mod port;
mod uapi;
mod worker;

pub use device::{Left, Mark, Removed, Ublk, available, delete, is_there, left, mark_of};
