//! What becomes of requests that threads of the pool have.

use crate::daemon::conversation::Done;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use std::sync::{Arc, Mutex, PoisonError};

/// What the event loop is woken with.
pub(super) const WAKE: u64 = 0;

/// What threads of the pool have done, and how they say so.
pub(super) struct Results {
    done: Mutex<Vec<(u64, Done)>>,
    wake: OwnedFd,
}

impl Results {
    /// None yet; they wake whoever waits for this.
    pub(super) fn new(epoll: &OwnedFd) -> Result<Self, Os> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { done: Mutex::default(), wake })
    }

    fn put(&self, id: u64, done: Done) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((id, done));
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// All that there are, with the numbers of their clients.
    pub(super) fn take(&self) -> Vec<(u64, Done)> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request under way: whatever becomes of its thread, there is a result.
pub(super) struct Promise {
    id: u64,
    results: Arc<Results>,
    pub(super) done: Option<Done>,
}

impl Promise {
    /// Of the client with that number.
    pub(super) fn new(id: u64, results: Arc<Results>) -> Self {
        Self { id, results, done: None }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.results.put(self.id, self.done.take().unwrap_or(Done::Broken));
    }
}
