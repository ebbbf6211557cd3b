//! Locks that are waited for only so long.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// How often a lock is tried, and how long it is left alone in between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// A lock that is held for moments only, unless something is wrong.
pub(crate) fn patiently<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    None
}
