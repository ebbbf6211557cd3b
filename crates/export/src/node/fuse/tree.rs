//! The directory: names, inodes and open files. No I/O.
//!
//! ```text
//! /            1   .files, and each node by its name: its file, or a link to the block device on top of it, or to the file
//! /.files      2   the files themselves; on each lies a mount of its own, where that could be
//! a node's file 2n, its link 2n+1
//! ```
//!
//! # Invariants
//! - An inode's number is never used again within a mount, so that a handle of a removed node reaches nothing else.
//! - A removed node stays for as long as it is open or the kernel knows of it.

use super::gate::Gate;
use super::wire::{Attr, ROOT};
use crate::exports::Export;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::Errno;

/// The directory of the files.
pub const FILES: &str = ".files";
const FILES_INO: u64 = 2;
/// By what handles know the directory's connection.
pub(super) const DIRECTORY_ID: u64 = 0;
/// The first node's number.
const FIRST: u64 = 2;

const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is open.
struct Opened {
    /// The connection that it came by.
    by: u64,
    _guard: Box<dyn Any + Send>,
}

/// A node.
pub(super) struct Node {
    number: u64,
    pub(super) device: Box<dyn Export>,
    link: Mutex<Option<PathBuf>>,
    /// Where its own mount is, from the root: its name leads there then, unless there is a link.
    at: Mutex<Option<PathBuf>>,
    handles: Mutex<HashMap<u64, Opened>>,
    /// How many handles there are.
    open: AtomicUsize,
    lookups: Mutex<u64>,
    pub(super) gate: Mutex<Gate>,
    /// Changes with the device's table, so that what is known of its limits is asked again.
    version: AtomicU64,
}

impl Node {
    pub(super) fn file_ino(&self) -> u64 {
        self.number * 2
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Where its name leads, if it is not the file itself.
    fn link(&self) -> Option<PathBuf> {
        lock(&self.link).clone().or_else(|| lock(&self.at).clone())
    }

    /// By what its file is known among all.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The handles that came by a connection.
    pub(super) fn handles_by(&self, connection: u64) -> Vec<u64> {
        let handles = lock(&self.handles);
        handles.iter().filter(|(_, opened)| opened.by == connection).map(|(handle, _)| *handle).collect()
    }

    /// These handles belong to a connection.
    pub(super) fn give_handles(&self, of: &[u64], connection: u64) {
        let mut handles = lock(&self.handles);
        of.iter().for_each(|handle| {
            if let Some(opened) = handles.get_mut(handle) {
                opened.by = connection;
            }
        });
    }

    pub(super) fn size(&self) -> u64 {
        self.device.device().sectors().checked_bytes().unwrap_or(!0x1ff)
    }
}

/// What an inode is.
pub(super) enum Inode {
    Root,
    Files,
    File(Arc<Node>),
    Link(PathBuf),
}

/// Owner and time of all inodes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Seconds since 1970: what the files have as their times.
    pub time: u64,
}

/// The directory as the next server of the same mount has to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TreePlan {
    owner: Owner,
    next: u64,
    next_handle: u64,
    nodes: Vec<NodePlan>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodePlan {
    number: u64,
    /// As [`Export::name`] has it.
    device: String,
    /// `None` when the name was taken away.
    name: Option<String>,
    link: Option<PathBuf>,
    lookups: u64,
    handles: Vec<u64>,
}

struct Inner {
    next: u64,
    names: BTreeMap<String, Arc<Node>>,
    by_number: HashMap<u64, Arc<Node>>,
}

/// The directory.
pub(super) struct Tree {
    owner: Owner,
    inner: Mutex<Inner>,
    next_handle: AtomicU64,
}

impl Tree {
    pub(super) fn new(owner: Owner) -> Self {
        let inner = Inner { next: FIRST, names: BTreeMap::new(), by_number: HashMap::new() };
        Self { owner, inner: Mutex::new(inner), next_handle: AtomicU64::new(1) }
    }

