//! Power cuts and failing devices. The write of block 0, the superblock, is taken to be whole or not there, as the
//! kernel takes it; of all other writes that no flush covers, anything may be there.

use std::collections::BTreeMap;

use crate::support::world::{Op, World, op};
use crate::support::{Chance, Cut, Disk, Fat, check, read_super};
use udm_pdata::{Block, Error, block_on};

/// What may be on the disk after the power was cut: by `way`, none, all, or some of what was not flushed, in any order,
/// torn at sectors.
fn after_cut(cut: &Cut, way: u64, chance: &mut Chance) -> BTreeMap<u64, Box<Block>> {
    let mut disk = cut.durable.clone();
    let mut writes: Vec<_> = cut.pending.iter().collect();
    if way > 1 {
        for i in (1..writes.len()).rev() {
            writes.swap(i, chance.below(i as u64 + 1) as usize);
        }
    }
    for (at, block) in writes {
        let (kept, torn) = match way {
            0 => (false, false),
            1 => (true, false),
            _ => (chance.below(2) == 0, *at != 0 && chance.below(2) == 0),
        };
        if !kept {
            continue;
        }
        let there = disk.entry(*at).or_insert_with(Block::zeroed);
        for sector in 0..8 {
            if !torn || chance.below(2) == 0 {
                let bytes = sector * 512..sector * 512 + 512;
                there.0[bytes.clone()].copy_from_slice(&block.0[bytes]);
            }
        }
    }
    disk
}

/// Runs operations by chance, and looks at every state that the power could have been cut in.
fn cuts(seed: u64, ops: usize) -> usize {
    let mut chance = Chance(seed);
    let mut world = World::<Fat>::new(0, 900, 3000);
    let mut points = 0;
    for _ in 0..ops {
        let op = op(&mut chance);
        let before = world.committed.clone();
        world.io.disk().steps = Some(Vec::new());
        match block_on(world.run(&op)) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => block_on(world.run(&Op::Abort)).unwrap(),
            Err(error) => panic!("seed {seed}, {op:?}: {error}"),
        }
        let steps = world.io.disk().steps.take().unwrap();
        for cut in &steps {
            for way in 0..4 {
                points += 1;
                let disk = Disk { durable: after_cut(cut, way, &mut chance), ..Disk::default() };
                let (what, trees) = check::<Fat>(&disk);
                let expected = if what == before.0 { &before } else { &world.committed };
                assert_eq!(what, expected.0, "seed {seed}: neither the old nor the new state");
                for (found, model) in trees.iter().zip(&expected.1) {
                    assert!(
                        found.iter().map(|(k, v)| (*k, v.0)).eq(model.iter().map(|(k, v)| (*k, *v))),
                        "seed {seed}"
                    );
                }
            }
        }
    }
    points
}

#[test]
fn every_power_cut_leaves_the_old_or_the_new_state() {
    let points: usize = (0..4).map(|seed| cuts(seed, 20)).sum();
    assert!(points > 100, "{points} points");
}

/// Runs a script on a device that fails from its `n`-th operation on; whether it ran out before.
fn failing(seed: u64, n: u64) -> bool {
    let mut chance = Chance(seed);
    let mut world = World::<Fat>::new(0, 900, 3000);
    for _ in 0..4 {
        let op = op(&mut chance);
        block_on(world.run(&op)).unwrap();
    }
    block_on(world.run(&Op::Commit)).unwrap();
    world.io.disk().fail_in = Some(n + 1);
    for i in 0..20 {
        let op = match i % 8 {
            0 => Op::Reopen,
            4 | 7 => Op::Commit,
            _ => op(&mut chance),
        };
        let before = world.committed.clone();
        let Err(error) = block_on(world.run(&op)) else { continue };
        assert!(matches!(error, Error::Read { .. } | Error::Write(_)), "{error}");
        world.io.disk().fail_in = None;
        let reading = matches!(op, Op::Look { .. } | Op::Reopen);
        if !reading {
            let refused = block_on(world.store.data_alloc());
            assert_eq!(refused, Err(Error::Poisoned), "{op:?}");
        }
        if block_on(world.run(&Op::Abort)).is_err() {
            // The superblock's own write failed: what is on the disk decides.
            let (what, _) = read_super(&world.io.get(0)).unwrap();
            if what == before.0 {
                world.committed = before;
            } else {
                world.committed = (world.now.clone(), world.trees.clone());
                assert_eq!(what, world.committed.0);
            }
            block_on(world.run(&Op::Reopen)).unwrap();
        }
        world.check();
        // And it goes on.
        for _ in 0..5 {
            let op = crate::support::world::op(&mut chance);
            block_on(world.run(&op)).unwrap();
        }
        block_on(world.run(&Op::Commit)).unwrap();
        return false;
    }
    true
}

#[test]
fn a_device_that_fails_at_any_point_loses_no_commit() {
    let mut points = 0;
    for seed in 0..3 {
        let mut n = 0;
        while !failing(seed, n) {
            n += 1;
        }
        points += n;
    }
    assert!(points > 100, "{points} operations");
}
