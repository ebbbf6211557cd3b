//! A mount of a test's own.

use crate::device::{Disk, Shown};
use std::path::PathBuf;
use std::sync::Arc;
use udm_export::node::fuse::{FuseServer, Owner, Transport};
use udm_io::Domain;

/// A server on a directory of its own. The mount goes before the directory does.
pub(crate) struct Place {
    pub(crate) server: FuseServer,
    pub(crate) root: tempfile::TempDir,
    offered: Option<Offered>,
}

/// The kernel's switch, which goes back to what it was.
struct Offered(bool);

impl Offered {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

    fn new() -> Self {
        let was_off = std::fs::read(Self::SWITCH).is_ok_and(|text| text.starts_with(b"N"));
        Self(was_off && std::fs::write(Self::SWITCH, "Y").is_ok())
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if self.0 {
            let _ = std::fs::write(Self::SWITCH, "N");
        }
    }
}

impl Place {
    /// `None`, and a word why, where nothing can be mounted.
    pub(crate) fn new() -> Option<Self> {
        Self::by(false)
    }

    /// With the two ways by which requests come, as far as there are these here. Asks the kernel to offer io_uring, for as long as
    /// it lives, where it may.
    pub(crate) fn both() -> impl Iterator<Item = Self> {
        [Transport::Descriptor, Transport::IoUring].into_iter().filter_map(|transport| {
            let offered = Offered::new();
            let mut place = Self::by(transport == Transport::IoUring)?;
            place.offered = Some(offered);
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
            Ok(server) => Some(Self { server, root, offered: None }),
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
