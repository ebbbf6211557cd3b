//! Rules of thin metadata that random operations meet too seldom.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use udm_formats::thin::superblock::{Disk as Fields, LOCATION, SALT};
use udm_formats::thin::{Error, Geometry, MAX_TIME, Metadata, Options, REMAINS};
use udm_pdata::layout::checksum;
use udm_pdata::{Block, BlockIo, IoFuture, Space, block_on};
use zerocopy::FromBytes;

use crate::audit::audit;
use crate::disk::Disk;
use crate::model::{DATA_BLOCK, Op, Pair};
use crate::oracle::thin_check;

fn apply(pair: &mut Pair, ops: &[Op]) {
    for op in ops {
        pair.apply(op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

#[test]
fn a_data_block_that_was_freed_waits_for_the_commit() {
    let mut pair = Pair::new(256, 10, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 10), Op::Commit, Op::Remove(1, 0, 4)]);
    assert_eq!(pair.metadata.data_free(), 4);
    assert_eq!(block_on(pair.metadata.alloc_data_block()).unwrap(), None, "the disk still leads to all ten");
    apply(&mut pair, &[Op::Commit]);
    let again: Vec<_> = (0..4).map(|_| block_on(pair.metadata.alloc_data_block()).unwrap().unwrap()).collect();
    assert_eq!(again, [0, 1, 2, 3]);
    assert_eq!(block_on(pair.metadata.alloc_data_block()).unwrap(), None);
}

#[test]
fn a_data_block_that_was_given_out_and_freed_in_one_transaction_is_not_lost() {
    let mut pair = Pair::new(256, 10, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Commit]);
    for _ in 0..5 {
        apply(&mut pair, &[Op::Write(1, 0, 6), Op::Remove(1, 0, 6), Op::Commit]);
        assert_eq!(pair.metadata.data_free(), 10);
    }
    apply(&mut pair, &[Op::Write(1, 0, 10), Op::Commit]);
    pair.compare();
    pair.compare_disk();
}

#[test]
fn the_reserve_is_enough_to_commit_when_no_metadata_are_reported_free() {
    let mut pair = Pair::new(200, 100_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Commit]);
    let mut block = 0;
    let mut low = false;
    while pair.metadata.metadata_free() > 0 {
        low |= pair.metadata.metadata_low();
        apply(&mut pair, &[Op::Write(1, block * 1000, 3)]);
        block += 1;
    }
    assert!(low, "the threshold comes before the end");
    apply(&mut pair, &[Op::Commit]);
    pair.compare_disk();
    thin_check(&pair.disk.image());

    // Beyond the reserve it fails, and the abort brings the pool back.
    let full = loop {
        let data = match block_on(pair.metadata.alloc_data_block()) {
            Ok(data) => data.expect("there are enough"),
            Err(error) => break error,
        };
        match block_on(pair.metadata.insert(1, block * 1000, data)) {
            Ok(()) => block += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Data(udm_pdata::Error::NoSpace(Space::Metadata))), "{full}");
    assert!(pair.metadata.is_in_doubt());
    block_on(pair.metadata.commit()).unwrap_err();
    block_on(pair.metadata.abort()).unwrap();
    pair.compare();

    // Growing helps.
    pair.disk.grow(2000);
    block_on(pair.metadata.resize_metadata(2000)).unwrap();
    assert!(pair.metadata.metadata_free() > 1000 && !pair.metadata.metadata_low());
    apply(&mut pair, &[Op::Write(1, 0, 3000), Op::Commit]);
    assert_eq!(pair.metadata.metadata_blocks(), 2000);
    pair.compare_disk();
    thin_check(&pair.disk.image());
    pair.reopen();
    pair.compare();
}

