//! The NBD server: exports block devices over unix and TCP sockets.
//!
//! # Layout
//! - [`negotiate`], [`session`], `extents`: the protocol without I/O
//! - `budget`, `pool`, `outbox`, `inflight`: memory, replies to send, requests under way
//! - `turns`, `long`: who goes on next, and requests that are done in pieces
//! - `transmission`, `connection`, `worker`: one connection's requests, its socket, and what a thread does for all of
//!   its; `shared`: what threads share
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
//! What is long goes in pieces. A worker works in rounds: what is short of all clients, then pieces of long requests,
//! in turns by bytes, and after 1 MiB it looks at its sockets again. So what one client asks for delays another by
//! about one piece of each that has a long request.
//!
//! # Invariants
//! - Memory that a bio refers to stays until the bio has completed, whatever becomes of its connection.
//! - A connection holds no more than `CONNECTION_BYTES` of buffers, but for one reply that must be a whole; and nothing
//!   but a few kilobytes while it is idle. What is received beyond that waits in the socket.
//! - Memory that a client holds and does nothing with is not what another's write waits for (`budget`).
//! - Nothing begins for a client that has gone. Nobody was told that it would be done.
//! - A connection's device stays attached, and its export open, until its last bio has completed.
//! - Nothing here waits for a device: what it holds it tells when it knows.

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
