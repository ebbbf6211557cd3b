//! The server: its threads, its mount, and how it starts and stops.

use super::mount::{self, Mounted};
use super::tree::{FILES, Owner, Tree};
use super::uring;
use super::wire::{InvalInode, NOTIFY_INVAL_INODE, OutHeader};
use super::worker::{Command, Handle, MOST_MEMORY, Shared, Worker};
use crate::node::{NodeDevice, sys};
use rustix::fd::{AsFd, OwnedFd};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Domain, Joiner};
use zerocopy::IntoBytes;

/// How long [`FuseServer::reap`] waits.
const REAP: Duration = Duration::from_secs(1);

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

/// A mount, and the threads that serve it. Dropping it unmounts, without patience.
///
/// No thread that serves a mount may use a file of it: that would wait for itself.
pub struct FuseServer {
    domain: Domain,
    dir: PathBuf,
    shared: Arc<Shared>,
    /// For messages to the kernel. The last descriptor of the connection: when it is closed, the connection ends.
    fuse: Mutex<Option<OwnedFd>>,
    mounted: Mutex<Option<Mounted>>,
    joiners: Mutex<Vec<Joiner>>,
}

impl FuseServer {
    /// Mounts on `dir`, which is made if it is not there, and serves with `threads` threads (at least 1). A mount that a
    /// dead server has left there is ended before. Blocks.
    ///
    /// # Errors
    /// Without FUSE, without the right to mount and fusermount3, or with something else mounted there. The text says
    /// what to do.
    pub fn start(domain: &Domain, dir: &Path, threads: usize, owner: Owner) -> io::Result<Self> {
        Self::start_by(domain, dir, threads, owner, true)
    }

    /// As [`start`](Self::start). Only if `rings` may requests come by io_uring, which a kernel from 6.14 on offers where its
    /// administrator allows it (`/sys/module/fuse/parameters/enable_uring`); see [`transport`](Self::transport).
    ///
    /// # Errors
    /// As there.
    pub fn start_by(domain: &Domain, dir: &Path, threads: usize, owner: Owner, rings: bool) -> io::Result<Self> {
        let queues = if rings && uring::is_allowed() { uring::queues().ok() } else { None };
        let (fuse, mounted) = mount::mount(dir)?;
        Self::serve(domain, dir, threads, (fuse, mounted), Tree::new(owner), queues)
    }

