//! The simulated device against a model: what a power cut may and may not do to each sector.
#![allow(clippy::undocumented_unsafe_blocks)]

use proptest::prelude::*;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_sim::*;

const SECTORS: usize = 32;

/// What is submitted at once, without overlap, and then waited for.
#[derive(Clone, Debug)]
struct Step {
    writes: Vec<Write>,
    flush: bool,
}

#[derive(Clone, Debug)]
struct Write {
    sector: usize,
    len: usize,
    fua: bool,
    zeroes: bool,
}

fn step() -> impl Strategy<Value = Step> {
    // Cut points of the device, of which every other gap is written.
    let cuts = prop::collection::btree_set(0..=SECTORS, 0..8);
    (cuts, prop::collection::vec((0u8..4, 0u8..4), 8), prop::bool::weighted(0.3)).prop_map(|(cuts, kinds, flush)| {
        let cuts: Vec<usize> = cuts.into_iter().collect();
        let gaps = cuts.chunks_exact(2).zip(kinds);
        let writes = gaps.map(|(gap, (fua, zeroes))| Write {
            sector: gap[0],
            len: gap[1] - gap[0],
            fua: fua == 0,
            zeroes: zeroes == 0,
        });
        Step { writes: writes.collect(), flush }
    })
}

/// The content of a sector as it was written the `version`th time; a sector that mixes two is none.
fn content(version: u64, sector: usize) -> [u8; 512] {
    let mut out = [0; 512];
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&(version << 16 | sector as u64).to_le_bytes());
    }
    out
}

/// The contents that a sector may have after a power cut: its versions since the last that is durable.
#[derive(Clone)]
struct Model {
    sectors: Vec<Vec<[u8; 512]>>,
}

impl Model {
    fn write(&mut self, write: &Write, version: u64, durable: bool) {
        for sector in write.sector..write.sector + write.len {
            let data = if write.zeroes { [0; 512] } else { content(version, sector) };
            let versions = &mut self.sectors[sector];
            if durable {
                versions.clear();
            }
            versions.push(data);
        }
    }

    fn flush(&mut self) {
        for versions in &mut self.sectors {
            versions.drain(..versions.len() - 1);
        }
    }
}

fn run(sim: &Sim, dev: &Arc<SimDevice>, steps: &[Step]) -> Model {
    let mut model = Model { sectors: vec![vec![[0; 512]]; SECTORS] };
    let channel = sim.domain().channel().unwrap();
    let on = channel.attach(dev.clone());
    for (version, step) in (1..).zip(steps) {
        let mut memory: Vec<Vec<u8>> = (step.writes.iter())
            .map(|w| (w.sector..w.sector + w.len).flat_map(|s| content(version, s)).collect())
            .collect();
        let mut out = 0;
        for (token, (write, buf)) in (0..).zip(step.writes.iter().zip(&mut memory)) {
            let flags = if write.fua { OpFlags::FUA } else { OpFlags::NONE };
            let (sector, len) = (Sector::new(write.sector as u64), Sectors::new(write.len as u64));
            out += 1;
            assert!(if write.zeroes {
                channel.submit_range(on, Op::WriteZeroes, flags, sector, len, token)
            } else {
                unsafe { channel.submit(on, Op::Write, flags, sector, buf, token) }
            });
        }
        if step.flush {
            out += 1;
            assert!(channel.submit_range(on, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, u64::MAX));
        }
        let mut done = Vec::new();
        while done.len() < out {
            channel.wait(None, &mut Vec::new()).unwrap();
            channel.poll();
            done.extend(std::iter::from_fn(|| channel.completed()));
        }
        // The flush covers what had completed before it was submitted: the earlier steps.
        if done.iter().any(|c| c.token == u64::MAX && c.status.is_ok()) {
            model.flush();
        }
        for c in done.iter().filter(|c| c.token != u64::MAX) {
            let write = &step.writes[c.token as usize];
            model.write(write, version, c.status.is_ok() && (write.fua || !dev.limits().write_cache));
        }
        if sim.is_off() {
            break;
        }
        let mut now = vec![0; SECTORS * 512];
        dev.content().read(Sector::ZERO, &mut now);
        for (sector, (got, versions)) in now.chunks(512).zip(&model.sectors).enumerate() {
            assert_eq!(got, versions.last().unwrap(), "sector {sector} before the cut");
        }
    }
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_power_cut_leaves_what_it_may(
        steps in prop::collection::vec(step(), 1..12),
        seed: u64,
        cut in prop::option::of(1u64..30),
        cached in prop::bool::weighted(0.9),
    ) {
        let sim = Sim::new(seed);
        let mut options = SimOptions::new(Sectors::new(SECTORS as u64));
        options.limits.write_cache = cached;
        let dev = Arc::new(SimDevice::new(&sim, options.clone()));
        if let Some(n) = cut {
            sim.cut_at_write(n);
        }
        let model = run(&sim, &dev, &steps);
        let image = sim.power_cut().remove(0);
        let next = Sim::new(seed);
        let io = BlockingIo::new(&next.domain(), Arc::new(SimDevice::with_image(&next, options, image))).unwrap();
        let mut after = vec![0; SECTORS * 512];
        io.read(Sector::ZERO, &mut after).unwrap();
        for (sector, (got, versions)) in after.chunks(512).zip(&model.sectors).enumerate() {
            prop_assert!(versions.iter().any(|v| v == got), "sector {} after the cut", sector);
        }
    }
}