#[test]
fn metadata_grow_over_several_bitmaps() {
    let mut pair = Pair::new(300, 40_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 500)]);
    // 16320 blocks a bitmap.
    for blocks in [301, 16_320, 16_321, 40_000] {
        pair.disk.grow(blocks);
        block_on(pair.metadata.resize_metadata(blocks)).unwrap();
        apply(&mut pair, &[Op::Write(1, blocks, 300), Op::Commit]);
        pair.compare_disk();
    }
    thin_check(&pair.disk.image());
    pair.reopen();
    pair.compare();
    // What is resized and not committed is not.
    pair.disk.grow(50_000);
    block_on(pair.metadata.resize_metadata(50_000)).unwrap();
    block_on(pair.metadata.abort()).unwrap();
    assert_eq!(pair.metadata.metadata_blocks(), 40_000);
    pair.compare();
}

#[test]
fn the_clock_stops_before_it_overwrites_block_numbers() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 3), Op::Commit]);
    pair.disk.patch(LOCATION, |block| {
        Fields::mut_from_prefix(&mut block.0).expect("a superblock").0.time.set(MAX_TIME - 1);
        let sum = checksum(block, SALT);
        block.0[..4].copy_from_slice(&sum.to_le_bytes());
    });
    (pair.state.time, pair.committed.time) = (MAX_TIME - 1, MAX_TIME - 1);
    pair.reopen();
    apply(&mut pair, &[Op::CreateSnap(2, 1), Op::Write(2, 0, 2), Op::Commit]);
    assert_eq!(pair.metadata.time(), MAX_TIME);
    assert!(matches!(block_on(pair.metadata.create_snap(3, 1)), Err(Error::Clock)));
    apply(&mut pair, &[Op::CreateThin(3), Op::Write(3, 5, 5), Op::Commit]);
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
}

#[test]
fn a_device_remembers_that_its_changes_were_aborted() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::CreateThin(2)]);
    assert!(pair.metadata.changed_since_commit(1) && pair.metadata.is_dirty());
    apply(&mut pair, &[Op::Commit]);
    assert!(!pair.metadata.changed_since_commit(1) && !pair.metadata.is_dirty());
    apply(&mut pair, &[Op::Write(1, 0, 1)]);
    assert!(pair.metadata.changed_since_commit(1) && !pair.metadata.changed_since_commit(2));
    apply(&mut pair, &[Op::Abort]);
    assert!(pair.metadata.aborted(1) && !pair.metadata.aborted(2));
    assert!(!pair.metadata.changed_since_commit(1) && !pair.metadata.is_dirty());
    apply(&mut pair, &[Op::Write(1, 0, 1), Op::Commit, Op::Abort]);
    assert!(pair.metadata.aborted(1), "until it is closed");
    pair.metadata.close_device(1);
    assert!(!pair.metadata.aborted(1));
}

#[test]
fn closing_a_device_keeps_its_uncommitted_changes() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 7)]);
    pair.metadata.close_device(1);
    pair.compare();
    apply(&mut pair, &[Op::Commit]);
    pair.metadata.close_device(1);
    pair.compare();
    pair.compare_disk();
}

#[test]
fn references_to_data_blocks_can_be_held_over_an_unmapping() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 3), Op::Commit]);
    // As a discard that is passed down.
    block_on(pair.metadata.inc_data(0..3)).unwrap();
    assert!(block_on(pair.metadata.is_shared(1)).unwrap());
    apply(&mut pair, &[Op::Remove(1, 0, 3)]);
    assert!(!block_on(pair.metadata.is_shared(1)).unwrap());
    assert_eq!(block_on(pair.metadata.data_references(1)).unwrap(), 1);
    assert_eq!(pair.metadata.data_free(), 97);
    block_on(pair.metadata.dec_data(0..3)).unwrap();
    assert_eq!(pair.metadata.data_free(), 100);
    apply(&mut pair, &[Op::Commit]);
    pair.compare_disk();
    let error = block_on(pair.metadata.dec_data(5..6)).unwrap_err();
    assert!(error.to_string().contains("reference count of a data block is 0 (block 5)"), "{error}");
    assert!(pair.metadata.is_in_doubt());
}

