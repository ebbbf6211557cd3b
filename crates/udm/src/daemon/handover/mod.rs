//! `udm daemon --replace`: a new daemon goes on where the old one is.
//!
//! # How it goes
//! The new process asks on `udm.sock`, and that connection becomes the link between the two.
//!
//! | who | sends | which means |
//! |---|---|---|
//! | old | `state` | what `state.json` would say, and what lies beneath. Everything goes on as before |
//! | new | `ready` | it understands all of it, and finds what lies beneath; else `refused`. With it comes its liveness pipe |
//! | old | things of many kinds, `end` | it has stopped, flushed and let go of everything; or `refused`, and has gone on |
//! | new | `serving` | it has opened everything, and only waits for the word; else `refused` |
//! | old | `go` | it will touch nothing any more, and ends |
//!
//! # Invariants
//! - At any time at most one of the two may serve: who has the right to, which is a lock (`daemon/lock.rs`). The old
//!   one gives it up before it sends `go`; the new one takes it after that, or after the old one's death. An end of
//!   their connection tells nothing of either.
//! - Until `go` the old one has all that it gave away, and takes it back itself when the new one refuses, dies or does
//!   not answer. One that does not answer is killed first. That it has gone is known by its pidfd, and where the kernel
//!   has none by its liveness pipe: a pipe that nothing closes but its end, as long as the old one lives.
//! - Nothing that is given away is under way: requests have ended, devices are flushed and suspended.

mod give;
mod message;
mod take;
mod wire;

pub(crate) use give::{Given, Giving, first_words, give};
pub(crate) use message::{HandOver, HandOverMessage, Settings, VERSION};
pub(crate) use take::{Asked, Taken, ask_for, take_over};
pub(crate) use wire::Link;
