//! A mount of a test's own.

use crate::device::{Disk, Shown};
use std::path::PathBuf;
use std::sync::Arc;
use udm_export::node::fuse::{FuseServer, Owner, Transport};
use udm_io::Domain;
use udm_testing::FuseUring;

/// A server on a directory of its own. The mount goes before the directory does.
pub(crate) struct Place {
    pub(crate) server: FuseServer,
    pub(crate) root: tempfile::TempDir,
}

impl Place {
    /// `None`, and a word why, where nothing can be mounted.
    pub(crate) fn new() -> Option<Self> {
        Self::by(false)
    }

    /// With the two ways by which requests come, as far as there are these here. Asks the kernel to offer io_uring,
    /// where it may, until that is agreed upon.
    pub(crate) fn both() -> impl Iterator<Item = Self> {
        [Transport::Descriptor, Transport::IoUring].into_iter().filter_map(|transport| {
            let _offered = FuseUring::offered();
            let place = Self::by(transport == Transport::IoUring)?;
            // The first use: it is agreed upon then.
            std::fs::read_dir(place.server.dir()).unwrap();
            if place.server.transport() != transport {
                println!("SKIP requests by io_uring: the kernel does not offer them");
                return None;
            }
            Some(place)
        })
    }

    fn by(rings: bool) -> Option<Self> {
        let root = tempfile::Builder::new().prefix("udm-node-").tempdir().unwrap();
        match FuseServer::start_by(&Domain::default(), &root.path().join("dev"), 2, owner(), rings) {
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

pub(crate) use udm_testing::until;
