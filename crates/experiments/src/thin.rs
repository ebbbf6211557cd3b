//! `thin`: what a thin volume costs beside a linear device, its first writes beside its second, and many snapshots.

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::pass::{device, pass, refused};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Way, turns};
use std::hint::black_box;
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector};
use udm_bench::rng::mix;
use udm_bench::{Error, Spread};
use udm_core::{MappedDevice, Registry};
use udm_io::Op;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "thin",
    about: "what a thin volume costs: mapped, written for the first time, with shared blocks and many snapshots",
    wants_folder: false,
    run,
};

/// Bytes of a block of the pool.
const BLOCK: u64 = 64 << 10;
/// Bytes of a request.
const PAGE: u64 = 4 << 10;
const DEPTH: usize = 32;
/// What a first write may take longer than a rewrite, besides the memory that it moves.
const EXTRA_NS: f64 = 3000.0;

/// A pool over memory, and a linear device beside it.
struct Pool<'a> {
    setting: &'a Setting<'a>,
    registry: Registry,
    /// Blocks of a volume.
    blocks: u64,
}

impl<'a> Pool<'a> {
    /// A pool with room for three volumes of `blocks` blocks, whose memory has its pages.
    fn new(setting: &'a Setting<'a>, blocks: u64, features: &str) -> Result<Self, Error> {
        let pool = Self { setting, registry: udm_stack::registry(setting.domain.clone()), blocks };
        let sectors = 3 * blocks * BLOCK / 512;
        pool.device("meta", "0 131072 ram")?;
        let data = pool.device("data", &format!("0 {sectors} ram"))?;
        pool.pass(
            &data,
            Op::Write,
            &(0..3 * blocks * BLOCK / (1 << 20)).map(|i| i << 20).collect::<Vec<_>>(),
            1 << 20,
        )?;
        pool.device("pool", &format!("0 {sectors} thin-pool /dev/mapper/meta /dev/mapper/data 128 0 {features}"))?;
        pool.device("linear", &format!("0 {} linear /dev/mapper/data 0", blocks * BLOCK / 512))?;
        Ok(pool)
    }

    fn device(&self, name: &str, table: &str) -> Result<Arc<MappedDevice>, Error> {
        device(&self.registry, name, table)
    }

    fn named(&self, name: &str) -> Result<Arc<MappedDevice>, Error> {
        self.registry.by_name(name).ok_or_else(|| Error::Stack(format!("{name} has gone")))
    }

    fn message(&self, text: &str) -> Result<(), Error> {
        let words: Vec<&str> = text.split(' ').collect();
        self.named("pool")?.message(Sector::ZERO, &words).map_err(refused(text)).map(drop)
    }

    /// A volume without a block.
    fn volume(&self, id: u32) -> Result<Arc<MappedDevice>, Error> {
        self.message(&format!("create_thin {id}"))?;
        self.device(&format!("thin{id}"), &format!("0 {} thin /dev/mapper/pool {id}", self.blocks * BLOCK / 512))
    }

    /// Deletes a volume, and lets its blocks be had again.
    fn delete(&self, id: u32) -> Result<(), Error> {
        let name = format!("thin{id}");
        self.registry.remove(&self.named(&name)?, false).map_err(refused(&name))?;
        self.message(&format!("delete {id}"))
    }

    /// A request of `len` bytes at each of these bytes, [`DEPTH`] at a time. Nanoseconds for each.
    fn pass(&self, md: &Arc<MappedDevice>, op: Op, order: &[u64], len: usize) -> Result<f64, Error> {
        pass(self.setting, md, op, order, len, DEPTH)
    }

    /// [`pass`](Self::pass) over pages as one of several ways.
    fn way<'b>(&'b self, name: &'static str, md: &'b Arc<MappedDevice>, op: Op, order: &'b [u64]) -> Way<'b> {
        Way::new(name, move || self.pass(md, op, order, PAGE as usize))
    }

    /// The first page of every block, in an order that looks random or in theirs.
    fn first_pages(&self, random: bool) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.blocks).map(|block| block * BLOCK).collect();
        if random {
            order.sort_by_key(|at| mix(*at));
        }
        order
    }

    /// Every page, in an order that looks random.
    fn pages(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.blocks * BLOCK / PAGE).map(|page| page * PAGE).collect();
        order.sort_by_key(|at| mix(*at));
        order
    }
}

/// Rows and bars, as they come.
struct Findings<'a> {
    setting: &'a Setting<'a>,
    rows: Vec<Row>,
    ratios: Vec<Bar>,
    extras: Vec<Bar>,
}

