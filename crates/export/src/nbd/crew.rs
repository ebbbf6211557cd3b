//! The workers of a server, as other threads and each other see them: what they are told, and who gets the next client.

use super::exports::{Client, Exports};
use super::handover::{Handed, Prepared};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use udm_io::{Nanos, Waker};

/// Clients beyond the limit that are told so at a time.
const REFUSED: usize = 64;

/// What a worker is told by other threads.
pub(super) enum Command {
    /// Serve a connection, or tell it why not.
    Adopt(OwnedFd, Client, Option<String>),
    /// Handle the hang-ups of clients that have closed by now, then answer.
    Reap(mpsc::Sender<()>),
    /// Hang up on the clients of an export, then answer how many there were.
    Disconnect(String, mpsc::Sender<usize>),
    /// Go on with a connection of another process.
    Take(Box<Prepared>),
    /// Answer the names of the exports that are open.
    Exports(mpsc::Sender<Vec<String>>),
    /// Take nothing new, finish what is under way; answer when nothing is.
    Pause(mpsc::Sender<()>),
    /// Go on after a pause.
    Resume,
    /// After a pause: give everything away, and end.
    HandOver(mpsc::Sender<Handed>),
    /// Refuse what is new, finish what is under way, and end; at the latest at this time.
    ShutDown(Nanos),
}

/// The side of a worker that other threads see.
pub(super) struct Handle {
    /// `None` once the worker has ended.
    commands: Mutex<Option<VecDeque<Command>>>,
    pub(super) pending: AtomicBool,
    waker: Waker,
    /// Connections, those on their way to the worker included.
    pub(super) connections: AtomicUsize,
}

impl Handle {
    /// For a worker that begins.
    pub(super) fn new(waker: Waker) -> Self {
        let (commands, pending) = (Mutex::new(Some(VecDeque::new())), AtomicBool::new(false));
        Self { commands, pending, waker, connections: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Command>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the worker was told.
    pub(super) fn take(&self) -> VecDeque<Command> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The worker has ended: it hears nothing more.
    pub(super) fn close(&self) {
        let unheard = self.lock().take();
        drop(unheard);
    }

    /// Tells the worker something and wakes it. When it has ended, what it is told is dropped: who waits for an answer
    /// finds that there will be none.
    pub(super) fn tell(&self, command: Command) {
        match &mut *self.lock() {
            Some(commands) => commands.push_back(command),
            None => return,
        }
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What all workers of a server share.
pub(super) struct Shared {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) max_connections: usize,
    /// Of these, those that only clients on this machine get.
    pub(super) reserved: usize,
    /// Bytes of buffers that the connections of one worker may hold together.
    pub(super) memory: usize,
    /// Nobody is served before the first [`Command::Resume`].
    pub(super) paused: bool,
    /// Set once, before the first connection.
    pub(super) handles: std::sync::OnceLock<Vec<Arc<Handle>>>,
}

impl Shared {
    fn handles(&self) -> &[Arc<Handle>] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn connections(&self) -> usize {
        self.handles().iter().map(|h| h.connections.load(Ordering::Relaxed)).sum()
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

    /// Gives a connection to the worker that has the fewest.
    pub(super) fn spread(&self, socket: OwnedFd, client: Client, refusal: Option<String>) {
        let fewest = self.handles().iter().min_by_key(|h| h.connections.load(Ordering::Relaxed));
        if let Some(handle) = fewest {
            handle.connections.fetch_add(1, Ordering::Relaxed);
            handle.tell(Command::Adopt(socket, client, refusal));
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
