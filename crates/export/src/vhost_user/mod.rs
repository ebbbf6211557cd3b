//! vhost-user-blk: a block device as a disk of a virtual machine, without a copy in between.
//!
//! # Layout
//! - `wire`, `blk`: the messages of vhost-user and what virtio-blk has of numbers and structures, for both sides
//! - `memory`, `ring`, `inflight`: the guest's memory, a ring in it, and what is in flight
//! - `queue`, `worker`: a ring's requests as bios, and a thread that serves queues
//! - `session`, `server`: one front end's messages; the socket, and who comes and goes
//! - `handover`: a front end on its way to another process
//! - [`front`]: the other side, for tests and measurements
//! - [`fuzz`]: entries for fuzzers
//!
//! # How a request goes
//! A worker looks at its rings, makes the memory of each chain the segments of a bio, and submits it on its channel.
//! When the bio has completed it writes the status and the used element. What came in one look is shown to the driver
//! at once, and the driver is told when it wants to be. In a steady state nothing is allocated, copied or locked, and
//! while there is work no system call is made but to tell the driver.
//!
//! # Why not the crates of rust-vmm
//! The protocol is small, and `vhost` (0.18) cannot send the one message that a resize needs, waits in the middle of a
//! message for its rest, and brings random numbers and identifiers along. `virtio-queue` copies descriptors through
//! traits that a ring on the hot path does without.
//!
//! # Invariants
//! - A front end has one disk, and a disk one front end at a time. The next is not listened to before the last bio of
//!   the one before is back: else what it submits again could be overtaken by the first attempt.
//! - What a front end or its guest says wrongly ends its connection, or the request, and nothing else.

mod blk;
pub mod front;
pub mod fuzz;
mod handover;
mod inflight;
mod memory;
mod queue;
mod ring;
pub mod server;
mod session;
mod wire;
mod worker;

pub use handover::{Handed, HandedSession, Prepared, SessionState};
use memory::GuestMemory;
pub use server::{Server, ServerBuilder};

/// How a server waits for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Sleeps as soon as there is nothing to do: the least CPU time.
    Interrupt,
    /// Looks for news for some microseconds before it sleeps, as long as that has been worth while.
    #[default]
    Adaptive,
    /// Never sleeps while a front end is connected: the shortest way, for a CPU of its own.
    Polled,
}

impl Mode {
    /// The modes by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("interrupt", Self::Interrupt), ("adaptive", Self::Adaptive), ("polled", Self::Polled)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| format!("{text:?}: expected interrupt, adaptive or polled"))
    }
}
