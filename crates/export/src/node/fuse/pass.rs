//! A mount that goes on in another process.
//!
//! A connection of FUSE is its descriptor: whoever has it reads requests from it and writes answers to it. Requests
//! that nobody has read stay in the kernel meanwhile, so that those who made them notice only that it takes longer.
//!
//! What passes is the descriptors, the directory's first, and a [`Plan`].

use super::connection::Connection;
use super::mount::Mounted;
use super::server::FuseServer;
use super::tree::{Node, Tree, TreePlan, lock};
use crate::exports::Export;
use crate::worker::deadline::Answers;
use crate::worker::group::Workers;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use udm_io::Domain;

/// What the next server has to know beside the descriptor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Whether fusermount3 has mounted, and must unmount.
    helper: bool,
    tree: TreePlan,
    /// Those of nodes, in the order of their descriptors. A server before this one had none.
    #[serde(default)]
    connections: Vec<ConnectionPlan>,
}

/// A node's connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectionPlan {
    /// The node's number.
    node: u64,
    /// Its mount is to be seen.
    mounted: bool,
    /// What is open by way of it.
    handles: Vec<u64>,
}

/// A mount that was taken over. It is not served yet, and stays as it is when this is dropped.
pub struct Adopted {
    fuse: OwnedFd,
    helper: bool,
    tree: Tree,
    connections: Vec<(OwnedFd, Arc<Node>, ConnectionPlan)>,
}

impl FuseServer {
    /// Takes no more requests in, and waits until none is under way; blocks at most `patience`. Whether that is so: if
    /// not, it goes on as before. Requests wait in the kernel until [`resume`](Self::resume), or for another server
    /// ([`give`](Self::give)). Meanwhile this process must not touch the mount.
    pub fn pause(&self, patience: Duration) -> bool {
        // A worker that has ended has nothing under way.
        self.workers().pause(patience) != Answers::Late
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.workers().resume();
    }

    /// The names of the devices that are open here, each as often as it is.
    pub fn open_devices(&self) -> Vec<String> {
        self.shared().tree.open_devices()
    }

    /// After a pause: ends the threads, and leaves the mounts and their connections to another server. Devices are
    /// closed.
    ///
    /// # Errors
    /// It is no longer mounted.
    pub fn give(&self) -> io::Result<(Vec<OwnedFd>, Plan)> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "it was unmounted");
        let tree = self.shared().tree.plan();
        let connections = std::mem::take(&mut *lock(&self.shared().connections));
        let (mut directory, nodes): (Vec<_>, Vec<_>) = connections.into_iter().partition(|c| c.node.is_none());
        let directory = directory.pop().ok_or_else(gone)?;
        let helper = directory.take_mounted().map(|mounted| (mounted.by_helper(), mounted.leave()).0);
        let plan = |connection: &Arc<Connection>| {
            let node = connection.node.as_ref().expect("the directory's is not among them");
            let mounted = connection.take_mounted().map(Mounted::leave).is_some();
            ConnectionPlan { node: node.number(), mounted, handles: node.handles_by(connection.id) }
        };
        let connections = nodes.iter().map(plan).collect();
        Workers::shut_down([self.workers()], Duration::ZERO);
        // The threads' ends of them have gone.
        let descriptor = |connection: Arc<Connection>| match Arc::try_unwrap(connection) {
            Ok(connection) => Ok(connection.into_fd()),
            Err(shared) => shared.fd().try_clone_to_owned(),
        };
        let fds = std::iter::once(directory).chain(nodes).map(descriptor).collect::<io::Result<Vec<_>>>()?;
        Ok((fds, Plan { helper: helper.ok_or_else(gone)?, tree, connections }))
    }
}

impl Adopted {
    /// Makes the directory again, with everything open that is open in it: devices come from `device`, by their names.
    /// Those that are missing, or cannot be opened, are among the problems; their files fail.
    ///
    /// # Errors
    /// What does not fit.
    pub fn new(
        fds: Vec<OwnedFd>,
        plan: Plan,
        device: impl FnMut(&str) -> Option<Box<dyn Export>>,
        problems: &mut Vec<String>,
    ) -> Result<Self, String> {
        let Plan { helper, tree, connections } = plan;
        if fds.len() != connections.len() + 1 {
            return Err(format!("{} descriptors of a mount and {} in it", fds.len(), connections.len()));
        }
        let tree = Tree::of_plan(tree, device, problems)?;
        let mut fds = fds.into_iter();
        let fuse = fds.next().ok_or("no descriptor of a mount")?;
        // A node that is missing is among the problems: its connection ends, and its file fails.
        let connections = fds.zip(connections).filter_map(|(fd, plan)| Some((fd, tree.numbered(plan.node)?, plan)));
        let connections = connections.collect();
        Ok(Self { fuse, helper, tree, connections })
    }

    /// Serves what is mounted on `dir`, with `threads` threads (at least 1). Nobody else may serve it any more.
    ///
    /// # Errors
    /// Threads cannot be started. It is unmounted then.
    pub fn serve(self, domain: &Domain, dir: &Path, threads: usize) -> io::Result<FuseServer> {
        let Self { fuse, helper, tree, connections } = self;
        let mounted = Mounted::adopt(dir, helper)?;
        // What was agreed upon with the kernel stays.
        let server = FuseServer::new(domain, dir, threads, helper, tree, None)?;
        let tree = &server.shared().tree;
        let files = connections.into_iter().map(|(fuse, node, plan)| {
            let name = tree.name_of(&node).filter(|_| plan.mounted);
            tree.set_mounted(&node, name.as_deref());
            (fuse, node, name.map(|name| mounted.file(&name)), plan.handles)
        });
        let files: Vec<_> = files.collect();
        server.connect(fuse, None, Some(mounted), &[]);
        for (fuse, node, mounted, handles) in files {
            server.connect(fuse, Some(node), mounted, &handles);
        }
        Ok(server)
    }
}
