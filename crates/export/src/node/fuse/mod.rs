//! The FUSE server: devices as files of one mount.
//!
//! # Layout
//! - `wire`, `request`: the kernel's protocol
//! - `tree`: names, inodes, open files
//! - `steps`, `gate`: which bios a request needs, and which writes must be alone
//! - `uring`: requests by io_uring
//! - `engine`, `worker`: requests under way, and a thread's event loop
//! - `mount`, [`server`]: mounting, threads, start and stop
//! - `pass`: to another process, while it is in use
//!
//! # How a request goes
//! Each worker has a clone of the connection's descriptor, and takes requests from the kernel's one queue. A write's data is
//! received at a page border, and goes to the device from there; a read's answer leaves from where the device has put it.
//! In a steady state nothing of this allocates. Files have direct I/O: the kernel keeps no pages of them.
//!
//! # Invariants
//! - What the kernel splits at its own convenience (memory that is not aligned) comes in pieces of any length: a part of a
//!   block is read, changed and written, with no other write of that node beside it.
//! - A request is answered once, on the descriptor that it was read from.
//! - Nothing is cached: sizes, names and data are asked for each time.

mod engine;
mod gate;
pub(crate) mod mount;
mod pass;
mod request;
pub mod server;
mod steps;
mod tree;
mod uring;
mod wire;
mod worker;

pub use mount::{clear, mounted};
pub use pass::{Adopted, Plan};
pub use server::{FuseServer, Transport};
pub use tree::{FILES, Owner};