#[test]
fn unmapping_what_is_not_mapped_makes_nothing_dirty() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 10, 3), Op::Commit]);
    apply(&mut pair, &[Op::Remove(1, 0, 10), Op::Remove(1, 13, u64::MAX), Op::Remove(1, 12, 11)]);
    assert!(!pair.metadata.is_dirty() && !pair.metadata.changed_since_commit(1));
}

#[test]
fn mapping_a_block_to_where_it_is_takes_no_reference() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 3), Op::Commit]);
    let data = pair.state.devices[&1].1[&1].block;
    block_on(pair.metadata.insert(1, 1, data)).unwrap();
    assert_eq!(block_on(pair.metadata.data_references(data)).unwrap(), 1);
    block_on(pair.metadata.commit()).unwrap();
    audit(&pair.disk.image());
}

#[test]
fn a_metadata_snapshot_keeps_everything_as_it_was() {
    let mut pair = Pair::new(2048, 20_000, Options::default());
    for dev in 0..300 {
        apply(&mut pair, &[Op::CreateThin(dev), Op::Write(dev, 0, 3)]);
    }
    apply(&mut pair, &[Op::Write(7, 100, 1500), Op::ReserveSnap, Op::Commit]);
    let held = pair.metadata.snap_root().expect("it was taken");
    assert!(matches!(block_on(pair.metadata.reserve_snap()), Err(Error::SnapHeld(at)) if at == held));
    apply(&mut pair, &[Op::Write(7, 3000, 700), Op::Remove(7, 200, 900), Op::Delete(250, false), Op::Commit]);
    apply(&mut pair, &[Op::CreateSnap(400, 7), Op::Write(400, 0, 40), Op::Delete(7, true), Op::Commit]);
    pair.compare_disk();
    thin_check(&pair.disk.image());
    pair.reopen();
    assert_eq!(pair.metadata.snap_root(), Some(held));
    apply(&mut pair, &[Op::ReleaseSnap, Op::Commit]);
    assert_eq!(pair.metadata.snap_root(), None);
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
    // Taken and given up within one transaction.
    apply(&mut pair, &[Op::ReserveSnap, Op::Write(400, 9000, 3), Op::ReleaseSnap, Op::Commit]);
    pair.compare_disk();
}

#[test]
fn a_metadata_snapshot_commits_a_growth() {
    let mut pair = Pair::new(1024, 5000, Options::default());
    apply(&mut pair, &[Op::CreateThin(0), Op::Commit, Op::GrowData(1), Op::ReserveSnap]);
    pair.compare_disk();
    apply(&mut pair, &[Op::Abort]);
    pair.compare();
}

#[test]
fn a_reference_that_is_held_over_commits_does_not_become_durable_with_a_metadata_snapshot() {
    let mut pair = Pair::new(256, 100, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 3), Op::Commit]);
    block_on(pair.metadata.inc_data(50..60)).unwrap();
    block_on(pair.metadata.reserve_snap()).unwrap();
    // The audit finds no reference that nothing accounts for.
    audit(&pair.disk.image());
    block_on(pair.metadata.dec_data(50..60)).unwrap();
    block_on(pair.metadata.commit()).unwrap();
    assert!(audit(&pair.disk.image()).held.is_some());
}

#[test]
fn many_snapshots_of_one_device() {
    let mut pair = Pair::new(4096, 20_000, Options { cache_bytes: 1 << 20, ..Options::default() });
    apply(&mut pair, &[Op::CreateThin(0), Op::Write(0, 0, 600), Op::Commit]);
    for snap in 1..200 {
        apply(&mut pair, &[Op::CreateSnap(snap, snap / 2), Op::Write(snap, u64::from(snap), 2)]);
    }
    apply(&mut pair, &[Op::Commit]);
    pair.compare_disk();
    thin_check(&pair.disk.image());
    for snap in (0..200).step_by(3) {
        apply(&mut pair, &[Op::Delete(snap, false)]);
    }
    apply(&mut pair, &[Op::Commit]);
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
}

