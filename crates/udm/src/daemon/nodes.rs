//! Devices in the file system: which of them have a node, and how nodes follow changes of their devices.
//!
//! The mount and its threads begin with the first node. [`Nodes::sync`] is called whenever something may have changed:
//! it compares each node with its device, and does what is needed.
//!
//! # Locks
//! The lock here is held while the mount's threads are asked for names of files. They take locks of the registry and of
//! devices, never this one. It is not held for what may wait for a device: see [shared].

mod block;
mod claims;
mod end;
mod error;
mod files;
mod frozen;
mod held;
mod loops;
mod mapper;
mod pass;
mod shared;
mod ublk;

pub(crate) use pass::ReadyNodes;

use super::own_writes;
use super::state::NodeState;
use crate::exports::Mapped;
use crate::places::Places;
use end::end_files;
use error::{failed, of_io};
use files::{Change, Files, Node, is};
use frozen::NodeFileSystems;
use held::is_held;
use rustix::process::geteuid;
use shared::{Claim, Shared};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::{Duration, Instant, SystemTime};
use tracing::{info, warn};
use ublk::Ublks;
use udm_base::Errno;
use udm_control::second::{NodeEntry, NodeKind};
use udm_core::{Error, MappedDevice, Registry};
use udm_export::Export;
use udm_export::node::fuse::{self, FuseServer, Owner};
use udm_export::node::loopdev;

/// How long the mount may take to end for another daemon.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a command waits for its consequences: a block device that adapts to its device, or comes back. Afterwards
/// that goes on by itself.
const SETTLE: Duration = Duration::from_secs(5);
/// How many nodes follow their devices at a time; others do so at the next look.
const AT_ONCE: usize = 64;

/// The nodes of a daemon's devices.
pub(crate) struct Nodes {
    registry: Registry,
    dir: PathBuf,
    settings: NodeSettings,
    /// The nodes that need no file.
    ublk: Ublks,
    shared: Arc<Shared>,
}

/// The daemon's options for nodes.
#[derive(Clone, Copy)]
pub(crate) struct NodeSettings {
    /// For devices without an explicit kind.
    pub(crate) node: NodeKind,
    /// Requests may come by io_uring.
    pub(crate) rings: bool,
}

/// Work for a node, to be done without the lock.
struct Due {
    claim: Claim,
    /// `None`: the node has to be removed.
    change: Option<Change>,
}

impl Due {
    fn perform(self) {
        match self.change {
            Some(change) => self.claim.follow(change),
            // Programs that still have its block device open find no device any more.
            None => _ = self.claim.take_away(false),
        }
    }
}

/// Threads of the mount.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

impl Nodes {
    /// No nodes yet. The remains of an earlier daemon are ended now, so that nobody takes them for a device of this
    /// one.
    pub(crate) fn new(registry: &Registry, places: &Places, settings: NodeSettings) -> Self {
        let dir = places.nodes();
        registry.set_nodes(dir.clone());
        // Without it, what is mounted there is found by the first node.
        let ended = loopdev::detach_stale(registry.domain(), &dir).and_then(|_| fuse::clear(&dir));
        if let Err(error) = ended {
            warn!("{}: what is mounted there stays: {error}", dir.display());
        }
        mapper::remove_stale(&dir);
        let ublk = Ublks::new(registry, &dir);
        let shared = Shared::new(registry, Files::default());
        registry.set_file_systems(Arc::new(NodeFileSystems::new(&shared, places.frozen(), false)));
        Self { registry: registry.clone(), dir, settings, ublk, shared }
    }

    /// Those of the kernel's ublk driver.
    pub(crate) fn ublk(&self) -> &Ublks {
        &self.ublk
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.shared.lock()
    }

    /// What the daemon was told of them.
    pub(crate) fn settings(&self) -> NodeSettings {
        self.settings
    }

    /// The nodes that there are.
    pub(crate) fn list(&self) -> Vec<NodeEntry> {
        let inner = self.lock();
        inner.nodes.iter().map(|node| inner.entry(node)).chain(self.ublk.list()).collect()
    }

    /// The kind that was asked for, of a device with a node.
    pub(crate) fn wanted(&self, md: &Arc<MappedDevice>) -> Option<NodeState> {
        let wanted = self.lock().nodes.iter().find(|node| Arc::ptr_eq(&node.md, md)).map(|node| node.wanted);
        wanted.or_else(|| self.ublk.wanted(md))
    }

