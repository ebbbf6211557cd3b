//! Devices in the file system: which have a node, and what follows when they change.
//!
//! The mount and its threads begin with the first node. [`Nodes::sync`] is called whenever something may have changed:
//! it compares each node with its device, and does what is needed.
//!
//! # Locks
//! The lock here is held while files of the mount are opened (a loop device's), which the mount's threads serve. They
//! take locks of the registry and of devices, never this one.

mod pass;

pub(crate) use pass::ReadyNodes;

use super::own_writes;
use super::state::NodeState;
use super::ublk::Ublks;
use crate::exports::is_read_only;
use crate::places::Places;
use rustix::process::geteuid;
use std::any::Any;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, SystemTime};
use tracing::{info, warn};
use udm_base::Errno;
use udm_control::second::{NodeEntry, NodeKind};
use udm_core::{Error, MappedDevice, Registry, TableSlot};
use udm_export::node::NodeDevice;
use udm_export::node::fuse::{self, FuseServer, Owner, Transport};
use udm_export::node::loopdev::{self, Detached, HeldLoop, LoopDevice};
use udm_export::ublk;
use udm_io::{BlockDevice, Limits};

/// Where the host has the names of its mapped devices.
const MAPPER: &str = "/dev/mapper";
/// How long the mount may take to end for another daemon.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a loop device is asked for whether somebody still has it open, and how long between: whoever looks at new
/// devices, as udev does, opens them for a moment.
const TRIES: u32 = 20;
/// How long requests under way may take where some of them wait for a resume that does not come.
const HELD: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The nodes of a daemon's devices.
pub(crate) struct Nodes {
    registry: Registry,
    dir: PathBuf,
    settings: NodeSettings,
    /// Those that need no file.
    ublk: Ublks,
    inner: Mutex<Inner>,
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

/// A mapped device, as a node's.
pub(super) struct Mapped(pub(super) Arc<MappedDevice>);

impl NodeDevice for Mapped {
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.clone()
    }

    fn read_only(&self) -> bool {
        is_read_only(&self.0)
    }

    fn open(&self) -> Result<Box<dyn Any + Send>, Errno> {
        Ok(Box::new(self.0.open().map_err(|e| e.errno)?))
    }

    fn name(&self) -> String {
        self.0.device_name()
    }

    fn write_through(&self) -> bool {
        super::ublk::keeps_in_memory(&self.0)
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
        let ended = loopdev::detach_stale(&dir).and_then(|_| fuse::clear(&dir));
        if let Err(error) = ended {
            warn!("{}: what is mounted there stays: {error}", dir.display());
        }
        remove_links(&dir);
        let ublk = Ublks::new(registry, &dir);
        Self { registry: registry.clone(), dir, settings, ublk, inner: Mutex::default() }
    }

