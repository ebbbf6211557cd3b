//! Pools to test on: metadata and data on disks that the test sees into.

use super::rig::*;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;

/// Sectors of a block.
pub(crate) const BLOCK: u64 = 128;
/// Metadata blocks of a pool here.
const METADATA_BLOCKS: u64 = 1024;

/// A pool with its disks.
pub(crate) struct Pool {
    pub(crate) rig: Rig,
    pub(crate) metadata: Arc<Disk>,
    pub(crate) data: Arc<Disk>,
    pub(crate) md: Arc<MappedDevice>,
    blocks: u64,
}

impl Pool {
    /// A pool of `blocks` blocks with feature words.
    pub(crate) fn new(blocks: u64, features: &str) -> Self {
        Self::in_rig(Rig::default(), blocks, features)
    }

    pub(crate) fn in_rig(rig: Rig, blocks: u64, features: &str) -> Self {
        let metadata = rig.disk("meta", METADATA_BLOCKS * 8);
        let data = rig.disk("data", blocks * BLOCK);
        let md = rig.device("pool", &table(blocks, features));
        Self { rig, metadata, data, md, blocks }
    }

    /// A pool on disks that were a pool's before.
    pub(crate) fn again(rig: Rig, metadata: Arc<Disk>, data: Arc<Disk>, blocks: u64) -> Self {
        let md = rig.device("pool", &table(blocks, ""));
        Self { rig, metadata, data, md, blocks }
    }

    /// The pool on copies of its disks as they are now, as if the power had gone.
    pub(crate) fn as_after_power_cut(&self) -> Self {
        let rig = Rig::default();
        let copy = |name: &str, from: &Arc<Disk>| {
            let disk = rig.disk(name, from.sectors().get());
            let all = read(&BlockingIo::new(&self.rig.domain, from.clone()).unwrap(), 0, from.sectors().get());
            let io = BlockingIo::new(&rig.domain, disk.clone()).unwrap();
            io.write(Sector::ZERO, &all, OpFlags::NONE).unwrap();
            disk
        };
        let (metadata, data) = (copy("meta", &self.metadata), copy("data", &self.data));
        Self::again(rig, metadata, data, self.blocks)
    }

    pub(crate) fn table(&self, features: &str) -> String {
        table(self.blocks, features)
    }

    /// Sends a message.
    pub(crate) fn message(&self, text: &str) -> Result<(), Error> {
        let words: Vec<&str> = text.split(' ').collect();
        self.md.message(Sector::ZERO, &words).map(drop)
    }

    pub(crate) fn ok(&self, text: &str) {
        self.message(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    }

    /// A new volume of `blocks` blocks.
    pub(crate) fn thin(&self, name: &str, id: u32, blocks: u64) -> Arc<MappedDevice> {
        self.ok(&format!("create_thin {id}"));
        self.activate(name, id, blocks)
    }

    /// A new snapshot.
    pub(crate) fn snap(&self, name: &str, id: u32, origin: u32, blocks: u64) -> Arc<MappedDevice> {
        self.ok(&format!("create_snap {id} {origin}"));
        self.activate(name, id, blocks)
    }

    pub(crate) fn activate(&self, name: &str, id: u32, blocks: u64) -> Arc<MappedDevice> {
        self.rig.device(name, &format!("0 {} thin {{pool}} {id}", blocks * BLOCK))
    }

    pub(crate) fn status(&self) -> String {
        info(&self.md)
    }

    /// The numbers of data blocks in use.
    pub(crate) fn used(&self) -> u64 {
        let status = self.status();
        status.split(' ').nth(2).unwrap().split_once('/').unwrap().0.parse().unwrap()
    }

    pub(crate) fn remove(&self, name: &str) {
        let md = self.rig.registry.by_name(name).unwrap();
        self.rig.registry.remove(&md, false).unwrap();
    }

    /// Removes every device and has thin_check look at what is on the metadata disk.
    pub(crate) fn check(self) {
        for md in self.rig.registry.list().into_iter().filter(|md| md.device_name() != "pool") {
            self.rig.registry.remove(&md, false).unwrap();
        }
        let Self { rig, metadata, md, .. } = self;
        rig.registry.remove(&md, false).unwrap();
        drop(md);
        check_metadata(&rig, &metadata);
    }
}

/// Has thin_check look at a metadata disk.
pub(crate) fn check_metadata(rig: &Rig, metadata: &Arc<Disk>) {
    check_metadata_on(rig, metadata.clone());
}

pub(crate) fn check_metadata_on(rig: &Rig, metadata: Arc<dyn BlockDevice>) {
    let io = BlockingIo::new(&rig.domain, metadata.clone()).unwrap();
    let bytes = read(&io, 0, metadata.sectors().get());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    match Command::new("thin_check").arg(file.path()).output() {
        Ok(out) => {
            let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(out.status.success(), "{said}");
        }
        Err(e) => println!("SKIP thin_check: {e}"),
    }
}

pub(crate) fn table(blocks: u64, features: &str) -> String {
    format!("0 {} thin-pool meta data {BLOCK} 0 {features}", blocks * BLOCK)
}

/// The status of a device's only target.
pub(crate) fn info(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().lines(StatusKind::Info { noflush: false })[0].params.clone()
}

/// The table line of a device's only target.
pub(crate) fn shown(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().lines(StatusKind::Table)[0].params.clone()
}

pub(crate) fn zeroes(count: u64) -> Vec<u8> {
    vec![0; count as usize * 512]
}

pub(crate) fn write_zeroes(io: &BlockingIo, sector: u64, count: u64) {
    io.write(Sector::new(sector), &zeroes(count), OpFlags::NONE).unwrap();
}

pub(crate) fn discard(io: &BlockingIo, sector: u64, count: u64) {
    io.range(Op::Discard, OpFlags::NONE, Sector::new(sector), Sectors::new(count)).unwrap();
}
