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

/// What messages are called that have a claim on a block device. Both daemons then have it, so that nobody comes in
/// between.
const CLAIM: &str = "claim";

/// Something that passes from one daemon to the next.
pub(crate) struct HandOverMessage {
    /// What it is, as [`HandOver::kind`] has it.
    pub(crate) kind: String,
    /// Which one.
    pub(crate) name: String,
    /// What there is to know of it.
    pub(crate) state: Value,
    /// Bytes that are no text.
    pub(crate) bytes: Vec<u8>,
    /// Its descriptors.
    pub(crate) fds: Vec<OwnedFd>,
}

/// Something that has devices open for others and goes on in the next daemon: its descriptors and what is known of them
/// pass there. Where clients come again by themselves it may end at the pause, be made anew by the next from its state,
/// and give nothing.
pub(crate) trait HandOver {
    /// The word that its messages have, which the next daemon knows them by.
    fn kind(&self) -> &'static str;

    /// Takes nothing new, and waits until nothing is under way, at most so long. If that is not so then, it goes on as
    /// before.
    ///
    /// # Errors
    /// What is still under way, for people.
    fn pause(&self, patience: Duration) -> Result<(), String>;

    /// The names of the devices that it has open, each as often as that is so.
    fn holds(&self) -> Vec<String>;

    /// Goes on after a pause.
    fn resume(&self, registry: &Registry);

    /// After a pause: gives everything away. It holds no device afterwards, and touches no client.
    fn give(&self) -> Result<Vec<HandOverMessage>, String>;
}

/// What a daemon was told when it was started.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// What devices are in the file system unless they are told.
    pub(crate) node: NodeKind,
    /// Whether requests to them may come by io_uring.
    pub(crate) rings: bool,
    /// How long its threads poll before they sleep.
    pub(crate) poll_budget_us: u64,
}

impl HandOverMessage {
    /// One without bytes and descriptors.
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
