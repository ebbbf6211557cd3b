//! A mount of a test's own.

use crate::device::{Disk, Shown};
use std::path::PathBuf;
use std::sync::Arc;
use udm_export::node::fuse::{FuseServer, Owner};
use udm_io::Domain;

/// A server on a directory of its own. The mount goes before the directory does.
pub(crate) struct Place {
    pub(crate) server: FuseServer,
    pub(crate) root: tempfile::TempDir,
}

impl Place {
    /// `None`, and a word why, where nothing can be mounted.
    pub(crate) fn new() -> Option<Self> {
        let root = tempfile::Builder::new().prefix("udm-node-").tempdir().unwrap();
        match FuseServer::start(&Domain::default(), &root.path().join("dev"), 2, owner()) {
            Ok(server) => Some(Self { server, root }),
            Err(error) => {
                println!("SKIP nothing can be mounted here: {error}");
                None
            }
        }
    }

    /// The file of a new node.
    pub(crate) fn add(&self, name: &str, disk: &Arc<Disk>) -> PathBuf {
        self.server.add(name, Box::new(Shown(disk.clone()))).unwrap();
        self.server.path(name)
    }

    /// A node `disk` on a new disk.
    pub(crate) fn disk(&self, disk: Arc<Disk>) -> (PathBuf, Arc<Disk>) {
        (self.add("disk", &disk), disk)
    }
}

pub(crate) fn owner() -> Owner {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Owner { uid, gid, time: 1_000_000_000 }
}

/// Bytes that tell their place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Blocks until it holds; fails after a time that no healthy run comes near.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("never: {what}");
}
