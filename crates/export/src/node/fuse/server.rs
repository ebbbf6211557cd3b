//! The server: its threads, its mount, and how it starts and stops.

use super::connection::Connection;
use super::mount::{self, Mounted};
use super::tree::{DIRECTORY_ID, FILES, Node, Owner, Tree, lock};
use super::uring;
use super::worker::{Command, MOST_MEMORY, MOST_SURE, Shared, Worker};
use crate::exports::Export;
use crate::worker::group::Workers;
use rustix::fd::OwnedFd;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use udm_io::Domain;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// They are read from the connection's descriptor, and answers are written there.
    Descriptor,
    /// By io_uring. Such a connection cannot [pass](FuseServer::give) to another process.
    IoUring,
}

impl Transport {
    /// Its name, for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Descriptor => "fuse",
            Self::IoUring => "fuse-io_uring",
        }
    }
}

/// A mount with mounts on its files, and the threads that serve them. Dropping it unmounts, without patience.
///
/// No thread that serves a mount may use a file of it: that would wait for itself.
pub struct FuseServer {
    dir: PathBuf,
    /// The helper mounts.
    helper: bool,
    shared: Arc<Shared>,
    next_connection: AtomicU64,
    /// How many connections may have their requests come by io_uring.
    most_rings: usize,
}

impl FuseServer {
    /// Mounts on `dir`, which is made if it is not there, and serves with `threads` threads (at least 1). A mount that
    /// a dead server has left there is ended before. Blocks.
    ///
    /// # Errors
    /// Without FUSE, without the right to mount and fusermount3, or with something else mounted there. The text says
    /// what to do.
    pub fn start(domain: &Domain, dir: &Path, threads: usize, owner: Owner) -> io::Result<Self> {
        Self::start_by(domain, dir, threads, owner, true)
    }

    /// As [`start`](Self::start). Only if `rings` may requests come by io_uring, which a kernel from 6.14 on offers
    /// where its administrator allows it (`/sys/module/fuse/parameters/enable_uring`); see
    /// [`transport`](Self::transport).
    ///
    /// # Errors
    /// As there.
    pub fn start_by(domain: &Domain, dir: &Path, threads: usize, owner: Owner, rings: bool) -> io::Result<Self> {
        let queues = if rings && uring::is_allowed() { uring::queues().ok() } else { None };
        let (fuse, mounted) = mount::mount(dir)?;
        let server = Self::new(domain, dir, threads, mounted.by_helper(), Tree::new(owner), queues)?;
        server.connect(fuse, None, Some(mounted), &[]);
        Ok(server)
    }

