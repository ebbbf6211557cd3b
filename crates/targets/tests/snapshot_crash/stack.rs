//! An origin and its snapshots in a simulated world, and what a look at them after a power cut has to find.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::{Error, HostRequest, MappedDevice, Registry, StatusKind, SuspendOptions, TableLine, TableSlot};
use udm_io::{BlockDevice, BlockingIo, Domain, Limits, OpFlags, Status};
use udm_sim::history::{History, fill, value};
use udm_sim::{Image, Rng, Sim, SimDevice, SimOptions};
use udm_targets::TARGETS;

/// Sectors of the origin, at first and when it has grown as far as it can: past what a table of its first size had
/// places for.
pub(crate) const SIZE: u64 = 192;
pub(crate) const MOST: u64 = 1200;
/// Sectors that every COW device can have, and has when the origin has grown.
pub(crate) const fn room_for(size: u64) -> u64 {
    3 * size + 256
}
/// Of a pool: sectors of a block, blocks of data, blocks of metadata.
const BLOCK: u64 = 128;
const DATA: u64 = 40;
const METADATA: u64 = 96;

/// What the devices of a world are like.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Sectors of each COW device.
    pub(crate) cows: Vec<u64>,
    /// Of the origin.
    pub(crate) size: u64,
    /// Origin and COW devices are linears, which can grow.
    pub(crate) grows: bool,
    /// COW devices have too little room for all.
    pub(crate) short: bool,
    /// All of it are volumes of a pool.
    pub(crate) thin: bool,
    pub(crate) fua: bool,
}

/// What a snapshot's table line says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) store: &'static str,
    pub(crate) chunk: u64,
    pub(crate) discards: bool,
}

impl Kind {
    /// The end of a table line.
    pub(crate) fn args(&self) -> String {
        format!("{} {}{}", self.store, self.chunk, if self.discards { " 1 discard_zeroes_cow" } else { "" })
    }

    pub(crate) fn persists(&self) -> bool {
        self.store != "N"
    }
}

/// What was known of a snapshot when the power went.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    pub(crate) history: History,
    /// It may be invalid.
    pub(crate) may_be_invalid: bool,
}

/// What was known of all.
#[derive(Clone, Debug)]
pub(crate) struct All {
    /// The device that shows the origin, or the snapshot that is being merged into it.
    pub(crate) top: History,
    /// The COW device of which.
    pub(crate) merging: Option<(usize, Kind)>,
    /// By COW device.
    pub(crate) snapshots: BTreeMap<usize, Known>,
}

/// A world with the devices beneath.
pub(crate) struct Stack {
    pub(crate) sim: Sim,
    pub(crate) domain: Domain,
    pub(crate) registry: Registry,
    pub(crate) disks: Vec<Arc<SimDevice>>,
    /// As tables name them.
    origin: String,
    cows: Vec<String>,
}

/// What is on the devices of a setup at first.
pub(crate) fn first(setup: &Setup) -> (Vec<Image>, History) {
    let disks = if setup.thin { 2 } else { 1 + setup.cows.len() };
    let stack = Stack::open(setup, vec![Image::new(); disks], 0, true).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = vec![0; most(setup) as usize * 512];
    fill(&mut bytes, 1);
    let origin = if setup.grows { "o" } else { &stack.origin };
    let made = stack.device("first", most(setup), &format!("linear {origin} 0"));
    let md = made.unwrap_or_else(|e| panic!("{e}"));
    let io = BlockingIo::new(&stack.domain, md).expect("a channel");
    io.write(Sector::ZERO, &bytes, OpFlags::NONE).expect("a write");
    io.flush().expect("a flush");
    let mut history = History::zeroes(0);
    history.grow(&untouched(SIZE));
    (stack.sim.power_cut(), history)
}

fn most(setup: &Setup) -> u64 {
    if setup.grows { MOST } else { SIZE }
}

/// What the origin's disk holds at first, as far as sector `end`.
pub(crate) fn untouched(end: u64) -> History {
    let mut history = History::zeroes(end);
    (0..end).for_each(|sector| history.settle(sector, sector + 1));
    history
}

