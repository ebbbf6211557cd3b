//! `snapshot-cow`: what a snapshot costs who writes, and how much of it is order (seed 003).

mod memory;
mod modelled;
mod real;
mod seed;
mod workload;

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Way, turns};
use modelled::{Case, Measured, Place, Subject};
use real::Files;
use udm_bench::{Error, Spread};
use udm_kcopyd::{CopyOptions, Requeue};
use workload::{Cache, Job, Kind, Order};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "snapshot-cow",
    about: "what a snapshot costs who writes, by the order of copies",
    wants_folder: true,
    run,
};

const MIB: u64 = 1 << 20;
const CHUNKS: [u64; 2] = [8 << 10, 512 << 10];
const PLACES: [Place; 2] = [Place::SameDisk, Place::OwnDisk];
const POLICIES: [Policy; 3] = [Policy::Tail, Policy::Head, Policy::Udm];
const SEED: u64 = 3;
/// What the patch has to gain, and how near to the limit udm has to come.
const PATCH: f64 = 5.0;
const NEAR: f64 = 0.9;
/// Of the plain speed on real files.
const REAL: f64 = 0.28;

/// Who copies chunks, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// Linux 2.6.27: a job that finds no pages goes to the tail of its queue.
    Tail,
    /// The same with the patch: it stays at the head.
    Head,
    /// udm.
    Udm,
}

impl Policy {
    /// As it is called in reports.
    const fn name(self) -> &'static str {
        match self {
            Self::Tail => "tail requeue",
            Self::Head => "head requeue",
            Self::Udm => "udm",
        }
    }

    /// What it does otherwise than udm.
    const fn copies(self) -> Option<CopyOptions> {
        match self {
            Self::Tail => Some(CopyOptions::linux_2_6_27(Requeue::Tail)),
            Self::Head => Some(CopyOptions::linux_2_6_27(Requeue::Head)),
            Self::Udm => None,
        }
    }
}

/// A figure that was measured on the modelled disk.
#[derive(Clone, Copy, Debug)]
struct Run {
    case: Case,
    fsync: bool,
    measured: Measured,
}

impl Run {
    /// MB/s.
    fn speed(&self) -> f64 {
        let times = self.measured.times;
        self.case.job.total as f64 * 1e3 / if self.fsync { times.synced } else { times.written }.max(1) as f64
    }
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let runs = measure(setting)?;
    let mut rows: Vec<Row> = judged(&runs);
    rows.extend(in_memory(setting)?);
    rows.extend(on_files(setting)?);
    rows.extend(runs.iter().map(|run| plain_row(&runs, run)));
    for row in &mut rows {
        (row.experiment, row.command) = (EXPERIMENT.name, setting.command.clone());
    }
    Ok(Report {
        name: EXPERIMENT.name,
        title: "What a snapshot costs who writes",
        method: method(),
        charts: charts(&runs),
        rows,
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

fn method() -> Vec<String> {
    let cache = Cache::OF_2007;
    vec![
        format!(
            "A file is written to a volume, to an origin with one snapshot, and to the snapshot. *Modelled disk*: {}. A one-way \
             elevator sorts 128 reads and 128 writes and merges neighbours up to 512 KiB, the same for all policies. The times \
             are simulated, exact, and the same in every run. The file goes through a page cache of {} MiB that fills at {:.0} \
             MB/s; {} MiB of writes are on their way to the device at most. `dd` is the time until the last write is in the \
             cache, `fsync` until file and journal are on the disk. A file that is created has more in the journal than one \
             that is updated.",
            modelled::disk(),
            cache.dirty >> 20,
            4096.0 * 1e3 / cache.block_ns as f64,
            cache.window >> 20
        ),
        "The disk takes one command after the other and has no cache, as if every write had to be on the platter. What is left of the \
         plain speed with one disk and 8K chunks is then near to what the seed's authors found: 1.1 (tail) and 9.6 (head) of \
         45.4 MB/s."
            .to_owned(),
        "*Policies*: tail requeue is kcopyd of Linux 2.6.27, with 1 MiB of pages, which puts a job that finds none back at \
         the tail of its queue; head requeue is the same with the patch of the seed; udm is as it comes. All else is udm's in \
         all three: exceptions commit in order and in groups."
            .to_owned(),
        "*Rows*: the baseline is the plain volume with the same file, but for the first: of those about the patch it is the tail \
         requeue, of those about the limit what the disk could do at best for the bytes it has to move. With one disk that \
         is a third of the plain speed, for a chunk is read once and written twice; with two disks half of it, for the \
         origin's disk reads a chunk and writes one. Seeks are of all disks: how often a head had to go elsewhere."
            .to_owned(),
        format!(
            "*Files*: two files in one file system, direct I/O where it has it, {} MiB in writes that are all on their way, up to \
             32 MiB of them, and a flush at the end; rounds take turns, figures are medians.",
            FILE_TOTAL >> 20
        ),
    ]
}

/// What is written on modelled disks.
fn jobs(quick: bool) -> Vec<Job> {
    let totals: &[u64] = if quick { &[10 * MIB, 100 * MIB] } else { &[10 * MIB, 100 * MIB, 1000 * MIB] };
    let kinds: &[Kind] = if quick { &[Kind::Update] } else { &[Kind::Create, Kind::Update] };
    let mut jobs = Vec::new();
    for &total in totals {
        for &kind in kinds {
            for size in [4096, MIB] {
                jobs.push(Job { kind, order: Order::Sequential, total, size });
            }
        }
    }
    let total = if quick { 10 } else { 100 } * MIB;
    jobs.push(Job { kind: Kind::Update, order: Order::Random, total, size: 4096 });
    jobs
}

fn measure(setting: &Setting<'_>) -> Result<Vec<Run>, Error> {
    let mut cases = Vec::new();
    for job in jobs(setting.quick) {
        let plain =
            Case { subject: Subject::Plain, place: Place::SameDisk, chunk: CHUNKS[0], policy: Policy::Udm, job };
        cases.push(plain);
        for subject in [Subject::Origin, Subject::Snapshot] {
            for place in PLACES {
                for chunk in CHUNKS {
                    cases.extend(POLICIES.map(|policy| Case { subject, place, chunk, policy, job }));
                }
            }
        }
    }
    let mut runs = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        (setting.progress)(&format!("snapshot-cow on a modelled disk, {} of {}", number + 1, cases.len()));
        let measured = case.run(SEED)?;
        runs.extend([false, true].map(|fsync| Run { case: *case, fsync, measured }));
    }
    Ok(runs)
}

/// The run of the plain volume with the same file.
fn plain<'a>(runs: &'a [Run], run: &Run) -> &'a Run {
    let same = |r: &&Run| r.case.subject == Subject::Plain && r.case.job == run.case.job && r.fsync == run.fsync;
    runs.iter().find(same).expect("each file is written to a plain volume too")
}

