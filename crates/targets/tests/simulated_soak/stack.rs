//! The devices of a life, on disks of a simulated world.

use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::{Error, HostRequest, MappedDevice, Registry, StatusKind, SuspendOptions, TableLine, TableSlot};
use udm_io::{BlockDevice, Domain, Limits};
use udm_sim::{Image, Sim, SimDevice, SimOptions};
use udm_targets::TARGETS;

/// Sectors of a block of the pool, and of a chunk of the snapshots.
pub(crate) const BLOCK: u64 = 128;
pub(crate) const CHUNK: u64 = 16;
/// Sectors of a volume, at first and at most.
pub(crate) const SIZE: u64 = 4 * BLOCK;
pub(crate) const MOST: u64 = 8 * BLOCK;
/// COW devices.
pub(crate) const COWS: usize = 2;
/// Blocks of data of the pool, at first and at most: enough for every volume, so that none waits for space.
pub(crate) const DATA: u64 = 64;
pub(crate) const MOST_DATA: u64 = 96;

/// What the disks are called, and their sectors.
fn disks() -> Vec<(String, u64)> {
    let cows = (0..COWS).map(|cow| (format!("cow{cow}"), 4 * MOST));
    let others = [("meta", 96 * 8), ("data", MOST_DATA * BLOCK), ("plain", MOST), ("beneath", MOST)];
    others.into_iter().map(|(name, size)| (name.to_owned(), size)).chain(cows).collect()
}

pub(crate) struct Stack {
    pub(crate) sim: Sim,
    pub(crate) domain: Domain,
    pub(crate) registry: Registry,
}

impl Stack {
    /// Disks with this content, and no devices. `fast`: they take no time.
    pub(crate) fn new(images: Option<Vec<Image>>, seed: u64, fast: bool) -> Self {
        let sim = Sim::new(seed);
        let domain = sim.domain();
        let limits = Limits { write_cache: true, discard_granularity: 512, ..Limits::default() };
        let latency_ns = if fast { 0..1 } else { 10_000..500_000 };
        let disks = disks();
        let images = images.unwrap_or_else(|| vec![Image::new(); disks.len()]);
        let make = |((name, size), image): ((String, u64), Image)| {
            let options = SimOptions { limits, latency_ns: latency_ns.clone(), ..SimOptions::new(Sectors::new(size)) };
            (name, Arc::new(SimDevice::with_image(&sim, options, image)))
        };
        let known: Vec<(String, Arc<SimDevice>)> = disks.into_iter().zip(images).map(make).collect();
        let host = move |request: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, Error> {
            let found = known.iter().find(|(name, _)| *name == request.spec);
            found.map(|(_, dev)| dev.clone() as _).ok_or_else(|| Error::new(Errno::ENOENT, "no such disk"))
        };
        let registry = Registry::new(domain.clone(), TARGETS, Box::new(host));
        Self { sim, domain, registry }
    }

    /// A running device.
    pub(crate) fn make(&self, name: &str, table: &str) -> Arc<MappedDevice> {
        let md = self.registry.create(name, "", None).unwrap_or_else(|e| panic!("{name}: {e}"));
        self.load(&md, table);
        self.resume(&md);
        md
    }

    /// Loads a table, in which `{name}` is that device's number.
    pub(crate) fn load(&self, md: &Arc<MappedDevice>, table: &str) {
        let mut text = table.to_owned();
        for other in self.registry.list() {
            text = text.replace(&format!("{{{}}}", other.device_name()), &other.devt().to_string());
        }
        let lines = TableLine::parse_all(&text).expect("a table");
        md.load(&lines, false, Path::new("/")).unwrap_or_else(|e| panic!("{}: {e}", md.device_name()));
    }

    pub(crate) fn resume(&self, md: &Arc<MappedDevice>) {
        let resumed = md.resume(SuspendOptions::default(), &|| false);
        resumed.unwrap_or_else(|e| panic!("{}: {e}", md.device_name()));
    }

    /// Whether a device can be resumed, after a cut.
    pub(crate) fn resumes(&self, md: &Arc<MappedDevice>) -> bool {
        md.resume(SuspendOptions::default(), &|| false).is_ok()
    }

    pub(crate) fn suspend(&self, md: &Arc<MappedDevice>, noflush: bool) {
        let suspended = md.suspend(SuspendOptions { noflush, nolockfs: false }, &|| false);
        suspended.unwrap_or_else(|e| panic!("{}: {e}", md.device_name()));
    }
}

pub(crate) fn status(md: &Arc<MappedDevice>) -> String {
    let table = md.table(TableSlot::Active).expect("a table");
    table.targets().next().expect("a target").status(StatusKind::Info { noflush: false })
}

/// What the targets have under way.
pub(crate) fn under_way(md: &Arc<MappedDevice>) -> String {
    let table = md.table(TableSlot::Active).expect("a table");
    let known = table.attributes().flat_map(|attributes| attributes.inspect());
    known.map(|(name, value)| format!("; {name}: {value}")).collect()
}

/// Sends a message that has to succeed.
pub(crate) fn message(md: &Arc<MappedDevice>, text: &str) {
    let answer = md.message(Sector::ZERO, &text.split(' ').collect::<Vec<_>>());
    answer.unwrap_or_else(|e| panic!("{text}: {e}"));
}
