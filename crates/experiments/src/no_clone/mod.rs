//! `no-clone`: what passing the submitter's own bio down costs, beside cloning it.

mod enlarged;

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Figures, Way, turns};
use enlarged::Enlarged;
use std::sync::Arc;
use std::time::Duration;
use udm_bench::stack::Setting as Knob;
use udm_bench::{Error, Fill, Lat, Load, Rw, Spread, Stack, Subject, measure};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "no-clone",
    about: "what linear and striped cost above memory when they pass the bio itself down, and when they clone it",
    wants_folder: false,
    run,
};

const BS: u64 = 512;
const LINEAR: &str = "linear";
const CLONED: &str = "linear, cloning forced";
const ENLARGED: &str = "linear, enlarged record";
const EIGHT: &str = "eight linears";
const STRIPED: &str = "striped";
const RAM: &str = "ram";
const MEMCPY: &str = "plain copies";

/// What is measured, what the seed's author found for it on x86-64 in MiB/s (sequential reads, 12 jobs), and which part
/// of the ram disk's speed it has to have there.
const WAYS: [(&str, Option<f64>, Option<f64>); 5] = [
    (LINEAR, Some(2238.0), Some(0.97)),
    (CLONED, Some(1970.0), None),
    (ENLARGED, Some(2145.0), None),
    (EIGHT, None, Some(0.9)),
    (STRIPED, None, Some(0.9)),
];
const SEED_RAM: f64 = 2449.0;
/// What no clone gained him over cloning.
const SEED_GAIN: f64 = 2238.0 / 1970.0;

/// The devices of one size of ram disk, filled.
struct World {
    stack: Stack,
    memcpy: Subject,
    enlarged: Subject,
}

impl World {
    fn new(setting: &Setting<'_>, bytes: u64) -> Result<Self, Error> {
        let (n, half) = (bytes / 512, bytes / 1024);
        let mut concise = format!(
            "r,,,,0 {n} ram;l,,,,0 {n} linear /dev/mapper/r 0;c,,,,0 {n} linear /dev/mapper/r 0;\
             a,,,,0 {half} ram;b,,,,0 {half} ram;s,,,,0 {n} striped 2 128 /dev/mapper/a 0 /dev/mapper/b 0"
        );
        for level in 1..=8 {
            let beneath = if level == 1 { "r".to_owned() } else { format!("e{}", level - 1) };
            concise += &format!(";e{level},,,,0 {n} linear /dev/mapper/{beneath} 0");
        }
        let stack = Stack::new(setting.domain, &concise)?;
        stack.set("c", Knob::CloneAlways(true))?;
        let enlarged = Subject::device(ENLARGED, Arc::new(Enlarged::over(stack.device("l")?)));
        let world = Self { stack, memcpy: Subject::memcpy(bytes)?, enlarged };
        let load = Load { fill: Fill::Yes, ..load(Rw::Read, 1, Duration::from_millis(1)) };
        for name in [RAM, STRIPED, MEMCPY] {
            (setting.progress)(&format!("no-clone: filling {name}"));
            world.subject(name)?.fill(setting.domain, &load)?;
        }
        Ok(world)
    }

    fn subject(&self, way: &str) -> Result<Subject, Error> {
        let device = match way {
            RAM => "r",
            LINEAR => "l",
            CLONED => "c",
            EIGHT => "e8",
            STRIPED => "s",
            ENLARGED => return Ok(self.enlarged.clone()),
            _ => return Ok(self.memcpy.clone()),
        };
        self.stack.subject(device)
    }

    /// Bios that a device has cloned since it was made.
    fn clones(&self, way: &str) -> Result<u64, Error> {
        Ok(self.subject(way)?.totals().map_or(0, |totals| totals.cloned))
    }
}

