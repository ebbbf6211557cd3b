//! Nodes that are block devices of the kernel's ublk driver.
//!
//! The kernel's device outlives the daemon: I/O to it waits until the next daemon goes on with it, after a crash as
//! after a replacement. It is found by a mark that says whose it is, so that the state need not know its number. One
//! that belongs to no device of this daemon any more is deleted.
//!
//! # Locks
//! The lock here is held while the kernel makes and ends devices, which may wait for requests to them. The threads that
//! serve those take locks of the registry and of devices, never this one.

use super::handover::{HandOver, HandOverMessage};
use super::nodes::{Seen, failed, of_io};
use super::state::NodeState;
use crate::exports::{Mapped, keeps_in_memory};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use udm_base::Errno;
use udm_control::second::{NodeEntry, NodeKind};
use udm_core::{Error, MappedDevice, Registry};
use udm_export::ublk::{self, Mark, Removed, Resized, Ublk};
use udm_io::BlockDevice;

/// Where the host has the names of its mapped devices.
const MAPPER: &str = "/dev/mapper";
/// How long the driver may take to notice that the daemon before has gone. It looks every 30 s where every slot of a
/// queue had a request; else it is a matter of milliseconds.
const NOTICE: Duration = Duration::from_secs(70);
const PAUSE: Duration = Duration::from_millis(10);
/// How long one that was let go of for a removal is not made anew: the removal follows, and would find it in use.
const LET_BE: Duration = Duration::from_secs(2);
/// How often one that is in use is looked at again: whoever looks at new devices, as udev does, opens them for a
/// moment.
const TRIES: u32 = 20;

/// The nodes of this kind.
pub(crate) struct Ublks {
    registry: Registry,
    dir: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    nodes: Vec<Node>,
    /// The directory beneath the mount of files, if one lies on it.
    beneath: Option<OwnedFd>,
    /// The mount of files was there first: it shows the names, and nothing lies beneath.
    covered: bool,
    /// What daemons before have left was looked for.
    settled: bool,
}

struct Node {
    md: Arc<MappedDevice>,
    name: String,
    /// As it was asked for.
    wanted: NodeState,
    /// `None` while it is paused, or let go of for a removal.
    ublk: Option<Ublk>,
    /// When it was let go of for a removal.
    released: Option<Instant>,
    /// The kernel's device goes on without this daemon for now.
    paused: bool,
    mapper: Option<PathBuf>,
    note: Option<String>,
    seen: Seen,
}

impl Ublks {
    /// None yet. To be called before anything is mounted on `dir`.
    pub(super) fn new(registry: &Registry, dir: &Path) -> Self {
        // Nobody needs the directory where there is no ublk.
        let beneath = ublk::available().and_then(|()| open_directory(dir)).ok();
        let inner = Inner { beneath, ..Inner::default() };
        remove_links(dir);
        Self { registry: registry.clone(), dir: dir.to_owned(), inner: Mutex::new(inner) }
    }

