//! `udm daemon --replace`: a new daemon takes over from the running one.
//!
//! # How it goes
//! The new process asks on `udm.sock`, and that connection becomes the link between the two.
//!
//! | who | sends | which means |
//! |---|---|---|
//! | old | `state` | the content of `state.json`, and the devices beneath. Everything goes on as before |
//! | new | `ready` | it understands all of it, and finds the devices beneath; else `refused`. With it comes its liveness pipe |
//! | old | messages of many kinds, `end` | it has stopped, flushed and released everything; or `refused`, and has gone on |
//! | new | `serving` | it has opened everything, and only waits for `go`; else `refused` |
//! | old | `go` | it will touch nothing any more, and ends |
//!
//! # Invariants
//! - At any time at most one of the two may serve: the one that has the right to serve, which is a lock
//!   (`daemon/lock.rs`). The old one gives it up before it sends `go`; the new one takes it after that, or after the
//!   old one's death. The end of their connection says nothing about either.
//! - Until `go` the old one has everything that it gave away, and takes it back when the new one refuses, dies or does
//!   not answer. A new daemon that does not answer is killed first. Its pidfd shows that it has ended, or without
//!   pidfds its liveness pipe: a pipe that only its end closes.
//! - Nothing that is given away has work under way: requests have ended, devices are flushed and suspended.

mod give;
mod message;
mod take;
mod wire;

pub(crate) use give::{Given, Giving, first_words, give};
pub(crate) use message::{HandOver, HandOverMessage, Settings, VERSION};
pub(crate) use take::{Asked, Taken, ask_for, take_over};
pub(crate) use wire::Link;