#[test]
fn a_snapshot_that_was_never_written_to_is_deleted_in_one_step() {
    let mut pair = Pair::new(2048, 20_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 9000), Op::CreateSnap(2, 1), Op::Commit]);
    let mut deletion = block_on(pair.metadata.delete(2)).unwrap();
    assert_eq!((deletion.is_over(), deletion.progress()), (true, (0, 9000)));
    assert!(block_on(deletion.step(&mut pair.metadata)).unwrap(), "there is nothing to do");
    let deletion = block_on(pair.metadata.delete(1)).unwrap();
    assert!(!deletion.is_over() && (1..9000).contains(&deletion.progress().0), "this one takes several");
}

/// What is left of deleted devices is nobody's, whoever else is made meanwhile, and is found again.
#[test]
fn a_deleted_device_is_gone_at_once() {
    let mut pair = Pair::new(2048, 40_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 9000), Op::CreateThin(2), Op::Write(2, 0, 9000), Op::Commit]);
    let metadata = &mut pair.metadata;
    let free = metadata.data_free();
    for (dev, new) in [(1, 1), (2, 3)] {
        assert!(!block_on(metadata.delete(dev)).unwrap().is_over());
        let gone = [
            block_on(metadata.delete(dev)).unwrap_err(),
            block_on(metadata.details(dev)).unwrap_err(),
            block_on(metadata.create_snap(7, dev)).unwrap_err(),
        ];
        assert!(gone.iter().all(|e| matches!(e, Error::NoDevice(found) if *found == dev)), "{gone:?}");
        block_on(metadata.create_thin(new)).unwrap();
    }
    assert!(matches!(block_on(metadata.delete(REMAINS)), Err(Error::NoDevice(REMAINS))), "no device's id");
    let ids: Vec<u32> = block_on(metadata.devices()).unwrap().into_iter().map(|(dev, _)| dev).collect();
    assert_eq!(ids, [1, 3]);
    block_on(metadata.commit()).unwrap();
    audit(&pair.disk.image());
    thin_check(&pair.disk.image());
    pair.reopen();
    let metadata = &mut pair.metadata;
    let mut found = 0;
    while let Some(mut left) = block_on(metadata.remains()).unwrap() {
        while !block_on(left.step(metadata)).unwrap() {}
        found += 1;
    }
    block_on(metadata.commit()).unwrap();
    assert_eq!((found, metadata.data_free()), (2, free + 18_000));
    audit(&pair.disk.image());
    thin_check(&pair.disk.image());
}

#[test]
fn opening_reads_a_few_blocks_and_so_does_a_look_up() {
    let mut pair = Pair::new(2048, 100_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 60_000), Op::Commit]);
    let before = pair.disk.reads();
    pair.reopen();
    assert_eq!(pair.disk.reads() - before, 5, "superblock, index, one bitmap, the roots of two trees of counts");
    let before = pair.disk.reads();
    assert!(block_on(pair.metadata.find(1, 30_000)).unwrap().is_some());
    assert_eq!(pair.disk.reads() - before, 4, "details, upper tree, two levels");
    let before = pair.disk.reads();
    assert!(block_on(pair.metadata.find(1, 30_001)).unwrap().is_some());
    assert_eq!(pair.disk.reads(), before, "all is in memory");
}

/// Trap: who asks how far a big device is mapped in a row has all others wait while its whole tree is read.
#[test]
fn a_run_is_looked_for_in_some_leaves_at_a_time() {
    let mut pair = Pair::new(2048, 100_000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 60_000), Op::Commit]);
    pair.reopen();
    let (mut at, mut steps) = (0, 0);
    while let Some(run) = block_on(pair.metadata.mapped_range(1, at, u64::MAX)).unwrap() {
        let before = pair.disk.reads();
        assert_eq!((run.from, run.data), (at, at), "they lie in a row");
        (at, steps) = (run.to, steps + 1);
        let next = block_on(pair.metadata.mapped_range(1, at, u64::MAX)).unwrap();
        assert!(pair.disk.reads() - before <= 2 * 70 && next.is_none_or(|next| next.from == at), "step {steps}");
    }
    assert_eq!(at, 60_000);
    assert!(steps > 2, "{steps} steps");
}

