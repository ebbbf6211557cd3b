//! `polling`: what polling for completions gains over sleeping until one comes, through linear and striped.

mod files;

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Figures, Way, turns};
use std::time::Duration;
use udm_bench::{CompletionMode, Error, Fill, Lat, Load, Rw, Stack, Subject, measure};
use udm_io::PollPolicy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "polling",
    about: "polled completions beside interrupts, through linear and striped over null: devices with a latency",
    wants_folder: true,
    run,
};

const POLL: &str = "poll";
const INTERRUPT: &str = "interrupt";
const ADAPTIVE: &str = "adaptive";
const BARE: &str = "null:, poll";
const MODES: [(&str, CompletionMode); 3] =
    [(POLL, CompletionMode::Poll), (INTERRUPT, CompletionMode::Interrupt), (ADAPTIVE, CompletionMode::Adaptive)];

/// The latency, in microseconds, that verdicts are about, and the others.
const JUDGED_US: u32 = 5;
const LATENCIES: [u32; 3] = [JUDGED_US, 0, 20];
/// Requests that are out where there are many.
const DEEP: usize = 128;

/// What polling has to gain at depth 1, which is what the seed gained.
const LINEAR_GAIN: f64 = 1.32;
const STRIPED_GAIN: f64 = 1.34;
/// At depth 128: polling beside interrupts, interrupts beside adaptive, polled linear beside the polled null device.
const DEEP_POLL: f64 = 1.0;
const DEEP_INTERRUPT: f64 = 0.7;
const DEEP_LINEAR: f64 = 0.95;
/// What skipping queues that another holds has to gain where queues are shared.
const SKIP_GAIN: f64 = 1.2;

/// What lies over the null devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stacked {
    One,
    Three,
    Striped,
}

impl Stacked {
    const ALL: [Self; 3] = [Self::One, Self::Three, Self::Striped];

    const fn name(self) -> &'static str {
        match self {
            Self::One => "linear over one",
            Self::Three => "linear over three",
            Self::Striped => "striped over three",
        }
    }

    const fn device(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Three => "three",
            Self::Striped => "striped",
        }
    }

    /// Bytes of a request: 4 KiB of each device that it meets.
    const fn bs(self) -> u64 {
        if matches!(self, Self::Striped) { 12 << 10 } else { 4 << 10 }
    }
}

/// Who measures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Jobs {
    /// One, with one request out.
    Single,
    /// One, with many.
    One,
    /// Three, on one queue of each device.
    Shared,
    /// Three, each with its own.
    Own,
}

impl Jobs {
    const ALL: [Self; 4] = [Self::Single, Self::One, Self::Shared, Self::Own];

    const fn name(self) -> &'static str {
        match self {
            Self::Single => "1 job, depth 1",
            Self::One => "1 job, depth 128",
            Self::Shared => "3 jobs on one queue",
            Self::Own => "3 jobs, a queue each",
        }
    }

    const fn count(self) -> usize {
        if matches!(self, Self::Single | Self::One) { 1 } else { 3 }
    }

    const fn depth(self) -> usize {
        if matches!(self, Self::Single) { 1 } else { DEEP }
    }

    const fn queues(self) -> u32 {
        if matches!(self, Self::Own) { 3 } else { 1 }
    }

    /// What the seed's author found with polling and without, in IOPS.
    const fn seed(self, stacked: Stacked) -> Option<(f64, f64)> {
        match (self, stacked) {
            (Self::One, Stacked::Three) => Some((284e3, 212e3)),
            (Self::Shared, Stacked::Three) => Some((735e3, 615e3)),
            (Self::Own, Stacked::Three) => Some((833e3, 631e3)),
            (Self::Own, Stacked::Striped) => Some((412e3, 307e3)),
            _ => None,
        }
    }
}

/// The devices of one latency and number of queues.
struct World {
    stack: Stack,
    null: Subject,
}