    /// Serves a mount.
    pub(super) fn serve(
        domain: &Domain,
        dir: &Path,
        threads: usize,
        (fuse, mounted): (OwnedFd, Mounted),
        tree: Tree,
        queues: Option<usize>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(tree));
        let mut server = Self {
            domain: domain.clone(),
            dir: dir.to_owned(),
            shared,
            fuse: Mutex::default(),
            mounted: Mutex::new(Some(mounted)),
            joiners: Mutex::default(),
        };
        let started = server.spawn_all(&fuse, threads.max(1), queues);
        server.fuse = Mutex::new(Some(fuse));
        started.map(|()| server)
    }

    fn spawn_all(&self, fuse: &OwnedFd, threads: usize, queues: Option<usize>) -> io::Result<()> {
        let (told, handles) = mpsc::channel();
        let mut begin = Vec::new();
        let mut joiners = self.joiners.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..threads {
            let clone = sys::clone_fuse(fuse.as_fd())?;
            let (domain, shared, told) = (self.domain.clone(), self.shared.clone(), told.clone());
            let (start, started) = mpsc::channel::<()>();
            let work = move || match Worker::new(&domain, shared, clone, (number, threads), queues) {
                Ok(worker) => {
                    let known = told.send((number, Ok(worker.handle()))).is_ok();
                    drop(told);
                    // Not told when another could not be started.
                    if known && started.recv().is_ok() {
                        worker.run();
                    }
                }
                Err(error) => drop(told.send((number, Err(error)))),
            };
            joiners.push(self.domain.executor().spawn(&format!("udm-fuse-{number}"), Box::new(work))?);
            begin.push(start);
        }
        drop(told);
        let mut all: Vec<_> = handles.iter().collect();
        all.sort_by_key(|(number, _)| *number);
        let all = all.into_iter().map(|(_, handle)| handle).collect::<io::Result<Vec<_>>>()?;
        // Before the first request: each knows the others.
        let _ = self.shared.handles.set(all);
        for start in begin {
            // A thread that has gone has told why.
            let _ = start.send(());
        }
        Ok(())
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

    /// Whether it is still mounted: somebody may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        !self.shared.gone.load(Ordering::Acquire)
    }

    /// How requests come from the kernel. It is agreed upon when the mount is first used.
    pub fn transport(&self) -> Transport {
        match self.shared.by_ring.load(Ordering::Acquire) {
            true => Transport::IoUring,
            false => Transport::Descriptor,
        }
    }

    /// Adds a node.
    ///
    /// # Errors
    /// The name is taken, or cannot be that of a file.
    pub fn add(&self, name: &str, device: Box<dyn NodeDevice>) -> Result<(), String> {
        self.shared.tree.add(name, device)
    }

    /// Takes a node's name away; who has it open keeps it. Whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        self.shared.tree.remove(name)
    }

    /// Gives a node another name.
    ///
    /// # Errors
    /// There is no such node, or the new name is taken, or cannot be that of a file.
    pub fn rename(&self, old: &str, new: &str) -> Result<(), String> {
        self.shared.tree.rename(old, new)
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
        self.shared.handles.get().map_or(0, Vec::len) * MOST_MEMORY
    }

    /// The nodes' names.
    pub fn names(&self) -> Vec<String> {
        self.shared.tree.names()
    }

    /// A node's device has another size, table or mode: what was known of it is forgotten, here and in the kernel.
    pub fn changed(&self, name: &str) {
        let Some(ino) = self.shared.tree.changed(name) else { return };
        // Attributes alone; there are no pages but of shared mappings, which stay.
        let message = InvalInode { ino, off: -1, len: 0 };
        let len = size_of::<OutHeader>() + size_of::<InvalInode>();
        let header = OutHeader { len: len as u32, error: NOTIFY_INVAL_INODE, unique: 0 };
        if let Some(fuse) = &*self.fuse.lock().unwrap_or_else(PoisonError::into_inner) {
            // Fails when the kernel does not know the inode, which is as well.
            let _ = rustix::io::writev(fuse, &[IoSlice::new(header.as_bytes()), IoSlice::new(message.as_bytes())]);
        }
    }

    /// Sees that files that were closed before the call no longer count as open. Blocks, at most a second. Whether it is
    /// done.
    pub fn reap(&self) -> bool {
        if !self.is_mounted() {
            return true;
        }
        let (answer, answers) = mpsc::channel();
        self.tell_all(|| Command::Reap(answer.clone()));
        drop(answer);
        let clock = self.domain.clock();
        let until = clock.now().after(REAP.as_nanos() as u64);
        let left = || Duration::from_nanos(until.since(clock.now()));
        self.handles().iter().all(|_| answers.recv_timeout(left()) != Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Unmounts, finishes what is under way, and ends the threads; blocks at most `patience` for devices that do not
    /// finish. Files that are still open fail from then on. Further calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        let (mounted, fuse, joiners) = self.take_apart();
        drop(mounted);
        let deadline = self.domain.clock().now().after(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        self.tell_all(|| Command::End(deadline));
        joiners.into_iter().for_each(Joiner::join);
        drop(fuse);
    }

    /// What is there only once: the mount, the descriptor and the threads.
    pub(super) fn take_apart(&self) -> (Option<Mounted>, Option<OwnedFd>, Vec<Joiner>) {
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fuse = self.fuse.lock().unwrap_or_else(PoisonError::into_inner).take();
        (mounted, fuse, std::mem::take(&mut *self.joiners.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub(super) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn handles(&self) -> &[Arc<Handle>] {
        self.shared.handles.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn tell_all(&self, command: impl Fn() -> Command) {
        self.handles().iter().for_each(|handle| handle.tell(command()));
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
