//! Event numbers: how `dmsetup wait` learns that something happened.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Asked now and then by what waits long, so that a client that has gone stops it.
pub type Cancel<'a> = &'a dyn Fn() -> bool;

/// A counter that can be waited for.
#[derive(Default)]
pub(crate) struct Events {
    number: Mutex<u32>,
    changed: Condvar,
}

impl Events {
    pub(crate) fn number(&self) -> u32 {
        *self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on from there.
    pub(crate) fn carry(&self, from: u32) {
        *self.number.lock().unwrap_or_else(PoisonError::into_inner) = from;
        self.changed.notify_all();
    }

    /// Counts one more and wakes who waits. Does not block.
    pub(crate) fn raise(&self) -> u32 {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        *number = number.wrapping_add(1);
        self.changed.notify_all();
        *number
    }

    /// Blocks until the number is not `seen`; false if cancelled.
    pub(crate) fn wait(&self, seen: u32, cancel: Cancel<'_>) -> bool {
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        while *number == seen {
            if cancel() {
                return false;
            }
            number =
                self.changed.wait_timeout(number, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
