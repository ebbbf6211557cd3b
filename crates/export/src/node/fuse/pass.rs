//! A mount that goes on in another process.
//!
//! A connection of FUSE is its descriptor: whoever has it reads requests from it and writes answers to it. Requests that
//! nobody has read stay in the kernel meanwhile, so that those who made them notice only that it takes longer.
//!
//! What passes is the descriptor and a [`Plan`]. Workers of the next server make descriptors of their own from it.

use super::mount::Mounted;
use super::server::FuseServer;
use super::tree::{Tree, TreePlan};
use super::worker::Command;
use crate::node::NodeDevice;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use udm_io::{Domain, Joiner};

/// What the next server has to know beside the descriptor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Whether fusermount3 has mounted, and must unmount.
    helper: bool,
    tree: TreePlan,
}

/// A mount that was taken over. It is not served yet, and stays as it is when this is dropped.
pub struct Adopted {
    fuse: OwnedFd,
    helper: bool,
    tree: Tree,
}

impl FuseServer {
    /// Takes no more requests in, and waits until none is under way; blocks at most `patience`. Whether that is so: if not, it goes on
    /// as before. Requests wait in the kernel until [`resume`](Self::resume), or for another server
    /// ([`give`](Self::give)). Meanwhile this process must not touch the mount.
    pub fn pause(&self, patience: Duration) -> bool {
        let (done, is_done) = mpsc::channel();
        self.tell_all(|| Command::Pause(done.clone()));
        drop(done);
        let clock = self.domain().clock();
        let until = clock.now().after(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let left = || Duration::from_nanos(until.since(clock.now()));
        // A worker that has ended says nothing, and its end of the channel goes.
        let paused =
            self.handles().iter().all(|_| is_done.recv_timeout(left()) != Err(mpsc::RecvTimeoutError::Timeout));
        if !paused {
            self.resume();
        }
        paused
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.tell_all(|| Command::Resume);
    }

    /// The names of the devices that are open here, each as often as it is.
    pub fn open_devices(&self) -> Vec<String> {
        self.shared().tree.open_devices()
    }

    /// After a pause: ends the threads, and leaves the mount and its connection to another server. Devices are closed.
    ///
    /// # Errors
    /// It is no longer mounted.
    pub fn give(&self) -> io::Result<(OwnedFd, Plan)> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "it was unmounted");
        let (mounted, fuse, joiners) = self.take_apart();
        let (mounted, fuse) = (mounted.ok_or_else(gone)?, fuse.ok_or_else(gone)?);
        let plan = Plan { helper: mounted.leave(), tree: self.shared().tree.plan() };
        let now = self.domain().clock().now();
        self.tell_all(|| Command::End(now));
        joiners.into_iter().for_each(Joiner::join);
        Ok((fuse, plan))
    }
}

impl Adopted {
    /// Makes the directory again, with everything open that is open in it: devices come from `device`, by their names. Those
    /// that are missing, or cannot be opened, are among the problems; their files fail.
    ///
    /// # Errors
    /// What does not fit.
    pub fn new(
        fuse: OwnedFd,
        plan: Plan,
        device: impl FnMut(&str) -> Option<Box<dyn NodeDevice>>,
        problems: &mut Vec<String>,
    ) -> Result<Self, String> {
        let Plan { helper, tree } = plan;
        Ok(Self { fuse, helper, tree: Tree::of_plan(tree, device, problems)? })
    }

    /// Serves what is mounted on `dir`, with `threads` threads (at least 1). Nobody else may serve it any more.
    ///
    /// # Errors
    /// Threads cannot be started. It is unmounted then.
    pub fn serve(self, domain: &Domain, dir: &Path, threads: usize) -> io::Result<FuseServer> {
        let mounted = Mounted::adopt(dir, self.helper)?;
        // What was agreed upon with the kernel stays.
        FuseServer::serve(domain, dir, threads, (self.fuse, mounted), self.tree, None)
    }
}
