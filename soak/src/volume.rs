//! A part of a device that one writer has for itself, and knows what it must read there.

use crate::client::{Client, file::Node, nbd::Nbd};
use crate::daemon::Daemon;
use crate::model::Model;
use crate::watch::lock;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How its client reaches it.
#[derive(Clone, Debug)]
pub enum Way {
    /// The daemon's own socket.
    Unix,
    /// An export over TCP.
    Tcp(SocketAddr),
    /// A node in the file system.
    Node(PathBuf),
}

/// What its writer is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Run,
    Rest,
    Leave,
}

struct State {
    wish: Wish,
    /// Nothing is in flight, and nothing will be before the wish changes.
    rests: bool,
}

/// One writer's part of a device.
pub struct Volume {
    /// The device.
    pub name: String,
    /// The first byte.
    pub start: u64,
    /// How it is reached.
    pub way: Way,
    /// It is only read.
    pub read_only: bool,
    /// What may be read.
    pub model: Mutex<Model>,
    state: Mutex<State>,
    changed: Condvar,
    /// Reasons for which requests may fail, and how many there ever were.
    /// Changes when clients have to connect anew.
    sizes: AtomicU64,
    excuses: AtomicU64,
    excused: AtomicU64,
    answers: AtomicU64,
}

/// While it is there, requests may fail.
pub struct Excuse<'a>(&'a Volume);

/// While it is there, the writer rests.
pub struct Resting<'a>(&'a Volume);

impl Volume {
    /// A part of a device of which the model tells.
    pub fn new(name: impl Into<String>, way: Way, model: Model) -> Self {
        Self {
            name: name.into(),
            start: 0,
            way,
            read_only: false,
            model: Mutex::new(model),
            state: Mutex::new(State { wish: Wish::Run, rests: false }),
            changed: Condvar::new(),
            sizes: AtomicU64::new(0),
            excuses: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            answers: AtomicU64::new(0),
        }
    }

    /// A client's connection to it.
    pub fn connect(&self, daemon: &Daemon) -> io::Result<Box<dyn Client>> {
        Ok(match &self.way {
            Way::Unix => Box::new(Nbd::unix(&daemon.nbd(), &self.name)?),
            Way::Tcp(address) => Box::new(Nbd::tcp(*address, &self.name)?),
            Way::Node(path) => Box::new(Node::open(path)?),
        })
    }

    /// The device has grown to so many blocks. NBD tells a size only to who connects.
    pub fn grow(&self, blocks: u64) {
        let mut model = lock(&self.model);
        self.sizes.fetch_add(1, Ordering::SeqCst);
        model.grow(blocks);
    }

    /// The device has grown, and shows there what another has.
    pub fn grow_as(&self, other: &Model) {
        let mut model = lock(&self.model);
        self.sizes.fetch_add(1, Ordering::SeqCst);
        model.grow_as(other);
    }

    /// How often it has grown.
    pub fn sizes(&self) -> u64 {
        self.sizes.load(Ordering::SeqCst)
    }

    /// From now on requests may fail.
    pub fn excuse(&self) -> Excuse<'_> {
        self.excused.fetch_add(1, Ordering::SeqCst);
        self.excuses.fetch_add(1, Ordering::SeqCst);
        Excuse(self)
    }

    /// A number that stays the same as long as no request may fail, else `None`.
    pub fn sound(&self) -> Option<u64> {
        let ever = self.excused.load(Ordering::SeqCst);
        (self.excuses.load(Ordering::SeqCst) == 0).then_some(ever)
    }

    /// Requests that were answered so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// One more was answered.
    pub fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wish(&self, wish: Wish) {
        let mut state = lock(&self.state);
        if state.wish != Wish::Leave {
            state.wish = wish;
        }
        self.changed.notify_all();
    }

    /// Has the writer rest; returns when nothing is in flight. One who asks at a time.
    pub fn rest(&self) -> Resting<'_> {
        self.wish(Wish::Rest);
        let mut state = lock(&self.state);
        while !state.rests {
            state = self.wait(state);
        }
        Resting(self)
    }

    /// Has the writer end.
    pub fn leave(&self) {
        self.wish(Wish::Leave);
    }

    /// For the writer, between requests: rests if it is to, and says whether to go on.
    pub fn goes_on(&self) -> bool {
        let mut state = lock(&self.state);
        while state.wish == Wish::Rest {
            state.rests = true;
            self.changed.notify_all();
            state = self.wait(state);
        }
        state.rests = state.wish == Wish::Leave;
        self.changed.notify_all();
        state.wish == Wish::Run
    }

    /// Whether the writer is to do something else.
    pub fn is_wanted(&self) -> bool {
        lock(&self.state).wish != Wish::Run
    }
}

impl Drop for Excuse<'_> {
    fn drop(&mut self) {
        self.0.excuses.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.0.wish(Wish::Run);
    }
}
