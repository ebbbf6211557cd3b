//! Snapshots in the simulated world: random work, the power goes, and afterwards each snapshot shows the frozen origin with
//! what was written to it, and the origin what was written to that.
//!
//! `UDM_CRASH_POINTS` says how many cuts each test looks at, `UDM_CRASH_SEED` where to begin, and with `UDM_CRASH_ONLY` one
//! seed runs alone: `cargo xtask crash` sets them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_sim::*;

/// Sectors of the origin.
const SIZE: u64 = 192;
/// Versions of a sector: what it may hold.
type Versions = Vec<u64>;

/// The content of a sector at its `version`th write; version 0 is what is there at first.
fn content(version: u64, sector: u64) -> [u8; 512] {
    let mut out = [0; 512];
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&(version << 20 | sector << 1 | 1).to_le_bytes());
    }
    out
}

/// What the sectors of a device may hold: the last version that is durable, and those since.
#[derive(Clone)]
struct Model {
    sectors: Vec<Versions>,
    /// Whether a write has failed since the last that went well: then a flush settles nothing.
    uncertain: Vec<bool>,
}

impl Model {
    fn new() -> Self {
        Self::of(vec![0; SIZE as usize])
    }

    fn of(versions: Vec<u64>) -> Self {
        Self { uncertain: vec![false; versions.len()], sectors: versions.into_iter().map(|v| vec![v]).collect() }
    }

    /// A write that has gone well.
    fn write(&mut self, at: u64, len: u64, version: u64, durable: bool) {
        let range = at as usize..(at + len) as usize;
        self.uncertain[range.clone()].fill(false);
        for sector in &mut self.sectors[range] {
            if durable {
                sector.clear();
            }
            sector.push(version);
        }
    }

    /// A write that has failed: it may have happened, or part of it.
    fn failed(&mut self, at: u64, len: u64, version: u64) {
        let range = at as usize..(at + len) as usize;
        self.uncertain[range.clone()].fill(true);
        for sector in &mut self.sectors[range] {
            let last = *sector.last().expect("never empty");
            sector.extend([version, last]);
        }
    }

    fn flushed(&mut self) {
        for (sector, uncertain) in self.sectors.iter_mut().zip(&self.uncertain) {
            if !uncertain {
                *sector = vec![*sector.last().expect("never empty")];
            }
        }
    }

    /// What it holds now, if nothing is lost.
    fn now(&self) -> Vec<u64> {
        self.sectors.iter().map(|v| *v.last().expect("never empty")).collect()
    }
}

fn version_of(bytes: &[u8], sector: u64) -> Option<u64> {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let version = word >> 20;
    (bytes == content(version, sector)).then_some(version)
}

struct World {
    sim: Sim,
    disks: Vec<Arc<SimDevice>>,
    domain: Domain,
    registry: Registry,
}

/// What the devices of a world are like.
#[derive(Clone)]
struct Setup {
    /// Of each snapshot: its type and chunk.
    snapshots: Vec<&'static str>,
    cow: u64,
    fua: bool,
}

impl World {
    fn new(seed: u64, setup: &Setup, images: Option<Vec<Image>>) -> Self {
        let sim = Sim::new(seed);
        let limits = Limits { write_cache: true, fua: setup.fua, ..Limits::default() };
        let sizes = [("/o".to_owned(), SIZE)].into_iter();
        let cows = (0..setup.snapshots.len()).map(|i| (format!("/c{i}"), setup.cow));
        let (mut disks, mut kept) = (HashMap::<String, Arc<dyn BlockDevice>>::new(), Vec::new());
        for (i, (name, size)) in sizes.chain(cows).enumerate() {
            let options = SimOptions { limits, ..SimOptions::new(Sectors::new(size)) };
            let image = images.as_ref().map_or_else(|| first_image(&name), |images| images[i].clone());
            let disk = Arc::new(SimDevice::with_image(&sim, options, image));
            kept.push(disk.clone());
            disks.insert(name, disk);
        }
        let domain = sim.domain();
        let host = move |r: &HostRequest<'_>| {
            disks.get(r.spec).cloned().ok_or_else(|| Error::new(Errno::ENOENT, format!("{}: no such file", r.spec)))
        };
        let registry = Registry::new(domain.clone(), udm_targets::TARGETS, Box::new(host));
        Self { sim, disks: kept, domain, registry }
    }

    fn device(&self, name: &str, table: &str) -> Result<Arc<MappedDevice>, Error> {
        let md = self.registry.create(name, "", None)?;
        md.load(&TableLine::parse_all(table).expect("a table"), false, Path::new("/"))?;
        md.resume(SuspendOptions::default(), &|| false)?;
        Ok(md)
    }
}