fn plain_row(runs: &[Run], run: &Run) -> Row {
    let is_plain = run.case.subject == Subject::Plain;
    let beside = plain(runs, run).speed();
    let seed = seed::figure(run);
    let seed_beside = seed::figure(plain(runs, run));
    Row {
        row: describe(run, true),
        policy: (!is_plain).then(|| run.case.policy.name().to_owned()),
        disk: Some(if is_plain { "modelled".to_owned() } else { format!("modelled, {}", run.case.place) }),
        chunk: (!is_plain).then_some(run.case.chunk),
        size: Some(run.case.job.size),
        seed_figure: seed,
        seed_ratio: seed.zip(seed_beside).filter(|_| !is_plain).map(|(figure, plain)| figure / plain),
        baseline: (!is_plain).then_some(beside),
        figure: Some(run.speed()),
        ratio: (!is_plain).then(|| run.speed() / beside),
        seeks: Some(run.measured.seeks),
        unit: Unit::MegabytesPerSecond,
        ..Row::default()
    }
}

/// A run in words; with its policy, they are its own.
fn describe(run: &Run, policy: bool) -> String {
    let Case { subject, place, chunk, job, .. } = run.case;
    let kind = if job.kind == Kind::Create { "create" } else { "update" };
    let order = if job.order == Order::Random { ", random" } else { "" };
    let sync = if run.fsync { "dd+fsync" } else { "dd" };
    let file = format!("{kind} {}M by {}{order}, {sync}", job.total >> 20, job.size);
    match (subject, policy) {
        (Subject::Plain, _) => format!("{file}: {subject}"),
        (_, false) => format!("{file}: {subject}, {}K chunks, {place}", chunk >> 10),
        (_, true) => format!("{file}: {subject}, {}K chunks, {place}, {}", chunk >> 10, run.case.policy.name()),
    }
}