fn load(rw: Rw, numjobs: usize, runtime: Duration) -> Load {
    Load { rw, bs: BS, numjobs, runtime: Some(runtime), fill: Fill::No, lat: Lat::Off, ..Load::default() }
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let sizes: &[u64] = setting.or_quick(&[1 << 30, 2 << 30], &[64 << 20]);
    let rounds = setting.or_quick(9, 2);
    let runtime = setting.or_quick(Duration::from_millis(100), Duration::from_millis(30));
    let mut rows = Vec::new();
    let mut groups = Vec::new();
    for &bytes in sizes {
        let world = World::new(setting, bytes)?;
        for (rw, kind) in [(Rw::Read, "sequential"), (Rw::RandRead, "random")] {
            for jobs in [12, 1] {
                let case = Case { kind, jobs, bytes };
                let load = load(rw, jobs, runtime);
                let found = case.measure(setting, &world, &load, rounds)?;
                rows.extend(case.rows(setting, &found));
                groups.push(case.group(&found));
            }
        }
        for way in [LINEAR, EIGHT] {
            let row = Row {
                row: format!("bios that {way} cloned, ram of {} MiB", bytes >> 20),
                figure: Some(world.clones(way)? as f64),
                unit: Unit::None,
                ..row(setting)
            };
            rows.push(row.judged(Limit::Exactly(0.0)));
        }
    }
    let title = "The submitter's own bio, passed down";
    Ok(Report {
        name: EXPERIMENT.name,
        title,
        method: vec![
            format!(
                "Reads of 512 bytes at depth 1 from memory that was filled with random data, by 12 jobs and by one, on 2 CPUs or what \
                 there is. All ways take turns, {rounds} rounds of {} ms after one that does not count; the baseline is the ram \
                 disk itself, and a row's ratio the median of the rounds'.",
                runtime.as_millis()
            ),
            "`linear, cloning forced` clones every bio, as device mapper did before the seed. `enlarged record` saves ten more words \
             for each bio and looks at them when it comes back, as the seed's record would with per-bio data (2238 became \
             2145 MiB/s). `eight linears` are stacked and compiled; `striped` has two legs. Seed figures are of 2 six-core x86-64 \
             CPUs and of sequential reads by 12 jobs."
                .to_owned(),
        ],
        rows,
        charts: vec![Chart::Bars { title: "512-byte reads, depth 1".to_owned(), unit: "MiB/s", groups }],
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

fn row(setting: &Setting<'_>) -> Row {
    Row {
        experiment: EXPERIMENT.name,
        disk: Some("ram".to_owned()),
        size: Some(BS),
        unit: Unit::MebibytesPerSecond,
        command: setting.command.clone(),
        ..Row::default()
    }
}

struct Case {
    kind: &'static str,
    jobs: usize,
    bytes: u64,
}

impl Case {
    fn name(&self) -> String {
        let jobs = if self.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs", self.jobs) };
        format!("{}, {jobs}, {} MiB", self.kind, self.bytes >> 20)
    }

    /// MiB a second of every way.
    fn measure(&self, setting: &Setting<'_>, world: &World, load: &Load, rounds: usize) -> Result<Figures, Error> {
        let mut ways = Vec::new();
        for name in [RAM, MEMCPY].into_iter().chain(WAYS.map(|way| way.0)) {
            let subject = world.subject(name)?;
            ways.push(Way::new(name, move || {
                Ok(measure(setting.domain, &subject, load)?.iops() * BS as f64 / f64::from(1 << 20))
            }));
        }
        turns(rounds, &mut ways, |round| {
            (setting.progress)(&format!("no-clone: {}, round {round} of {rounds}", self.name()));
        })
    }

    /// Whether it is the seed's own: only there its figures mean the same.
    fn is_seeds(&self) -> bool {
        self.jobs == 12 && self.kind == "sequential"
    }

    fn rows(&self, setting: &Setting<'_>, found: &Figures) -> Vec<Row> {
        let row = |what: String, policy: &str| Row { row: what, policy: Some(policy.to_owned()), ..row(setting) };
        let mut rows = Vec::new();
        for (way, seed, limit) in WAYS {
            let seed = seed.filter(|_| self.is_seeds());
            let one = Row {
                seed_figure: seed,
                seed_ratio: seed.map(|figure| figure / SEED_RAM),
                ..row(format!("{}: {way}", self.name()), way)
            };
            let one = one.compared(found, way, RAM, 1.0);
            rows.push(match limit.filter(|_| self.jobs == 12) {
                Some(limit) => one.judged(Limit::AtLeast(limit)),
                None => one,
            });
        }
        let gain = Row {
            seed_ratio: Some(SEED_GAIN).filter(|_| self.is_seeds()),
            ..row(format!("{}: linear, beside cloning", self.name()), LINEAR)
        };
        let gain = gain.compared(found, LINEAR, CLONED, 1.0);
        rows.push(if self.is_seeds() { gain.judged(Limit::AtLeast(SEED_GAIN)) } else { gain });
        rows.push(row(format!("{}: ram, beside plain copies", self.name()), RAM).compared(found, RAM, MEMCPY, 1.0));
        rows
    }

    fn group(&self, found: &Figures) -> Group {
        let order = [(MEMCPY, Tone::Other), (RAM, Tone::Other), (LINEAR, Tone::Ours), (EIGHT, Tone::Ours)];
        let order = order.into_iter().chain([(STRIPED, Tone::Ours), (ENLARGED, Tone::Seed), (CLONED, Tone::Seed)]);
        let bars = order.map(|(name, tone)| Bar { label: name.to_owned(), value: found.median(name), tone }).collect();
        let goal = (self.jobs == 12).then(|| (0.97 * Spread::of(found.of(RAM)).median, "0.97 of ram".to_owned()));
        Group { label: self.name(), bars, goal }
    }
}
