//! The system resources that a daemon needs for itself, independent of its devices. They are allocated before another
//! daemon is contacted, and stay when devices are given away and come back, so neither step fails because descriptors
//! or threads have run out.

use super::clients::EventLoop;
use super::stop::Ending;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use udm_io::Executor;

/// A daemon takes some forty files for itself, and some more for a moment.
const FEWEST: u64 = 64;

pub(super) struct Resources {
    pub(super) ending: Arc<Ending>,
    pub(super) event_loop: EventLoop,
}

impl Resources {
    pub(super) fn new(executor: &Arc<dyn Executor>) -> Result<Self, String> {
        if let Some(most) = getrlimit(Resource::Nofile).current.filter(|most| *most < FEWEST) {
            return Err(format!(
                "this process may open {most} files, and a daemon needs at least {FEWEST}: raise the limit (`ulimit -n`)"
            ));
        }
        let ending = Ending::on_signals().map_err(|e| format!("cannot wait for signals: {e}"))?;
        Ok(Self { ending: Arc::new(ending), event_loop: EventLoop::new(executor)? })
    }
}
