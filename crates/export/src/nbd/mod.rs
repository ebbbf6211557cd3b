//! The NBD server: exports block devices over unix and TCP sockets.
//!
//! # Layout
//! - [`negotiate`], [`session`], `extents`: the protocol without I/O
//! - `budget`, `pool`, `outbox`, `inflight`: memory, replies to send, requests under way
//! - `turns`, `long`: the order of clients, and requests that are done in pieces
//! - `transmission`, `connection`, `worker`: one connection's requests, its socket, and a thread's work for all its
//!   connections; `shared`: state shared by threads
//! - [`server`]: start and stop
//! - `handover`: a connection goes on in another process
//! - [`fuzz`]: entries for fuzzers
//!
//! # How a request goes
//! One receive takes in many requests. A write whose payload has arrived whole goes to the device straight from the
//! receive chunk; any other has a buffer of its own, into which the rest is received. Reads take buffers from the
//! worker's pool. Requests complete in any order; their replies are gathered and leave in one vectored send. In a
//! steady state nothing of this allocates.
//!
//! Long requests go in pieces. A worker works in rounds: short requests of all clients, then pieces of long requests,
//! in turns by bytes; after 1 MiB it looks at its sockets again. So a client is delayed by about one piece of each
//! other client with a long request.
//!
//! # Invariants
//! - Memory that a bio refers to stays until the bio has completed, even if its connection ends.
//! - A connection holds no more than `CONNECTION_BYTES` of buffers, except for one reply that must be a whole, and only
//!   a few kilobytes while it is idle. Further input waits in the socket.
//! - No write of a client waits for memory that another one holds while it does nothing (`budget`).
//! - No request begins for a client that has gone: it was not acknowledged.
//! - A connection's device stays attached, and its export open, until its last bio has completed.
//! - Nothing here waits for a device: it says what it holds when it knows.

mod budget;
mod connection;
mod extents;
pub mod fuzz;
mod handover;
mod inflight;
mod long;
pub mod negotiate;
mod outbox;
mod pool;
pub mod server;
pub mod session;
mod shared;
mod transmission;
mod turns;
mod worker;

pub use handover::{ConnectionState, Handed, HandedConnection, Prepared, TakeError};
pub use server::{Server, ServerBuilder};
