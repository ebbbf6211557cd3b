//! Snapshots: of volumes in use, of snapshots, and deletion.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use udm_base::{Errno, Sector, Sectors};
use udm_io::*;
use udm_sim::{Sim, SimDevice, SimOptions};

/// Trap: a writer that has looked its block up before is done when the message is answered; who comes after it finds
/// the block shared.
#[test]
fn a_snapshot_of_a_volume_in_use_waits_for_writers() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let rig = Rig::with(udm_targets::TARGETS, sim.domain());
        rig.disk("meta", 8192);
        let options = SimOptions { latency_ns: 10_000..4_000_000, ..SimOptions::new(Sectors::new(64 * BLOCK)) };
        rig.add("data", Arc::new(SimDevice::new(&sim, options)));
        let md = rig.device("pool", &table(64, ""));
        let message = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            md.message(Sector::ZERO, &words).unwrap();
        };
        message("create_thin 0");
        let thin = rig.device("thin", &format!("0 {} thin {{pool}} 0", 16 * BLOCK));
        let io = rig.io(&thin);
        write(&io, 0, 4 * BLOCK, 1);
        let mut client = Client::new(&rig, &thin);
        let before = client.write(8, pattern(8, 8, 2), OpFlags::NONE);
        assert_eq!(client.status(before), None, "it is on its way to the disk");
        message("create_snap 1 0");
        assert_eq!(client.status(before), Some(Status::Ok), "seed {seed}: done when the message is answered");
        let after = client.write(16, pattern(16, 8, 3), OpFlags::NONE);
        assert_eq!((client.wait(before), client.wait(after)), (Status::Ok, Status::Ok));
        let snap = rig.device("snap", &format!("0 {} thin {{pool}} 1", 16 * BLOCK));
        let old = rig.io(&snap);
        let at_answer = read(&old, 0, 32);
        assert!(at_answer == [pattern(0, 8, 1), pattern(8, 8, 2), pattern(16, 16, 1)].concat(), "seed {seed}");
        assert!(
            read(&io, 0, 32) == [pattern(0, 8, 1), pattern(8, 8, 2), pattern(16, 8, 3), pattern(24, 8, 1)].concat()
        );
    }
}

#[test]
fn snapshots_of_snapshots_keep_what_they_saw() {
    let pool = Pool::new(256, "");
    let thin = pool.thin("v0", 0, 16);
    write(&pool.rig.io(&thin), 0, 16 * BLOCK, 0);
    let mut volumes = vec![(thin, pattern(0, 16 * BLOCK, 0))];
    for n in 1..6u64 {
        // From a volume in use, from one that is not, from a snapshot of each.
        let origin = (n as usize * 7) % volumes.len();
        let expect = volumes[origin].1.clone();
        let snap = pool.snap(&format!("v{n}"), n as u32, origin as u32, 16);
        volumes.push((snap, expect));
        for (i, (md, expect)) in volumes.iter_mut().enumerate() {
            let (sector, count) = ((n * 131 + i as u64 * 77) % (15 * BLOCK), 40 + n * 50);
            write(&pool.rig.io(md), sector, count, n * 100 + i as u64);
            expect[sector as usize * 512..(sector + count) as usize * 512].copy_from_slice(&pattern(
                sector,
                count,
                n * 100 + i as u64,
            ));
        }
        for (i, (md, expect)) in volumes.iter().enumerate() {
            assert!(read(&pool.rig.io(md), 0, 16 * BLOCK) == *expect, "volume {i} after snapshot {n}");
        }
    }
    drop(volumes);
    pool.check();
}

