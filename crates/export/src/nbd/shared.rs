//! What the workers of a server share, and which of them gets the next client.

use super::worker::Command;
use crate::exports::{Client, Exports};
use crate::worker::group::Workers;
use crate::worker::mailbox;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Clients beyond the limit that are told so at a time.
const REFUSED: usize = 64;

/// How many connections a worker has, those on their way to it included.
#[derive(Default)]
pub(super) struct Load(AtomicUsize);

impl Load {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The side of a worker that other threads see.
pub(super) type Handle = mailbox::Handle<Command, Load>;

/// What all workers of a server share.
pub(super) struct Shared {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) max_connections: usize,
    /// Of these, those that only clients on this machine get.
    pub(super) reserved: usize,
    /// Bytes of buffers that the connections of one worker may hold together.
    pub(super) memory: usize,
    /// Nobody is served before the first resume.
    pub(super) paused: bool,
    pub(super) workers: Workers<Command, Load>,
}

impl Shared {
    pub(super) fn connections(&self) -> usize {
        self.workers.handles().iter().map(|handle| handle.status.get()).sum()
    }

    /// Whether there is room for another client.
    pub(super) fn admit(&self, client: &Client) -> Admission {
        let (all, most) = (self.connections(), self.max_connections);
        let limit = if matches!(client, Client::Tcp(_)) { most - self.reserved } else { most };
        if all < limit {
            return Admission::Serve;
        }
        let why = format!("{all} NBD clients are connected, of {limit} that may be");
        if all < most + REFUSED { Admission::Refuse(why) } else { Admission::HangUp(why) }
    }

    /// Gives a connection to the worker that has the fewest; of those the last, since the first accepts for all.
    pub(super) fn spread(&self, connection: Command) {
        if let Some(handle) = self.workers.handles().iter().rev().min_by_key(|handle| handle.status.get()) {
            handle.status.add();
            handle.tell(connection);
        }
    }
}

/// What becomes of a client that has connected.
pub(super) enum Admission {
    Serve,
    /// It is told why not.
    Refuse(String),
    /// Even that would take too much.
    HangUp(String),
}