    /// Gives the device of that name a node, or another kind of it. Blocks.
    ///
    /// # Errors
    /// ENXIO without such a device; EBUSY when its node would change and is in use; the system's errors of mounting and
    /// of attaching a loop device.
    pub(crate) fn add(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<Option<NodeEntry>, Error> {
        self.add_and(name, NodeState { kind, mapper, number: None }, true)
    }

    /// The same for a daemon that starts: the block device of a suspended device comes with its resume.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn bring_back(&self, name: &str, wanted: NodeState) -> Result<(), Error> {
        let waits = self.registry.by_name(name).is_some_and(|md| is_held(&md));
        self.add_and(name, wanted, !waits).map(drop)
    }

    /// `wait`: until it has its block device.
    fn add_and(&self, name: &str, wanted: NodeState, wait: bool) -> Result<Option<NodeEntry>, Error> {
        let missing = || failed(Errno::ENXIO, format!("no device has the name {name:?}"));
        let md = self.registry.by_name(name).ok_or_else(missing)?;
        let claim = self.shared.claim(&md, "made", PATIENCE)?;
        {
            let inner = self.lock();
            if let Some(node) = inner.position(&md).map(|at| &inner.nodes[at]) {
                if node.wanted == wanted && !node.lost {
                    return Ok(Some(inner.entry(node)));
                }
                let kindly = !node.lost;
                drop(inner);
                claim.take_away(kindly)?;
            }
        }
        if let Some(has) = self.ublk.wanted(&md) {
            if has == wanted {
                return Ok(self.ublk.list().into_iter().find(|entry| entry.name == md.device_name()));
            }
            self.remove_ublk(name)?;
        }
        let mut inner = self.lock();
        inner.without.retain(|other| other.strong_count() > 0 && !is(other, &md));
        if wanted.kind == NodeKind::None {
            inner.without.push(Arc::downgrade(&md));
            return Ok(None);
        }
        drop(inner);
        self.make(&claim, wanted, wait).map(Some)
    }