impl Stack {
    /// The devices, on disks with this content. `fast`: they take no time.
    pub(crate) fn open(setup: &Setup, images: Vec<Image>, seed: u64, fast: bool) -> Result<Self, Error> {
        let sim = Sim::new(seed);
        let domain = sim.domain();
        let sizes: Vec<(String, u64)> = if setup.thin {
            vec![("meta".into(), METADATA * 8), ("data".into(), DATA * BLOCK)]
        } else {
            let size = |now: u64| if setup.grows { room_for(MOST) } else { now };
            let cows = setup.cows.iter().enumerate().map(|(i, now)| (format!("c{i}"), size(*now)));
            [("o".into(), most(setup))].into_iter().chain(cows).collect()
        };
        let limits = Limits { write_cache: true, fua: setup.fua, discard_granularity: 512, ..Limits::default() };
        let latency_ns = if fast { 0..1 } else { 10_000..500_000 };
        let make = |((name, size), image): ((String, u64), Image)| {
            let options = SimOptions { limits, latency_ns: latency_ns.clone(), ..SimOptions::new(Sectors::new(size)) };
            (name, Arc::new(SimDevice::with_image(&sim, options, image)))
        };
        let known: Vec<(String, Arc<SimDevice>)> = sizes.into_iter().zip(images).map(make).collect();
        let disks: Vec<_> = known.iter().map(|(_, disk)| disk.clone()).collect();
        let host = move |request: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, Error> {
            let found = known.iter().find(|(name, _)| *name == request.spec);
            found.map(|(_, dev)| dev.clone() as _).ok_or_else(|| Error::new(Errno::ENOENT, "no such disk"))
        };
        let registry = Registry::new(domain.clone(), TARGETS, Box::new(host));
        let (mut origin, mut cows) = ("o".to_owned(), (0..setup.cows.len()).map(|i| format!("c{i}")).collect());
        if setup.thin {
            let pool = registry.create("pool", "", None)?;
            load(&pool, &format!("0 {} thin-pool meta data {BLOCK} 0", DATA * BLOCK))?;
            let volume = |(id, sectors): (usize, u64)| {
                // Refused when it is there already.
                let _ = pool.message(Sector::ZERO, &["create_thin", &id.to_string()]);
                let md = registry.create(&format!("thin{id}"), "", None)?;
                load(&md, &format!("0 {sectors} thin {} {id}", pool.devt()))?;
                Ok(md.devt().to_string())
            };
            let sizes = [SIZE].into_iter().chain(setup.cows.iter().copied());
            let mut volumes = sizes.enumerate().map(volume).collect::<Result<Vec<String>, Error>>()?;
            cows = volumes.split_off(1);
            origin = volumes.remove(0);
        }
        let stack = Self { sim, domain, registry, disks, origin, cows };
        if !setup.grows {
            return Ok(stack);
        }
        let linear = |size: u64, disk: &str| {
            let md = stack.device(&format!("below{disk}"), size, &format!("linear {disk} 0"))?;
            Ok(md.devt().to_string())
        };
        let origin = linear(setup.size, "o")?;
        let cows = setup.cows.iter().zip(&stack.cows).map(|(size, disk)| linear(*size, disk));
        let cows = cows.collect::<Result<_, Error>>()?;
        Ok(Self { origin, cows, ..stack })
    }

    /// Has the linear over a disk grow.
    pub(crate) fn grow(&self, disk: &str, size: u64) -> Result<(), Error> {
        let md = self.registry.by_name(&format!("below{disk}")).expect("devices that grow are linears");
        load(&md, &format!("0 {size} linear {disk} 0"))
    }

    /// A running device; or nothing when it cannot be made.
    pub(crate) fn device(&self, name: &str, size: u64, target: &str) -> Result<Arc<MappedDevice>, Error> {
        let md = self.registry.create(name, "", None)?;
        let made = load(&md, &format!("0 {size} {target}"));
        if let Err(e) = made {
            self.registry.remove(&md, false)?;
            return Err(e);
        }
        Ok(md)
    }

    /// The target of a snapshot.
    pub(crate) fn snapshot(&self, cow: usize, kind: &Kind) -> String {
        format!("snapshot {} {} {}", self.origin, self.cows[cow], kind.args())
    }

    /// The target of the device above the origin.
    pub(crate) fn top(&self, merging: Option<&(usize, Kind)>) -> String {
        match merging {
            Some((cow, kind)) => format!("snapshot-merge {} {} {}", self.origin, self.cows[*cow], kind.args()),
            None => format!("snapshot-origin {}", self.origin),
        }
    }

    /// Makes a COW device fit for a new snapshot: no header, and all else full of what looks like exceptions.
    pub(crate) fn clear(&self, cow: usize, sectors: u64, rng: &mut Rng) -> Result<(), Status> {
        let mut bytes = vec![0; sectors as usize * 512];
        for word in bytes[4096..].chunks_exact_mut(8) {
            word.copy_from_slice(&(2 + rng.below(30)).to_le_bytes());
        }
        let md = self.registry.create("clear", "", None).expect("a name");
        let loaded = load(&md, &format!("0 {sectors} linear {} 0", self.cows[cow])).map_err(|_| Status::Io);
        let done = loaded.and_then(|()| {
            let io = BlockingIo::new(&self.domain, md.clone()).expect("a channel");
            io.write(Sector::ZERO, &bytes, OpFlags::NONE)?;
            io.flush()
        });
        self.registry.remove(&md, false).expect("it is not open");
        done
    }
}

