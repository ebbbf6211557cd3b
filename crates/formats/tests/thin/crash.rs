//! The power goes at every write, and every write fails: afterwards the metadata are those of the last commit, or of
//! the one that was under way; never others.

use udm_formats::thin::{Error, Geometry, Metadata, Options, REMAINS};
use udm_pdata::block_on;

use crate::audit::audit;
use crate::disk::{Disk, Rng};
use crate::model::{DATA_BLOCK, Op, Pair, State, script};
use crate::oracle::thin_check;

const DATA_BLOCKS: u64 = 5000;
const OPTIONS: Options = Options { read_only: false, cache_bytes: 1 << 20 };
const SCRIPTS: u64 = 4;
const OPS: usize = 30;

fn pair() -> Pair {
    Pair::new(400, DATA_BLOCKS, OPTIONS)
}

/// Commits often, and never in the middle of a deletion, where the model does not know what is left.
fn ops(seed: u64) -> Vec<Op> {
    let mut ops =
        vec![Op::CreateThin(0), Op::Write(0, 0, 300), Op::Commit, Op::CreateSnap(1, 0), Op::Write(0, 100, 20)];
    for op in script(seed, OPS) {
        match op {
            Op::Delete(dev, _) => ops.push(Op::Delete(dev, false)),
            // Opening again over a device that fails is another test's.
            Op::Reopen => ops.push(Op::Commit),
            other => ops.push(other),
        }
    }
    ops.push(Op::Commit);
    ops
}

/// Applies `ops` until one fails, and returns its number.
fn until_error(pair: &mut Pair, ops: &[Op]) -> Option<(usize, Error)> {
    ops.iter().enumerate().find_map(|(i, op)| pair.apply(op).err().map(|error| (i, error)))
}

/// What may be found when `failed` was under way.
fn allowed(pair: &Pair, failed: &Op) -> Vec<State> {
    match failed {
        Op::Commit | Op::ReserveSnap => vec![pair.committed.clone(), pair.state.clone()],
        _ => vec![pair.committed.clone()],
    }
}

fn find(allowed: Vec<State>, disk: &Disk, place: &str) -> State {
    let contents = audit(&disk.image());
    let found = allowed.into_iter().find(|state| state.is(&contents));
    found.unwrap_or_else(|| panic!("{place}: neither the old nor the new transaction: {contents:#?}"))
}

fn power_cuts(seed: u64) {
    let ops = ops(seed);
    let mut whole = pair();
    let before = whole.disk.writes();
    assert!(until_error(&mut whole, &ops).is_none(), "without a fault nothing fails");
    let writes = whole.disk.writes() - before;
    let mut rng = Rng::new(seed);
    for cut in 0..writes {
        let place = format!("script {seed}, power cut at write {cut} of {writes}");
        let mut pair = pair();
        pair.disk.cut_at(cut);
        let (i, _) = until_error(&mut pair, &ops).unwrap_or_else(|| panic!("{place}: nothing failed"));
        let disk = pair.disk.after_power_cut(&mut rng);
        let state = find(allowed(&pair, &ops[i]), &disk, &place);
        if rng.one_in(40) {
            thin_check(&disk.image());
        }

        // It opens, and can be worked with.
        let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: 1 << 30 };
        let metadata =
            block_on(Metadata::open(disk.io(), &geometry, OPTIONS)).unwrap_or_else(|e| panic!("{place}: {e}"));
        let mut after = Pair { disk, metadata, committed: state.clone(), state, options: OPTIONS };
        for op in [Op::CreateThin(5), Op::Write(5, 7, 30), Op::Remove(0, 50, 150), Op::Commit] {
            after.apply(&op).unwrap_or_else(|error| panic!("{place}: then {op:?}: {error}"));
        }
        after.compare_disk();
    }
}

#[test]
fn a_power_cut_at_any_write_leaves_the_old_or_the_new_transaction() {
    (0..SCRIPTS).for_each(power_cuts);
}

fn failed_writes(seed: u64) {
    let ops = ops(seed);
    let mut whole = pair();
    let before = whole.disk.writes();
    assert!(until_error(&mut whole, &ops).is_none(), "without a fault nothing fails");
    let writes = whole.disk.writes() - before;
    for fail in 0..writes {
        let place = format!("script {seed}, write {fail} of {writes} fails");
        let mut pair = pair();
        pair.disk.fail_at(fail);
        let (i, _) = until_error(&mut pair, &ops).unwrap_or_else(|| panic!("{place}: nothing failed"));
        block_on(pair.metadata.abort()).unwrap_or_else(|error| panic!("{place}: abort: {error}"));
        let state = find(allowed(&pair, &ops[i]), &pair.disk, &place);
        (pair.committed, pair.state) = (state.clone(), state);
        pair.compare();
        for op in &ops[i..] {
            pair.apply(op).unwrap_or_else(|error| panic!("{place}: later, {op:?}: {error}"));
        }
        pair.compare_disk();
    }
}

