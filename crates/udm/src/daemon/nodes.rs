//! Devices in the file system: which have a node, and what follows when they change.
//!
//! The mount and its threads begin with the first node. [`Nodes::sync`] is called whenever something may have changed:
//! it compares each node with its device, and does what is needed.
//!
//! # Locks
//! The lock here is held while the mount's threads are asked for names of files. They take locks of the registry and of
//! devices, never this one. It is not held for what may wait for a device: see [claims].

mod claims;
mod end;
mod loops;
mod pass;

pub(crate) use pass::ReadyNodes;

use super::own_writes;
use super::state::NodeState;
use super::ublk::Ublks;
use crate::exports::{Mapped, is_read_only};
use crate::places::Places;
use claims::{Claim, Claims, Shared};
use loops::Change;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, Weak, mpsc};
use std::time::{Duration, Instant, SystemTime};
use tracing::{info, warn};
use udm_base::Errno;
use udm_control::second::{NodeEntry, NodeKind};
use udm_core::{Error, MappedDevice, Registry, TableSlot};
use udm_export::node::fuse::{self, FuseServer, Owner, Transport};
use udm_export::node::loopdev::{self, LoopDevice};
use udm_export::ublk;
use udm_io::{BlockDevice, Limits};

/// Where the host has the names of its mapped devices.
const MAPPER: &str = "/dev/mapper";
/// How long the mount may take to end for another daemon.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a command waits for what follows from it: a block device adapts to its device, or comes back. Afterwards
/// that goes on by itself.
const SETTLE: Duration = Duration::from_secs(5);
/// How many nodes follow their devices at a time; others do so at the next look.
const AT_ONCE: usize = 64;

/// The nodes of a daemon's devices.
pub(crate) struct Nodes {
    registry: Registry,
    dir: PathBuf,
    settings: NodeSettings,
    /// Those that need no file.
    ublk: Ublks,
    shared: Arc<Shared>,
}

/// What the daemon was told of its nodes.
#[derive(Clone, Copy)]
pub(crate) struct NodeSettings {
    /// For devices that nothing else was said of.
    pub(crate) node: NodeKind,
    /// Requests may come by io_uring.
    pub(crate) rings: bool,
}

#[derive(Default)]
struct Inner {
    server: Option<FuseServer>,
    nodes: Vec<Node>,
    /// Devices that have none although the default is another.
    without: Vec<Weak<MappedDevice>>,
    claims: Claims,
}

struct Node {
    md: Arc<MappedDevice>,
    name: String,
    /// As it was asked for.
    wanted: NodeState,
    /// `Fuse` or `Loop`.
    kind: NodeKind,
    loopdev: Option<LoopDevice>,
    mapper: Option<PathBuf>,
    note: Option<String>,
    seen: Seen,
    /// Its mount has gone.
    lost: bool,
}

/// What is to be done for a node, without the lock.
struct Due {
    claim: Claim,
    /// `None`: it is to go.
    change: Option<Change>,
}

impl Due {
    fn perform(self) {
        match self.change {
            Some(change) => self.claim.follow(change),
            // Who still has its block device open finds no device any more.
            None => _ = self.claim.take_away(false),
        }
    }
}

/// What of a device its node depends on.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Seen {
    pub(super) sectors: u64,
    pub(super) read_only: bool,
    limits: Limits,
}

impl Seen {
    pub(super) fn of(md: &MappedDevice) -> Self {
        Self { sectors: md.sectors().get(), read_only: is_read_only(md), limits: md.limits() }
    }
}

/// Threads of the mount.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

pub(super) fn failed(errno: Errno, message: impl Into<String>) -> Error {
    Error::new(errno, message)
}

pub(super) fn of_io(error: &io::Error) -> Error {
    let errno = match error.kind() {
        io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        io::ErrorKind::PermissionDenied => Errno::EPERM,
        io::ErrorKind::ResourceBusy => Errno::EBUSY,
        _ => Errno::of(error),
    };
    failed(errno, error.to_string())
}

impl Nodes {
    /// No nodes yet. What a daemon before has left is ended, now: nobody shall use it for a device of this one.
    pub(crate) fn new(registry: &Registry, places: &Places, settings: NodeSettings) -> Self {
        let dir = places.nodes();
        registry.set_nodes(dir.clone());
        // Without it, what is mounted there is found by the first node.
        let ended = loopdev::detach_stale(registry.domain(), &dir).and_then(|_| fuse::clear(&dir));
        if let Err(error) = ended {
            warn!("{}: what is mounted there stays: {error}", dir.display());
        }
        remove_links(&dir);
        let ublk = Ublks::new(registry, &dir);
        let shared = Shared::new(registry.domain(), Inner::default());
        Self { registry: registry.clone(), dir, settings, ublk, shared }
    }

