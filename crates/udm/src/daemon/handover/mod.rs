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
mod take;
mod wire;

pub(crate) use give::{Given, Giving, first_words, give};
pub(crate) use take::{Asked, Taken, ask_for, take_over};
pub(crate) use wire::Link;

use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;
use udm_control::second::NodeKind;
use udm_core::Registry;

/// The version of all this: both must have the same.
pub(crate) const VERSION: u32 = 3;

/// The kind of messages with a claim on a block device. Both daemons then have it, so nobody can take it in between.
const CLAIM: &str = "claim";

/// A message from one daemon to the next.
pub(crate) struct HandOverMessage {
    /// Its kind: [`HandOver::kind`].
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
    /// What there is to know of it.
    pub(crate) state: Value,
    /// Its bytes that are not text.
    pub(crate) bytes: Vec<u8>,
    /// Its descriptors.
    pub(crate) fds: Vec<OwnedFd>,
}

/// A part of the daemon that has devices open for clients and goes on in the next daemon: its descriptors and state
/// pass there. If its clients reconnect by themselves, it may end at the pause, be made again by the next daemon from
/// the state, and give nothing.
pub(crate) trait HandOver {
    /// The kind of its messages, for the next daemon.
    fn kind(&self) -> &'static str;

    /// Takes nothing new, and waits until nothing is under way, for a limited time. If that fails, it goes on as
    /// before.
    ///
    /// # Errors
    /// What is still under way, for people.
    fn pause(&self, patience: Duration) -> Result<(), String>;

    /// The names of the devices that it has open, each as often as it is open.
    fn holds(&self) -> Vec<String>;

    /// Goes on after a pause.
    fn resume(&self, registry: &Registry);

    /// After a pause: gives everything away. It holds no device afterwards, and touches no client.
    fn give(&self) -> Result<Vec<HandOverMessage>, String>;
}

/// The options that a daemon was started with.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The default kind of node.
    pub(crate) node: NodeKind,
    /// Whether requests to nodes may come by io_uring.
    pub(crate) rings: bool,
    /// How long its threads poll before they sleep.
    pub(crate) poll_budget_us: u64,
}

impl HandOverMessage {
    /// A message without bytes and descriptors.
    pub(crate) fn new(kind: &str, name: &str, state: impl Serialize) -> Result<Self, String> {
        let state = serde_json::to_value(state).map_err(|e| e.to_string())?;
        Ok(Self { kind: kind.to_owned(), name: name.to_owned(), state, bytes: Vec::new(), fds: Vec::new() })
    }

    /// With a descriptor.
    pub(crate) fn with(mut self, fd: OwnedFd) -> Self {
        self.fds.push(fd);
        self
    }

    /// What there is to know of it.
    pub(crate) fn read<T: for<'de> Deserialize<'de>>(&self) -> Result<T, String> {
        serde_json::from_value(self.state.clone()).map_err(|e| format!("{} {:?}: {e}", self.kind, self.name))
    }

    /// Its only descriptor.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd, String> {
        match self.fds.pop() {
            Some(fd) if self.fds.is_empty() => Ok(fd),
            _ => Err(format!("{} {:?}: expected one descriptor", self.kind, self.name)),
        }
    }
}
