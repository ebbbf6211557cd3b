//! What clients are waited for with, whoever they are and whatever devices there are.

use super::pool::Pool;
use super::spare::{KEPT, Spare};
use super::{Clients, Results, WAKE};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use rustix::process::{Resource, getrlimit};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use udm_io::Executor;

/// The descriptors, and the threads that are always there.
pub(in crate::daemon) struct EventLoop {
    pub(super) epoll: OwnedFd,
    pub(super) results: Arc<Results>,
    pub(super) pool: Pool,
    pub(super) spare: Spare,
    /// Where the thread that waits gets its clients, and where to it gives them back.
    pub(super) thread: Sender<(Clients, Sender<Clients>)>,
}

impl EventLoop {
    /// Fails when there are too few descriptors for clients to be sure of any, or no threads.
    pub(in crate::daemon) fn new(executor: &Arc<dyn Executor>) -> Result<Self, String> {
        let failed = |error: Os| {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(String::new, |most| format!("; this process may open {most} files"));
            format!("cannot wait for clients: {error}{most}")
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(failed)?;
        let spare = Spare::new().map_err(failed)?;
        if spare.len() < KEPT {
            return Err(failed(Os::MFILE));
        }
        let (thread, come) = channel::<(Clients, Sender<Clients>)>();
        let work = move || {
            for (mut clients, back) in come {
                clients.run();
                let _ = back.send(clients);
            }
        };
        executor.spawn("udm-control", Box::new(work)).map_err(|e| format!("cannot start a thread: {e}"))?;
        let results = Arc::new(Results { done: Mutex::default(), wake });
        Ok(Self { epoll, results, pool: Pool::new(executor.clone())?, spare, thread })
    }
}
