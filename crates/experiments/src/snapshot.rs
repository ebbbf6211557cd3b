//! `snapshot`: what an origin and its snapshots cost over memory, beside a linear device.

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::pass::{device, pass, refused};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use std::sync::Arc;
use udm_bench::rng::mix;
use udm_bench::{Error, Spread};
use udm_core::{MappedDevice, Registry};
use udm_io::Op;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "snapshot",
    about: "what an origin and its snapshots cost over memory: first writes, rewrites and reads, with 1 to 8 snapshots",
    wants_folder: false,
    run,
};

/// Bytes of a request, and of a chunk.
const PAGE: u64 = 4 << 10;
const CHUNK: u64 = 4 << 10;
/// How much longer than on linear a request may take where the chunk has been copied.
const LIMIT: f64 = 1.15;

/// An origin in memory with some snapshots, and a linear device over memory of its own.
struct World<'a> {
    setting: &'a Setting<'a>,
    registry: Registry,
    order: Vec<u64>,
}

impl<'a> World<'a> {
    fn new(setting: &'a Setting<'a>, bytes: u64, snapshots: usize) -> Result<Self, Error> {
        let mut order: Vec<u64> = (0..bytes / PAGE).map(|page| page * PAGE).collect();
        order.sort_by_key(|at| mix(*at));
        let world = Self { setting, registry: udm_stack::registry(setting.domain.clone()), order };
        let sectors = bytes / 512;
        let whole: Vec<u64> = (0..bytes >> 20).map(|at| at << 20).collect();
        for (name, sectors) in [("base", sectors), ("plain", sectors)] {
            let ram = world.device(name, &format!("0 {sectors} ram"))?;
            // So that the memory has its pages.
            pass(setting, &ram, Op::Write, &whole, 1 << 20, 8)?;
        }
        world.device("linear", &format!("0 {sectors} linear /dev/mapper/plain 0"))?;
        for at in 1..=snapshots {
            let cow = world.device(&format!("cow{at}"), &format!("0 {} ram", sectors + sectors / 16))?;
            pass(setting, &cow, Op::Write, &whole, 1 << 20, 8)?;
            // A header of zeroes: an empty store.
            cow_cleared(setting, &cow)?;
            let table = format!("0 {sectors} snapshot /dev/mapper/base /dev/mapper/cow{at} P {}", CHUNK / 512);
            world.device(&format!("snap{at}"), &table)?;
        }
        world.device("origin", &format!("0 {sectors} snapshot-origin /dev/mapper/base"))?;
        Ok(world)
    }

    fn device(&self, name: &str, table: &str) -> Result<Arc<MappedDevice>, Error> {
        device(&self.registry, name, table)
    }

    fn pass(&self, name: &str, op: Op, depth: usize) -> Result<f64, Error> {
        let md = self.registry.by_name(name).ok_or_else(|| Error::Stack(format!("{name} has gone")))?;
        pass(self.setting, &md, op, &self.order, PAGE as usize, depth)
    }

    /// Takes the devices down, from the top.
    fn end(self) -> Result<(), Error> {
        let mut left = self.registry.list();
        while !left.is_empty() {
            let before = left.len();
            let mut last = Ok(());
            left.retain(|md| match self.registry.remove(md, false) {
                Ok(_) => false,
                Err(e) => {
                    last = Err(refused(&md.device_name())(e));
                    true
                }
            });
            if left.len() == before {
                return last;
            }
        }
        Ok(())
    }
}

