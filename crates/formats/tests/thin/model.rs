//! Random operations on [`Metadata`] and on a map of maps; after each commit both say the same, everything that is
//! referred to is counted, and thin_check finds nothing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use udm_base::Sectors;
use udm_formats::thin::{BlockTime, Details, Error, Geometry, Mapping, Metadata, Options};
use udm_pdata::block_on;

use crate::audit::{Contents, Devices, audit};
use crate::disk::Disk;
use crate::oracle::thin_check;

/// What a pool is, as a reader of the manual imagines it.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) time: u32,
    pub(crate) trans_id: u64,
    pub(crate) data_blocks: u64,
    pub(crate) devices: Devices,
    pub(crate) held: Option<Devices>,
}

impl State {
    /// Data blocks that somebody refers to.
    pub(crate) fn used(&self) -> BTreeSet<u64> {
        let all = self.devices.values().chain(self.held.iter().flat_map(|held| held.values()));
        all.flat_map(|(_, blocks)| blocks.values().map(|value| value.block)).collect()
    }

    /// Whether an image says this.
    pub(crate) fn is(&self, contents: &Contents) -> bool {
        (self.time, self.trans_id, self.data_blocks) == (contents.time, contents.trans_id, contents.data_blocks)
            && self.devices == contents.devices
            && self.held == contents.held
            && self.used().iter().eq(contents.data.keys())
    }
}

/// What a test does to a pool.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    CreateThin(u32),
    CreateSnap(u32, u32),
    /// Deletes; the flag commits after each step.
    Delete(u32, bool),
    /// Writes to so many blocks from one on: maps what is unmapped or shared.
    Write(u32, u64, u64),
    Remove(u32, u64, u64),
    SetTransactionId(u64),
    ReserveSnap,
    ReleaseSnap,
    GrowData(u64),
    Commit,
    Abort,
    /// Drops everything in memory and opens again.
    Reopen,
}

/// A pool, what it should be, and what it should be after a power cut.
pub(crate) struct Pair {
    pub(crate) disk: Disk,
    pub(crate) metadata: Metadata,
    pub(crate) state: State,
    pub(crate) committed: State,
    pub(crate) options: Options,
}

pub(crate) const DATA_BLOCK: Sectors = Sectors::new(128);

impl Pair {
    pub(crate) fn new(metadata_blocks: u64, data_blocks: u64, options: Options) -> Self {
        let disk = Disk::new(metadata_blocks);
        let geometry = Geometry { data_block: DATA_BLOCK, data_blocks };
        let metadata = block_on(Metadata::open_or_format(disk.io(), &geometry, options)).expect("a new pool");
        let state = State { data_blocks, ..State::default() };
        Self { disk, metadata, committed: state.clone(), state, options }
    }