impl World {
    fn new(setting: &Setting<'_>, latency_us: u32, queues: u32) -> Result<Self, Error> {
        let null = format!("null:size=1G:queues=3:poll_queues={queues}:latency_us={latency_us}");
        let n = 1u64 << 21;
        let lines = (0..3).map(|leg| format!("{} {n} linear {null} 0", leg * n));
        let concise = format!(
            "one,,,,0 {n} linear {null} 0;three,,,,{};striped,,,,0 {} striped 3 8 {null} 0 {null} 0 {null} 0",
            lines.collect::<Vec<_>>().join(","),
            // Whole requests, and whole chunks on each device.
            3 * n
        );
        let stack = Stack::new(setting.domain, &concise)?;
        Ok(Self { stack, null: Subject::open(setting.domain, BARE, &null, false)? })
    }
}

/// One comparison of the three ways.
struct Found {
    stacked: Stacked,
    jobs: Jobs,
    latency_us: u32,
    figures: Figures,
}

struct Pace {
    rounds: usize,
    runtime: Duration,
}

impl Pace {
    fn load(&self, stacked: Stacked, jobs: Jobs) -> Load {
        Load {
            rw: Rw::RandRead,
            bs: stacked.bs(),
            iodepth: jobs.depth(),
            numjobs: jobs.count(),
            runtime: Some(self.runtime),
            fill: Fill::No,
            lat: Lat::Off,
            ..Load::default()
        }
    }
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let policy = setting.domain.poll_policy();
    let report = run_with(setting);
    setting.domain.poll_as(policy);
    report
}