fn first_image(name: &str) -> Image {
    let mut image = Image::new();
    if name == "/o" {
        (0..SIZE).for_each(|sector| image.write(Sector::new(sector), &content(0, sector)));
    }
    image
}

/// A write or flush that is out.
struct Out {
    device: usize,
    /// `None`: a flush, and how many writes had ended before it.
    write: Option<(u64, u64, u64, bool)>,
    buf: Vec<u8>,
}

/// Random writes and flushes to the origin (0) and snapshots (1…), until `steps` are done or the power is gone. Returns what
/// each may hold.
#[allow(clippy::too_many_lines)]
fn work(world: &World, devices: &[Arc<MappedDevice>], rng: &mut Rng, steps: u64, models: &mut [Model]) {
    let channel = world.domain.channel().unwrap();
    let attached: Vec<Attached> = devices.iter().map(|md| channel.attach(md.clone())).collect();
    let mut out: HashMap<u64, Out> = HashMap::new();
    let (mut begun, mut version) = (0, 1);
    let depth = 1 + rng.below(12) as usize;
    while (begun < steps && !world.sim.is_off()) || !out.is_empty() {
        while begun < steps && out.len() < depth && !world.sim.is_off() {
            let device = rng.below(devices.len() as u64) as usize;
            begun += 1;
            if rng.one_in(8) {
                // Only what had ended before counts: so flushes go alone.
                if out.values().any(|o| o.device == device) {
                    continue;
                }
                out.insert(begun, Out { device, write: None, buf: Vec::new() });
                let nothing = (Sector::ZERO, Sectors::ZERO);
                assert!(channel.submit_range(attached[device], Op::Flush, OpFlags::NONE, nothing.0, nothing.1, begun));
                continue;
            }
            let len = [1, 3, 8, 16, 24, 60][rng.below(6) as usize];
            let at = if rng.one_in(2) { rng.below(SIZE - len) } else { rng.below((SIZE - len) / 8) * 8 };
            let overlaps = |o: &Out| o.device == device && o.write.is_none_or(|(a, n, ..)| a < at + len && at < a + n);
            if out.values().any(overlaps) {
                continue;
            }
            let fua = rng.one_in(5);
            let mut buf: Vec<u8> = (at..at + len).flat_map(|sector| content(version, sector)).collect();
            let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
            // SAFETY: `buf` stays in `out` until the completion has been taken.
            assert!(unsafe { channel.submit(attached[device], Op::Write, flags, Sector::new(at), &mut buf, begun) });
            out.insert(begun, Out { device, write: Some((at, len, version, fua)), buf });
            version += 1;
        }
        if channel.poll() == 0 && channel.outstanding() > 0 {
            channel.wait(None, &mut Vec::new()).unwrap();
        }
        while let Some(done) = channel.completed() {
            let Out { device, write, buf } = out.remove(&done.token).expect("it was out");
            drop(buf);
            let model = &mut models[device];
            match write {
                None if done.status.is_ok() => model.flushed(),
                None => {}
                Some((at, len, version, fua)) if done.status.is_ok() => model.write(at, len, version, fua),
                Some((at, len, version, _)) => model.failed(at, len, version),
            }
        }
    }
}

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Info)
}

/// Each sector of a device holds one of the versions that the model allows; or it is an invalid snapshot, and says so.
fn check_or_invalid(world: &World, md: &Arc<MappedDevice>, model: &Model, what: &str) {
    if status(md) == "Invalid" {
        let io = BlockingIo::new(&world.domain, md.clone()).unwrap();
        assert_eq!(io.read(Sector::ZERO, &mut [0; 512]), Err(Status::Io), "{what}");
    } else {
        check(world, md, model, what);
    }
}

/// Each sector of a device holds one of the versions that the model allows.
fn check(world: &World, md: &Arc<MappedDevice>, model: &Model, what: &str) {
    let io = BlockingIo::new(&world.domain, md.clone()).unwrap();
    let mut bytes = vec![0; SIZE as usize * 512];
    io.read(Sector::ZERO, &mut bytes).unwrap_or_else(|s| panic!("{what}: {s:?}"));
    for (sector, bytes) in bytes.chunks_exact(512).enumerate() {
        let found = version_of(bytes, sector as u64);
        let allowed = &model.sectors[sector];
        assert!(
            found.is_some_and(|v| allowed.contains(&v)),
            "{what}: sector {sector} holds {found:?}, not {allowed:?}"
        );
    }
}

fn open(world: &World, setup: &Setup) -> Vec<Arc<MappedDevice>> {
    let mut devices = vec![world.device("origin", &format!("0 {SIZE} snapshot-origin /o")).unwrap()];
    for (i, kind) in setup.snapshots.iter().enumerate() {
        let table = format!("0 {SIZE} snapshot /o /c{i} {kind}");
        devices.push(world.device(&format!("snap{i}"), &table).unwrap_or_else(|e| panic!("{e}")));
    }
    devices
}