    /// Does `op` to both. What the pool refuses, the model must find wrong.
    ///
    /// # Errors
    /// Those that are no refusal: the device failed, or space ran out.
    pub(crate) fn apply(&mut self, op: &Op) -> Result<(), Error> {
        match self.try_apply(op) {
            Err(error) if error.is_refusal() => {
                assert!(self.is_wrong(op), "{op:?} was refused: {error}");
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    fn is_wrong(&self, op: &Op) -> bool {
        let there = |dev: &u32| self.state.devices.contains_key(dev);
        match op {
            Op::CreateThin(dev) => there(dev),
            Op::CreateSnap(dev, origin) => there(dev) || !there(origin),
            Op::Delete(dev, _) | Op::Write(dev, ..) | Op::Remove(dev, ..) => !there(dev),
            Op::ReserveSnap => self.state.held.is_some(),
            Op::ReleaseSnap => self.state.held.is_none(),
            _ => false,
        }
    }

    fn details(&self) -> Details {
        let State { time, trans_id, .. } = self.state;
        Details { mapped_blocks: 0, transaction_id: trans_id, creation_time: time, snapshotted_time: time }
    }

    fn try_apply(&mut self, op: &Op) -> Result<(), Error> {
        match *op {
            Op::CreateThin(dev) => {
                block_on(self.metadata.create_thin(dev))?;
                let new = (self.details(), BTreeMap::new());
                assert!(self.state.devices.insert(dev, new).is_none(), "{dev} was there");
            }
            Op::CreateSnap(dev, origin) => {
                block_on(self.metadata.create_snap(dev, origin))?;
                self.state.time += 1;
                let mut new = (self.details(), BTreeMap::new());
                let (details, blocks) = self.state.devices.get_mut(&origin).expect("the origin is there");
                details.snapshotted_time = self.state.time;
                new.0.mapped_blocks = details.mapped_blocks;
                new.1 = blocks.clone();
                assert!(self.state.devices.insert(dev, new).is_none(), "{dev} was there");
            }
            Op::Delete(dev, commit) => {
                let mut deletion = block_on(self.metadata.delete(dev))?;
                while !block_on(deletion.step(&mut self.metadata))? {
                    if commit {
                        block_on(self.metadata.commit())?;
                        // What is left of the device is on disk now.
                        audit(&self.disk.image());
                    }
                }
                self.state.devices.remove(&dev).expect("it was there");
                // In between, the transaction id and the others were committed too; what is left to compare is the end.
                if commit {
                    self.commit()?;
                }
            }
            Op::Write(dev, from, len) => {
                for block in from..from + len {
                    self.write(dev, block)?;
                }
            }
            Op::Remove(dev, from, to) => {
                let removed = block_on(self.metadata.remove_range(dev, from, to))?;
                let (details, blocks) = self.state.devices.get_mut(&dev).expect("it is there");
                let gone: Vec<u64> = blocks.range(from..to.max(from)).map(|(block, _)| *block).collect();
                gone.iter().for_each(|block| _ = blocks.remove(block));
                details.mapped_blocks -= gone.len() as u64;
                assert_eq!(removed, gone.len() as u64);
            }
            Op::SetTransactionId(new) => {
                let wrong = self.metadata.set_transaction_id(self.state.trans_id + 1, new);
                assert!(matches!(wrong, Err(Error::TransactionId { .. })));
                self.metadata.set_transaction_id(self.state.trans_id, new)?;
                self.state.trans_id = new;
            }
            Op::ReserveSnap => {
                block_on(self.metadata.reserve_snap())?;
                self.committed = self.state.clone();
                self.state.held = Some(self.state.devices.clone());
            }
            Op::ReleaseSnap => {
                block_on(self.metadata.release_snap())?;
                self.state.held.take().expect("one was held");
            }
            Op::GrowData(by) => {
                block_on(self.metadata.resize_data(self.state.data_blocks + by))?;
                self.state.data_blocks += by;
            }
            Op::Commit => self.commit()?,
            Op::Abort => {
                block_on(self.metadata.abort())?;
                self.state = self.committed.clone();
            }
            Op::Reopen => self.reopen(),
        }
        Ok(())
    }

    pub(crate) fn reopen(&mut self) {
        self.state = self.committed.clone();
        let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: self.state.data_blocks + 1 };
        self.metadata = block_on(Metadata::open(self.disk.io(), &geometry, self.options)).expect("it opens");
    }

    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        block_on(self.metadata.commit())?;
        self.committed = self.state.clone();
        Ok(())
    }

    fn write(&mut self, dev: u32, block: u64) -> Result<(), Error> {
        let expected = self.state.devices.get(&dev).and_then(|(details, blocks)| {
            let value = blocks.get(&block)?;
            Some(Mapping { data: value.block, shared: details.snapshotted_time > value.time })
        });
        let found = block_on(self.metadata.find(dev, block))?;
        assert_eq!(found, expected, "device {dev}, block {block}");
        if found.is_some_and(|mapping| !mapping.shared) {
            return Ok(());
        }
        let Some(data) = block_on(self.metadata.alloc_data_block())? else {
            // A block is only given out that was free at the last commit, too.
            let used = self.state.used().union(&self.committed.used()).count() as u64;
            assert_eq!(used, self.state.data_blocks, "no block is free");
            return Ok(());
        };
        assert!(data < self.state.data_blocks);
        block_on(self.metadata.insert(dev, block, data))?;
        let (details, blocks) = self.state.devices.get_mut(&dev).expect("it was found");
        if blocks.insert(block, BlockTime { block: data, time: self.state.time }).is_none() {
            details.mapped_blocks += 1;
        }
        Ok(())
    }

    /// Holds everything that can be asked against the model.
    pub(crate) fn compare(&mut self) {
        let devices = block_on(self.metadata.devices()).expect("devices");
        let expected: Vec<_> = self.state.devices.iter().map(|(dev, (details, _))| (*dev, *details)).collect();
        assert_eq!(devices, expected);
        assert_eq!(self.metadata.transaction_id(), self.state.trans_id);
        assert_eq!(self.metadata.data_blocks(), self.state.data_blocks);
        assert_eq!(self.metadata.data_free(), self.state.data_blocks - self.state.used().len() as u64);
        assert_eq!(self.metadata.snap_root().is_some(), self.state.held.is_some());
        let devices = self.state.devices.clone();
        for (dev, (details, blocks)) in &devices {
            assert_eq!(block_on(self.metadata.details(*dev)).expect("details"), *details);
            let mapping =
                |value: &BlockTime| Mapping { data: value.block, shared: details.snapshotted_time > value.time };
            let highest = block_on(self.metadata.highest_mapped(*dev)).expect("a highest block");
            assert_eq!(highest, blocks.keys().next_back().copied());

            // The whole device leaf by leaf.
            let (mut at, mut found) = (0, Vec::new());
            loop {
                let before = found.len();
                let covered = block_on(self.metadata.leaf(*dev, at, &mut found)).expect("a leaf");
                assert!(covered.contains(&at), "{covered:?} around {at}");
                assert!(found[before..].iter().all(|(block, _)| covered.contains(block)));
                if covered.end == u64::MAX {
                    break;
                }
                at = covered.end;
            }
            let expected: Vec<_> = blocks.iter().map(|(block, value)| (*block, mapping(value))).collect();
            assert_eq!(found, expected, "device {dev} leaf by leaf");

            // And run by run.
            let (mut at, mut found) = (0, Vec::new());
            while let Some(run) = block_on(self.metadata.mapped_range(*dev, at, u64::MAX)).expect("a run") {
                assert!(run.from >= at && run.from < run.to);
                let shared = run.shared;
                found.extend((run.from..run.to).map(|b| (b, Mapping { data: run.data + b - run.from, shared })));
                at = run.to;
            }
            assert_eq!(found, expected, "device {dev} run by run");
        }
    }

    /// Holds what is on disk against what was committed.
    pub(crate) fn compare_disk(&self) {
        let contents = audit(&self.disk.image());
        assert!(self.committed.is(&contents), "on disk: {contents:#?}\ncommitted: {:#?}", self.committed);
    }
}

fn device() -> impl Strategy<Value = u32> {
    prop_oneof![0..6u32, Just(0xff_ffff)]
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // Few places, so that they meet; runs longer than a leaf.
    let from = prop_oneof![0..40u64, (0..30u64).prop_map(|n| n * 100), Just((1 << 40) - 5)];
    (from, prop_oneof![3 => 1..20u64, 1 => 200..700u64])
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => device().prop_map(Op::CreateThin),
        6 => (device(), device()).prop_map(|(dev, origin)| Op::CreateSnap(dev, origin)),
        2 => (device(), any::<bool>()).prop_map(|(dev, commit)| Op::Delete(dev, commit)),
        16 => (device(), range()).prop_map(|(dev, (from, len))| Op::Write(dev, from, len)),
        6 => (device(), range()).prop_map(|(dev, (from, len))| Op::Remove(dev, from, from + len)),
        1 => (device(), 0..700u64).prop_map(|(dev, from)| Op::Remove(dev, from, u64::MAX)),
        1 => any::<u64>().prop_map(|id| Op::SetTransactionId(id >> 1)),
        1 => Just(Op::ReserveSnap),
        1 => Just(Op::ReleaseSnap),
        1 => (1..20_000u64).prop_map(Op::GrowData),
        6 => Just(Op::Commit),
        1 => Just(Op::Abort),
        1 => Just(Op::Reopen),
    ]
}

