//! What a daemon needs of the system for itself, whatever its devices are. It is there before anything is asked of
//! another daemon, and stays when devices are given away and come back: neither then fails for want of a descriptor or
//! a thread.

use super::clients::EventLoop;
use super::stop::{Stop, ended_by_signal};
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use udm_io::Executor;

/// A daemon takes some forty files for itself, and some more for a moment.
const FEWEST: u64 = 64;

pub(super) struct Resources {
    /// The end was asked for, by a signal or a client.
    pub(super) ended: Arc<AtomicBool>,
    /// Whoever waits is to look why.
    pub(super) stop: Arc<Stop>,
    pub(super) event_loop: EventLoop,
}

impl Resources {
    pub(super) fn new(executor: &Arc<dyn Executor>) -> Result<Self, String> {
        if let Some(most) = getrlimit(Resource::Nofile).current.filter(|most| *most < FEWEST) {
            return Err(format!(
                "this process may open {most} files, and a daemon needs at least {FEWEST}: raise the limit (`ulimit -n`)"
            ));
        }
        let stop = || {
            let ended = ended_by_signal()?;
            let stop = Stop::new()?;
            stop.on_signals().map(|()| (ended, Arc::new(stop)))
        };
        let (ended, stop) = stop().map_err(|e| format!("cannot wait for signals: {e}"))?;
        Ok(Self { ended, stop, event_loop: EventLoop::new(executor)? })
    }
}
