//! Bios that a target keeps until something happens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use udm_io::{Bio, Status};

/// Bios that wait for an event of the target's, in the order in which they came.
///
/// A target takes a [`ticket`](Self::ticket), looks whether the bio has to wait, and answers
/// [`Map::Delayed`](crate::Map::Delayed) with the ticket. If something was released in between, the bio goes on at
/// once, so that the target looks again: no event is lost.
///
/// A suspension waits for these bios. So the target's `presuspend` releases them, and from then on, until `resume`, it
/// keeps none.
#[derive(Default)]
pub struct Held {
    releases: AtomicU64,
    bios: Mutex<VecDeque<(u64, Bio)>>,
}

/// How much was released when it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u64);

impl Held {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Bio)>> {
        self.bios.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be taken before a target looks whether a bio has to wait.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.releases.load(Ordering::Acquire))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Lets all go on. Returns how many. From any thread.
    pub fn release_all(&self) -> usize {
        self.release(|_| true)
    }

    /// Lets those go on whose context is such, in their order. Returns how many. From any thread.
    pub fn release(&self, mut which: impl FnMut(u64) -> bool) -> usize {
        let mut bios = self.lock();
        self.releases.fetch_add(1, Ordering::Release);
        let (released, kept): (VecDeque<_>, _) = std::mem::take(&mut *bios).into_iter().partition(|held| which(held.0));
        *bios = kept;
        drop(bios);
        let count = released.len();
        // Home by way of the frame that has its target go on.
        released.into_iter().for_each(|(_, bio)| bio.end(Status::Ok));
        count
    }

    /// Keeps a bio; gives it back when something was released since the ticket was taken.
    pub(crate) fn keep(&self, bio: Bio, ticket: Ticket, context: u64) -> Option<Bio> {
        let mut bios = self.lock();
        if self.ticket() != ticket {
            return Some(bio);
        }
        bios.push_back((context, bio));
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release_all();
    }
}
