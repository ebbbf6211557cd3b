//! The descriptors and threads that serve clients, independent of clients and devices.

use super::pool::{Pool, Work};
use super::results::Results;
use super::spare::{KEPT, Spare};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno as Os;
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use udm_io::Executor;

/// The descriptors, and the permanent threads.
pub(in crate::daemon) struct EventLoop {
    pub(super) epoll: OwnedFd,
    pub(super) results: Arc<Results>,
    pub(super) pool: Pool,
    pub(super) spare: Spare,
    /// Where the thread that waits gets its work.
    pub(super) thread: Sender<Work>,
}

impl EventLoop {
    /// Fails when there are too few descriptors to reserve any for clients, or no threads.
    pub(in crate::daemon) fn new(executor: &Arc<dyn Executor>) -> Result<Self, String> {
        let failed = |error: Os| {
            let most = getrlimit(Resource::Nofile).current;
            let most = most.map_or_else(String::new, |most| format!("; this process may open {most} files"));
            format!("cannot wait for clients: {error}{most}")
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let results = Arc::new(Results::new(&epoll).map_err(failed)?);
        let spare = Spare::new().map_err(failed)?;
        if spare.len() < KEPT {
            return Err(failed(Os::MFILE));
        }
        let (thread, come) = channel::<Work>();
        executor
            .spawn("udm-control", Box::new(move || come.into_iter().for_each(|work| work())))
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(Self { epoll, results, pool: Pool::new(executor.clone())?, spare, thread })
    }
}