    /// As [`new`](Self::new), where files are mounted on `dir` already.
    pub(super) fn covered(registry: &Registry, dir: &Path) -> Self {
        let inner = Inner { covered: true, ..Inner::default() };
        Self { registry: registry.clone(), dir: dir.to_owned(), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, md: &MappedDevice) -> Mark {
        Mark::new(&self.dir, md.devt().minor)
    }

    pub(super) fn list(&self) -> Vec<NodeEntry> {
        self.lock().nodes.iter().map(|node| node.entry(&self.dir)).collect()
    }

    /// Names, and the block devices behind them.
    pub(super) fn links(&self) -> Vec<(String, PathBuf)> {
        self.lock().nodes.iter().filter_map(|node| Some((node.name.clone(), node.ublk.as_ref()?.path()))).collect()
    }

    pub(super) fn wanted(&self, md: &Arc<MappedDevice>) -> Option<NodeState> {
        let inner = self.lock();
        inner.position(md).map(|at| inner.nodes[at].wanted)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.lock().nodes.iter().any(|node| node.name == name)
    }

    /// Gives a device that has none a node of this kind. Blocks.
    pub(super) fn add(&self, md: &Arc<MappedDevice>, wanted: NodeState) -> Result<NodeEntry, Error> {
        let mut inner = self.lock();
        let (name, seen) = (md.device_name(), Seen::of(md));
        let ublk = self.attach(md, &name).map_err(|e| of_io(&e))?;
        info!("{name} is {}", ublk.path().display());
        let mut node = Node {
            md: md.clone(),
            name,
            wanted,
            ublk: Some(ublk),
            released: None,
            paused: false,
            mapper: None,
            note: None,
            seen,
        };
        if let Err(error) = self.link(&mut inner, &mut node) {
            let _ = node.ublk.as_ref().map(Ublk::end);
            self.unlink(&inner, &mut node);
            return Err(of_io(&error));
        }
        let entry = node.entry(&self.dir);
        inner.nodes.push(node);
        Ok(entry)
    }

    /// Goes on with what a daemon before has left of the device, or makes it anew.
    fn attach(&self, md: &Arc<MappedDevice>, name: &str) -> io::Result<Ublk> {
        let (mark, node) = (self.mark(md), Mapped(md.clone()));
        let domain = self.registry.domain();
        for left in ublk::left().into_iter().filter(|left| left.mark == mark) {
            if !left.recoverable {
                // It was not started yet, or has stopped: nobody waits for it.
                ublk::delete(left.number)?;
                continue;
            }
            let begun = Instant::now();
            loop {
                match Ublk::recover(domain, &node, left.number) {
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < NOTICE => {
                        std::thread::sleep(PAUSE);
                    }
                    Ok(ublk) => {
                        info!("{name} goes on as {}, after {} ms", ublk.path().display(), begun.elapsed().as_millis());
                        if ublk.sectors()? != md.sectors() {
                            ublk.resize()?;
                        }
                        return Ok(ublk);
                    }
                    Err(e) => {
                        let text = format!(
                            "/dev/ublkb{}, which a daemon before has left, cannot be gone on with: {e}",
                            left.number
                        );
                        return Err(io::Error::new(e.kind(), text));
                    }
                }
            }
        }
        Ublk::add(domain, &node, mark)
    }

    /// Takes the node of that name away. Blocks.
    ///
    /// # Errors
    /// EBUSY when somebody uses it.
    pub(super) fn remove(&self, name: &str) -> Result<Option<Arc<MappedDevice>>, Error> {
        let mut inner = self.lock();
        let Some(at) = inner.nodes.iter().position(|node| node.name == name) else { return Ok(None) };
        inner.nodes[at].detach()?;
        let mut node = inner.nodes.remove(at);
        self.unlink(&inner, &mut node);
        Ok(Some(node.md))
    }

    /// Lets go of devices, so that they can be removed, unless somebody uses them: then that is added to `kept`.
    pub(super) fn release(&self, which: impl Fn(&MappedDevice) -> bool, kept: &mut Vec<String>) {
        for node in self.lock().nodes.iter_mut().filter(|node| which(&node.md)) {
            match node.detach() {
                Ok(()) => node.released = Some(Instant::now()),
                Err(error) => kept.push(error.message),
            }
        }
    }

    /// Follows the devices. Blocks.
    pub(super) fn sync(&self) {
        let mut inner = self.lock();
        if !std::mem::replace(&mut inner.settled, true) {
            self.settle();
        }
        let mut nodes = std::mem::take(&mut inner.nodes);
        nodes.retain_mut(|node| {
            let there = self.registry.by_devt(node.md.devt()).is_some_and(|other| Arc::ptr_eq(&other, &node.md));
            if !there {
                // Who still uses it finds no device any more.
                if let Some(Err(error)) = node.ublk.take().map(|ublk| ublk.end()) {
                    warn!("{}: {error}", node.name);
                }
                self.unlink(&inner, node);
                return false;
            }
            if let Err(error) = self.follow(&mut inner, node) {
                warn!("{}: {error}", node.name);
                node.note = Some(error.to_string());
            }
            true
        });
        inner.nodes = nodes;
    }

    /// Deletes what daemons before have left and no device is behind.
    fn settle(&self) {
        for left in ublk::left().into_iter().filter(|left| left.mark.is_of(&self.dir)) {
            if self.registry.list().iter().any(|md| self.mark(md) == left.mark) {
                continue;
            }
            warn!("deleting /dev/ublkb{}, whose device is gone", left.number);
            if let Err(error) = ublk::delete(left.number) {
                warn!("/dev/ublkb{}: {error}", left.number);
            }
        }
    }

    fn follow(&self, inner: &mut Inner, node: &mut Node) -> io::Result<()> {
        if node.paused {
            return Ok(());
        }
        let name = node.md.device_name();
        if name != node.name {
            self.unlink(inner, node);
            node.name = name;
        }
        let now = Seen::of(&node.md);
        let then = std::mem::replace(&mut node.seen, now);
        if let Some(ublk) = &node.ublk {
            ublk.set_write_through(keeps_in_memory(&node.md));
            if now.read_only != then.read_only {
                ublk.set_read_only(now.read_only)?;
            }
            if now.sectors != then.sectors {
                match ublk.resize()? {
                    Resized::Yes => node.note = None,
                    Resized::Never if node.detach().is_ok() => node.note = None,
                    Resized::Never => {
                        return Err(io::Error::new(
                            io::ErrorKind::ResourceBusy,
                            format!(
                                "its node keeps the size of {} sectors while it is in use: this kernel cannot change it (6.16 \
                                 can); unmount it, then `udm node remove` and `udm node add`",
                                then.sectors
                            ),
                        ));
                    }
                }
            }
        }
        // Let go of for a removal that did not come about, or for another size.
        let soon = node.released.is_some_and(|at| at.elapsed() < LET_BE);
        if node.ublk.is_none() && !soon && !node.md.info().deferred_remove {
            let ublk = self.attach(&node.md, &node.name)?;
            self.unlink(inner, node);
            (node.ublk, node.released) = (Some(ublk), None);
        }
        self.link(inner, node)
    }

    /// Makes the links that are missing.
    fn link(&self, inner: &mut Inner, node: &mut Node) -> io::Result<()> {
        let Some(ublk) = &node.ublk else { return Ok(()) };
        if inner.beneath.is_none() && !inner.covered {
            inner.beneath = Some(open_directory(&self.dir)?);
        }
        if let Some(dir) = &inner.beneath {
            match rustix::fs::symlinkat(ublk.path(), dir, &*node.name) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if node.wanted.mapper && node.mapper.is_none() {
            let link = Path::new(MAPPER).join(&node.name);
            fs::create_dir_all(MAPPER)
                .and_then(|()| std::os::unix::fs::symlink(self.dir.join(&node.name), &link))
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", link.display())))?;
            node.mapper = Some(link);
        }
        Ok(())
    }

    fn unlink(&self, inner: &Inner, node: &mut Node) {
        if let Some(dir) = &inner.beneath {
            let _ = rustix::fs::unlinkat(dir, &*node.name, AtFlags::empty());
        }
        if let Some(link) = node.mapper.take()
            && let Err(error) = fs::remove_file(&link)
        {
            warn!("{}: {error}", link.display());
        }
    }

    /// Ends all that nobody uses; the others wait for the next daemon, unless there will be none (`forget`). Blocks.
    pub(super) fn end(&self, patience: Duration, forget: bool) {
        let mut inner = self.lock();
        for mut node in std::mem::take(&mut inner.nodes) {
            let kept = node.detach().err();
            if let (Some(error), Some(ublk)) = (kept, &node.ublk) {
                if forget {
                    warn!("{}: it fails from now on", error.message);
                    if let Err(error) = ublk.end() {
                        warn!("{}: {error}", node.name);
                    }
                } else {
                    warn!("{}: its I/O waits for the next daemon of {}", error.message, self.dir.display());
                    if let Err(why) = ublk.leave(patience) {
                        warn!("{why}");
                    }
                }
            }
            self.unlink(&inner, &mut node);
        }
    }
}

/// The kernel keeps the devices, and what comes meanwhile; the next daemon finds them.
impl HandOver for Ublks {
    fn kind(&self) -> &'static str {
        "ublk"
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        let mut inner = self.lock();
        let mut result = Ok(());
        for node in &mut inner.nodes {
            let Some(ublk) = &node.ublk else { continue };
            result = match ublk.is_recoverable() {
                true => ublk.leave(patience),
                false => Err(format!(
                    "{} is an unprivileged ublk device, which the kernel lets nobody go on with",
                    node.name
                )),
            };
            if result.is_err() {
                break;
            }
            (node.ublk, node.paused) = (None, true);
        }
        drop(inner);
        if result.is_err() {
            self.resume(&self.registry);
        }
        result
    }

    fn holds(&self) -> Vec<String> {
        Vec::new()
    }

    fn resume(&self, _: &Registry) {
        let mut inner = self.lock();
        for node in inner.nodes.iter_mut().filter(|node| node.paused) {
            node.paused = false;
            match self.attach(&node.md, &node.name) {
                Ok(ublk) => node.ublk = Some(ublk),
                Err(error) => {
                    warn!("{}: {error}", node.name);
                    node.note = Some(error.to_string());
                }
            }
        }
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        let mut inner = self.lock();
        for mut node in std::mem::take(&mut inner.nodes) {
            self.unlink(&inner, &mut node);
        }
        Ok(Vec::new())
    }
}

impl Inner {
    fn position(&self, md: &Arc<MappedDevice>) -> Option<usize> {
        self.nodes.iter().position(|node| Arc::ptr_eq(&node.md, md))
    }
}

impl Node {
    /// Removes the kernel's device, if there is one.
    ///
    /// # Errors
    /// EBUSY when somebody uses it.
    fn detach(&mut self) -> Result<(), Error> {
        let Some(ublk) = &self.ublk else { return Ok(()) };
        if self.md.info().suspended {
            // What the kernel still has to write would wait for the resume, and the resume for this.
            return Err(failed(Errno::EBUSY, format!("{} is suspended: resume it first", self.name)));
        }
        for attempt in 1.. {
            match ublk.remove().map_err(|e| of_io(&e))? {
                Removed::Yes => break,
                Removed::InUse(_) if attempt < TRIES => std::thread::sleep(PAUSE),
                Removed::InUse(who) => {
                    let message = format!("{} is in use: {who}; unmount or close it first", self.name);
                    return Err(failed(Errno::EBUSY, message));
                }
            }
        }
        self.ublk = None;
        Ok(())
    }

    fn entry(&self, dir: &Path) -> NodeEntry {
        let device = self.ublk.as_ref().map(|ublk| ublk.path().display().to_string());
        NodeEntry {
            name: self.name.clone(),
            kind: NodeKind::Ublk,
            path: dir.join(&self.name).display().to_string(),
            file: device.clone().unwrap_or_default(),
            device,
            mapper: self.mapper.as_ref().map(|path| path.display().to_string()),
            note: self.note.clone(),
            transport: "ublk".to_owned(),
        }
    }
}

fn open_directory(dir: &Path) -> io::Result<OwnedFd> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    Ok(rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Removes the links that a daemon has left which was killed.
fn remove_links(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/dev/ublkb")) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
