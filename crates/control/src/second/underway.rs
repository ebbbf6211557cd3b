//! Commands under way, so that one can see what a slow one waits for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_io::{Clock, Nanos};

/// A command under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Underway {
    /// Which command, as `DM_DEV_SUSPEND`.
    pub command: String,
    /// The device, by what the request called it.
    pub device: String,
    /// For how many milliseconds.
    pub elapsed_ms: u64,
    /// The process that asks, if it is known.
    #[serde(default)]
    pub pid: Option<u32>,
    /// What it waits for, in words, as far as it can be told.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// The commands under way.
pub struct UnderwayList {
    clock: Arc<dyn Clock>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    begun: BTreeMap<u64, Begun>,
}

struct Begun {
    command: String,
    device: String,
    pid: Option<u32>,
    at: Nanos,
}

impl UnderwayList {
    /// An empty list.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, entries: Mutex::default() }
    }

    /// A command begins; it ends when what is returned is dropped.
    pub fn begin(&self, command: &str, device: &str, pid: Option<u32>) -> UnderwayGuard<'_> {
        let at = self.clock.now();
        let mut entries = self.lock();
        let id = entries.next;
        entries.next += 1;
        entries.begun.insert(id, Begun { command: command.to_owned(), device: device.to_owned(), pid, at });
        UnderwayGuard { list: self, id }
    }

    /// What is under way, the oldest first.
    pub fn list(&self) -> Vec<Underway> {
        let now = self.clock.now();
        let entry = |begun: &Begun| Underway {
            command: begun.command.clone(),
            device: begun.device.clone(),
            elapsed_ms: now.since(begun.at) / 1_000_000,
            pid: begun.pid,
            waits_for: None,
        };
        self.lock().begun.values().map(entry).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command under way, as long as it lives.
pub struct UnderwayGuard<'a> {
    list: &'a UnderwayList,
    id: u64,
}

impl Drop for UnderwayGuard<'_> {
    fn drop(&mut self) {
        self.list.lock().begun.remove(&self.id);
    }
}
