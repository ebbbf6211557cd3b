//! What a device under test may stand on: files on two file systems, other devices, other servers.

use crate::disks::Disk;
use crate::programs::installed;
use crate::udm::{Udm, wait_until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// All of it, for one device. Fields go in this order: the daemon ends before what its devices stand on.
pub(crate) struct Lab {
    pub(crate) udm: Udm,
    pub(crate) disk: Disk,
    far: Option<Udm>,
    nbdkit: Option<Nbdkit>,
    tmpfs: Option<Disk>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self { udm: Udm::new(), disk: Disk::of_build(), far: None, nbdkit: None, tmpfs: None }
    }

    /// A second file system; `None`, and said so, where there is none.
    pub(crate) fn tmpfs(&mut self) -> Option<&Disk> {
        self.tmpfs = self.tmpfs.take().or_else(Disk::of_memory);
        self.tmpfs.as_ref()
    }

    /// A second daemon.
    pub(crate) fn far(&mut self) -> &Udm {
        self.far.get_or_insert_with(Udm::new)
    }

    /// The URI of memory that nbdkit serves; `None`, and said so, where it is not installed.
    pub(crate) fn nbdkit_memory(&mut self, size: u64) -> Option<String> {
        if !installed("nbdkit") {
            return None;
        }
        let nbdkit = Nbdkit::memory(size);
        let uri = format!("nbd+unix:///?socket={}", nbdkit.socket().display());
        self.nbdkit = Some(nbdkit);
        Some(uri)
    }
}

/// A server that is not ours.
struct Nbdkit {
    process: Child,
    dir: tempfile::TempDir,
}

impl Nbdkit {
    fn memory(size: u64) -> Self {
        let dir = tempfile::tempdir_in("/tmp").expect("a directory in /tmp");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(dir.path().join("sock"));
        command.args(["memory", &size.to_string()]).stdin(Stdio::null());
        let server = Self { process: command.spawn().expect("nbdkit can be run"), dir };
        wait_until("nbdkit listens", || server.socket().exists());
        server
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