fn setup(rng: &mut Rng) -> Setup {
    let kinds = ["P 8", "PO 8", "P 16", "P 32"];
    let count = 1 + rng.below(3);
    let snapshots = (0..count).map(|_| kinds[rng.below(4) as usize]).collect();
    Setup { snapshots, cow: 2048, fua: rng.one_in(2) }
}

/// One life: work, a power cut, and what is found then. Returns how many writes the disks saw.
fn crash(seed: u64, cut: Option<u64>) -> u64 {
    let mut rng = Rng::new(seed);
    let setup = setup(&mut rng);
    let world = World::new(seed, &setup, None);
    let devices = open(&world, &setup);
    let mut models: Vec<Model> = devices.iter().map(|_| Model::new()).collect();
    // What was there before is on the platters; so is the making of the stores.
    let before = world.sim.writes();
    if let Some(cut) = cut {
        world.sim.cut_at_write(before + 1 + cut);
    }
    work(&world, &devices, &mut rng, 60, &mut models);
    if cut.is_none() {
        for (md, model) in devices.iter().zip(&models) {
            let now = Model::of(model.now());
            check(&world, md, &now, &format!("seed {seed}, no cut, {md:?}"));
        }
    }
    let writes = world.sim.writes() - before;
    let images = world.sim.power_cut();
    drop(devices);
    let world = World::new(seed + 1, &setup, Some(images));
    let devices = open(&world, &setup);
    for (md, model) in devices.iter().zip(&models) {
        check(&world, md, model, &format!("seed {seed}, cut {cut:?}, {setup:?}, {md:?}", setup = setup.snapshots));
    }
    // And it goes on.
    let mut models: Vec<Model> = devices.iter().map(|md| read_all(&world, md)).collect();
    work(&world, &devices, &mut rng, 20, &mut models);
    for (md, model) in devices.iter().zip(&models) {
        check(&world, md, model, &format!("seed {seed}, cut {cut:?}, later, {md:?}"));
    }
    writes
}

/// What is there, as a model in which nothing is uncertain.
fn read_all(world: &World, md: &Arc<MappedDevice>) -> Model {
    let io = BlockingIo::new(&world.domain, md.clone()).unwrap();
    let mut bytes = vec![0; SIZE as usize * 512];
    io.read(Sector::ZERO, &mut bytes).unwrap();
    let versions = bytes.chunks_exact(512).zip(0..);
    Model::of(versions.map(|(bytes, sector)| version_of(bytes, sector).expect("a version")).collect())
}

/// Takes the first snapshot back while it is used through the origin's device, with a power cut or two in between.
fn crash_merging(seed: u64, cut: Option<u64>) -> u64 {
    let mut rng = Rng::new(seed);
    let mut setup = setup(&mut rng);
    setup.snapshots[0] = ["P 8", "PO 16"][rng.below(2) as usize];
    let world = World::new(seed, &setup, None);
    let devices = open(&world, &setup);
    let mut models: Vec<Model> = devices.iter().map(|_| Model::new()).collect();
    work(&world, &devices, &mut rng, 50, &mut models);
    for md in &devices {
        BlockingIo::new(&world.domain, md.clone()).unwrap().flush().unwrap();
    }
    let before = world.sim.writes();
    if let Some(cut) = cut {
        world.sim.cut_at_write(before + 1 + cut);
    }
    // From here on the origin's device shows the first snapshot.
    let mut devices: Vec<_> = devices.into_iter().collect();
    let snap = devices.remove(1);
    models.remove(0);
    models.iter_mut().for_each(Model::flushed);
    let table = format!("0 {SIZE} snapshot-merge /o /c0 {}", setup.snapshots[0]);
    let options = SuspendOptions::default();
    for md in [&snap, &devices[0]] {
        md.suspend(options, &|| false).unwrap();
    }
    devices[0].load(&TableLine::parse_all(&table).unwrap(), false, Path::new("/")).unwrap();
    devices[0].resume(options, &|| false).unwrap();
    world.registry.remove(&snap, false).unwrap();
    drop(snap);
    work(&world, &devices, &mut rng, 30, &mut models);
    let what =
        |when: &str, md: &Arc<MappedDevice>| format!("seed {seed}, cut {cut:?}, {:?}, {when}, {md:?}", setup.snapshots);
    if cut.is_none() {
        finish_merge(&world, &devices[0], &what("no cut", &devices[0]));
        for (md, model) in devices.iter().zip(&models) {
            let now = Model::of(model.now());
            check(&world, md, &now, &what("no cut", md));
        }
    }
    let writes = world.sim.writes() - before;
    let images = world.sim.power_cut();
    drop(devices);
    let world = World::new(seed + 1, &setup, Some(images));
    // The others first: what is merged before them they would never have.
    let mut devices = Vec::new();
    for (i, kind) in setup.snapshots.iter().enumerate().skip(1) {
        let table = format!("0 {SIZE} snapshot /o /c{i} {kind}");
        devices.push(world.device(&format!("snap{i}"), &table).unwrap_or_else(|e| panic!("{e}")));
    }
    devices.insert(0, world.device("origin", &table).unwrap_or_else(|e| panic!("seed {seed}, cut {cut:?}: {e}")));
    for (md, model) in devices.iter().zip(&models) {
        check(&world, md, model, &what("while it goes on", md));
    }
    let mut models: Vec<Model> = devices.iter().map(|md| read_all(&world, md)).collect();
    work(&world, &devices, &mut rng, 20, &mut models);
    finish_merge(&world, &devices[0], &what("at the end", &devices[0]));
    for (md, model) in devices.iter().zip(&models) {
        check(&world, md, model, &what("when it is merged", md));
    }
    writes
}

