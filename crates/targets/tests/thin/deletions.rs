//! Deletions of big volumes: the volume is gone at once, what it had is given back in time, and under no suspension.

use super::pools::*;
use super::rig::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use udm_base::Errno;
use udm_io::*;

/// Blocks of a volume that takes several steps.
const BIG: u64 = 10_000;

/// A pool with a big volume 1 and a small one 2, opened again so that nothing of the metadata is in memory.
fn pool() -> Pool {
    let pool = Pool::new(BIG + 64, "1 skip_block_zeroing");
    let mut client = Client::new(&pool.rig, &pool.thin("big", 1, BIG));
    let blocks: Vec<u64> = (0..BIG).collect();
    for some in blocks.chunks(100) {
        let at = some.iter().map(|block| block * BLOCK);
        let tokens: Vec<u64> = at.map(|at| client.write(at, pattern(at, 1, 1), OpFlags::NONE)).collect();
        assert!(tokens.into_iter().all(|token| client.wait(token) == Status::Ok));
    }
    write(&pool.rig.io(&pool.thin("small", 2, 16)), 0, BLOCK, 2);
    drop(client);
    again(pool)
}

/// The pool after it was closed.
fn again(pool: Pool) -> Pool {
    let Pool { rig, metadata, data, md, .. } = pool;
    for device in rig.registry.list().iter().filter(|other| other.device_name() != md.device_name()) {
        rig.registry.remove(device, false).unwrap();
    }
    rig.registry.remove(&md, false).unwrap();
    drop(md);
    check_metadata(&rig, &metadata);
    Pool::again(rig, metadata, data, BIG + 64)
}

/// Suspends a pool in the middle of deleting volume 1.
fn suspended_in_the_middle() -> Pool {
    let pool = pool();
    *pool.metadata.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    pool.metadata.log();
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pool.ok("delete 1");
            done[0].store(true, SeqCst);
        });
        // Until it is gone on disk, too.
        while !pool.metadata.log().iter().any(|line| line.starts_with("Write 0+")) {
            pool.metadata.release();
        }
        threads.spawn(|| {
            suspend(&pool.md);
            done[1].store(true, SeqCst);
        });
        while !done.iter().all(|done| done.load(SeqCst)) {
            pool.metadata.release();
        }
    });
    *pool.metadata.hold_if.lock().unwrap() = None;
    pool
}

/// Asks for the status, which lets the pool do what it has to do, until so many blocks are in use.
fn wait_for_used(pool: &Pool, blocks: u64) {
    assert!((0..100_000).any(|_| pool.used() == blocks), "{}", pool.status());
}

/// Trap: what is done when there is nothing else to do is done under a suspension, too, and who waits for it waits for
/// the resume.
#[test]
fn a_deletion_pauses_for_a_suspension() {
    let pool = suspended_in_the_middle();
    pool.metadata.log();
    let used = pool.used();
    assert!((2..BIG).contains(&used), "{used} blocks");
    (0..20).for_each(|_| assert_eq!(pool.used(), used));
    assert_eq!(pool.metadata.log(), Vec::<String>::new(), "the suspension was answered");
    resume(&pool.md);
    wait_for_used(&pool, 1);
    pool.check();
}

#[test]
fn a_volume_that_is_being_deleted_is_gone() {
    let pool = suspended_in_the_middle();
    for message in ["delete 1", "create_snap 5 1"] {
        let refused = pool.message(message).unwrap_err();
        assert_eq!(refused.errno, Errno::ENODATA, "{message}: {refused}");
        assert!(refused.message.contains("there is no thin device 1"), "{message}: {refused}");
    }
    pool.ok("set_transaction_id 0 7");
    pool.ok("reserve_metadata_snap");
    pool.ok("create_thin 3");
    resume(&pool.md);
    let table = format!("0 {} thin {{pool}} 1", BIG * BLOCK);
    let md = pool.rig.registry.create("gone", "", None).unwrap();
    let refused = pool.rig.load(&md, &table, false).unwrap_err();
    assert_eq!(refused.errno, Errno::ENODATA, "{refused}");
    // Another one of this id, while the old one's blocks are given back.
    pool.ok("create_thin 1");
    pool.rig.reload(&md, &table);
    let io = pool.rig.io(&md);
    assert!(read(&io, 0, 8) == zeroes(8));
    write(&io, 5 * BLOCK, 1, 3);
    pool.ok("release_metadata_snap");
    wait_for_used(&pool, 2);
    assert!(read(&io, 5 * BLOCK, 1) == pattern(5 * BLOCK, 1, 3));
    let small = pool.activate("small", 2, 16);
    assert!(read(&pool.rig.io(&small), 0, BLOCK) == pattern(0, BLOCK, 2));
    drop((io, md, small));
    pool.check();
}

/// Whoever opens the pool next goes on: after it was closed, and after the power went.
#[test]
fn a_deletion_goes_on_after_the_pool_was_closed() {
    let pool = suspended_in_the_middle();
    let after = pool.as_after_power_cut();
    for pool in [after, again(pool)] {
        wait_for_used(&pool, 1);
        assert_eq!(pool.message("create_snap 5 1").unwrap_err().errno, Errno::ENODATA);
        pool.check();
    }
}

/// Trap: a script that suspends, deletes and resumes waits for itself.
#[test]
fn a_suspended_pool_deletes_what_it_is_told_to() {
    let pool = pool();
    suspend(&pool.md);
    pool.ok("delete 1");
    pool.ok("delete 2");
    let used = pool.used();
    assert!(used > 1);
    assert_eq!(pool.used(), used);
    resume(&pool.md);
    wait_for_used(&pool, 0);
    pool.check();
}
