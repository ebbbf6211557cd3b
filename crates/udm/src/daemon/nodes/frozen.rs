//! File systems on nodes, frozen while their devices are suspended.
//!
//! What is frozen is noted in a file of the daemon's directory before it is done, and thawed by the next daemon if this
//! one is killed: nobody else would.

use super::shared::Shared;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::{info, warn};
use udm_base::{DevT, Errno};
use udm_core::{Error, FileSystems, MappedDevice};
use udm_export::node::loopdev::LoopDevice;
use udm_export::node::mounted::{Frozen, freeze, thaw};
use udm_io::Domain;

/// The file systems on the nodes of a daemon.
pub(super) struct NodeFileSystems {
    shared: Arc<Shared>,
    /// Block devices whose file systems this daemon has frozen.
    frozen: Mutex<BTreeSet<DevT>>,
    note: PathBuf,
}

impl NodeFileSystems {
    /// Those of a daemon whose notes are in `note`. What a daemon before it has left frozen is thawed, unless it was
    /// passed on with its devices suspended.
    pub(super) fn new(shared: &Arc<Shared>, note: PathBuf, passed_on: bool) -> Self {
        let noted: BTreeSet<DevT> =
            fs::read_to_string(&note).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect();
        let kept = if passed_on { noted } else { thaw_all(&shared.domain, &noted, &note) };
        Self { shared: shared.clone(), frozen: Mutex::new(kept), note }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<DevT>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, frozen: &BTreeSet<DevT>) -> std::io::Result<()> {
        let text: String = frozen.iter().map(|device| format!("{device}\n")).collect();
        match text.is_empty() {
            true => fs::remove_file(&self.note).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            false => fs::write(&self.note, text),
        }
    }

    fn loop_device(&self, md: &MappedDevice) -> Option<LoopDevice> {
        let inner = self.shared.lock();
        let node = inner.nodes.iter().find(|node| std::ptr::eq(Arc::as_ptr(&node.md), md))?;
        node.loopdev.clone()
    }

    /// Takes a device out of the notes.
    fn forget(&self, device: DevT) {
        let mut frozen = self.lock();
        frozen.remove(&device);
        if let Err(error) = self.write(&frozen) {
            warn!("{}: {error}", self.note.display());
        }
    }
}

fn thaw_all(domain: &Domain, noted: &BTreeSet<DevT>, note: &Path) -> BTreeSet<DevT> {
    for device in noted {
        info!("thawing the file system on {device}, which a daemon before has left frozen");
        if let Err(error) = thaw(domain, *device) {
            warn!("{error}");
        }
    }
    let _ = fs::remove_file(note);
    BTreeSet::new()
}

impl FileSystems for NodeFileSystems {
    fn freeze(&self, md: &MappedDevice) -> Result<(), Error> {
        let Some(device) = md.node_number() else { return Ok(()) };
        {
            let mut frozen = self.lock();
            frozen.insert(device);
            // Without a note nobody would thaw it if this daemon were killed.
            if let Err(error) = self.write(&frozen) {
                frozen.remove(&device);
                let message = format!("{}: {error}; a file system that is frozen has to be noted", self.note.display());
                return Err(Error::new(Errno::of(&error), message));
            }
        }
        match freeze(&self.shared.domain, device) {
            Ok(Frozen::Now) => Ok(()),
            Ok(Frozen::Before) => {
                self.forget(device);
                Ok(())
            }
            Ok(Frozen::No) => {
                self.forget(device);
                // What programs wrote to the block device itself is written as well (`bdev_freeze`, `block/bdev.c`).
                // A device that fails must not keep another table from taking its place: what cannot be written stays.
                let flushed = self.loop_device(md).map_or(Ok(()), |loopdev| loopdev.flush(&self.shared.domain));
                flushed.unwrap_or_else(|error| warn!("{}: {error}", md.device_name()));
                Ok(())
            }
            Err(error) => {
                self.forget(device);
                Err(Error::new(Errno::of(&error), format!("a file system cannot be frozen: {error}")))
            }
        }
    }

    fn thaw(&self, md: &MappedDevice) {
        let Some(device) = md.node_number() else { return };
        if !self.lock().contains(&device) {
            return;
        }
        if let Err(error) = thaw(&self.shared.domain, device) {
            warn!("the file system on {} stays frozen: {error}", md.device_name());
        }
        self.forget(device);
    }
}