    /// Those of the kernel's ublk driver.
    pub(crate) fn ublk(&self) -> &Ublks {
        &self.ublk
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
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

    /// What was asked for a device that has a node.
    pub(crate) fn wanted(&self, md: &Arc<MappedDevice>) -> Option<NodeState> {
        let wanted = self.lock().nodes.iter().find(|node| Arc::ptr_eq(&node.md, md)).map(|node| node.wanted);
        wanted.or_else(|| self.ublk.wanted(md))
    }

    /// Gives the device of that name a node, or another kind of it. Blocks.
    ///
    /// # Errors
    /// ENXIO without such a device; EBUSY when its node is to be another and is in use; what the system says to
    /// mounting and to attaching a loop device.
    pub(crate) fn add(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<Option<NodeEntry>, Error> {
        self.add_and(name, kind, mapper, true)
    }

    /// The same for a daemon that starts: the block device of what is suspended comes with its resume.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn bring_back(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<(), Error> {
        let waits = self.registry.by_name(name).is_some_and(|md| is_held(&md));
        self.add_and(name, kind, mapper, !waits).map(drop)
    }

    /// `wait`: until it has its block device.
    fn add_and(&self, name: &str, kind: NodeKind, mapper: bool, wait: bool) -> Result<Option<NodeEntry>, Error> {
        let missing = || failed(Errno::ENXIO, format!("no device has the name {name:?}"));
        let md = self.registry.by_name(name).ok_or_else(missing)?;
        let claim = self.shared.claim(&md, "made", PATIENCE)?;
        let wanted = NodeState { kind, mapper };
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
        if kind == NodeKind::None {
            inner.without.push(Arc::downgrade(&md));
            return Ok(None);
        }
        drop(inner);
        self.make(&claim, wanted, wait).map(Some)
    }

    /// Takes the node of the device of that name away. A file that is open stays so for who has it. Blocks.
    ///
    /// # Errors
    /// ENXIO without such a node; EBUSY when somebody has its block device open.
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
        let mut kind = choose(wanted.kind, root, || ublk::available().is_ok(), || loopdev::available().is_ok());
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
                // It was not there before, so that nobody has it open.
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

    /// Has the mount show what lies beneath it.
    fn show(&self, server: &FuseServer) {
        for (name, path) in self.ublk.links() {
            if let Some(md) = self.registry.by_name(&name) {
                // It may be there from before.
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
        let server = inner.started(self)?;
        server.add(&name, Box::new(Mapped(md.clone()))).map_err(|message| failed(Errno::EEXIST, message))?;
        let (seen, md) = (Seen::of(md), md.clone());
        inner.nodes.push(Node { md, name, wanted, kind, loopdev: None, mapper: None, note, seen, lost: false });
        Ok(())
    }

    /// Lets go of devices, so that they can be removed, unless somebody uses their nodes: then the answer says who.
    /// Blocks. [`sync`](Self::sync) brings back what was let go of for nothing.
    pub(crate) fn release(&self, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let mut kept = Vec::new();
        self.ublk.release(&which, &mut kept);
        kept.extend(self.release_files(which));
        kept
    }

    fn release_files(&self, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let begun = Instant::now();
        let all: Vec<_> = self.lock().nodes.iter().map(|node| node.md.clone()).filter(|md| which(md)).collect();
        let release = |md| {
            let patience = PATIENCE.saturating_sub(begun.elapsed());
            self.shared.claim(md, "released", patience).and_then(|claim| claim.detach())
        };
        let kept = all.iter().filter_map(|md| release(md).err()).map(|error| error.message).collect();
        if let Some(server) = &self.lock().server {
            server.reap();
        }
        kept
    }

    /// Follows the devices. Blocks, for [`SETTLE`] at most where block devices wait for what they are on.
    pub(crate) fn sync(&self) {
        self.follow(SETTLE);
    }

    /// The same for who has others to look after: it waits for no device.
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

    /// Follows the devices as far as nothing waits for them, and claims the nodes for which there is more to do.
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

    /// Devices that are to have a node because all are.
    fn without_node(&self, inner: &Inner) -> Vec<Arc<MappedDevice>> {
        let has = |md: &Arc<MappedDevice>| {
            inner.position(md).is_some()
                || self.ublk.wanted(md).is_some()
                || inner.without.iter().any(|other| is(other, md))
        };
        self.registry.list().into_iter().filter(|md| !has(md) && md.info().active).collect()
    }

    fn add_default(&self, claim: Claim) -> Option<Due> {
        let wanted = NodeState { kind: self.settings.node, mapper: false };
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

    /// Ends all nodes. Blocks at most `patience` for requests under way, and until the kernel has written what it keeps
    /// of block devices. What waits for the resume of a suspended device fails.
    pub(crate) fn end(&self, patience: Duration, forget: bool) {
        self.ublk.end(patience, forget);
        self.end_files(patience);
    }
}

/// Whether requests to the device wait for a resume: its own, or of what is beneath.
fn is_held(md: &MappedDevice) -> bool {
    let table = md.table(TableSlot::Active);
    let beneath = table.iter().flat_map(|table| table.devices().iter());
    md.info().suspended || beneath.filter_map(|dev| dev.as_any().downcast_ref()).any(is_held)
}

/// What a node is that is asked for so. Who cannot have a block device does not want to hear of it each time.
///
/// Only root gets ublk without asking: the kernel kills the server of an unprivileged device when a request takes 30 s,
/// as one to a suspended device may, and lets nobody go on with the device.
fn choose(wanted: NodeKind, root: bool, ublk: impl Fn() -> bool, loopdev: impl Fn() -> bool) -> NodeKind {
    match wanted {
        NodeKind::Auto if root && ublk() => NodeKind::Ublk,
        NodeKind::Auto if root && loopdev() => NodeKind::Loop,
        NodeKind::Auto => NodeKind::Fuse,
        kind => kind,
    }
}

fn is(weak: &Weak<MappedDevice>, md: &Arc<MappedDevice>) -> bool {
    weak.upgrade().is_some_and(|other| Arc::ptr_eq(&other, md))
}

impl Inner {
    fn position(&self, md: &Arc<MappedDevice>) -> Option<usize> {
        self.nodes.iter().position(|node| Arc::ptr_eq(&node.md, md))
    }

    /// The server, which is started if there is none.
    fn started(&mut self, nodes: &Nodes) -> Result<&FuseServer, Error> {
        if self.server.as_ref().is_none_or(|server| !server.is_mounted()) {
            self.end(Duration::ZERO);
            let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let owner = Owner { uid: geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), time };
            let rings = nodes.settings.rings && !own_writes::is_needed();
            let server = FuseServer::start_by(nodes.registry.domain(), &nodes.dir, threads(), owner, rings);
            let server = self.server.insert(server.map_err(|e| of_io(&e))?);
            nodes.show(server);
        }
        self.server.as_ref().ok_or_else(|| failed(Errno::ENODEV, "nothing is mounted"))
    }

    fn end(&mut self, patience: Duration) {
        if let Some(server) = self.server.take() {
            server.shut_down(patience);
        }
    }

    fn entry(&self, node: &Node) -> NodeEntry {
        let path = |path: PathBuf| path.display().to_string();
        let server = self.server.as_ref();
        let lacks = node.kind == NodeKind::Loop && node.loopdev.is_none();
        let lacking = || lacks.then(|| format!("its block device comes when {} answers", node.name));
        NodeEntry {
            name: node.name.clone(),
            kind: node.kind,
            transport: server.map_or(Transport::Descriptor, FuseServer::transport).name().to_owned(),
            path: server.map_or_else(String::new, |server| path(server.path(&node.name))),
            file: server.map_or_else(String::new, |server| path(server.file(&node.name))),
            device: node.loopdev.as_ref().map(|loopdev| path(loopdev.path())),
            mapper: node.mapper.clone().map(path),
            note: node.note.clone().or_else(lacking),
        }
    }

    /// Takes a node without a block device away.
    fn drop_node(&mut self, at: usize) {
        let mut node = self.nodes.remove(at);
        node.unlink();
        if let Some(server) = &self.server {
            server.remove(&node.name);
            server.reap();
        }
    }

    /// Does what follows from a change of the device. What remains to be done for its block device, if there is
    /// anything.
    fn follow(&mut self, at: usize) -> Option<Change> {
        let (server, node) = (self.server.as_ref()?, &mut self.nodes[at]);
        let name = node.md.device_name();
        if name != node.name {
            match server.rename(&node.name, &name) {
                Ok(()) => {
                    node.unlink();
                    node.name = name;
                }
                Err(message) => warn!("the node of {} keeps its name: {message}", node.name),
            }
        }
        let now = Seen::of(&node.md);
        let then = std::mem::replace(&mut node.seen, now);
        if now != then {
            server.changed(&node.name);
        }
        if node.kind != NodeKind::Loop {
            return None;
        }
        let change = Change {
            resized: now.sectors != then.sectors,
            moded: (now.read_only != then.read_only).then_some(now.read_only),
        };
        let follows = change.resized || change.moded.is_some();
        // Released for a removal that did not come about. One that is still to come does not want it back, and over
        // what is suspended it would wait.
        let lacks = node.loopdev.is_none() || node.wanted.mapper && node.mapper.is_none();
        let comes = lacks && !node.md.info().deferred_remove && !is_held(&node.md);
        (follows && node.loopdev.is_some() || comes).then_some(change)
    }
}

impl Node {
    /// Removes the link in /dev/mapper.
    fn unlink(&mut self) {
        if let Some(link) = self.mapper.take()
            && let Err(error) = fs::remove_file(&link)
        {
            warn!("{}: {error}", link.display());
        }
    }
}

/// Removes the links in /dev/mapper that lead to nodes of a daemon that was killed.
fn remove_links(dir: &Path) {
    for entry in fs::read_dir(MAPPER).into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(dir)) {
            info!("removing {}, which a daemon before has left", entry.path().display());
            let _ = fs::remove_file(entry.path());
        }
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
            // What was asked for stays that, and is refused with a reason where it is not there.
            (Ublk, false, false, false, Ublk),
            (Loop, false, true, false, Loop),
            (Fuse, true, true, true, Fuse),
            (None, true, true, true, None),
        ] {
            assert_eq!(choose(wanted, root, || ublk, || loopdev), expect, "{wanted} {root} {ublk} {loopdev}");
        }
    }
}
