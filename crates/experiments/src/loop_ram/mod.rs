//! `loop-ram`: `loop` beside the kernel's loop driver on the same files, and `ram` beside plain copies and other
//! devices in memory.

mod kernel;
mod served;

use crate::backing::{Backing, LoopDevice};
use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::fio::{self, Shape, Via};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Figures, Way, turns};
use rustix::fd::OwnedFd;
use served::Served;
use std::path::Path;
use std::time::Duration;
use udm_bench::stack::in_concise;
use udm_bench::{Error, Fill, Lat, Load, Rw, Stack, Subject, measure};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "loop-ram",
    about: "loop beside the kernel's loop driver on the same files, ram beside plain copies and null:",
    wants_folder: true,
    run,
};

/// Of devices, in words of this process's generator.
const LOOP_TMPFS: &str = "loop on tmpfs";
const LOOP_DISK: &str = "loop on a disk";
const LOOP_BOTH: &str = "loop on both";
const DRIVER_TMPFS: &str = "the kernel's driver on tmpfs";
const DRIVER_DISK: &str = "the kernel's driver on a disk";
const RAM: &str = "ram";
const MEMCPY: &str = "plain copies";
const NULL_MEMORY: &str = "null: with memory";
const NULL: &str = "null: without memory";

/// Of fio's ways.
const FIO_TMPFS: &str = "fio, udm's engine, tmpfs";
const FIO_DISK: &str = "fio, udm's engine, disk";
const FIO_DRIVER_TMPFS: &str = "fio, kernel's driver, tmpfs";
const FIO_DRIVER_DISK: &str = "fio, kernel's driver, disk";
const FIO_FILE_TMPFS: &str = "fio, psync on the file, tmpfs";
const FIO_FILE_DISK: &str = "fio, io_uring on the file, disk";
const FIO_NBD_TMPFS: &str = "fio, udm over NBD, tmpfs";
const FIO_NBD_DISK: &str = "fio, udm over NBD, disk";

/// What `loop` has to reach.
const DRIVER_TMPFS_4K: f64 = 3.0;
const DRIVER_TMPFS_32K: f64 = 2.0;
const FILE_DISK: f64 = 0.97;
const DRIVER_DISK_LIMIT: f64 = 1.15;
/// What `ram` has to reach.
const NULL_32K: f64 = 1.06;
const MEMCPY_LIMIT: f64 = 0.9;

#[derive(Clone, Copy)]
struct Case {
    bs: u64,
    jobs: usize,
    depth: usize,
}

const CASES: [Case; 4] = [
    Case { bs: 4 << 10, jobs: 99, depth: 12 },
    Case { bs: 4 << 10, jobs: 2, depth: 32 },
    Case { bs: 32 << 10, jobs: 99, depth: 12 },
    Case { bs: 32 << 10, jobs: 2, depth: 32 },
];

impl Case {
    fn name(self) -> String {
        format!("{}K, {} × {}", self.bs >> 10, self.jobs, self.depth)
    }

    /// How much faster than the kernel's driver a file on tmpfs has to be.
    const fn driver_limit(self) -> f64 {
        if self.bs < 32 << 10 { DRIVER_TMPFS_4K } else { DRIVER_TMPFS_32K }
    }

    /// What the seed's author found, reads and writes together: the kernel's driver, dm-loop, dm-ram.
    fn seed(self) -> Option<[f64; 3]> {
        match (self.bs >> 10, self.jobs) {
            (4, 99) => Some([451e3, 850e3, 1272e3]),
            (32, 99) => Some([110.7e3, 220e3, 710e3]),
            _ => None,
        }
    }
}

