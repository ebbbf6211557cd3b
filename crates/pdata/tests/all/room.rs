//! Metadata that fill up: what has room can be done, and committed.

use crate::support::world::{Made, Op, World};
use crate::support::{Chance, Fat, Mapped};
use udm_pdata::{Error, Needs, block_on};

/// One entry put in or taken out of a tree of a few levels, all of which may be shared.
const CHANGE: Needs = Needs { nodes: 3 * 5 + 2, data: 2 + 252, metadata: 4 * 252 };

fn op(chance: &mut Chance) -> Op {
    let (tree, key) = (chance.below(8) as usize, chance.below(3000));
    match chance.below(32) {
        0..20 => Op::Insert { tree, key, run: 1 },
        20..22 => Op::Remove { tree, key, run: 1 },
        22..24 => Op::RemoveRange { tree, from: key, len: 1 + chance.below(3), budget: 1 },
        24 => Op::Clone { tree },
        25 => Op::Extend { metadata: chance.below(2), data: 0 },
        26 => Op::Reopen,
        _ => Op::Commit,
    }
}

/// Without a look at all that is on the disk, which takes a hundred times as long.
fn commit<V: Made>(world: &mut World<V>) -> Result<(), Error> {
    world.now.number += 1;
    crate::support::commit(&mut world.store, &world.now)?;
    world.committed = (world.now.clone(), world.trees.clone());
    Ok(())
}

/// Changes trees until nothing has room any more, however often it is committed. How many blocks are left then.
fn fill<V: Made>(blocks: u64, seed: u64, commits: bool) -> u64 {
    let mut chance = Chance(seed);
    let mut world = World::<V>::new(0, blocks, 40_000);
    let mut refused = 0;
    while refused < 20 {
        let op = op(&mut chance);
        let frees = matches!(op, Op::Commit | Op::Reopen | Op::Extend { .. });
        if frees && !commits {
            continue;
        }
        if !frees && !world.store.has_room(&CHANGE) {
            commit(&mut world).unwrap_or_else(|e| panic!("{blocks} blocks, seed {seed}, commit: {e}"));
            if !world.store.has_room(&CHANGE) {
                refused += 1;
                continue;
            }
        }
        let done = if matches!(op, Op::Commit) { commit(&mut world) } else { block_on(world.run(&op)) };
        match done {
            Ok(()) => {}
            Err(Error::NoSpace(space)) => panic!("{blocks} blocks, seed {seed}, {op:?}: no free {space} block"),
            Err(e) => panic!("{blocks} blocks, seed {seed}, {op:?}: {e}"),
        }
    }
    block_on(world.run(&Op::Commit)).unwrap();
    world.store.nr_free()
}

/// Each size has its end at another place of what is done, and each seed does something else.
#[test]
fn what_has_room_can_be_committed_wherever_the_space_ends() {
    let mut most = 0;
    for blocks in 60..120 {
        most = most.max(fill::<Fat>(blocks, blocks, blocks % 2 == 0));
    }
    assert!(most < 60, "so much is left: {most}");
    for blocks in [60, 77, 100] {
        fill::<Mapped>(blocks, blocks, blocks % 2 == 0);
    }
}
