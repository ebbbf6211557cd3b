//! Devices that are block devices of the host from their creation on, as the kernel's mapped devices are.

use super::error::of_io;
use super::files::Files;
use super::{Nodes, PATIENCE};
use crate::daemon::state::NodeState;
use rustix::fs::{AtFlags, CWD, statat};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tracing::warn;
use udm_base::DevT;
use udm_control::handler::{BlockNodes, Opens};
use udm_control::second::NodeKind;
use udm_core::{Error, MappedDevice};
use udm_export::node::loopdev;

impl BlockNodes for Nodes {
    fn make(&self, md: &Arc<MappedDevice>, minor: Option<u32>) -> Result<(), Error> {
        loopdev::available().map_err(|e| of_io(&e))?;
        let claim = self.shared.claim(md, "made", PATIENCE)?;
        self.make_file(md, NodeState { kind: NodeKind::Loop, mapper: false, number: None }, NodeKind::Loop, None)?;
        claim.equip_with(minor).inspect_err(|_| _ = claim.take_away(false))
    }

    fn opens(&self, md: &MappedDevice, all: bool) -> Opens {
        let of_device = |inner: &Files| {
            let node = inner.nodes.iter().find(|node| std::ptr::eq(Arc::as_ptr(&node.md), md))?;
            node.loopdev.clone()
        };
        let Some(loopdev) = of_device(&self.lock()) else { return Opens::default() };
        let claimed = loopdev.is_claimed(self.registry.domain()).unwrap_or_else(|error| {
            warn!("{error}");
            false
        });
        let programs = claimed || all && is_open_by_any(loopdev.number());
        Opens { programs: u32::from(programs), node: 1 }
    }
}

/// Whether another process has that block device open. How often cannot be told: descriptors that were inherited are
/// one open file.
fn is_open_by_any(number: DevT) -> bool {
    let me = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = processes.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) && name != *me
    });
    others.any(|entry| has_open(&entry.path().join("fd"), number))
}

fn has_open(dir: &Path, number: DevT) -> bool {
    let is = |entry: fs::DirEntry| {
        // By its name first: to look at a file may wait for its server, to look at a name does not.
        let path = entry.path();
        let named = fs::read_link(&path).is_ok_and(|to| to.starts_with("/dev"));
        named && device_at(&path) == Some(number)
    };
    fs::read_dir(dir).into_iter().flatten().flatten().any(is)
}

/// The number of the block device that a path leads to.
fn device_at(path: &Path) -> Option<DevT> {
    let stat = statat(CWD, path, AtFlags::empty()).ok()?;
    let is_block = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    is_block.then(|| DevT::new(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}