/// Loads a table, and lets it run.
pub(crate) fn load(md: &Arc<MappedDevice>, table: &str) -> Result<(), Error> {
    md.load(&TableLine::parse_all(table).expect("a table"), false, Path::new("/"))?;
    md.resume(SuspendOptions::default(), &|| false).map(drop)
}

pub(crate) fn status(md: &Arc<MappedDevice>) -> String {
    let table = md.table(TableSlot::Active).expect("a table");
    table.targets().next().expect("a target").status(StatusKind::Info { noflush: false })
}

/// Whether nothing is left to merge.
pub(crate) fn is_merged(status: &str) -> bool {
    let mut words = status.split(['/', ' ']);
    let (allocated, metadata) = (words.next(), words.nth(1));
    metadata.is_some() && allocated == metadata
}

/// Opens what a cut left, and holds it against what was known. Returns what is there, settled to what was read.
pub(crate) fn look(setup: &Setup, images: Vec<Image>, known: &All, seed: u64) -> All {
    let mut rng = Rng::new(seed);
    let stack = Stack::open(setup, images, rng.next(), true).unwrap_or_else(|e| panic!("what is beneath: {e}"));
    let mut found = All { top: known.top.clone(), merging: known.merging, snapshots: BTreeMap::new() };
    // The others first: what is merged before them they would never have.
    let mut devices = Vec::new();
    for (cow, it) in known.snapshots.iter().filter(|(_, it)| it.kind.persists()) {
        // The header's chunk counts.
        let kind = Kind { chunk: [it.kind.chunk, 0, 32][rng.below(3) as usize], ..it.kind };
        let what = format!("snapshot {cow}, {:?}", it.kind);
        let md = stack.device(&what.replace([' ', '"'], ""), it.history.len(), &stack.snapshot(*cow, &kind));
        let md = md.unwrap_or_else(|e| panic!("{what}: {e}"));
        if status(&md) == "Invalid" {
            assert!(it.may_be_invalid, "{what} has become invalid");
            assert!(read(&stack, &md).is_err(), "{what} is invalid, and reads");
            continue;
        }
        let history = settled(&stack, &md, &it.history, &what);
        devices.push((md, history.clone(), what));
        found.snapshots.insert(*cow, Known { history, ..it.clone() });
    }
    if let Some((cow, kind)) = known.merging.filter(|_| rng.one_in(3)) {
        // As a snapshot it shows the same, however much has been merged.
        let md = stack.device("half", known.top.len(), &stack.snapshot(cow, &kind));
        let md = md.unwrap_or_else(|e| panic!("half merged: {e}"));
        if status(&md) != "Invalid" {
            settled(&stack, &md, &known.top, "half merged");
        }
        stack.registry.remove(&md, false).expect("it is not open");
    }
    let md = stack.device("top", known.top.len(), &stack.top(known.merging.as_ref()));
    let md = md.unwrap_or_else(|e| panic!("the origin: {e}"));
    found.top = settled(&stack, &md, &known.top, "the origin");
    devices.push((md.clone(), found.top.clone(), "the origin".into()));
    if known.merging.is_some() && rng.one_in(2) {
        finish_merge(&stack, &md);
        // A merge writes to the origin, and that can be more than a snapshot has room for.
        let has_room = |md: &Arc<MappedDevice>| !setup.short || status(md) != "Invalid";
        for (md, history, what) in devices.iter().filter(|(md, ..)| has_room(md)) {
            settled(&stack, md, history, &format!("{what}, when all is merged"));
        }
    }
    found
}

/// Lets time pass until nothing is left to merge.
fn finish_merge(stack: &Stack, md: &Arc<MappedDevice>) {
    for _ in 0..100_000 {
        if is_merged(&status(md)) {
            return;
        }
        let mut once = false;
        stack.domain.drain(|| std::mem::replace(&mut once, true));
    }
    panic!("the merge does not end: {}", status(md));
}

fn read(stack: &Stack, md: &Arc<MappedDevice>) -> Result<Vec<u8>, Status> {
    let io = BlockingIo::new(&stack.domain, md.clone()).expect("a channel");
    let mut bytes = vec![0; md.sectors().as_len()];
    io.read(Sector::ZERO, &mut bytes)?;
    Ok(bytes)
}

/// What a device holds is what its history allows; the history, settled to that.
fn settled(stack: &Stack, md: &Arc<MappedDevice>, history: &History, what: &str) -> History {
    let bytes = read(stack, md).unwrap_or_else(|status| panic!("{what} cannot be read: {status:?}"));
    let mut settled = history.clone();
    for (sector, bytes) in (0..).zip(bytes.chunks_exact(512)) {
        let read = value(bytes).unwrap_or_else(|| panic!("{what}, sector {sector}: torn within a sector"));
        assert!(
            history.may_survive(sector, read),
            "{what}, sector {sector}: read {read:#x}, expected {}",
            history.describe(sector)
        );
        settled.settle(sector, read);
    }
    settled
}