/// Writes zeroes where the header of a store would be.
fn cow_cleared(setting: &Setting<'_>, cow: &Arc<MappedDevice>) -> Result<(), Error> {
    let dev: Arc<dyn udm_io::BlockDevice> = cow.clone();
    let io = udm_io::BlockingIo::new(setting.domain, dev)
        .map_err(|source| Error::System { what: "a channel".to_owned(), source })?;
    let failed = |status| Error::Io { device: cow.device_name(), op: "write", offset: 0, bytes: 4096, status };
    io.write(udm_base::Sector::ZERO, &[0; 4096], udm_io::OpFlags::NONE).map_err(failed)
}

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let bytes = setting.or_quick(256 << 20, 16 << 20);
    let rounds = setting.or_quick(5, 2);
    let mut rows = Vec::new();
    let mut costs = Vec::new();
    let mut growth = Vec::new();
    let row = |row: String, depth: usize| Row {
        experiment: EXPERIMENT.name,
        row,
        policy: Some(format!("depth {depth}")),
        disk: Some("ram".to_owned()),
        chunk: Some(CHUNK),
        size: Some(PAGE),
        unit: Unit::Nanoseconds,
        command: setting.command.clone(),
        ..Row::default()
    };
    for depth in [1, 32] {
        // What was done, on what, and whether its chunk has been copied by then.
        const STEPS: &[(&str, &str, Op, bool)] = &[
            ("read of the origin, nothing copied", "origin", Op::Read, true),
            ("first write to the origin", "origin", Op::Write, false),
            ("rewrite of the origin", "origin", Op::Write, true),
            ("read of the origin", "origin", Op::Read, true),
            ("read of the snapshot, copied", "snap1", Op::Read, true),
            ("rewrite of the snapshot", "snap1", Op::Write, true),
        ];
        let mut figures = vec![(Vec::new(), Vec::new()); STEPS.len()];
        for round in 0..=rounds {
            (setting.progress)(&format!("depth {depth}, round {round} of {rounds}"));
            let world = World::new(setting, bytes, 1)?;
            for ((_, name, op, _), (linear, found)) in STEPS.iter().zip(&mut figures) {
                let (beside, figure) = (world.pass("linear", *op, depth)?, world.pass(name, *op, depth)?);
                if round > 0 {
                    linear.push(beside);
                    found.push(figure);
                }
            }
            world.end()?;
        }
        for ((what, _, _, copied), (linear, found)) in STEPS.iter().zip(&figures) {
            let ratios: Vec<f64> = linear.iter().zip(found).map(|(l, f)| f / l).collect();
            let ratio = Spread::of(&ratios).median;
            let row = Row {
                baseline: Some(Spread::of(linear).median),
                figure: Some(Spread::of(found).median),
                ratio: Some(ratio),
                rounds: ratios,
                ..row(format!("{what}, depth {depth}"), depth)
            };
            costs.push(Bar { label: format!("{what}, depth {depth}"), value: ratio, tone: Tone::Ours });
            rows.push(if *copied { row.judged(Limit::AtMost(LIMIT)) } else { row });
        }
    }
    for count in [1, 2, 4, 8] {
        (setting.progress)(&format!("{count} snapshots"));
        let mut found = Vec::new();
        for round in 0..=rounds.min(3) {
            let world = World::new(setting, bytes / 4, count)?;
            let first = world.pass("origin", Op::Write, 32)?;
            world.end()?;
            if round > 0 {
                found.push(first);
            }
        }
        let figure = Spread::of(&found).median;
        growth.push(Bar { label: format!("{count} snapshots"), value: figure, tone: Tone::Ours });
        rows.push(Row {
            figure: Some(figure),
            rounds: found,
            ..row(format!("first write to the origin, {count} snapshots"), 32)
        });
    }
    Ok(Report {
        name: EXPERIMENT.name,
        title: "What an origin and its snapshots cost",
        method: vec![
            format!(
                "An origin of {} MiB in memory, persistent stores in memory with chunks of 4 KiB, requests of 4 KiB in an order \
                 that looks random, by one thread. Each row is measured beside `linear` over memory of its own in the same round.",
                bytes >> 20
            ),
            "Where the chunk has been copied before, or nothing is to be copied, a request may take 1.15 times what it takes on linear."
                .to_owned(),
        ],
        rows,
        charts: vec![
            Chart::Bars {
                title: "time of a request, beside linear".to_owned(),
                unit: "ratio",
                groups: vec![Group { label: String::new(), bars: costs, goal: Some((LIMIT, "1.15".to_owned())) }],
            },
            Chart::Bars {
                title: "first write to the origin, depth 32".to_owned(),
                unit: "ns",
                groups: vec![Group { label: String::new(), bars: growth, goal: None }],
            },
        ],
        quick: setting.quick,
        command: setting.command.clone(),
    })
}