#[test]
fn a_deleted_volume_gives_its_blocks_back() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 64);
    write(&pool.rig.io(&thin), 0, 10 * BLOCK, 1);
    let snap = pool.snap("snap", 1, 0, 64);
    write(&pool.rig.io(&snap), 0, 4 * BLOCK, 2);
    assert_eq!(pool.message("delete 1").unwrap_err().errno, Errno::EBUSY, "it is in use");
    drop(snap);
    pool.remove("snap");
    assert_eq!(pool.used(), 14);
    pool.ok("delete 1");
    assert_eq!(pool.used(), 10);
    assert_eq!(pool.message("delete 1").unwrap_err().errno, Errno::ENODATA);
    assert!(read(&pool.rig.io(&thin), 0, 10 * BLOCK) == pattern(0, 10 * BLOCK, 1));
    drop(thin);
    pool.remove("thin");
    pool.ok("delete 0");
    assert_eq!(pool.used(), 0);
    // The id is free again.
    let thin = pool.thin("thin", 0, 64);
    assert_eq!(read(&pool.rig.io(&thin), 0, 8), zeroes(8));
    drop(thin);
    pool.check();
}

/// Overwriting a shared block as a whole copies nothing.
#[test]
fn a_whole_block_is_not_copied_first() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, 2 * BLOCK, 1);
    pool.ok("create_snap 1 0");
    pool.data.log();
    write(&io, 0, BLOCK, 2);
    assert_eq!(pool.data.log(), ["Write 256+128"], "written to its new place, and that is all");
    write(&io, 2 * BLOCK, BLOCK, 2);
    assert_eq!(pool.data.log(), ["Write 384+128"], "a new block neither");
    write(&io, BLOCK, 8, 3);
    let log = pool.data.log();
    assert!(log.iter().any(|l| l.starts_with("Read 128+")), "a part is: {log:?}");
    drop(io);
    pool.check();
}

/// The metadata of a big volume have to be read to delete it. What others ask for meanwhile is done after a few of
/// these reads, not after all.
#[test]
fn a_big_deletion_does_not_hold_others_up() {
    const BIG: u64 = 24 << 10;
    let pool = Pool::new(BIG + 64, "1 skip_block_zeroing");
    let big = pool.thin("big", 1, BIG);
    let io = pool.rig.io(&big);
    (0..BIG).for_each(|block| write(&io, block * BLOCK, 1, 1));
    drop((io, big, pool.thin("small", 2, 16)));
    // Again, so that nothing of it is in memory.
    let Pool { rig, metadata, data, md, .. } = pool;
    for name in ["big", "small", "pool"] {
        let md = rig.registry.by_name(name).unwrap();
        rig.registry.remove(&md, false).unwrap();
    }
    drop(md);
    let pool = Pool::again(rig, metadata, data, BIG + 64);
    let small = pool.activate("small", 2, 16);
    let mut client = Client::new(&pool.rig, &small);
    *pool.metadata.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    let deleted = std::sync::atomic::AtomicBool::new(false);
    let mut reads = [0, 0];
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pool.ok("delete 1");
            deleted.store(true, SeqCst);
        });
        while pool.metadata.held() == 0 {
            std::thread::yield_now();
        }
        // A new block: that is the worker's, too.
        let token = client.write(0, pattern(0, 8, 2), OpFlags::NONE);
        while client.status(token).is_none() {
            reads[0] += serve_one(&pool.metadata);
        }
        assert_eq!(client.status(token), Some(Status::Ok));
        let early = deleted.load(SeqCst);
        while !deleted.load(SeqCst) {
            reads[1] += serve_one(&pool.metadata);
        }
        assert!(!early, "the deletion has finished first, after {} reads", reads[0]);
    });
    *pool.metadata.hold_if.lock().unwrap() = None;
    // A step is 16 leaves, with what is above them; a commit may come in between. There are a hundred leaves.
    assert!(reads[0] <= 40 && reads[1] > 40, "reads before the write was done, and after it: {reads:?}");
    assert_eq!(pool.used(), 1);
    drop((client, small));
    pool.check();
}

/// Serves a read that is held, if there is one. How many.
fn serve_one(disk: &Disk) -> usize {
    let held = disk.held().min(1);
    if held == 1 {
        disk.release_last();
    } else {
        std::thread::yield_now();
    }
    held
}