/// A script, for the tests of power cuts.
pub(crate) fn script(seed: u64, len: usize) -> Vec<Op> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    proptest::collection::vec(op(), len).new_tree(&mut runner).expect("a script").current()
}

/// Runs `ops` on a small pool; thin_check looks after each commit, or at the end.
fn run(ops: &[Op], cache_bytes: usize, check_each: bool) {
    let mut pair = Pair::new(1024, 5000, Options { read_only: false, cache_bytes });
    pair.apply(&Op::CreateThin(0)).expect("a first device");
    for op in ops {
        match pair.apply(op) {
            Ok(()) => {}
            Err(Error::Data(udm_pdata::Error::NoSpace(udm_pdata::Space::Metadata))) => {
                pair.apply(&Op::Abort).expect("an abort after space ran out");
            }
            Err(error) => panic!("{op:?}: {error}"),
        }
        if matches!(op, Op::Commit) {
            pair.compare_disk();
            if check_each {
                thin_check(&pair.disk.image());
            }
        }
    }
    pair.compare();
    pair.apply(&Op::Commit).expect("a last commit");
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
    pair.reopen();
    pair.compare();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn metadata_is_a_map_of_maps(ops in proptest::collection::vec(op(), 1..60)) {
        run(&ops, 16 << 20, false);
    }

    #[test]
    fn so_it_is_with_hardly_a_cache(ops in proptest::collection::vec(op(), 1..60)) {
        run(&ops, 0, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn thin_check_is_content_after_every_commit(ops in proptest::collection::vec(op(), 20..60)) {
        run(&ops, 1 << 20, true);
    }
}