impl Findings<'_> {
    fn row(&self, row: &str) -> Row {
        Row {
            experiment: EXPERIMENT.name,
            row: row.to_owned(),
            disk: Some("ram".to_owned()),
            chunk: Some(BLOCK),
            size: Some(PAGE),
            unit: Unit::Nanoseconds,
            command: self.setting.command.clone(),
            ..Row::default()
        }
    }

    /// Speeds by speeds: nanoseconds of the baseline by those of the figure.
    fn speed(&mut self, row: &str, baseline: &[f64], figure: &[f64], limit: Limit) {
        let rounds: Vec<f64> = baseline.iter().zip(figure).map(|(b, f)| b / f).collect();
        let ratio = Spread::of(&rounds).median;
        let (baseline, figure) = (Some(Spread::of(baseline).median), Some(Spread::of(figure).median));
        self.rows.push(Row { baseline, figure, ratio: Some(ratio), rounds, ..self.row(row) }.judged(limit));
        self.ratios.push(Bar { label: row.to_owned(), value: ratio, tone: Tone::Ours });
    }

    /// What is left of the figure without the baseline, in nanoseconds.
    fn extra(&mut self, row: &str, baseline: &[f64], figure: &[f64]) {
        let rounds: Vec<f64> = baseline.iter().zip(figure).map(|(b, f)| f - b).collect();
        let extra = Spread::of(&rounds).median;
        let baseline = Some(Spread::of(baseline).median);
        self.rows.push(Row { baseline, figure: Some(extra), rounds, ..self.row(row) }.judged(Limit::AtMost(EXTRA_NS)));
        self.extras.push(Bar { label: row.to_owned(), value: extra, tone: Tone::Ours });
    }
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let blocks = setting.or_quick(4096, 256);
    let rounds = setting.or_quick(7, 2);
    let mut findings = Findings { setting, rows: Vec::new(), ratios: Vec::new(), extras: Vec::new() };
    mapped(&mut findings, blocks, rounds)?;
    for (features, zeroes) in [("1 skip_block_zeroing", false), ("0", true)] {
        first_writes(&mut findings, &Pool::new(setting, blocks, features)?, zeroes, rounds)?;
    }
    sharing(&mut findings, &Pool::new(setting, blocks, "1 skip_block_zeroing")?, rounds)?;
    snapshots(&mut findings, blocks / 2, rounds)?;
    let Findings { rows, ratios, extras, .. } = findings;
    Ok(Report {
        name: EXPERIMENT.name,
        title: "What a thin volume costs",
        method: vec![
            format!(
                "A pool with blocks of 64 KiB over `ram`, whose memory was written before; volumes of {} MiB; requests of 4 KiB, {DEPTH} at \
                 a time, by one thread. Reads and rewrites are beside `linear` over the same memory, in turns.",
                (blocks * BLOCK) >> 20
            ),
            "A first write goes to the first page of a block that has none; the same writes again are the rewrite that is taken off. \
             Where the block is zeroed or copied, what plain memory takes for that, at as cold addresses, is taken off too. What is \
             left may be 3 µs."
                .to_owned(),
            "First touch is every page of an empty volume in an order that looks random, beside the same again.".to_owned(),
        ],
        rows,
        charts: vec![
            Chart::Bars {
                title: "speed, beside what each row is compared with".to_owned(),
                unit: "ratio",
                groups: vec![Group { label: String::new(), bars: ratios, goal: None }],
            },
            Chart::Bars {
                title: "a block's first write, beyond the rewrite and the memory moved".to_owned(),
                unit: "ns",
                groups: vec![Group { label: String::new(), bars: extras, goal: Some((EXTRA_NS, "3 µs".to_owned())) }],
            },
        ],
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

/// Reads and writes of mapped blocks beside linear.
fn mapped(findings: &mut Findings<'_>, blocks: u64, rounds: usize) -> Result<(), Error> {
    let setting = findings.setting;
    let pool = Pool::new(setting, blocks, "0")?;
    let (thin, linear) = (pool.volume(1)?, pool.named("linear")?);
    pool.pass(&thin, Op::Write, &pool.first_pages(false), BLOCK as usize)?;
    let order = pool.pages();
    for (row, op) in [("mapped reads, beside linear", Op::Read), ("mapped writes, beside linear", Op::Write)] {
        (setting.progress)(row);
        let mut ways = [pool.way("linear", &linear, op, &order), pool.way("thin", &thin, op, &order)];
        let figures = turns(rounds, &mut ways, |_| ())?;
        findings.speed(row, figures.of("linear"), figures.of("thin"), Limit::AtLeast(0.85));
    }
    Ok(())
}

/// First writes beside rewrites, and the first touch of a whole volume.
fn first_writes(findings: &mut Findings<'_>, pool: &Pool<'_>, zeroes: bool, rounds: usize) -> Result<(), Error> {
    let with = if zeroes { "zeroed" } else { "not zeroed" };
    let mut memory = Plain::new(pool.blocks);
    for (name, random) in [("random", true), ("sequential", false)] {
        (pool.setting.progress)(&format!("first writes, {name}, {with}"));
        let order = pool.first_pages(random);
        let (mut baseline, mut figure) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let volume = pool.volume(1)?;
            let first = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
            let again = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
            let zeroing = if zeroes { memory.zero(pool, &order) } else { 0.0 };
            drop(volume);
            pool.delete(1)?;
            if round > 0 {
                baseline.push(again + zeroing);
                figure.push(first);
            }
        }
        findings.extra(&format!("first write, {name}, {with}"), &baseline, &figure);
    }
    (pool.setting.progress)(&format!("first touch, {with}"));
    let order = pool.pages();
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let volume = pool.volume(1)?;
        let touched = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
        let rewritten = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
        drop(volume);
        pool.delete(1)?;
        if round > 0 {
            first.push(touched);
            again.push(rewritten);
        }
    }
    findings.speed(&format!("first touch, {with}, beside the second"), &again, &first, Limit::AtLeast(0.6));
    Ok(())
}