/// The rows with limits: what the patch gains, and how near udm comes to what the disks can do.
fn judged(runs: &[Run]) -> Vec<Row> {
    let is_judged = |run: &&Run| {
        let job = run.case.job;
        run.fsync && job.order == Order::Sequential && job.total >= 100 * MIB && run.case.subject == Subject::Origin
    };
    let row = |run: &Run, what: &str, baseline: f64, seed_ratio: Option<f64>| Row {
        row: format!("{what}: {}", describe(run, false)),
        policy: Some(run.case.policy.name().to_owned()),
        disk: Some(format!("modelled, {}", run.case.place)),
        chunk: Some(run.case.chunk),
        size: Some(run.case.job.size),
        seed_figure: seed::figure(run),
        seed_ratio,
        baseline: Some(baseline),
        figure: Some(run.speed()),
        ratio: Some(run.speed() / baseline),
        seeks: Some(run.measured.seeks),
        unit: Unit::MegabytesPerSecond,
        ..Row::default()
    };
    let mut rows = Vec::new();
    for head in runs.iter().filter(is_judged).filter(|run| run.case.policy == Policy::Head) {
        let tail = Case { policy: Policy::Tail, ..head.case };
        let tail = runs.iter().find(|run| run.case == tail && run.fsync).expect("each policy has its run");
        let gain = seed::figure(head).zip(seed::figure(tail)).map(|(head, tail)| head / tail);
        let row = row(head, "the patch", tail.speed(), gain);
        let counts = head.case.place == Place::SameDisk && head.case.chunk == CHUNKS[0];
        rows.push(if counts { row.judged(Limit::AtLeast(PATCH)) } else { row });
    }
    for ours in runs.iter().filter(is_judged).filter(|run| run.case.policy == Policy::Udm) {
        let share = if ours.case.place == Place::SameDisk { 3.0 } else { 2.0 };
        let row = row(ours, "the limit", plain(runs, ours).speed() / share, None);
        rows.push(row.judged(Limit::AtLeast(NEAR)));
    }
    rows
}

/// Pages that copies may take, in MiB.
const POOL: f64 = 32.0;

fn in_memory(setting: &Setting<'_>) -> Result<Vec<Row>, Error> {
    let (total, chunk) = (setting.or_quick(10 << 30, 256 * MIB), 64 << 10);
    (setting.progress)("snapshot-cow, memory with eight snapshots");
    let found = memory::run(total, chunk)?;
    let snapshots = memory::SNAPSHOTS;
    let row = |row: String| Row {
        row,
        policy: Some(Policy::Udm.name().to_owned()),
        disk: Some("modelled, own disk".to_owned()),
        chunk: Some(chunk),
        size: Some(MIB),
        unit: Unit::None,
        ..Row::default()
    };
    let peak = Row {
        figure: Some(found.peak as f64 / MIB as f64),
        ..row(format!("memory: {snapshots} snapshots, {}M of writes queued at once: MiB of pages at most", total >> 20))
    };
    let reads = Row {
        figure: Some(found.read as f64 / total as f64),
        ..row(format!("memory: {snapshots} snapshots: bytes read of the origin for each that is written"))
    };
    Ok(vec![peak.judged(Limit::AtMost(POOL)), reads.judged(Limit::Exactly(1.0))])
}

/// Bytes that are written to files.
const FILE_TOTAL: u64 = 256 * MIB;

fn on_files(setting: &Setting<'_>) -> Result<Vec<Row>, Error> {
    let Some(folder) = setting.folder else { return Ok(Vec::new()) };
    let (total, rounds) = (setting.or_quick(FILE_TOTAL, 8 * MIB), setting.or_quick(7, 2));
    let files = Files::new(folder, total)?;
    let mut rows = Vec::new();
    for size in [4096, MIB] {
        let way = |name, subject, chunk| {
            let files = &files;
            Way::new(name, move || files.speed(setting.domain, subject, chunk, size))
        };
        let mut ways = [
            way("plain", Subject::Plain, CHUNKS[0]),
            way("origin 8K", Subject::Origin, CHUNKS[0]),
            way("origin 512K", Subject::Origin, CHUNKS[1]),
            way("snapshot 8K", Subject::Snapshot, CHUNKS[0]),
            way("snapshot 512K", Subject::Snapshot, CHUNKS[1]),
        ];
        let found = turns(rounds, &mut ways, |round| {
            (setting.progress)(&format!("snapshot-cow on files, writes of {size}, round {round} of {rounds}"));
        })?;
        for (name, chunk) in [
            ("origin 8K", CHUNKS[0]),
            ("origin 512K", CHUNKS[1]),
            ("snapshot 8K", CHUNKS[0]),
            ("snapshot 512K", CHUNKS[1]),
        ] {
            let ratios = found.ratios(name, "plain");
            let row = Row {
                row: format!("files: update {}M by {size}, fsync: {name}", total >> 20),
                policy: Some(Policy::Udm.name().to_owned()),
                disk: Some("files".to_owned()),
                chunk: Some(chunk),
                size: Some(size),
                baseline: Some(found.median("plain")),
                figure: Some(found.median(name)),
                ratio: Some(Spread::of(&ratios).median),
                rounds: ratios,
                unit: Unit::MegabytesPerSecond,
                ..Row::default()
            };
            rows.push(if name == "origin 8K" { row.judged(Limit::AtLeast(REAL)) } else { row });
        }
    }
    Ok(rows)
}