    /// Those of the kernel's ublk driver.
    pub(crate) fn ublk(&self) -> &Ublks {
        &self.ublk
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// ENXIO without such a device; EBUSY when its node is to be another and is in use; what the system says to mounting
    /// and to attaching a loop device.
    pub(crate) fn add(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<Option<NodeEntry>, Error> {
        let missing = || failed(Errno::ENXIO, format!("no device has the name {name:?}"));
        let md = self.registry.by_name(name).ok_or_else(missing)?;
        let wanted = NodeState { kind, mapper };
        let mut inner = self.lock();
        if let Some(at) = inner.position(&md) {
            if inner.nodes[at].wanted == wanted {
                return Ok(Some(inner.entry(&inner.nodes[at])));
            }
            inner.take_away(at, true)?;
        }
        if let Some(has) = self.ublk.wanted(&md) {
            if has == wanted {
                return Ok(self.ublk.list().into_iter().find(|entry| entry.name == md.device_name()));
            }
            self.remove_ublk(&mut inner, name)?;
        }
        inner.without.retain(|other| other.strong_count() > 0 && !is(other, &md));
        if kind == NodeKind::None {
            inner.without.push(Arc::downgrade(&md));
            return Ok(None);
        }
        self.make(&mut inner, &md, wanted).map(Some)
    }

    /// Takes the node of the device of that name away. A file that is open stays so for who has it. Blocks.
    ///
    /// # Errors
    /// ENXIO without such a node; EBUSY when somebody has its block device open.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        let mut inner = self.lock();
        if let Some(md) = self.remove_ublk(&mut inner, name)? {
            inner.without.push(Arc::downgrade(&md));
            return Ok(());
        }
        let Some(at) = inner.nodes.iter().position(|node| node.name == name) else {
            return Err(failed(Errno::ENXIO, format!("{name:?} has no node; `udm node` lists those that there are")));
        };
        let md = inner.nodes[at].md.clone();
        inner.take_away(at, true)?;
        inner.without.push(Arc::downgrade(&md));
        Ok(())
    }

    fn remove_ublk(&self, inner: &mut Inner, name: &str) -> Result<Option<Arc<MappedDevice>>, Error> {
        let removed = self.ublk.remove(name)?;
        if let (Some(_), Some(server)) = (&removed, &inner.server) {
            server.remove(name);
        }
        Ok(removed)
    }

    fn make(&self, inner: &mut Inner, md: &Arc<MappedDevice>, wanted: NodeState) -> Result<NodeEntry, Error> {
        let root = geteuid().is_root();
        let mut note = None;
        let mut kind = choose(wanted.kind, root, || ublk::available().is_ok(), || loopdev::available().is_ok());
        if kind == NodeKind::Ublk {
            match self.ublk.add(md, wanted) {
                Ok(entry) => {
                    if let Some(server) = &inner.server {
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
        let at = self.make_file(inner, md, wanted, kind, note)?;
        let entry = inner.entry(&inner.nodes[at]);
        let device = entry.device.as_ref().map_or_else(String::new, |d| format!(", as {d}"));
        info!("{} is at {}{device}", entry.name, entry.path);
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
        inner: &mut Inner,
        md: &Arc<MappedDevice>,
        wanted: NodeState,
        kind: NodeKind,
        note: Option<String>,
    ) -> Result<usize, Error> {
        let name = md.device_name();
        if wanted.mapper && kind != NodeKind::Loop {
            let message = "a name in /dev/mapper is that of a block device: it needs root, and ublk or a loop device";
            return Err(failed(Errno::EOPNOTSUPP, message));
        }
        let server = inner.started(self)?;
        server.add(&name, Box::new(Mapped(md.clone()))).map_err(|message| failed(Errno::EEXIST, message))?;
        let seen = Seen::of(md);
        let (md, mapper) = (md.clone(), None);
        inner.nodes.push(Node { md, name, wanted, kind, loopdev: None, mapper, note, seen });
        let at = inner.nodes.len() - 1;
        let equipped = inner.equip(at);
        if let Err(error) = equipped {
            if wanted.kind == NodeKind::Auto && !wanted.mapper {
                warn!("{}: {}; its node is a file", inner.nodes[at].name, error.message);
                inner.nodes[at].kind = NodeKind::Fuse;
                inner.nodes[at].note = Some(error.message);
            } else {
                // It was not there before, so that nobody has it open.
                let _ = inner.take_away(at, false);
                return Err(error);
            }
        }
        Ok(at)
    }

    /// Lets go of devices, so that they can be removed, unless somebody uses their nodes: then the answer says who. Blocks.
    /// [`sync`](Self::sync) brings back what was let go of for nothing.
    pub(crate) fn release(&self, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let mut kept = Vec::new();
        self.ublk.release(&which, &mut kept);
        kept.extend(self.release_files(which));
        kept
    }

    fn release_files(&self, which: impl Fn(&MappedDevice) -> bool) -> Vec<String> {
        let mut inner = self.lock();
        let mut kept = Vec::new();
        for at in 0..inner.nodes.len() {
            if which(&inner.nodes[at].md)
                && let Err(error) = inner.detach(at)
            {
                kept.push(error.message);
            }
        }
        if let Some(server) = &inner.server {
            server.reap();
        }
        kept
    }

    /// Follows the devices. Blocks.
    pub(crate) fn sync(&self) {
        let mut inner = self.lock();
        if inner.server.as_ref().is_some_and(|server| !server.is_mounted()) {
            warn!("{} was unmounted by somebody: the nodes are gone", self.dir.display());
            inner.end(Duration::ZERO);
            for mut node in std::mem::take(&mut inner.nodes) {
                node.unlink();
                if let Some(Err(error)) = node.loopdev.as_ref().map(LoopDevice::detach_when_closed) {
                    warn!("{error}");
                }
                inner.without.push(Arc::downgrade(&node.md));
            }
        }
        self.ublk.sync();
        if let Some(server) = &inner.server {
            self.show(server);
            let known = |name: &str| inner.nodes.iter().any(|node| node.name == name) || self.ublk.has(name);
            server.names().iter().filter(|name| !known(name)).for_each(|name| _ = server.remove(name));
        }
        let mut at = 0;
        while at < inner.nodes.len() {
            let md = inner.nodes[at].md.clone();
            let there = self.registry.by_devt(md.devt()).is_some_and(|other| Arc::ptr_eq(&other, &md));
            if !there {
                // Who still has its block device open finds no device any more.
                let _ = inner.take_away(at, false);
                continue;
            }
            inner.follow(at);
            at += 1;
        }
        inner.without.retain(|md| md.strong_count() > 0);
        if self.settings.node != NodeKind::None {
            self.add_default(&mut inner);
        }
    }

    fn add_default(&self, inner: &mut Inner) {
        for md in self.registry.list() {
            let known = inner.position(&md).is_some()
                || self.ublk.wanted(&md).is_some()
                || inner.without.iter().any(|other| is(other, &md));
            if known || !md.info().active {
                continue;
            }
            let wanted = NodeState { kind: self.settings.node, mapper: false };
            if let Err(error) = self.make(inner, &md, wanted) {
                warn!("{} has no node: {}", md.device_name(), error.message);
                inner.without.push(Arc::downgrade(&md));
            }
        }
    }

    /// Ends all nodes. Blocks at most `patience` for requests under way, and until the kernel has written what it keeps
    /// of block devices. What waits for the resume of a suspended device fails.
    pub(crate) fn end(&self, patience: Duration, forget: bool) {
        self.ublk.end(patience, forget);
        self.end_files(patience);
    }

    fn end_files(&self, patience: Duration) {
        let mut inner = self.lock();
        let (mut attached, mut held, mut files_held) = (Vec::new(), Vec::new(), false);
        for node in &mut inner.nodes {
            node.unlink();
            let waits = is_held(&node.md);
            files_held |= waits && node.loopdev.is_none();
            let loopdev = node.loopdev.take().map(|loopdev| (node.name.clone(), loopdev));
            if waits { held.extend(loopdev) } else { attached.extend(loopdev) }
        }
        // Elsewhere: over a device that does not answer this takes as long as the mount lives.
        let (done, is_done) = mpsc::channel();
        let any = !attached.is_empty();
        let work = move || {
            attached.into_iter().for_each(|(name, loopdev)| end_block_device(&name, &loopdev));
            let _ = done.send(());
        };
        let joiner = any.then(|| self.registry.domain().executor().spawn("udm-node-end", Box::new(work)));
        if any {
            let _ = is_done.recv_timeout(patience);
        }
        for (name, loopdev) in &held {
            warn!("{name} is suspended, or what it is on: what waits for it on {} fails", loopdev.path().display());
        }
        let held: Vec<_> = held.iter().map(|(name, loopdev)| (name, loopdev.hold())).collect();
        // Nobody resumes it any more.
        inner.end(if held.is_empty() && !files_held { patience } else { patience.min(HELD) });
        match joiner {
            Some(Ok(joiner)) => joiner.join(),
            Some(Err(error)) => warn!("block devices are left attached: {error}"),
            None => {}
        }
        for (name, loopdev) in held {
            // Only now: before, to close it would have waited for what it keeps.
            if let Err(error) = loopdev.and_then(HeldLoop::detach_when_closed) {
                warn!("{name}: {error}");
            }
        }
    }
}

/// Whether requests to the device wait for a resume: its own, or of what is beneath.
fn is_held(md: &MappedDevice) -> bool {
    let table = md.table(TableSlot::Active);
    let beneath = table.iter().flat_map(|table| table.devices().iter());
    md.info().suspended || beneath.filter_map(|dev| dev.as_any().downcast_ref()).any(is_held)
}

/// Has the kernel write what it keeps, and gives the block device back.
fn end_block_device(name: &str, loopdev: &LoopDevice) {
    let shown = loopdev.path();
    // What is in the page cache was acknowledged to nobody, but it need not be lost either.
    if let Err(error) = loopdev.flush() {
        warn!("{name}, {}: {error}", shown.display());
    }
    match loopdev.detach() {
        Ok(Detached::Yes) => {}
        Ok(Detached::InUse) => {
            warn!("{name} is still in use, as {}: it fails from now on", shown.display());
            let _ = loopdev.detach_when_closed();
        }
        Err(error) => {
            warn!("{name}: {error}");
            let _ = loopdev.detach_when_closed();
        }
    }
}

/// What a node is that is asked for so. Who cannot have a block device does not want to hear of it each time.
///
/// Only root gets ublk without asking: the kernel kills the server of an unprivileged device when a request takes 30 s, as one to
/// a suspended device may, and lets nobody go on with the device.
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
        NodeEntry {
            name: node.name.clone(),
            kind: node.kind,
            transport: server.map_or(Transport::Descriptor, FuseServer::transport).name().to_owned(),
            path: server.map_or_else(String::new, |server| path(server.path(&node.name))),
            file: server.map_or_else(String::new, |server| path(server.file(&node.name))),
            device: node.loopdev.as_ref().map(|loopdev| path(loopdev.path())),
            mapper: node.mapper.clone().map(path),
            note: node.note.clone(),
        }
    }

    /// Attaches the loop device of a node that is to have one, and makes its link.
    fn equip(&mut self, at: usize) -> Result<(), Error> {
        let (Some(server), node) = (&self.server, &mut self.nodes[at]) else { return Ok(()) };
        if node.kind != NodeKind::Loop {
            return Ok(());
        }
        if node.loopdev.is_none() {
            let block = node.seen.limits.logical_block_size;
            own_writes::reserve(server.most_data());
            let loopdev = loopdev::attach(&server.file(&node.name), node.seen.read_only, block);
            let loopdev = loopdev.map_err(|e| of_io(&e))?;
            server.set_link(&node.name, Some(&loopdev.path()));
            node.loopdev = Some(loopdev);
        }
        if node.wanted.mapper && node.mapper.is_none() {
            let link = Path::new(MAPPER).join(&node.name);
            // By way of the mount: a link to the loop device itself would outlive a daemon that is killed, and lead to
            // whoever has that number next.
            let made =
                fs::create_dir_all(MAPPER).and_then(|()| std::os::unix::fs::symlink(server.path(&node.name), &link));
            made.map_err(|e| of_io(&io::Error::new(e.kind(), format!("{}: {e}", link.display()))))?;
            node.mapper = Some(link);
        }
        Ok(())
    }

    /// Detaches the loop device of a node that has one.
    ///
    /// # Errors
    /// EBUSY when somebody has it open.
    fn detach(&mut self, at: usize) -> Result<(), Error> {
        let (Some(server), node) = (&self.server, &mut self.nodes[at]) else { return Ok(()) };
        let Some(loopdev) = &node.loopdev else { return Ok(()) };
        if is_held(&node.md) {
            // What the kernel still has to write would wait for the resume, and the resume for this.
            let message = format!("{} is suspended, or what it is on: resume it first", node.name);
            return Err(failed(Errno::EBUSY, message));
        }
        for attempt in 1.. {
            match loopdev.detach().map_err(|e| of_io(&e))? {
                Detached::Yes => break,
                Detached::InUse if attempt < TRIES => std::thread::sleep(PAUSE),
                Detached::InUse => {
                    let shown = loopdev.path();
                    let message = format!("{} is in use as {}: unmount or close it first", node.name, shown.display());
                    return Err(failed(Errno::EBUSY, message));
                }
            }
        }
        server.set_link(&node.name, None);
        node.loopdev = None;
        Ok(())
    }

    /// Takes a node away. `kindly`: not while somebody has its block device open.
    fn take_away(&mut self, at: usize, kindly: bool) -> Result<(), Error> {
        if kindly {
            self.detach(at)?;
        }
        let mut node = self.nodes.remove(at);
        node.unlink();
        if let Some(loopdev) = &node.loopdev
            && let Err(error) = loopdev.detach_when_closed()
        {
            warn!("{error}");
        }
        if let Some(server) = &self.server {
            server.remove(&node.name);
            server.reap();
        }
        Ok(())
    }

    /// Does what follows from a change of the device.
    fn follow(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(server) = &self.server else { return };
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
        if let Some(loopdev) = &node.loopdev {
            let resized = if now.sectors == then.sectors { Ok(()) } else { loopdev.resize() };
            let moded = if now.read_only == then.read_only { Ok(()) } else { loopdev.set_read_only(now.read_only) };
            if let Err(error) = resized.and(moded) {
                warn!("{error}");
            }
        }
        // Released for a removal that did not come about. One that is still to come does not want it back.
        if !node.md.info().deferred_remove
            && let Err(error) = self.equip(at)
        {
            warn!("{}: {}", self.nodes[at].name, error.message);
            self.nodes[at].kind = NodeKind::Fuse;
            self.nodes[at].note = Some(error.message);
        }
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