/// What is there to be measured.
struct World {
    stack: Stack,
    disk_kind: &'static str,
    subjects: Vec<(&'static str, Subject)>,
    /// What is not there, and why.
    missing: Vec<(&'static str, String)>,
    /// fio's ways.
    ways: Vec<(&'static str, Via)>,
    _served: Option<Served>,
    _held: Vec<OwnedFd>,
    _drivers: Vec<LoopDevice>,
    _files: Vec<Backing>,
}

impl World {
    fn new(setting: &Setting<'_>, bytes: u64, folder: &Path) -> Result<Self, Error> {
        let n = bytes / 512;
        (setting.progress)("loop-ram: writing the files");
        let mut missing = Vec::new();
        let disk = Backing::on_disk(folder, bytes)?;
        let tmpfs = Backing::in_memory(bytes)?;
        let mut concise = format!("r,,,,0 {n} ram;d,,,,0 {n} loop {}", in_concise(&disk.path)?);
        match &tmpfs {
            Ok(tmpfs) => {
                let (half, tmpfs, disk) = (n / 2, in_concise(&tmpfs.path)?, in_concise(&disk.path)?);
                concise += &format!(";t,,,,0 {n} loop {tmpfs};b,,,,0 {half} loop {tmpfs},{half} {half} loop {disk}");
            }
            Err(why) => {
                missing.extend([LOOP_TMPFS, LOOP_BOTH, FIO_TMPFS, FIO_NBD_TMPFS].map(|way| (way, why.clone())));
            }
        }
        let stack = Stack::new(setting.domain, &concise)?;
        let disk_kind = disk.kind;
        let mut world = Self {
            stack,
            disk_kind,
            subjects: Vec::new(),
            missing,
            ways: Vec::new(),
            _served: None,
            _held: Vec::new(),
            _drivers: Vec::new(),
            _files: Vec::new(),
        };
        world.add_devices(setting, bytes, tmpfs.is_ok())?;
        let engine = fio::engine(setting.fio_engine);
        if let Ok(tmpfs) = &tmpfs {
            world.add_file(setting, tmpfs, engine.as_deref())?;
        }
        world.add_file(setting, &disk, engine.as_deref())?;
        world.serve(setting, folder, tmpfs.is_ok())?;
        world._files = tmpfs.into_iter().chain([disk]).collect();
        Ok(world)
    }

    /// What this process's generator measures.
    fn add_devices(&mut self, setting: &Setting<'_>, bytes: u64, tmpfs: bool) -> Result<(), Error> {
        let both = [(LOOP_TMPFS, "t"), (LOOP_BOTH, "b")].into_iter().filter(|_| tmpfs);
        for (name, device) in both.chain([(LOOP_DISK, "d"), (RAM, "r")]) {
            self.subjects.push((name, self.stack.subject(device)?));
        }
        for (name, memory) in [(NULL_MEMORY, 1), (NULL, 0)] {
            let spec = format!("null:size={bytes}:memory={memory}");
            self.subjects.push((name, Subject::open(setting.domain, name, &spec, false)?));
        }
        self.subjects.push((MEMCPY, Subject::memcpy(bytes)?));
        for (path, name, _) in kernel::DEVICES {
            match kernel::device(setting.domain, path, name)? {
                Ok((subject, held)) => {
                    self.subjects.push((name, subject));
                    self._held.push(held);
                }
                Err(why) => self.missing.push((name, why)),
            }
        }
        let load = Load { fill: Fill::Yes, size: Some(bytes), ..Load::default() };
        for (name, subject) in self.subjects.iter().filter(|(name, _)| [RAM, NULL_MEMORY, MEMCPY].contains(name)) {
            (setting.progress)(&format!("loop-ram: filling {name}"));
            subject.fill(setting.domain, &load)?;
        }
        Ok(())
    }

    /// A file's ways: udm's engine, the kernel's driver, and fio's own engine on the bare file.
    fn add_file(&mut self, setting: &Setting<'_>, file: &Backing, engine: Result<&Path, &String>) -> Result<(), Error> {
        let in_memory = file.path.starts_with("/proc");
        let [udm, driver, bare, in_process] = match in_memory {
            true => [FIO_TMPFS, FIO_DRIVER_TMPFS, FIO_FILE_TMPFS, DRIVER_TMPFS],
            false => [FIO_DISK, FIO_DRIVER_DISK, FIO_FILE_DISK, DRIVER_DISK],
        };
        let sectors = file.path.metadata().map_or(0, |found| found.len() / 512);
        match engine {
            Ok(engine) => {
                let concise = format!("l,,,,0 {sectors} loop {}", in_concise(&file.path)?);
                self.ways.push((udm, Via::Udm { engine: engine.to_owned(), concise }));
            }
            Err(why) => self.missing.push((udm, why.clone())),
        }
        match LoopDevice::on(&file.path, !in_memory) {
            Ok(device) => {
                let subject = Subject::open(setting.domain, in_process, &device.path.to_string_lossy(), false)?;
                self.subjects.push((in_process, subject));
                match fio::is_there() {
                    Ok(()) => self.ways.push((driver, Via::Engine("libaio", device.path.clone()))),
                    Err(why) => self.missing.push((driver, why)),
                }
                self._drivers.push(device);
            }
            Err(why) => self.missing.extend([driver, in_process].map(|way| (way, why.clone()))),
        }
        match fio::is_there() {
            Ok(()) => {
                let engine = if in_memory { "psync" } else { "io_uring" };
                self.ways.push((bare, Via::Engine(engine, file.path.clone())));
            }
            Err(why) => self.missing.push((bare, why)),
        }
        Ok(())
    }

    fn serve(&mut self, setting: &Setting<'_>, folder: &Path, tmpfs: bool) -> Result<(), Error> {
        if let Err(why) = fio::is_there() {
            self.missing.extend([FIO_NBD_TMPFS, FIO_NBD_DISK].map(|way| (way, why.clone())));
            return Ok(());
        }
        let names: &[&str] = if tmpfs { &["t", "d"] } else { &["d"] };
        let served = Served::new(setting.domain, &self.stack, names, folder)?;
        if tmpfs {
            self.ways.push((FIO_NBD_TMPFS, Via::Nbd { uri: served.uri("t") }));
        }
        self.ways.push((FIO_NBD_DISK, Via::Nbd { uri: served.uri("d") }));
        self._served = Some(served);
        Ok(())
    }

    /// Drops the ways of fio that do not work here, each with what fio says.
    fn probe(&mut self, setting: &Setting<'_>) {
        (setting.progress)("loop-ram: trying fio");
        let shape = Shape { bs: 32 << 10, numjobs: 1, iodepth: 1, runtime: Duration::from_millis(10) };
        let missing = &mut self.missing;
        self.ways.retain(|(name, via)| match via.measure(shape) {
            Ok(_) => true,
            Err(e) => {
                let why = if let Error::System { source, .. } = e { source.to_string() } else { e.to_string() };
                missing.push((name, why));
                false
            }
        });
    }

    fn why(&self, name: &str) -> String {
        let found = self.missing.iter().find(|(known, _)| *known == name);
        found.map_or_else(|| "it is not there".to_owned(), |(_, why)| why.clone())
    }
}

/// What was found in a case: of the generator here, and of fio.
struct Found {
    case: Case,
    here: Figures,
    fio: Option<Figures>,
    fio_shape: Shape,
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let folder = setting.folder.expect("the experiment wants a folder");
    let bytes = setting.or_quick(2 << 30, 64 << 20);
    let mut world = World::new(setting, bytes, folder)?;
    world.probe(setting);
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (index, case) in CASES.into_iter().enumerate() {
        let found = measure_case(setting, &world, case, bytes, setting.or_quick(true, index % 3 == 0))?;
        rows.extend(judged(setting, &world, &found));
        rows.extend(printed(setting, &world, &found));
        all.push(found);
    }
    Ok(Report {
        name: EXPERIMENT.name,
        title: "Files and memory as devices",
        method: method(bytes, world.disk_kind),
        rows,
        charts: charts(&all),
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

fn measure_case(setting: &Setting<'_>, world: &World, case: Case, bytes: u64, with_fio: bool) -> Result<Found, Error> {
    let load = Load {
        rw: Rw::RandRw,
        bs: case.bs,
        iodepth: case.depth,
        numjobs: case.jobs,
        runtime: Some(setting.or_quick(Duration::from_millis(250), Duration::from_millis(30))),
        fill: Fill::No,
        lat: Lat::Off,
        ..Load::default()
    };
    let mut ways: Vec<Way<'_>> = Vec::new();
    for (name, subject) in &world.subjects {
        let size = subject.sectors().checked_bytes().map_or(bytes, |there| there.min(bytes));
        let load = Load { size: Some(size), ..load.clone() };
        ways.push(Way::new(name, move || Ok(measure(setting.domain, subject, &load)?.iops())));
    }
    let rounds = setting.or_quick(5, 1);
    let here = turns(rounds, &mut ways, |round| {
        (setting.progress)(&format!("loop-ram: {}, round {round} of {rounds}", case.name()));
    })?;
    let rounds = setting.or_quick(3, 1);
    let runtime = setting.or_quick(Duration::from_millis(800), Duration::from_millis(100));
    let fio_shape = Shape { bs: case.bs, numjobs: case.jobs, iodepth: case.depth, runtime };
    let fio = with_fio.then(|| {
        let way = |(name, via): &(&'static str, Via)| {
            let via = via.clone();
            Way::new(name, move || via.measure(fio_shape))
        };
        let mut ways: Vec<_> = world.ways.iter().map(way).collect();
        turns(rounds, &mut ways, |round| {
            (setting.progress)(&format!("loop-ram: {} by fio, round {round} of {rounds}", case.name()));
        })
    });
    Ok(Found { case, here, fio: fio.transpose()?, fio_shape })
}

fn row(setting: &Setting<'_>, found: &Found, what: &str, disk: &str) -> Row {
    Row {
        experiment: EXPERIMENT.name,
        row: format!("{}: {what}", found.case.name()),
        disk: Some(disk.to_owned()),
        size: Some(found.case.bs),
        unit: Unit::RequestsPerSecond,
        command: setting.command.clone(),
        ..Row::default()
    }
}

/// The rows with limits.
fn judged(setting: &Setting<'_>, world: &World, found: &Found) -> Vec<Row> {
    let case = found.case;
    let small = case.bs < 32 << 10;
    let seed = case.seed();
    let mut rows = Vec::new();
    for (way, beside, limit, disk) in [
        (FIO_TMPFS, FIO_DRIVER_TMPFS, case.driver_limit(), "tmpfs"),
        (FIO_DISK, FIO_FILE_DISK, FILE_DISK, world.disk_kind),
        (FIO_DISK, FIO_DRIVER_DISK, DRIVER_DISK_LIMIT, world.disk_kind),
    ] {
        let seed = seed.filter(|_| way == FIO_TMPFS);
        let one = Row {
            seed_figure: seed.map(|[_, dm_loop, _]| dm_loop),
            seed_ratio: seed.map(|[driver, dm_loop, _]| dm_loop / driver),
            ..row(setting, found, &format!("{way}, beside {}", beside.trim_start_matches("fio, ")), disk)
        };
        let Some(fio) = &found.fio else { continue };
        rows.push(match [way, beside].into_iter().find(|name| !fio.has(name)) {
            Some(name) => one.skipped(world.why(name)),
            None => {
                let via = world.ways.iter().find(|(known, _)| *known == way).map(|(_, via)| via);
                let command = via.map_or_else(String::new, |via| via.command(found.fio_shape));
                Row { command, ..one.compared(fio, way, beside, 1.0) }.judged(Limit::AtLeast(limit))
            }
        });
    }
    let ram =
        Row { seed_figure: seed.map(|[_, _, ram]| ram), ..row(setting, found, "ram, beside plain copies", "ram") };
    rows.push(ram.compared(&found.here, RAM, MEMCPY, 1.0).judged(Limit::AtLeast(MEMCPY_LIMIT)));
    let null = row(setting, found, "ram, beside null: with memory", "ram").compared(&found.here, RAM, NULL_MEMORY, 1.0);
    rows.push(if small { null } else { null.judged(Limit::AtLeast(NULL_32K)) });
    rows
}

/// The rows that are there to be read.
fn printed(setting: &Setting<'_>, world: &World, found: &Found) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut one = |figures: &Figures, what: &str, way: &'static str, beside: &'static str, disk: &str| {
        let one = row(setting, found, what, disk);
        rows.push(match (figures.has(way), figures.has(beside)) {
            (false, _) => one.skipped(world.why(way)),
            (true, true) if way != beside => one.compared(figures, way, beside, 1.0),
            _ => Row { figure: Some(figures.median(way)), ..one },
        });
    };
    let disk = world.disk_kind;
    for (way, beside, disk) in [
        (LOOP_TMPFS, DRIVER_TMPFS, "tmpfs"),
        (LOOP_DISK, DRIVER_DISK, disk),
        (LOOP_BOTH, LOOP_DISK, disk),
        (NULL, NULL, "none"),
    ] {
        let what = if way == beside { way.to_owned() } else { format!("{way}, beside {beside}") };
        one(&found.here, &format!("{what}, in this process"), way, beside, disk);
    }
    for (path, name, _) in kernel::DEVICES {
        one(&found.here, &format!("ram, beside {name}"), if found.here.has(name) { RAM } else { name }, name, path);
    }
    if let Some(fio) = &found.fio {
        for (way, beside, disk) in [
            (FIO_FILE_TMPFS, FIO_DRIVER_TMPFS, "tmpfs"),
            (FIO_NBD_TMPFS, FIO_DRIVER_TMPFS, "tmpfs"),
            (FIO_NBD_DISK, FIO_DRIVER_DISK, disk),
            (FIO_DRIVER_DISK, FIO_FILE_DISK, disk),
        ] {
            one(fio, &format!("{way}, beside {}", beside.trim_start_matches("fio, ")), way, beside, disk);
        }
    }
    rows
}

fn method(bytes: u64, disk_kind: &str) -> Vec<String> {
    vec![
        format!(
            "Random requests over {} MiB, half reads and half writes, 99 jobs with 12 each in flight, as the seed's script has them, \
             and 2 jobs with 32. Figures are reads and writes together; so are the seed's. One file lies on tmpfs, one on {disk_kind}; \
             `loop on both` has a segment on each.",
            bytes >> 20
        ),
        "*By fio*, which judges: udm's engine (`libudm_fio.so`) opens the table in fio's own process; the kernel's loop driver has the \
         same file and is driven by libaio, with direct I/O beneath it on the disk; psync and io_uring go to the file itself; over NBD \
         the table is in the process of `udm bench`. All of them take turns."
            .to_owned(),
        "*In this process*, by udm's own generator: `loop`, the kernel's driver through io_uring, `ram`, plain copies, and `null:` \
         devices, with memory and without. Devices of the kernel that are not there, or that hold data, are skipped."
            .to_owned(),
    ]
}

fn bar(figures: &Figures, (name, tone): (&'static str, Tone)) -> Option<Bar> {
    let label = name.trim_start_matches("fio, ");
    let label = label.trim_end_matches(", tmpfs").trim_end_matches(", disk").to_owned();
    figures.has(name).then(|| Bar { label, value: figures.median(name) / 1e3, tone })
}

/// A panel of what fio found on one kind of file, with a goal beside one of the ways.
fn by_fio(
    all: &[Found],
    ways: [(&'static str, Tone); 4],
    (beside, goal): (&str, &str),
    limit: fn(Case) -> f64,
) -> Vec<Group> {
    let group = |found: &Found| {
        let figures = found.fio.as_ref()?;
        let bars: Vec<Bar> = ways.into_iter().filter_map(|way| bar(figures, way)).collect();
        let limit = limit(found.case);
        let text = format!("{limit} × {goal}");
        let goal = figures.has(beside).then(|| (limit * figures.median(beside) / 1e3, text));
        (!bars.is_empty()).then(|| Group { label: found.case.name(), bars, goal })
    };
    all.iter().filter_map(group).collect()
}

fn charts(all: &[Found]) -> Vec<Chart> {
    let tmpfs = [
        (FIO_DRIVER_TMPFS, Tone::Seed),
        (FIO_TMPFS, Tone::Ours),
        (FIO_FILE_TMPFS, Tone::Other),
        (FIO_NBD_TMPFS, Tone::Other),
    ];
    let disk = [
        (FIO_DRIVER_DISK, Tone::Seed),
        (FIO_DISK, Tone::Ours),
        (FIO_FILE_DISK, Tone::Other),
        (FIO_NBD_DISK, Tone::Other),
    ];
    let memory = [(RAM, Tone::Ours), (MEMCPY, Tone::Other), (NULL_MEMORY, Tone::Other), (LOOP_TMPFS, Tone::Ours)];
    let in_memory = |found: &Found| Group {
        label: found.case.name(),
        bars: memory.into_iter().filter_map(|way| bar(&found.here, way)).collect(),
        goal: None,
    };
    let panels = [
        ("A file on tmpfs, by fio", by_fio(all, tmpfs, (FIO_DRIVER_TMPFS, "the driver"), Case::driver_limit)),
        ("A file on a disk, direct I/O, by fio", by_fio(all, disk, (FIO_FILE_DISK, "the file"), |_| FILE_DISK)),
        ("Memory, in this process", all.iter().map(in_memory).collect()),
    ];
    let panels = panels.into_iter().filter(|(_, groups)| !groups.is_empty());
    panels.map(|(title, groups)| Chart::Bars { title: title.to_owned(), unit: "thousand IOPS", groups }).collect()
}