    /// Removes the node of the device of that name. Open files keep working. Blocks.
    ///
    /// # Errors
    /// ENXIO without such a node; EBUSY when its block device is open.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        if let Some(md) = self.remove_ublk(name)? {
            self.lock().without.push(Arc::downgrade(&md));
            return Ok(());
        }
        let md = self.lock().nodes.iter().find(|node| node.name == name).map(|node| node.md.clone());
        let Some(md) = md else {
            return Err(failed(Errno::ENXIO, format!("{name:?} has no node; `udm node` lists those that there are")));
        };
        self.shared.claim(&md, "taken away", PATIENCE)?.take_away(true)?;
        self.lock().without.push(Arc::downgrade(&md));
        Ok(())
    }

    fn remove_ublk(&self, name: &str) -> Result<Option<Arc<MappedDevice>>, Error> {
        let removed = self.ublk.remove(name)?;
        if let (Some(_), Some(server)) = (&removed, &self.lock().server) {
            server.remove(name);
        }
        Ok(removed)
    }

    fn make(&self, claim: &Claim, wanted: NodeState, wait: bool) -> Result<NodeEntry, Error> {
        let md = &claim.md;
        let root = geteuid().is_root();
        let mut note = None;
        let mut kind =
            choose(wanted.kind, root, || udm_export::ublk::available().is_ok(), || loopdev::available().is_ok());
        if kind == NodeKind::Ublk {
            match self.ublk.add(md, wanted) {
                Ok(entry) => {
                    if let Some(server) = &self.lock().server {
                        self.show(server);
                    }
                    return Ok(entry);
                }
                Err(error) if wanted.kind == NodeKind::Auto => {
                    warn!("{}: {}; its node is another", md.device_name(), error.message);
                    note = Some(error.message);
                    kind = choose(wanted.kind, root, || false, || loopdev::available().is_ok());
                }
                Err(error) => return Err(error),
            }
        }
        if kind == NodeKind::Loop {
            // Before anything is mounted for it.
            loopdev::available().map_err(|e| of_io(&e))?;
        }
        self.make_file(md, wanted, kind, note)?;
        if wait && let Err(error) = claim.equip() {
            if wanted.kind != NodeKind::Auto || wanted.mapper {
                // It did not exist before, so nobody has it open.
                let _ = claim.take_away(false);
                return Err(error);
            }
            claim.make_do(error);
        }
        let inner = self.lock();
        let node = inner.position(md).map(|at| &inner.nodes[at]).ok_or_else(|| failed(Errno::ENODEV, "it has gone"))?;
        let entry = inner.entry(node);
        info!("{} is at {}", entry.name, entry.path);
        Ok(entry)
    }

    /// Makes the mount show the directory beneath it.
    fn show(&self, server: &FuseServer) {
        for (name, path) in self.ublk.links() {
            if let Some(md) = self.registry.by_name(&name) {
                // It may exist from before.
                if server.add_link(&name, Box::new(Mapped(md)), &path).is_err() {
                    server.set_link(&name, Some(&path));
                }
            }
        }
    }

    fn make_file(
        &self,
        md: &Arc<MappedDevice>,
        wanted: NodeState,
        kind: NodeKind,
        note: Option<String>,
    ) -> Result<(), Error> {
        let name = md.device_name();
        if wanted.mapper && kind != NodeKind::Loop {
            let message = "a name in /dev/mapper is that of a block device: it needs root, and ublk or a loop device";
            return Err(failed(Errno::EOPNOTSUPP, message));
        }
        let mut inner = self.lock();
        let server = self.started(&mut inner)?;
        server.add(&name, Box::new(Mapped(md.clone()))).map_err(|message| failed(Errno::EEXIST, message))?;
        let (seen, md) = (Mapped(md.clone()).parameters(), md.clone());
        inner.nodes.push(Node { md, name, wanted, kind, loopdev: None, mapper: None, note, seen, lost: false });
        Ok(())
    }

    /// The server, which is started if there is none.
    fn started<'a>(&self, files: &'a mut Files) -> Result<&'a FuseServer, Error> {
        if files.server.as_ref().is_none_or(|server| !server.is_mounted()) {
            files.end(Duration::ZERO);
            let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let owner = Owner { uid: geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), time };
            let rings = self.settings.rings && !own_writes::is_needed();
            let server = FuseServer::start_by(self.registry.domain(), &self.dir, threads(), owner, rings);
            let server = files.server.insert(server.map_err(|e| of_io(&e))?);
            self.show(server);
        }
        files.server.as_ref().ok_or_else(|| failed(Errno::ENODEV, "nothing is mounted"))
    }

    /// Lets go of devices, so that they can be removed, unless somebody uses their nodes: then the answer says who.
    /// Blocks. [`sync`](Self::sync) brings back what was let go of for nothing. `deferred`: a block device that is in
    /// use lets go at its last close.
    pub(crate) fn release(&self, deferred: bool, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let mut kept = Vec::new();
        self.ublk.release(&which, &mut kept);
        kept.extend(self.release_files(deferred, which));
        kept
    }

    fn release_files(&self, deferred: bool, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let begun = Instant::now();
        let all: Vec<_> = self.lock().nodes.iter().map(|node| node.md.clone()).filter(|md| which(md)).collect();
        let release = |md| {
            let patience = PATIENCE.saturating_sub(begun.elapsed());
            let claim = self.shared.claim(md, "released", patience)?;
            let held = md.info().open_count;
            if claim.detach(deferred)? {
                // The kernel tells of a file's last close by a request that nobody waits for.
                let gone = || md.info().open_count < held;
                while !gone() && begun.elapsed() < SETTLE {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Ok::<_, Error>(())
        };
        let kept = all.iter().filter_map(|md| release(md).err()).map(|error| error.message).collect();
        if let Some(server) = &self.lock().server {
            server.reap();
        }
        kept
    }

    /// Follows the devices. Blocks, for [`SETTLE`] at most if block devices wait for the devices beneath them.
    pub(crate) fn sync(&self) {
        self.follow(SETTLE);
    }

    /// The same for callers that must not wait for a device.
    pub(crate) fn look_around(&self) {
        self.follow(Duration::ZERO);
    }

    fn follow(&self, patience: Duration) {
        let (done, is_done) = mpsc::channel::<()>();
        for due in self.due() {
            let done = done.clone();
            let work = move || {
                due.perform();
                drop(done);
            };
            if let Err(error) = self.registry.domain().executor().spawn("udm-node", Box::new(work)) {
                warn!("a node does not follow its device yet: {error}");
            }
        }
        drop(done);
        let _ = is_done.recv_timeout(patience);
    }

    /// Follows the devices as far as that needs no waiting, and claims the nodes with more work.
    fn due(&self) -> Vec<Due> {
        self.ublk.sync();
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.server.as_ref().is_some_and(|server| !server.is_mounted()) {
            warn!("{} was unmounted by somebody: the nodes are gone", self.dir.display());
            inner.end(Duration::ZERO);
            for node in &mut inner.nodes {
                node.lost = true;
                inner.without.push(Arc::downgrade(&node.md));
            }
        }
        if let Some(server) = &inner.server {
            self.show(server);
            let known = |name: &str| inner.nodes.iter().any(|node| node.name == name) || self.ublk.has(name);
            server.names().iter().filter(|name| !known(name)).for_each(|name| _ = server.remove(name));
        }
        let mut due = Vec::new();
        let mut at = 0;
        while at < inner.nodes.len() && due.len() < AT_ONCE {
            let (node, claimed) = (&inner.nodes[at], inner.claims.of(&inner.nodes[at].md).is_some());
            let md = node.md.clone();
            let there = !node.lost && self.registry.by_devt(md.devt()).is_some_and(|other| Arc::ptr_eq(&other, &md));
            if !claimed && !there && node.loopdev.is_none() {
                inner.drop_node(at);
                continue;
            }
            let change = if claimed || !there { None } else { inner.follow(at) };
            if change.is_some() || !there {
                due.extend(self.shared.claim_now(inner, &md, "adapted").map(|claim| Due { claim, change }));
            }
            at += 1;
        }
        inner.without.retain(|md| md.strong_count() > 0);
        let new: Vec<_> = match self.settings.node {
            NodeKind::None => Vec::new(),
            _ => self.without_node(inner).into_iter().take(AT_ONCE.saturating_sub(due.len())).collect(),
        };
        let new: Vec<_> = new.iter().filter_map(|md| self.shared.claim_now(inner, md, "made")).collect();
        drop(guard);
        due.extend(new.into_iter().filter_map(|claim| self.add_default(claim)));
        due
    }

    /// Devices that get a node because all do.
    fn without_node(&self, inner: &Files) -> Vec<Arc<MappedDevice>> {
        let has = |md: &Arc<MappedDevice>| {
            inner.position(md).is_some()
                || self.ublk.wanted(md).is_some()
                || inner.without.iter().any(|other| is(other, md))
        };
        self.registry.list().into_iter().filter(|md| !has(md) && md.info().active).collect()
    }

    fn add_default(&self, claim: Claim) -> Option<Due> {
        let wanted = NodeState { kind: self.settings.node, mapper: false, number: None };
        match self.make(&claim, wanted, false) {
            Ok(entry) if entry.kind == NodeKind::Loop && !is_held(&claim.md) => {
                Some(Due { claim, change: Some(Change::default()) })
            }
            Ok(_) => None,
            Err(error) => {
                warn!("{} has no node: {}", claim.md.device_name(), error.message);
                self.lock().without.push(Arc::downgrade(&claim.md));
                None
            }
        }
    }

    /// Ends all nodes. Blocks at most `patience` for requests under way, and until the kernel has written back its
    /// pages of block devices. Requests that wait for the resume of a suspended device fail.
    pub(crate) fn end(&self, patience: Duration, forget: bool) {
        self.ublk.end(patience, forget);
        end_files(&self.shared, patience);
    }
}

/// The actual kind of a requested node. A user who cannot have a block device need not be told each time.
///
/// Only root gets ublk by default: the kernel kills the server of an unprivileged device when a request takes 30 s, as
/// one to a suspended device may, and no other server can take over the device.
fn choose(wanted: NodeKind, root: bool, ublk: impl Fn() -> bool, loopdev: impl Fn() -> bool) -> NodeKind {
    match wanted {
        NodeKind::Auto if root && ublk() => NodeKind::Ublk,
        NodeKind::Auto if root && loopdev() => NodeKind::Loop,
        NodeKind::Auto => NodeKind::Fuse,
        kind => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_that_there_is() {
        use NodeKind::{Auto, Fuse, Loop, None, Ublk};
        for (wanted, root, ublk, loopdev, expect) in [
            (Auto, true, true, true, Ublk),
            (Auto, true, false, true, Loop),
            (Auto, true, false, false, Fuse),
            (Auto, false, true, true, Fuse),
            // An explicit kind stays as it is, and is refused with a reason if it is not available.
            (Ublk, false, false, false, Ublk),
            (Loop, false, true, false, Loop),
            (Fuse, true, true, true, Fuse),
            (None, true, true, true, None),
        ] {
            assert_eq!(choose(wanted, root, || ublk, || loopdev), expect, "{wanted} {root} {ublk} {loopdev}");
        }
    }
}
