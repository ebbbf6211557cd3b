//! The FUSE server: devices as files of one mount.
//!
//! # Layout
//! - `wire`, `request`: the kernel's protocol
//! - `tree`: names, inodes, open files
//! - `connection`, `links`: connections to the kernel, and how much of the memory each may hold
//! - `steps`, `write_lock`, `search`: the bios of a request, writes that must be alone, and questions to devices
//! - `uring`: requests by io_uring
//! - `engine`, `worker`, `serve`: requests under way, a thread's event loop, and what each request does
//! - `mount`, [`server`]: mounting, threads, start and stop
//! - `pass`: to another process, while it is in use
//!
//! # How a request goes
//! The directory is a mount, and so is each node's file: the kernel has a queue of requests for each, and every worker
//! takes from all of them. A write's data is received at a page boundary, and goes to the device from there; a read's
//! answer is sent from the memory that the device has filled. In a steady state nothing of this allocates. Files have
//! direct I/O: the kernel keeps no pages of them.
//!
//! # Invariants
//! - The kernel splits requests of unaligned memory into pieces of any length: a part of a block is read, changed and
//!   written, with no other write of that node meanwhile.
//! - A request is answered once, on the connection that it came by.
//! - A device that does not answer holds its share of the memory, and does not prevent other devices' requests from
//!   being read.
//! - Nothing is cached: sizes, names and data are asked for each time.

mod connection;
mod engine;
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
mod write_lock;

pub use mount::{clear, mounted};
pub use pass::{Adopted, Plan};
pub use server::{FuseNode, FuseServer, Transport};
pub use tree::{FILES, Owner};
