//! The FUSE server: devices as files of one mount.
//!
//! # Layout
//! - `wire`, `request`: the kernel's protocol
//! - `tree`: names, inodes, open files
//! - `connection`, `links`: what requests come by, and how much of the memory each may hold
//! - `steps`, `gate`, `search`: which bios a request needs, which writes must be alone, and what devices are asked
//! - `uring`: requests by io_uring
//! - `engine`, `worker`, `serve`: requests under way, a thread's event loop, and what each request does
//! - `mount`, [`server`]: mounting, threads, start and stop
//! - `pass`: to another process, while it is in use
//!
//! # How a request goes
//! The directory is a mount, and so is each node's file: the kernel has a queue of requests for each, and every worker
//! takes from all of them. A write's data is received at a page border, and goes to the device from there; a read's
//! answer leaves from where the device has put it. In a steady state nothing of this allocates. Files have direct I/O:
//! the kernel keeps no pages of them.
//!
//! # Invariants
//! - What the kernel splits at its own convenience (memory that is not aligned) comes in pieces of any length: a part
//!   of a block is read, changed and written, with no other write of that node beside it.
//! - A request is answered once, on the connection that it came by.
//! - A device that does not answer holds its share of the memory, and keeps nobody else's requests from being read.
//! - Nothing is cached: sizes, names and data are asked for each time.

mod connection;
mod engine;
mod gate;
mod links;
pub(crate) mod mount;
mod pass;
mod request;
mod search;
mod serve;
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
