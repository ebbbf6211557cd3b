//! Threads that look after a daemon now and then.

use super::Daemon;
use super::stop::Ending;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often it is looked whether the daemon is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A daemon that is looked after now and then, and not held in between: one that gives everything to another lets go of
/// it.
pub(super) struct Resting {
    daemon: Weak<Daemon>,
    ending: Arc<Ending>,
}

impl Resting {
    pub(super) fn of(daemon: &Arc<Daemon>) -> Self {
        Self { daemon: Arc::downgrade(daemon), ending: daemon.ending.clone() }
    }

    /// Lets time pass; `None` when the daemon is ending or has gone.
    pub(super) fn rest(&self, time: Duration) -> Option<Arc<Daemon>> {
        let mut left = time;
        while !left.is_zero() {
            if self.ending.is_asked() || self.daemon.strong_count() == 0 {
                return None;
            }
            let now = left.min(LOOK);
            std::thread::sleep(now);
            left -= now;
        }
        self.daemon.upgrade().filter(|daemon| !daemon.ending.is_asked())
    }
}