/// A disk whose every answer has to be waited for once.
struct Slow(Disk);

/// Not ready when it is first asked.
struct Later<'a, T>(bool, IoFuture<'a, T>);

impl<T> Future for Later<'_, T> {
    type Output = Result<T, udm_pdata::IoError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.0, true) {
            return Poll::Pending;
        }
        self.1.as_mut().poll(cx)
    }
}

impl BlockIo for Slow {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, at: u64, into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(Later(false, self.0.read(at, into)))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        Box::pin(Later(false, self.0.write(blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(Later(false, self.0.flush()))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(Later(false, self.0.write_fua(at, block)))
    }
}

/// Polls `future` at most `polls` times, then drops it.
fn poll<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    (0..polls).find_map(|_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    })
}

fn send<F: Future + Send>(future: F) -> F {
    future
}

#[test]
fn an_operation_that_is_given_up_half_way_leaves_the_last_commit() {
    let mut pair = Pair::new(512, 5000, Options::default());
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 700), Op::CreateSnap(2, 1), Op::Commit]);
    let expected = audit(&pair.disk.image());
    let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: 5000 };
    let all = usize::MAX;
    for polls in 1..200 {
        let disk = pair.disk.copy();
        let io = Arc::new(Slow(disk.clone()));
        let mut metadata = poll(Metadata::open(io, &geometry, Options::default()), all).unwrap().unwrap();
        let work = send(async {
            metadata.create_thin(3).await?;
            for block in [3, 300, 600] {
                let data = metadata.alloc_data_block().await?.expect("there are enough");
                metadata.insert(2, block, data).await?;
            }
            metadata.remove_range(1, 100, 500).await?;
            metadata.create_snap(4, 2).await?;
            metadata.reserve_snap().await?;
            metadata.commit().await
        });
        let done = poll(work, polls);
        if let Some(done) = done {
            done.unwrap();
            audit(&disk.image());
            return;
        }
        poll(metadata.abort(), all).unwrap().unwrap();
        let contents = audit(&disk.image());
        // The commit within reserve_snap may have gone through.
        let committed = contents.devices.contains_key(&4);
        assert!(committed || contents == expected, "after {polls} polls");
        assert!(!metadata.is_dirty());
        let devices = poll(metadata.devices(), all).unwrap().unwrap();
        assert_eq!(devices.len(), contents.devices.len());
        poll(metadata.create_thin(9), all).unwrap().unwrap();
        poll(metadata.commit(), all).unwrap().unwrap();
        audit(&disk.image());
    }
    panic!("it never came to its end");
}

/// What a look-up reads may need the room of what was changed, and that cannot be written.
#[test]
fn a_look_up_that_cannot_make_room_leaves_the_metadata_in_doubt() {
    let mut pair = Pair::new(2000, 40_000, Options { cache_bytes: 0, ..Options::default() });
    apply(&mut pair, &[Op::CreateThin(1), Op::Write(1, 0, 20_000), Op::CreateSnap(2, 1), Op::Commit]);
    apply(&mut pair, &[Op::Write(2, 0, 5000)]);
    let failed = (0..20_000).step_by(100).find_map(|block| {
        pair.disk.fail_at(0);
        block_on(pair.metadata.find(1, block)).err()
    });
    assert!(matches!(failed, Some(Error::Data(udm_pdata::Error::Write(_)))), "{failed:?}");
    assert!(pair.metadata.is_in_doubt());
    for (dev, block) in [(1, 0), (1, 19_999), (2, 0), (2, 4999)] {
        let found = block_on(pair.metadata.find(dev, block));
        assert!(matches!(found, Err(Error::Data(udm_pdata::Error::Poisoned))), "{dev}, {block}: {found:?}");
    }
    apply(&mut pair, &[Op::Abort]);
    assert!(!pair.metadata.is_in_doubt());
    pair.compare();
}
