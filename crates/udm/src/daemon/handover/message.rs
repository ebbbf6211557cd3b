//! What passes from one daemon to the next, and what has something to pass.

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
pub(super) const CLAIM: &str = "claim";

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