fn charts(runs: &[Run]) -> Vec<Chart> {
    let Some(total) = runs.iter().map(|run| run.case.job.total).max() else { return Vec::new() };
    let job = Job { kind: Kind::Update, order: Order::Sequential, total, size: 4096 };
    let of = |place, chunk, policy| {
        let case = Case { subject: Subject::Origin, place, chunk, policy, job };
        runs.iter().find(|run| run.fsync && run.case == case)
    };
    let mut speeds = Vec::new();
    let mut seeks = Vec::new();
    for place in PLACES {
        for chunk in CHUNKS {
            let Some(ours) = of(place, chunk, Policy::Udm) else { continue };
            let label = format!("{}K, {place}", chunk >> 10);
            let best = plain(runs, ours).speed() / if place == Place::SameDisk { 3.0 } else { 2.0 };
            let bars = |value: &dyn Fn(&Run) -> f64| {
                let runs = POLICIES.iter().filter_map(|policy| of(place, chunk, *policy));
                let tone = |policy| if policy == Policy::Udm { Tone::Ours } else { Tone::Seed };
                let bar = |run: &Run| (run.case.policy.name().to_owned(), value(run), tone(run.case.policy));
                runs.map(bar).map(|(label, value, tone)| Bar { label, value, tone }).collect::<Vec<_>>()
            };
            let mut with_plain = bars(&Run::speed);
            with_plain
                .insert(0, Bar { label: "plain".to_owned(), value: plain(runs, ours).speed(), tone: Tone::Other });
            let goal = Some((NEAR * best, "goal: 0.9 of what the bytes allow".to_owned()));
            speeds.push(Group { label: label.clone(), bars: with_plain, goal });
            let for_each = |run: &Run| run.measured.seeks as f64 / (run.case.job.total >> 20) as f64;
            seeks.push(Group { label, bars: bars(&for_each), goal: None });
        }
    }
    let what = format!("an origin, {} MiB in writes of 4096 bytes, with fsync", total >> 20);
    vec![
        Chart::Bars { title: format!("Speed of {what}"), unit: "MB/s", groups: speeds },
        Chart::Bars { title: format!("Seeks of {what}"), unit: "seeks for each MiB", groups: seeks },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of a quick run gives every row, and the model the seed's picture.
    #[test]
    fn the_patch_and_the_limit() {
        let job = Job { kind: Kind::Update, order: Order::Sequential, total: 10 * MIB, size: 4096 };
        let of = |subject, place, policy| {
            let case = Case { subject, place, chunk: CHUNKS[0], policy, job };
            let measured = case.run(SEED).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(case.run(SEED).unwrap_or_else(|e| panic!("{e}")), measured, "the same again");
            Run { case, fsync: true, measured }
        };
        let plain = of(Subject::Plain, Place::SameDisk, Policy::Udm);
        assert!((50.0..71.0).contains(&plain.speed()), "{}", plain.speed());
        let [tail, head, udm] = POLICIES.map(|policy| of(Subject::Origin, Place::SameDisk, policy));
        assert!(tail.speed() < head.speed() && head.speed() < udm.speed(), "{tail:?} {head:?} {udm:?}");
        assert!(udm.measured.moved >= 3 * job.total && udm.measured.moved < 4 * job.total, "{udm:?}");
        assert!(tail.measured.seeks > 3 * head.measured.seeks, "{tail:?} {head:?}");
    }

    #[test]
    fn the_seeds_figures_find_their_rows() {
        let measured = Measured { times: workload::Times { written: 1, synced: 1 }, seeks: 0, moved: 0 };
        let mut figures = Vec::new();
        for job in jobs(false) {
            for policy in POLICIES {
                for (subject, place, chunk) in [
                    (Subject::Plain, Place::SameDisk, CHUNKS[0]),
                    (Subject::Origin, Place::SameDisk, CHUNKS[0]),
                    (Subject::Origin, Place::SameDisk, CHUNKS[1]),
                    (Subject::Origin, Place::OwnDisk, CHUNKS[0]),
                    (Subject::Origin, Place::OwnDisk, CHUNKS[1]),
                ] {
                    let case = Case { subject, place, chunk, policy, job };
                    let both = [false, true].map(|fsync| seed::figure(&Run { case, fsync, measured }));
                    figures.extend(both.into_iter().flatten());
                }
            }
        }
        for figure in [1.1, 9.6, 4.0, 8.4, 1.2, 17.2, 5.6, 14.5, 8.13, 29.23, 77.84] {
            assert!(figures.contains(&figure), "{figure}");
        }
    }
}