/// Lets time pass until nothing is left to merge.
fn finish_merge(world: &World, md: &Arc<MappedDevice>, what: &str) {
    for _ in 0..100_000 {
        let status = status(md);
        let (allocated, metadata) = status
            .split_once('/')
            .and_then(|(a, rest)| Some((a.to_owned(), rest.split_once(' ')?.1.to_owned())))
            .unwrap_or_else(|| panic!("{what}: {status}"));
        if allocated == metadata {
            return;
        }
        let mut once = false;
        world.domain.drain(|| std::mem::replace(&mut once, true));
    }
    panic!("{what}: the merge does not end");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The seeds to run for so many points, `each` of a seed.
fn seeds(points: u64, each: u64) -> std::ops::Range<u64> {
    if std::env::var_os("UDM_CRASH_ONLY").is_some() {
        let only = number("UDM_CRASH_ONLY", 0);
        return only..only + 1;
    }
    let first = number("UDM_CRASH_SEED", 0);
    first..first + number("UDM_CRASH_POINTS", points).div_ceil(each)
}

#[test]
fn a_merge_goes_on_after_a_power_cut() {
    for seed in seeds(60, 12) {
        let writes = crash_merging(seed, None);
        for i in 0..12 {
            crash_merging(seed, Some(writes * i / 12));
        }
    }
}

/// A COW device without room for all, or a disk on which one operation fails: snapshots may become invalid and are it then
/// for good; what is not invalid is right, and the origin always.
fn hardship(seed: u64, fault: Option<u64>, cut: bool) {
    let mut rng = Rng::new(seed);
    let mut setup = setup(&mut rng);
    if fault.is_none() {
        setup.cow = 96 + 32 * rng.below(6);
    }
    let world = World::new(seed, &setup, None);
    let devices = open(&world, &setup);
    let mut models: Vec<Model> = devices.iter().map(|_| Model::new()).collect();
    if let Some(n) = fault {
        let op = [Op::Write, Op::Write, Op::Read, Op::Flush][rng.below(4) as usize];
        let disk = rng.below(world.disks.len() as u64) as usize;
        world.disks[disk].inject(Fault::new(Status::Io).on(op).after(n).times(1));
    }
    if cut {
        world.sim.cut_at_write(world.sim.writes() + 1 + rng.below(120));
    }
    work(&world, &devices, &mut rng, 60, &mut models);
    let what = |when: &str, md: &Arc<MappedDevice>| {
        format!("seed {seed}, fault {fault:?}, {setup:?}, {when}, {md:?}", setup = setup.snapshots)
    };
    if !cut {
        world.disks.iter().for_each(|disk| disk.heal());
        for (md, model) in devices.iter().zip(&models) {
            check_or_invalid(&world, md, model, &what("at once", md));
        }
    }
    let images = world.sim.power_cut();
    drop(devices);
    let world = World::new(seed + 1, &setup, Some(images));
    let devices = open(&world, &setup);
    assert_ne!(status(&devices[0]), "Invalid");
    for (md, model) in devices.iter().zip(&models) {
        check_or_invalid(&world, md, model, &what("after the cut", md));
    }
}

#[test]
fn an_operation_that_fails_costs_at_most_the_snapshot() {
    for seed in seeds(64, 16) {
        for n in 0..16 {
            hardship(seed, Some(n), n % 3 == 0);
        }
    }
}

#[test]
fn a_cow_device_that_is_full_costs_at_most_the_snapshot() {
    for seed in seeds(40, 1) {
        hardship(seed, None, seed % 2 == 0);
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_snapshots_stay_what_they_were() {
    for seed in seeds(96, 12) {
        let writes = crash(seed, None);
        for i in 0..12 {
            crash(seed, Some(writes * i / 12));
        }
    }
}