    /// What the kernel and users know of it. To be asked for while nothing changes.
    pub(super) fn plan(&self) -> TreePlan {
        let inner = lock(&self.inner);
        let name = |node: &Arc<Node>| {
            inner.names.iter().find(|(_, other)| Arc::ptr_eq(other, node)).map(|(name, _)| name.clone())
        };
        let mut nodes: Vec<_> = inner
            .by_number
            .values()
            .map(|node| NodePlan {
                number: node.number,
                device: node.device.name(),
                name: name(node),
                link: lock(&node.link).clone(),
                lookups: *lock(&node.lookups),
                handles: lock(&node.handles).keys().copied().collect(),
            })
            // Others are those of devices that may have gone: the kernel asks for them by name before it uses them.
            .filter(|node| node.name.is_some() || !node.handles.is_empty())
            .collect();
        nodes.sort_by_key(|node| node.number);
        let next_handle = self.next_handle.load(Ordering::Relaxed);
        TreePlan { owner: self.owner, next: inner.next, next_handle, nodes }
    }

    /// The directory of another server, with all that is open in it opened anew. `device` gives the devices by their
    /// names. A node whose device cannot be had is left out, and is among the problems.
    pub(super) fn of_plan(
        plan: TreePlan,
        mut device: impl FnMut(&str) -> Option<Box<dyn Export>>,
        problems: &mut Vec<String>,
    ) -> Result<Self, String> {
        let TreePlan { owner, next, next_handle, nodes } = plan;
        let tree = Self::new(owner);
        tree.next_handle.store(next_handle, Ordering::Relaxed);
        let mut inner = lock(&tree.inner);
        inner.next = next;
        for NodePlan { number, device: known_as, name, link, lookups, handles } in nodes {
            if number < FIRST || number >= next || handles.iter().any(|handle| *handle >= next_handle) {
                return Err(format!("{known_as} has a node with numbers that were not given out"));
            }
            let Some(device) = device(&known_as) else {
                problems.push(format!("{known_as} has a node, and is not there"));
                continue;
            };
            let opened = handles
                .into_iter()
                .map(|handle| Ok((handle, Opened { by: DIRECTORY_ID, _guard: device.open()? })))
                .collect();
            let opened: HashMap<_, _> = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    let error: Errno = error;
                    problems.push(format!("{known_as} cannot be opened again: {error}"));
                    continue;
                }
            };
            let node = Arc::new(Node {
                number,
                device,
                link: Mutex::new(link),
                at: Mutex::default(),
                open: AtomicUsize::new(opened.len()),
                handles: Mutex::new(opened),
                lookups: Mutex::new(lookups),
                gate: Mutex::default(),
                version: AtomicU64::new(0),
            });
            if let Some(name) = name {
                check_name(&inner, &name)?;
                inner.names.insert(name, node.clone());
            }
            if inner.by_number.insert(number, node).is_some() {
                return Err(format!("two nodes have the number {number}"));
            }
        }
        drop(inner);
        Ok(tree)
    }

    /// The names of the devices that are open, each as often as it is.
    pub(super) fn open_devices(&self) -> Vec<String> {
        let inner = lock(&self.inner);
        let open = |node: &Arc<Node>| std::iter::repeat_n(node.device.name(), node.open.load(Ordering::Acquire));
        inner.by_number.values().flat_map(open).collect()
    }

    /// Adds a node. Fails when the name is taken, or none for a file.
    pub(super) fn add(&self, name: &str, device: Box<dyn Export>) -> Result<Arc<Node>, String> {
        let mut inner = lock(&self.inner);
        check_name(&inner, name)?;
        let number = inner.next;
        inner.next += 1;
        let node = Arc::new(Node {
            number,
            device,
            link: Mutex::default(),
            at: Mutex::default(),
            handles: Mutex::default(),
            open: AtomicUsize::new(0),
            lookups: Mutex::default(),
            gate: Mutex::default(),
            version: AtomicU64::new(0),
        });
        inner.names.insert(name.to_owned(), node.clone());
        inner.by_number.insert(number, node.clone());
        Ok(node)
    }

    /// Takes a name away. Files that are open stay so.
    pub(super) fn remove(&self, name: &str) -> bool {
        let removed = lock(&self.inner).names.remove(name);
        if let Some(node) = &removed {
            self.let_go(node);
        }
        removed.is_some()
    }

    /// Gives a node another name.
    pub(super) fn rename(&self, old: &str, new: &str) -> Result<(), String> {
        let mut inner = lock(&self.inner);
        if !inner.names.contains_key(old) {
            return Err(format!("no node is named {old:?}"));
        }
        check_name(&inner, new)?;
        if let Some(node) = inner.names.remove(old) {
            inner.names.insert(new.to_owned(), node);
        }
        Ok(())
    }

    /// Makes the name a link to `target`, or to the file again. False if there is no such node.
    pub(super) fn set_link(&self, name: &str, target: Option<&Path>) -> bool {
        let node = self.named(name);
        if let Some(node) = &node {
            *lock(&node.link) = target.map(Path::to_owned);
        }
        node.is_some()
    }

    /// A mount of its own lies on the node's file, which has that name, or no longer.
    pub(super) fn set_mounted(&self, node: &Node, name: Option<&str>) {
        *lock(&node.at) = name.map(|name| Path::new(FILES).join(name));
    }

    /// The device's table may have changed.
    pub(super) fn changed(&self, name: &str) -> Option<Arc<Node>> {
        let node = self.named(name)?;
        node.version.fetch_add(1, Ordering::AcqRel);
        Some(node)
    }

    /// The name that a node has.
    pub(super) fn name_of(&self, node: &Arc<Node>) -> Option<String> {
        let inner = lock(&self.inner);
        inner.names.iter().find(|(_, other)| Arc::ptr_eq(other, node)).map(|(name, _)| name.clone())
    }

    /// The node of a number that was given out.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<Node>> {
        lock(&self.inner).by_number.get(&number).cloned()
    }

    pub(super) fn named(&self, name: &str) -> Option<Arc<Node>> {
        lock(&self.inner).names.get(name).cloned()
    }

    /// What the kernel asks for by number.
    pub(super) fn inode(&self, ino: u64) -> Result<Inode, Errno> {
        match ino {
            ROOT => return Ok(Inode::Root),
            FILES_INO => return Ok(Inode::Files),
            _ => {}
        }
        let node = lock(&self.inner).by_number.get(&(ino / 2)).cloned().ok_or(Errno::ENOENT)?;
        if ino.is_multiple_of(2) {
            return Ok(Inode::File(node));
        }
        node.link().map(Inode::Link).ok_or(Errno::ENOENT)
    }

    pub(super) fn file(&self, ino: u64) -> Result<Arc<Node>, Errno> {
        match self.inode(ino)? {
            Inode::File(node) => Ok(node),
            Inode::Root | Inode::Files => Err(Errno::EISDIR),
            Inode::Link(_) => Err(Errno::EINVAL),
        }
    }

    /// Finds a name, and counts that the kernel knows of it.
    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attr, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        if parent == ROOT && name == FILES {
            return Ok(self.directory(FILES_INO));
        }
        if parent != ROOT && parent != FILES_INO {
            return Err(Errno::ENOTDIR);
        }
        // Counted under the lock, so that a node that is found is not forgotten in between.
        let inner = lock(&self.inner);
        let node = inner.names.get(name).ok_or(Errno::ENOENT)?;
        *lock(&node.lookups) += 1;
        let link = (parent == ROOT).then(|| node.link()).flatten();
        let node = node.clone();
        drop(inner);
        Ok(match link {
            Some(link) => self.link(node.file_ino() + 1, &link),
            None => self.regular(&node),
        })
    }

    pub(super) fn forget(&self, ino: u64, count: u64) {
        let node = lock(&self.inner).by_number.get(&(ino / 2)).cloned();
        if let Some(node) = node {
            {
                let mut lookups = lock(&node.lookups);
                *lookups = lookups.saturating_sub(count);
            }
            self.let_go(&node);
        }
    }

    /// Forgets a node that has no name, is not open, and that the kernel does not know of.
    fn let_go(&self, node: &Arc<Node>) {
        let mut inner = lock(&self.inner);
        let named = inner.names.values().any(|other| Arc::ptr_eq(other, node));
        if !named && !node.is_open() && *lock(&node.lookups) == 0 {
            inner.by_number.remove(&node.number);
        }
    }

    pub(super) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        Ok(match self.inode(ino)? {
            Inode::Root | Inode::Files => self.directory(ino),
            Inode::File(node) => self.regular(&node),
            Inode::Link(target) => self.link(ino, &target),
        })
    }

    fn attr_of(&self, ino: u64, mode: u32, size: u64) -> Attr {
        let Owner { uid, gid, time } = self.owner;
        Attr {
            ino,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            atimensec: 0,
            mtimensec: 0,
            ctimensec: 0,
            mode,
            nlink: if mode & KIND == DIRECTORY { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn directory(&self, ino: u64) -> Attr {
        self.attr_of(ino, DIRECTORY | 0o700, 0)
    }

    pub(super) fn regular(&self, node: &Node) -> Attr {
        let mode = if node.device.read_only() { 0o400 } else { 0o600 };
        self.attr_of(node.file_ino(), REGULAR | mode, node.size())
    }

    fn link(&self, ino: u64, target: &Path) -> Attr {
        self.attr_of(ino, LINK | 0o777, target.as_os_str().len() as u64)
    }

    /// The entries of a directory after that with inode `after`: inode, kind and name.
    pub(super) fn entries(&self, directory: u64, after: u64) -> Vec<(u64, u32, String)> {
        let inner = lock(&self.inner);
        let mut all = vec![(ROOT, DIRECTORY, ".".to_owned()), (FILES_INO, DIRECTORY, "..".to_owned())];
        if directory == ROOT {
            // Numbers are places in the list: these three only need to differ.
            all.push((FILES_INO + 1, DIRECTORY, FILES.to_owned()));
        }
        for (name, node) in &inner.names {
            let linked = directory == ROOT && node.link().is_some();
            let (ino, kind) = if linked { (node.file_ino() + 1, LINK) } else { (node.file_ino(), REGULAR) };
            all.push((ino, kind, name.clone()));
        }
        all.retain(|(ino, ..)| *ino > after);
        all.sort_by_key(|(ino, ..)| *ino);
        all
    }

    /// Opens a node's file for who came by a connection. Returns the handle.
    pub(super) fn open(&self, node: &Arc<Node>, connection: u64) -> Result<u64, Errno> {
        let guard = node.device.open()?;
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        lock(&node.handles).insert(handle, Opened { by: connection, _guard: guard });
        node.open.fetch_add(1, Ordering::AcqRel);
        Ok(handle)
    }

    /// Closes a handle. Whether it was the last.
    pub(super) fn release(&self, node: &Arc<Node>, handle: u64) -> bool {
        let guard = lock(&node.handles).remove(&handle);
        if guard.is_none() {
            return false;
        }
        drop(guard);
        let last = node.open.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.let_go(node);
        }
        last
    }

    /// Closes what came by a connection, which has gone.
    pub(super) fn close_by(&self, node: &Arc<Node>, connection: u64) {
        for handle in node.handles_by(connection) {
            self.release(node, handle);
        }
    }

    /// Closes everything: the mount has gone.
    pub(super) fn close_all(&self) {
        let nodes: Vec<_> = lock(&self.inner).by_number.values().cloned().collect();
        for node in nodes {
            let guards = std::mem::take(&mut *lock(&node.handles));
            node.open.fetch_sub(guards.len(), Ordering::AcqRel);
        }
    }

    /// The names of the nodes.
    pub(super) fn names(&self) -> Vec<String> {
        lock(&self.inner).names.keys().cloned().collect()
    }
}

fn check_name(inner: &Inner, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > 255 || matches!(name, "." | ".." | FILES) || name.contains(['/', '\0']) {
        return Err(format!("{name:?} cannot be the name of a file"));
    }
    if inner.names.contains_key(name) {
        return Err(format!("there is a node named {name:?} already"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_base::Sectors;
    use udm_io::{BlockDevice, MemoryDevice};

    struct Ram(Arc<dyn BlockDevice>);

    impl Export for Ram {
        fn device(&self) -> Arc<dyn BlockDevice> {
            self.0.clone()
        }
        fn name(&self) -> String {
            "ram".into()
        }
    }

    fn ram() -> Box<Ram> {
        Box::new(Ram(Arc::new(MemoryDevice::new(Sectors::new(8)).unwrap())))
    }

    fn tree() -> Tree {
        Tree::new(Owner { uid: 1, gid: 2, time: 3 })
    }

    fn names(tree: &Tree, directory: u64) -> Vec<String> {
        tree.entries(directory, 0).into_iter().map(|(.., name)| name).collect()
    }

    #[test]
    fn names_that_are_refused() {
        let tree = tree();
        for name in ["", ".", "..", FILES, "a/b", "a\0", &"x".repeat(256)] {
            assert!(tree.add(name, ram()).is_err(), "{name:?}");
        }
        tree.add("a", ram()).unwrap();
        assert!(tree.add("a", ram()).err().unwrap().contains("already"));
        tree.add("b", ram()).unwrap();
        assert!(tree.rename("a", "b").is_err() && tree.rename("c", "d").is_err());
        tree.rename("a", "c").unwrap();
        assert_eq!(tree.names(), ["b", "c"]);
    }

    #[test]
    fn directories() {
        let tree = tree();
        tree.add("b", ram()).unwrap();
        tree.add("a", ram()).unwrap();
        assert_eq!(names(&tree, ROOT), [".", "..", FILES, "b", "a"]);
        assert_eq!(names(&tree, FILES_INO), [".", "..", "b", "a"]);
        // Wherever a reader stops, it goes on with the next.
        let all = tree.entries(ROOT, 0);
        for (i, (ino, ..)) in all.iter().enumerate() {
            assert_eq!(tree.entries(ROOT, *ino), all[i + 1..]);
        }
    }

    #[test]
    fn links() {
        let tree = tree();
        tree.add("a", ram()).unwrap();
        let file = tree.lookup(ROOT, b"a").unwrap();
        assert_eq!((file.mode, file.size, file.nlink), (0o100_600, 4096, 1));
        assert!(tree.set_link("a", Some(Path::new("/dev/loop7"))));
        let link = tree.lookup(ROOT, b"a").unwrap();
        assert_eq!((link.mode, link.size, link.ino), (0o120_777, 10, file.ino + 1));
        assert_eq!(tree.lookup(FILES_INO, b"a").unwrap().ino, file.ino);
        assert!(matches!(tree.inode(link.ino), Ok(Inode::Link(to)) if to == Path::new("/dev/loop7")));
        tree.set_link("a", None);
        assert!(matches!(tree.inode(link.ino), Err(Errno::ENOENT)));
        // With a mount of its own, that is where its name leads.
        let node = tree.named("a").unwrap();
        tree.set_mounted(&node, Some("a"));
        assert!(matches!(tree.inode(link.ino), Ok(Inode::Link(to)) if to == Path::new(".files/a")));
        assert_eq!(tree.lookup(ROOT, b"a").unwrap().ino, link.ino);
        assert_eq!(tree.lookup(FILES_INO, b"a").unwrap().ino, file.ino);
    }

    #[test]
    fn a_connection_that_ends_closes_what_came_by_it() {
        let tree = tree();
        tree.add("a", ram()).unwrap();
        let node = tree.named("a").unwrap();
        let (one, _, three) = (tree.open(&node, 0), tree.open(&node, 7), tree.open(&node, 0));
        node.give_handles(&[three.unwrap()], 7);
        tree.close_by(&node, 7);
        assert_eq!((node.is_open(), node.handles_by(0)), (true, vec![one.unwrap()]));
        tree.close_by(&node, 0);
        assert!(!node.is_open());
    }

    #[test]
    fn a_removed_node_stays_while_it_is_used() {
        let tree = tree();
        tree.add("a", ram()).unwrap();
        let ino = tree.lookup(ROOT, b"a").unwrap().ino;
        let node = tree.file(ino).unwrap();
        let handle = tree.open(&node, 0).unwrap();
        assert!(tree.remove("a") && !tree.remove("a"));
        assert!(tree.lookup(ROOT, b"a").is_err());
        tree.add("a", ram()).unwrap();
        assert_ne!(tree.lookup(ROOT, b"a").unwrap().ino, ino);
        tree.forget(ino, 1);
        assert!(tree.file(ino).is_ok(), "it is open");
        assert!(tree.release(&node, handle));
        assert!(!tree.release(&node, handle));
        assert!(tree.file(ino).is_err());
    }

    #[test]
    fn the_next_server_has_the_same() {
        let tree = tree();
        for name in ["a", "b", "gone", "closed"] {
            tree.add(name, ram()).unwrap();
        }
        tree.lookup(ROOT, b"closed").unwrap();
        tree.remove("closed");
        tree.set_link("b", Some(Path::new("/dev/loop7")));
        let inos = ["a", "b", "gone"].map(|name| tree.lookup(FILES_INO, name.as_bytes()).unwrap().ino);
        let [a, b, gone] = inos.map(|ino| tree.file(ino).unwrap());
        let (first, second, last) =
            (tree.open(&a, 0).unwrap(), tree.open(&a, 7).unwrap(), tree.open(&gone, 0).unwrap());
        tree.remove("gone");
        let text = serde_json::to_string(&tree.plan()).unwrap();
        let plan = serde_json::from_str(&text).unwrap();
        let next = Tree::of_plan(plan, |_| Some(ram()), &mut Vec::new()).unwrap();
        assert_eq!(serde_json::to_string(&next.plan()).unwrap().len(), text.len());
        assert_eq!((names(&next, ROOT), next.open_devices().len()), (names(&tree, ROOT), 3));
        assert!(matches!(next.inode(b.file_ino() + 1), Ok(Inode::Link(to)) if to == Path::new("/dev/loop7")));
        let [a, _, gone] = inos.map(|ino| next.file(ino).unwrap());
        assert!(!next.release(&a, first) && next.release(&a, second) && !a.is_open());
        next.forget(inos[2], 1);
        assert!(next.file(inos[2]).is_ok() && next.release(&gone, last));
        assert!(next.file(inos[2]).is_err(), "what nobody knows of is forgotten");
        // Numbers go on.
        next.add("new", ram()).unwrap();
        assert!(!inos.contains(&next.lookup(FILES_INO, b"new").unwrap().ino));
        assert!(next.open(&a, 0).unwrap() > last);
    }

    #[test]
    fn plans_that_are_refused() {
        let node = |text: &str| {
            format!(r#"{{"owner":{{"uid":0,"gid":0,"time":0}},"next":9,"next_handle":5,"nodes":[{text}]}}"#)
        };
        let one = |number: u64, name: &str, handle: u64| {
            format!(
                r#"{{"number":{number},"device":"d","name":"{name}","link":null,"lookups":1,"handles":[{handle}]}}"#
            )
        };
        let check = |text: &str, there: bool| {
            let (plan, mut problems) = (serde_json::from_str(text).unwrap(), Vec::new());
            let device = |_: &str| there.then(|| ram() as Box<dyn Export>);
            Tree::of_plan(plan, device, &mut problems).map(|tree| (tree.names().len(), problems.len()))
        };
        assert_eq!(check(&node(&one(2, "a", 1)), true), Ok((1, 0)));
        for text in [
            one(1, "a", 1),
            one(9, "a", 1),
            one(2, "a", 5),
            one(2, "a/b", 1),
            [one(2, "a", 1), one(2, "b", 2)].join(","),
            [one(2, "a", 1), one(3, "a", 2)].join(","),
        ] {
            assert!(check(&node(&text), true).is_err(), "{text}");
        }
        assert_eq!(check(&node(&one(2, "a", 1)), false), Ok((0, 1)));
    }
}