fn run_with(setting: &Setting<'_>) -> Result<Report, Error> {
    let pace = Pace {
        rounds: setting.or_quick(5, 1),
        runtime: setting.or_quick(Duration::from_millis(80), Duration::from_millis(15)),
    };
    let mut all = Vec::new();
    let waited = setting.domain.poll_totals().waited;
    for latency_us in LATENCIES {
        let worlds = [World::new(setting, latency_us, 1)?, World::new(setting, latency_us, 3)?];
        for jobs in Jobs::ALL {
            let world = &worlds[usize::from(jobs.queues() == 3)];
            for stacked in Stacked::ALL {
                if !wants_any_of(setting, stacked, jobs, latency_us) {
                    continue;
                }
                all.push(compare(setting, world, stacked, jobs, latency_us, &pace)?);
            }
        }
    }
    let waited = setting.domain.poll_totals().waited - waited;
    let mut rows: Vec<Row> = all.iter().flat_map(|found| found.rows(setting)).collect();
    let none = Row {
        row: "queues that a poller waited for".to_owned(),
        figure: Some(waited as f64),
        unit: Unit::None,
        ..row(setting)
    };
    rows.push(none.judged(Limit::Exactly(0.0)));
    let mut groups = Vec::new();
    if setting.only.is_none() {
        let (switches, charted) = switches(setting, &pace)?;
        rows.extend(switches);
        groups = charted;
        rows.push(none_lost(setting)?);
        rows.extend(files::rows(setting, &pace)?);
    }
    Ok(Report {
        name: EXPERIMENT.name,
        title: "Polling for completions",
        method: method(),
        rows,
        charts: charts(&all, groups),
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

/// Whether a row is wanted of this comparison.
fn wants_any_of(setting: &Setting<'_>, stacked: Stacked, jobs: Jobs, latency_us: u32) -> bool {
    Found::beside(stacked)
        .iter()
        .any(|(way, beside)| setting.wants(&Found::row_of(stacked, jobs, latency_us, way, beside)))
}

fn compare(
    setting: &Setting<'_>,
    world: &World,
    stacked: Stacked,
    jobs: Jobs,
    latency_us: u32,
    pace: &Pace,
) -> Result<Found, Error> {
    let load = pace.load(stacked, jobs);
    let subject = world.stack.subject(stacked.device())?;
    let way = |name, subject: &Subject, completion| {
        let (subject, load) = (subject.clone(), Load { completion, ..load.clone() });
        Way::new(name, move || Ok(measure(setting.domain, &subject, &load)?.iops()))
    };
    let mut ways: Vec<Way<'_>> = MODES.iter().map(|(name, mode)| way(name, &subject, *mode)).collect();
    ways.push(way(BARE, &world.null, CompletionMode::Poll));
    let what = format!("polling: {}, {}, {latency_us} µs", stacked.name(), jobs.name());
    let figures = turns(pace.rounds, &mut ways, |round| {
        (setting.progress)(&format!("{what}, round {round} of {}", pace.rounds))
    })?;
    Ok(Found { stacked, jobs, latency_us, figures })
}

fn row(setting: &Setting<'_>) -> Row {
    Row {
        experiment: EXPERIMENT.name,
        disk: Some("null:".to_owned()),
        unit: Unit::RequestsPerSecond,
        command: setting.command.clone(),
        ..Row::default()
    }
}

impl Found {
    /// The name of the row that holds one way against another.
    fn row_of(stacked: Stacked, jobs: Jobs, latency_us: u32, way: &str, beside: &str) -> String {
        format!("{}, {}, {latency_us} µs: {way} beside {beside}", stacked.name(), jobs.name())
    }

    /// What is held against what.
    fn beside(stacked: Stacked) -> &'static [(&'static str, &'static str)] {
        let all: &[_] = &[(POLL, INTERRUPT), (INTERRUPT, ADAPTIVE), (POLL, BARE)];
        if stacked == Stacked::One { all } else { &all[..2] }
    }

    fn rows(&self, setting: &Setting<'_>) -> Vec<Row> {
        let seed = self.jobs.seed(self.stacked);
        let one = |way: &str, beside: &str| {
            let seed = seed.filter(|_| way == POLL && beside == INTERRUPT);
            let one = Row {
                row: Self::row_of(self.stacked, self.jobs, self.latency_us, way, beside),
                policy: Some(way.to_owned()),
                size: Some(self.stacked.bs()),
                seed_figure: seed.map(|(poll, _)| poll),
                seed_ratio: seed.map(|(poll, interrupt)| poll / interrupt),
                ..row(setting)
            };
            let one = one.compared(&self.figures, way, beside, 1.0);
            match self.limit(way, beside) {
                Some(limit) => one.judged(Limit::AtLeast(limit)),
                None => one,
            }
        };
        Self::beside(self.stacked).iter().map(|(way, beside)| one(way, beside)).collect()
    }

    fn limit(&self, way: &str, beside: &str) -> Option<f64> {
        if self.latency_us != JUDGED_US {
            return None;
        }
        match (self.jobs, self.stacked, way, beside) {
            (Jobs::Single, Stacked::Striped, POLL, INTERRUPT) => Some(STRIPED_GAIN),
            (Jobs::Single, _, POLL, INTERRUPT) => Some(LINEAR_GAIN),
            (Jobs::One, _, POLL, INTERRUPT) => Some(DEEP_POLL),
            (Jobs::One, _, INTERRUPT, ADAPTIVE) => Some(DEEP_INTERRUPT),
            (Jobs::One, _, POLL, BARE) => Some(DEEP_LINEAR),
            _ => None,
        }
    }
}

/// What the fast path and the skipping of busy queues are worth: each off and on, three jobs on one queue.
fn switches(setting: &Setting<'_>, pace: &Pace) -> Result<(Vec<Row>, Vec<Group>), Error> {
    const ON: &str = "on";
    const OFF: &str = "off";
    let world = World::new(setting, JUDGED_US, 1)?;
    let stacked = Stacked::Three;
    let load = Load { completion: CompletionMode::Poll, ..pace.load(stacked, Jobs::Shared) };
    let subject = world.stack.subject(stacked.device())?;
    let (mut rows, mut groups) = (Vec::new(), Vec::new());
    let policy = PollPolicy::default();
    let no_skip = PollPolicy { skip_busy: false, ..policy };
    let no_fast = PollPolicy { fast_path: false, ..policy };
    // The seed's: 354 thousand where queues are skipped, 256 where they are waited for; and no effect.
    for (what, off, seed, limit) in [
        ("busy queues skipped", no_skip, (354e3, 256e3), Some(SKIP_GAIN)),
        ("the fast path", no_fast, (1.0, 1.0), None),
    ] {
        let way = |name, policy| {
            let (subject, load) = (subject.clone(), load.clone());
            Way::new(name, move || {
                setting.domain.poll_as(policy);
                Ok(measure(setting.domain, &subject, &load)?.iops())
            })
        };
        let mut ways = [way(ON, policy), way(OFF, off)];
        let figures = turns(pace.rounds, &mut ways, |round| {
            (setting.progress)(&format!("polling: {what}, round {round} of {}", pace.rounds));
        });
        setting.domain.poll_as(policy);
        let figures = figures?;
        let one = Row {
            row: format!("{what}, on beside off: {}, {}, {JUDGED_US} µs", stacked.name(), Jobs::Shared.name()),
            policy: Some(what.to_owned()),
            size: Some(stacked.bs()),
            seed_figure: Some(seed.0).filter(|figure| *figure > 1.0),
            seed_ratio: Some(seed.0 / seed.1),
            ..row(setting)
        };
        let one = one.compared(&figures, ON, OFF, 1.0);
        rows.push(match limit {
            Some(limit) => one.judged(Limit::AtLeast(limit)),
            None => one,
        });
        let bar = |name, tone| Bar { label: String::from(name), value: figures.median(name) / 1e3, tone };
        groups.push(Group {
            label: what.to_owned(),
            bars: vec![bar(ON, Tone::Ours), bar(OFF, Tone::Seed)],
            goal: None,
        });
    }
    Ok((rows, groups))
}

/// Three jobs on one queue with so many requests each: all of them come back.
fn none_lost(setting: &Setting<'_>) -> Result<Row, Error> {
    let world = World::new(setting, JUDGED_US, 1)?;
    let each = setting.or_quick(100_000, 5_000);
    let pace = Pace { rounds: 1, runtime: Duration::from_secs(1) };
    let load = Load {
        completion: CompletionMode::Poll,
        runtime: None,
        number_ios: Some(each),
        ..pace.load(Stacked::Striped, Jobs::Shared)
    };
    (setting.progress)("polling: that no request is lost");
    let outcome = measure(setting.domain, &world.stack.subject(Stacked::Striped.device())?, &load)?;
    let row = Row {
        row: "requests that came back of three jobs on one queue, beside those submitted".to_owned(),
        baseline: Some((each * 3) as f64),
        figure: Some(outcome.reads.ios as f64),
        ratio: Some(outcome.reads.ios as f64 / (each * 3) as f64),
        unit: Unit::None,
        ..row(setting)
    };
    Ok(row.judged(Limit::Exactly(1.0)))
}

fn method() -> Vec<String> {
    vec![
        "Random reads of 4 KiB through `linear` over one `null:` device and over three, of 12 KiB through `striped` over three, with \
         chunks of 4 KiB, so that each device has 4 KiB of it. The devices complete a request 0, 5 or 20 µs after it was submitted: \
         in *poll* the submitter looks for it, in *interrupt* it sleeps until a timer wakes it (timer slack 1 ns), in *adaptive* it \
         looks for a while and then sleeps. One job with 1 and with 128 requests out, three jobs that share one queue of each device, \
         and three with a queue each."
            .to_owned(),
        "Verdicts are about 5 µs. Three jobs on fewer CPUs are printed; judged there is that no poller waited for a queue, that all \
         requests came back, and what skipping queues that another poller holds is worth. The seed's figures are of three NVMe \
         devices at depth 128, where interrupts are the kernel's."
            .to_owned(),
    ]
}

fn charts(all: &[Found], switches: Vec<Group>) -> Vec<Chart> {
    let group = |found: &Found| {
        let bar = |name, tone| Bar { label: String::from(name), value: found.figures.median(name) / 1e3, tone };
        let goal = found
            .limit(POLL, INTERRUPT)
            .map(|limit| (limit * found.figures.median(INTERRUPT) / 1e3, format!("{limit} × interrupt")));
        Group {
            label: found.stacked.name().to_owned(),
            bars: vec![bar(INTERRUPT, Tone::Seed), bar(ADAPTIVE, Tone::Other), bar(POLL, Tone::Ours)],
            goal,
        }
    };
    let panel = |jobs: Jobs| Chart::Bars {
        title: format!("{}, {JUDGED_US} µs", jobs.name()),
        unit: "thousand IOPS",
        groups: all.iter().filter(|found| found.jobs == jobs && found.latency_us == JUDGED_US).map(group).collect(),
    };
    let mut charts: Vec<Chart> = Jobs::ALL.into_iter().map(panel).collect();
    charts.retain(|chart| !matches!(chart, Chart::Bars { groups, .. } if groups.is_empty()));
    let title = format!("3 jobs on one queue, polled, {JUDGED_US} µs: off and on");
    if !switches.is_empty() {
        charts.push(Chart::Bars { title, unit: "thousand IOPS", groups: switches });
    }
    charts
}
