//! What a device is busy with, for people who ask why a command is not done.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_io::{Clock, Nanos};

/// Commands under way on a device. Their lock is held for a moment only.
pub(crate) struct Activities {
    clock: Arc<dyn Clock>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    list: Vec<Entry>,
}

struct Entry {
    id: u64,
    what: String,
    since: Nanos,
}

/// One of them, as long as it lives.
pub(crate) struct Activity<'a> {
    all: &'a Activities,
    id: u64,
}

impl Activities {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something begins; `what` reads after "it": "waits for bios in flight".
    pub(crate) fn begin(&self, what: &str) -> Activity<'_> {
        let since = self.clock.now();
        let mut entries = self.lock();
        entries.next += 1;
        let id = entries.next;
        entries.list.push(Entry { id, what: what.to_owned(), since });
        Activity { all: self, id }
    }

    /// What goes on, and for how many nanoseconds, the oldest first.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let now = self.clock.now();
        self.lock().list.iter().map(|e| (e.what.clone(), now.since(e.since))).collect()
    }
}

impl Activity<'_> {
    /// It is at another part of its work now.
    pub(crate) fn now(&self, what: &str) {
        let now = self.all.clock.now();
        if let Some(entry) = self.all.lock().list.iter_mut().find(|e| e.id == self.id) {
            what.clone_into(&mut entry.what);
            entry.since = now;
        }
    }
}

impl Drop for Activity<'_> {
    fn drop(&mut self) {
        self.all.lock().list.retain(|e| e.id != self.id);
    }
}
