//! A pool in a simulated world, and what a look at it after a power cut has to find.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::{Error, HostRequest, MappedDevice, Registry, SuspendOptions, TableLine};
use udm_io::{BlockDevice, BlockingIo, Domain, Limits};
use udm_sim::history::{History, value};
use udm_sim::{Image, Sim, SimDevice, SimOptions};
use udm_targets::TARGETS;

/// Sectors of a block.
pub(crate) const BLOCK: u64 = 128;
/// Blocks of a volume.
pub(crate) const BLOCKS: u64 = 6;
/// Metadata blocks.
const METADATA: u64 = 96;

/// A pool, in a world of its own.
pub(crate) struct Pool {
    pub(crate) sim: Sim,
    pub(crate) domain: Domain,
    pub(crate) registry: Registry,
    pub(crate) metadata: Arc<SimDevice>,
    pub(crate) data: Arc<SimDevice>,
    pub(crate) md: Arc<MappedDevice>,
}

/// The table of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) data_blocks: u64,
    pub(crate) features: Vec<&'static str>,
}

impl Spec {
    fn table(&self) -> String {
        let Self { data_blocks, features } = self;
        format!("0 {} thin-pool meta data {BLOCK} 0 {} {}", data_blocks * BLOCK, features.len(), features.join(" "))
    }

    pub(crate) fn has(&self, feature: &str) -> bool {
        self.features.contains(&feature)
    }
}

/// A disk of so many sectors that takes discards and has a write cache.
fn disk(sim: &Sim, sectors: u64, image: Image, fast: bool) -> Arc<SimDevice> {
    let limits = Limits { write_cache: true, discard_granularity: 512, ..Limits::default() };
    let latency_ns = if fast { 0..1 } else { 10_000..500_000 };
    let options = SimOptions { limits, latency_ns, ..SimOptions::new(Sectors::new(sectors)) };
    Arc::new(SimDevice::with_image(sim, options, image))
}

impl Pool {
    /// A pool on disks with this content. `fast`: they take no time.
    pub(crate) fn open(spec: &Spec, images: Vec<Image>, seed: u64, fast: bool) -> Result<Self, Error> {
        let sim = Sim::new(seed);
        let domain = sim.domain();
        let [metadata, data] = <[Image; 2]>::try_from(images).expect("metadata and data");
        let metadata = disk(&sim, METADATA * 8, metadata, fast);
        let data = disk(&sim, spec.data_blocks * BLOCK, data, fast);
        let known: [(&str, Arc<SimDevice>); 2] = [("meta", metadata.clone()), ("data", data.clone())];
        let host = move |request: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, Error> {
            let found = known.iter().find(|(name, _)| *name == request.spec);
            found.map(|(_, dev)| dev.clone() as _).ok_or_else(|| Error::new(Errno::ENOENT, "no such disk"))
        };
        let registry = Registry::new(domain.clone(), TARGETS, Box::new(host));
        let md = registry.create("pool", "", None)?;
        md.load(&TableLine::parse_all(&spec.table()).expect("a table"), false, Path::new("/"))?;
        md.resume(SuspendOptions::default(), &|| false)?;
        Ok(Self { sim, domain, registry, metadata, data, md })
    }

    /// Sends a message to the pool.
    pub(crate) fn message(&self, text: &str) -> Result<(), Error> {
        self.md.message(Sector::ZERO, &text.split(' ').collect::<Vec<_>>()).map(drop)
    }

    /// Makes a volume live.
    pub(crate) fn activate(&self, id: u32) -> Result<Arc<MappedDevice>, Error> {
        let md = self.registry.create(&format!("thin{id}"), "", None)?;
        let table = format!("0 {} thin {} {id}", BLOCKS * BLOCK, self.md.devt());
        let made = md
            .load(&TableLine::parse_all(&table).expect("a table"), false, Path::new("/"))
            .and_then(|()| md.resume(SuspendOptions::default(), &|| false).map(drop));
        if let Err(e) = made {
            self.registry.remove(&md, false).expect("it is not open");
            return Err(e);
        }
        Ok(md)
    }

    /// Takes every device down, as on a clean stop.
    pub(crate) fn close(&self) {
        for md in self.registry.list().into_iter().filter(|md| !Arc::ptr_eq(md, &self.md)) {
            self.registry.remove(&md, false).unwrap_or_else(|e| panic!("{}: {e}", md.device_name()));
        }
        self.registry.remove(&self.md, false).unwrap_or_else(|e| panic!("pool: {e}"));
    }
}

/// Volumes that may be there after a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Existence {
    /// It must be there.
    Certain,
    /// It was being made or deleted.
    Possible,
}

/// What was known of the volumes when the power went.
pub(crate) type Known = BTreeMap<u32, (Existence, History)>;

/// Opens what a cut left and holds it against what was known. Returns the volumes that are there, settled to what was
/// read.
pub(crate) fn look(spec: &Spec, images: Vec<Image>, known: &Known, seed: u64) -> BTreeMap<u32, History> {
    let pool = Pool::open(spec, images, seed, true).unwrap_or_else(|e| panic!("the pool does not open: {e}"));
    let mut found = BTreeMap::new();
    for (id, (existence, history)) in known {
        let md = match pool.activate(*id) {
            Ok(md) => md,
            Err(_) if *existence == Existence::Possible => continue,
            Err(e) => panic!("volume {id} has gone: {e}"),
        };
        let io = BlockingIo::new(&pool.domain, md).expect("a channel");
        let mut bytes = vec![0; history.len() as usize * 512];
        io.read(Sector::ZERO, &mut bytes).unwrap_or_else(|status| panic!("volume {id} cannot be read: {status:?}"));
        let mut settled = history.clone();
        for (sector, bytes) in bytes.chunks_exact(512).enumerate() {
            let sector = sector as u64;
            let read = value(bytes).unwrap_or_else(|| panic!("volume {id}, sector {sector}: torn within a sector"));
            assert!(
                history.may_survive(sector, read),
                "volume {id}, sector {sector}: read {read:#x}, expected {}",
                history.describe(sector)
            );
            settled.settle(sector, read);
        }
        found.insert(*id, settled);
    }
    pool.close();
    clean(&pool, seed);
    found
}

/// The metadata as Debian's thin_check sees it, where it is installed, for some of the looks: a process each.
fn clean(pool: &Pool, seed: u64) {
    if seed.is_multiple_of(64) {
        thin_check(&pool.metadata.content());
    }
}

fn thin_check(image: &Image) {
    let mut bytes = vec![0; METADATA as usize * 4096];
    image.read(Sector::ZERO, &mut bytes);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &bytes).expect("it can be written");
    let Ok(output) = std::process::Command::new("thin_check").arg(file.path()).output() else {
        return println!("SKIP thin_check is not installed");
    };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "thin_check: {said}");
}