    /// Starts the threads, which serve nothing yet.
    pub(super) fn new(
        domain: &Domain,
        dir: &Path,
        threads: usize,
        helper: bool,
        tree: Tree,
        queues: Option<usize>,
    ) -> io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared::new(domain, tree));
        let makers = (0..threads).map(|number| {
            let (domain, shared) = (domain.clone(), shared.clone());
            move || Worker::new(&domain, shared, (number, threads), queues)
        });
        let started = shared.workers.start(|number| format!("udm-fuse-{number}"), makers);
        // Dropped, it waits for those that end.
        let server = Self {
            dir: dir.to_owned(),
            helper,
            next_connection: AtomicU64::new(DIRECTORY_ID),
            most_rings: queues.map_or(0, |queues| uring::most_connections(queues, threads)),
            shared,
        };
        started.map(|()| server)
    }

    /// Serves a connection, by which `handles` are open already. The first one is the directory's.
    pub(super) fn connect(&self, fuse: OwnedFd, node: Option<Arc<Node>>, mounted: Option<Mounted>, handles: &[u64]) {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let mut connections = lock(&self.shared.connections);
        let rings = connections.len() < self.most_rings && self.shared.ringless.load(Ordering::Acquire) == 0;
        if let Some(node) = &node {
            node.give_handles(handles, id);
        }
        let connection = Arc::new(Connection::new(id, fuse, node, mounted, rings));
        connections.push(connection.clone());
        drop(connections);
        self.workers().tell(|| Command::Serve(connection.clone()));
    }

    /// Mounts the node's file on top of itself, so that its requests have a connection of their own. Without that they
    /// wait behind those of other nodes that have none.
    fn mount_file(&self, name: &str, node: &Arc<Node>) {
        match mount::mount_file(self.domain(), &self.file(name), self.helper) {
            Ok((fuse, mounted)) => {
                self.connect(fuse, Some(node.clone()), Some(mounted), &[]);
                self.shared.tree.set_mounted(node, Some(name));
            }
            Err(error) => tracing::warn!("the node of {name} shares its requests' way with others: {error}"),
        }
    }

    /// Takes the mount of a node's file out of sight: who has it open keeps it.
    fn unmount_file(&self, node: &Arc<Node>) {
        let all = lock(&self.shared.connections).clone();
        let mounted = all.iter().filter(|connection| connection.is_of(node)).filter_map(|one| one.take_mounted());
        mounted.for_each(|mounted| mounted.unmount(self.domain()));
        self.shared.tree.set_mounted(node, None);
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a node's name: its file, or the link that was set.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The path of a node's file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(FILES).join(name)
    }

    /// Whether it is still mounted: somebody may have unmounted it. Out of sight it lasts for as long as a file of it
    /// is open.
    pub fn is_mounted(&self) -> bool {
        let connections = lock(&self.shared.connections);
        let there = connections.iter().any(|connection| connection.node.is_none());
        // Dead and to be seen: it was ended by force, and what is open is to end with it.
        there || !connections.is_empty() && mount::find(&self.dir).is_ok_and(|found| found.is_empty())
    }

    /// How requests come from the kernel. It is agreed upon when a mount is first used.
    pub fn transport(&self) -> Transport {
        match lock(&self.shared.connections).iter().any(|connection| connection.by_ring()) {
            true => Transport::IoUring,
            false => Transport::Descriptor,
        }
    }

    /// Adds a node. Blocks until its file is mounted.
    ///
    /// # Errors
    /// The name is taken, or cannot be that of a file.
    pub fn add(&self, name: &str, device: Box<dyn Export>) -> Result<(), String> {
        let node = self.shared.tree.add(name, device)?;
        self.mount_file(name, &node);
        Ok(())
    }

    /// Adds a name that is a link to a block device of another kind; nobody is to use its file.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_link(&self, name: &str, device: Box<dyn Export>, target: &Path) -> Result<(), String> {
        self.shared.tree.add(name, device)?;
        self.set_link(name, Some(target));
        Ok(())
    }

    /// Takes a node's name away; who has it open keeps it. Whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        if let Some(node) = self.shared.tree.named(name) {
            self.unmount_file(&node);
        }
        self.shared.tree.remove(name)
    }

    /// Gives a node another name.
    ///
    /// # Errors
    /// There is no such node, or the new name is taken, or cannot be that of a file.
    pub fn rename(&self, old: &str, new: &str) -> Result<(), String> {
        let node = self.shared.tree.named(old).ok_or_else(|| format!("no node is named {old:?}"))?;
        // A mount cannot be moved where mounts are shared with others, as they mostly are.
        self.unmount_file(&node);
        let renamed = self.shared.tree.rename(old, new);
        self.mount_file(if renamed.is_ok() { new } else { old }, &node);
        renamed
    }

    /// Makes the node's name a link to a block device, or the file again. Whether there is such a node.
    pub fn set_link(&self, name: &str, target: Option<&Path>) -> bool {
        self.shared.tree.set_link(name, target)
    }

    /// Whether somebody has the node's file open. See [`reap`](Self::reap).
    pub fn is_open(&self, name: &str) -> bool {
        self.shared.tree.named(name).is_some_and(|node| node.is_open())
    }

    /// The most bytes of memory that requests under way take for their data.
    pub fn most_data(&self) -> usize {
        self.workers().handles().len() * MOST_MEMORY + lock(&self.shared.connections).len() * MOST_SURE
    }

    /// The nodes' names.
    pub fn names(&self) -> Vec<String> {
        self.shared.tree.names()
    }

    /// A node's device has another size, table or mode: what was known of it is forgotten, here and in the kernel.
    pub fn changed(&self, name: &str) {
        let Some(node) = self.shared.tree.changed(name) else { return };
        let all = lock(&self.shared.connections);
        let knows = |connection: &&Arc<Connection>| connection.node.is_none() || connection.is_of(&node);
        all.iter().filter(knows).for_each(|connection| connection.forget_attributes(&node));
    }

    /// Sees that files that were closed before the call no longer count as open. Blocks, at most a second. Whether it
    /// is done.
    pub fn reap(&self) -> bool {
        !self.is_mounted() || self.workers().reap(Command::Reap)
    }

    /// Unmounts, finishes what is under way, and ends the threads; blocks at most `patience` for devices that do not
    /// finish. Files that are still open fail from then on. Further calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        let all = lock(&self.shared.connections).clone();
        // With it go those on its files.
        let directory = all.iter().find(|connection| connection.node.is_none());
        drop(directory.and_then(|directory| directory.take_mounted()));
        all.iter().filter_map(|connection| connection.take_mounted()).for_each(Mounted::leave);
        drop(all);
        Workers::shut_down([self.workers()], patience);
        lock(&self.shared.connections).clear();
    }

    pub(super) fn domain(&self) -> &Domain {
        self.workers().domain()
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn workers(&self) -> &Workers<Command> {
        &self.shared.workers
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