/// Writes to blocks that a snapshot shares.
fn sharing(findings: &mut Findings<'_>, pool: &Pool<'_>, rounds: usize) -> Result<(), Error> {
    (pool.setting.progress)("breaking sharing");
    let order = pool.first_pages(true);
    let volume = pool.volume(1)?;
    pool.pass(&volume, Op::Write, &pool.first_pages(false), BLOCK as usize)?;
    let mut memory = Plain::new(pool.blocks);
    let (mut baseline, mut figure) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        pool.message("create_snap 2 1")?;
        let first = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
        let again = pool.pass(&volume, Op::Write, &order, PAGE as usize)?;
        let copying = memory.copy(pool, &order);
        pool.message("delete 2")?;
        if round > 0 {
            baseline.push(again + copying);
            figure.push(first);
        }
    }
    findings.extra("first write to a shared block", &baseline, &figure);
    Ok(())
}

/// A volume with ten snapshots and one with a thousand.
fn snapshots(findings: &mut Findings<'_>, blocks: u64, rounds: usize) -> Result<(), Error> {
    let setting = findings.setting;
    let few = Pool::new(setting, blocks, "1 skip_block_zeroing")?;
    let many = Pool::new(setting, blocks, "1 skip_block_zeroing")?;
    let mut volumes = Vec::new();
    for (pool, count) in [(&few, 10), (&many, setting.or_quick(1000, 50))] {
        (setting.progress)(&format!("making {count} snapshots"));
        let volume = pool.volume(1)?;
        pool.pass(&volume, Op::Write, &pool.first_pages(false), BLOCK as usize)?;
        for id in 2..2 + count {
            pool.message(&format!("create_snap {id} 1"))?;
        }
        volumes.push(volume);
    }
    (setting.progress)("reading beside snapshots");
    let order = few.pages();
    let (op, [first, second]) = (Op::Read, [&volumes[0], &volumes[1]]);
    let mut ways = [few.way("few", first, op, &order), many.way("many", second, op, &order)];
    let figures = turns(rounds, &mut ways, |_| ())?;
    drop(ways);
    let limit = Limit::AtLeast(1.0 / 1.2);
    findings.speed("reads with 1000 snapshots, beside 10", figures.of("few"), figures.of("many"), limit);
    (setting.progress)("first writes beside snapshots");
    let order = few.first_pages(true);
    let (mut with_few, mut with_many) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        // One more shares every block again.
        for (pool, volume, figures) in [(&few, &volumes[0], &mut with_few), (&many, &volumes[1], &mut with_many)] {
            pool.message("create_snap 5000 1")?;
            let first = pool.pass(volume, Op::Write, &order, PAGE as usize)?;
            pool.message("delete 5000")?;
            if round > 0 {
                figures.push(first);
            }
        }
    }
    findings.speed("first writes with 1000 snapshots, beside 10", &with_few, &with_many, limit);
    Ok(())
}

/// Plain memory, as large as a volume twice.
struct Plain {
    from: AlignedBuf,
    into: AlignedBuf,
}

impl Plain {
    fn new(blocks: u64) -> Self {
        let make = || {
            let mut memory = AlignedBuf::zeroed((blocks * BLOCK) as usize);
            memory.fill(1);
            memory
        };
        Self { from: make(), into: make() }
    }

    /// Nanoseconds to zero a block, in this order of blocks.
    fn zero(&mut self, pool: &Pool<'_>, order: &[u64]) -> f64 {
        self.each(pool, order, |_, into| into.fill(0))
    }

    /// Nanoseconds to copy a block.
    fn copy(&mut self, pool: &Pool<'_>, order: &[u64]) -> f64 {
        self.each(pool, order, |from, into| into.copy_from_slice(from))
    }

    fn each(&mut self, pool: &Pool<'_>, order: &[u64], mut work: impl FnMut(&[u8], &mut [u8])) -> f64 {
        let clock = pool.setting.domain.clock();
        let start = clock.now();
        for at in order {
            let range = *at as usize..(*at + BLOCK) as usize;
            work(black_box(&self.from[range.clone()]), black_box(&mut self.into[range]));
        }
        clock.now().since(start) as f64 / order.len() as f64
    }
}