#[test]
fn a_failed_write_is_an_error_and_an_abort_brings_the_last_transaction_back() {
    (0..SCRIPTS).for_each(failed_writes);
}

#[test]
fn after_a_failed_write_everything_fails_until_the_abort() {
    let mut pair = pair();
    pair.apply(&Op::CreateThin(0)).unwrap();
    pair.disk.fail_at(0);
    block_on(pair.metadata.commit()).unwrap_err();
    block_on(pair.metadata.commit()).unwrap_err();
    block_on(pair.metadata.create_thin(1)).unwrap_err();
    block_on(pair.metadata.alloc_data_block()).unwrap_err();
    block_on(pair.metadata.abort()).unwrap();
    pair.state = pair.committed.clone();
    pair.compare();
    pair.apply(&Op::CreateThin(1)).unwrap();
    pair.apply(&Op::Commit).unwrap();
    pair.compare_disk();
}

#[test]
fn an_abort_that_cannot_read_leaves_metadata_that_always_fail() {
    let mut pair = pair();
    pair.apply(&Op::CreateThin(0)).unwrap();
    pair.disk.cut_at(0);
    block_on(pair.metadata.commit()).unwrap_err();
    block_on(pair.metadata.abort()).unwrap_err();
    assert!(pair.metadata.is_failed());
    assert!(matches!(block_on(pair.metadata.commit()), Err(Error::Failed)));
    assert!(matches!(block_on(pair.metadata.find(0, 0)), Err(Error::Failed)));
    assert!(matches!(block_on(pair.metadata.abort()), Err(Error::Failed)));
}

/// The device is there as a whole, or gone; then what it has left is found.
#[test]
fn a_power_cut_while_a_device_is_deleted_in_parts_leaves_all_or_nothing_of_it() {
    let setup =
        [Op::CreateThin(1), Op::Write(1, 0, 9000), Op::CreateThin(2), Op::Write(2, 0, 300), Op::CreateSnap(3, 1)];
    let mut rng = Rng::new(9);
    let mut parts = 0;
    for cut in (0..).step_by(7) {
        let mut pair = Pair::new(1024, 20_000, OPTIONS);
        for op in setup.iter().chain(&[Op::Write(3, 0, 9000), Op::Commit]) {
            pair.apply(op).expect("a healthy device");
        }
        pair.disk.cut_at(cut);
        let done = pair.apply(&Op::Delete(3, true)).is_ok();
        let disk = pair.disk.after_power_cut(&mut rng);
        let before = pair.committed.devices.get(&3).map(|(_, blocks)| blocks.clone()).unwrap_or_default();
        let mut others = pair.committed.devices.clone();
        others.remove(&3);
        let mut contents = audit(&disk.image());
        let whole = contents.devices.remove(&3);
        if let Some((_, blocks)) = &whole {
            assert!(!done && *blocks == before, "all of it");
        }
        let left = contents.devices.remove(&REMAINS);
        if let Some((_, left)) = &left {
            assert!(whole.is_none() && left.len() < before.len(), "the rest of it");
            assert!(left.iter().all(|(block, value)| before.get(block) == Some(value)), "nothing else is mapped");
            parts += 1;
        }
        assert_eq!(contents.devices, others, "the others are untouched");
        if done {
            assert!(left.is_none());
            break;
        }

        let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: 20_000 };
        let mut metadata = block_on(Metadata::open(disk.io(), &geometry, OPTIONS)).expect("it opens");
        let mut deletion = match whole {
            Some(_) => Some(block_on(metadata.delete(3)).expect("it is there")),
            None => block_on(metadata.remains()).expect("what is left"),
        };
        if let Some(deletion) = &mut deletion {
            while !block_on(deletion.step(&mut metadata)).expect("a step") {}
            block_on(metadata.commit()).expect("a commit");
        }
        assert_eq!(audit(&disk.image()).devices, others);
    }
    assert!(parts > 0, "some cut fell into the middle");
}

#[test]
fn a_power_cut_while_formatting_leaves_no_pool_or_a_whole_one() {
    let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: DATA_BLOCKS };
    let mut rng = Rng::new(3);
    for cut in 0.. {
        let disk = Disk::new(256);
        disk.cut_at(cut);
        let done = block_on(Metadata::open_or_format(disk.io(), &geometry, OPTIONS)).is_ok();
        let disk = disk.after_power_cut(&mut rng);
        match block_on(Metadata::open(disk.io(), &geometry, OPTIONS)) {
            Ok(_) => drop(audit(&disk.image())),
            Err(Error::Unformatted) => assert!(!done, "a pool that was formatted is there"),
            Err(error) => panic!("cut at {cut}: {error}"),
        }
        if done {
            return;
        }
    }
}
