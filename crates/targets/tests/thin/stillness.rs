//! Pools that are suspended, reloaded and grown while their volumes are in use: nobody goes round without end, and what
//! a suspension has answered holds.

use super::pools::*;
use super::rig::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use udm_core::*;
use udm_io::*;
use udm_kcopyd::Workqueue;
use udm_sim::Sim;

/// Uses each of these blocks in a thread of its own for as long as `control` takes in this one.
fn beside(rig: &Rig, users: &[(&Arc<MappedDevice>, u64)], control: impl FnOnce()) {
    let busy = &AtomicBool::new(true);
    std::thread::scope(|threads| {
        for &(volume, block) in users {
            threads.spawn(move || {
                let io = rig.io(volume);
                (0..).take_while(|_| busy.load(Ordering::Relaxed)).for_each(|round| turn(&io, block * BLOCK, round));
            });
        }
        control();
        busy.store(false, Ordering::Relaxed);
    });
}

/// One round with a block of one's own: written, read some times, broken out of a snapshot, discarded.
fn turn(io: &BlockingIo, at: u64, round: u64) {
    let written = round / 8 * 8;
    match round % 8 {
        0 => write(io, at, BLOCK, round),
        4 => write(io, at, 8, written),
        6 => io.flush().unwrap(),
        7 => discard(io, at, BLOCK),
        _ => assert!(read(io, at, BLOCK) == pattern(at, BLOCK, written), "sector {at}, round {round}"),
    }
}

/// Trap: the gate is closed while a section is open, in which a bio meets a worker that knows nothing of it.
#[test]
fn a_bio_that_finds_the_gate_closed_leaves_its_section() {
    // Simulated, there is no workqueue that could run the worker in a section of its own.
    let rig = Rig::with(udm_targets::TARGETS, Sim::new(1).domain());
    let pool = Pool::in_rig(rig, 16, "");
    let thin = pool.thin("thin", 0, 16);
    let (starts, started) = mpsc::channel();
    // The zeroes of the new block: the write itself comes to its volume again after them, within the section.
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(move |bio| {
        if bio.op().is_write() && starts.send(()).is_ok() {
            // Time enough to close the gate; that is not seen from here.
            (0..10_000).for_each(|_| std::thread::yield_now());
        }
        false
    }));
    std::thread::scope(|threads| {
        let md = &pool.md;
        threads.spawn(move || {
            started.recv().unwrap();
            suspend(md);
            resume(md);
        });
        let mut client = Client::new(&pool.rig, &thin);
        let token = client.write(8, pattern(8, 8, 1), OpFlags::NONE);
        assert_eq!(client.wait(token), Status::Ok);
    });
    *pool.data.hold_if.lock().unwrap() = None;
    assert!(read(&pool.rig.io(&thin), 0, 24) == [zeroes(8), pattern(8, 8, 1), zeroes(8)].concat());
    drop(thin);
    pool.check();
}

/// The same with one reader.
#[test]
fn a_pool_is_suspended_under_one_reader() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    write(&pool.rig.io(&thin), 0, BLOCK, 1);
    let busy = &AtomicBool::new(true);
    std::thread::scope(|threads| {
        let (rig, thin) = (&pool.rig, &thin);
        threads.spawn(move || {
            let io = rig.io(thin);
            while busy.load(Ordering::Relaxed) {
                assert!(read(&io, 0, 8) == pattern(0, 8, 1));
            }
        });
        for _ in 0..500 {
            suspend(&pool.md);
            resume(&pool.md);
        }
        busy.store(false, Ordering::Relaxed);
    });
    drop(thin);
    pool.check();
}

/// The same with several channels that read, write, flush and discard, and with tables that come and go.
#[test]
fn a_pool_is_suspended_and_reloaded_under_load() {
    let pool = Pool::new(64, "");
    let volumes = [pool.thin("thin0", 0, 16), pool.thin("thin1", 1, 16)];
    let users = [(&volumes[0], 0), (&volumes[0], 9), (&volumes[1], 3)];
    beside(&pool.rig, &users, || {
        for round in 0..100 {
            suspend(&pool.md);
            resume(&pool.md);
            pool.rig.reload(&pool.md, &pool.table(if round % 2 == 0 { "1 no_discard_passdown" } else { "" }));
        }
    });
    drop(volumes);
    pool.check();
}

/// A pool grows, one block at a time, while its volumes write and discard.
#[test]
fn a_pool_grows_while_its_volumes_discard() {
    let rig = Rig::default();
    let metadata = rig.disk("meta", 8192);
    rig.disk("below", 128 * BLOCK);
    let data = rig.device("data", &format!("0 {} linear below 0", 8 * BLOCK));
    let table = |blocks: u64| format!("0 {} thin-pool meta {{data}} {BLOCK} 0", blocks * BLOCK);
    let md = rig.device("pool", &table(8));
    md.message(udm_base::Sector::ZERO, &["create_thin", "0"]).unwrap();
    let thin = rig.device("thin", &format!("0 {} thin {{pool}} 0", 16 * BLOCK));
    beside(&rig, &[(&thin, 0), (&thin, 5), (&thin, 11)], || {
        for blocks in 9..109 {
            rig.reload(&data, &format!("0 {} linear below 0", blocks * BLOCK));
            rig.reload(&md, &table(blocks));
        }
    });
    assert!(info(&md).contains("/108 - rw "), "{}", info(&md));
    drop(thin);
    for name in ["thin", "pool"] {
        rig.registry.remove(&rig.registry.by_name(name).unwrap(), false).unwrap();
    }
    drop(md);
    check_metadata(&rig, &metadata);
}

/// Trap: the workqueue kicks itself when it runs the worker, and looks at a pool again and again until a deadline that
/// is far.
#[test]
fn a_pool_whose_writes_wait_for_space_is_left_alone() {
    let rig = Rig::with(udm_targets::TARGETS, Sim::new(1).domain());
    let pool = Pool::in_rig(rig, 1, "");
    let thin = pool.thin("thin", 0, 2);
    let domain = &pool.rig.domain;
    let mut client = Client::new(&pool.rig, &thin);
    let (first, waits) =
        (client.write(0, pattern(0, 8, 1), OpFlags::NONE), client.write(BLOCK, pattern(BLOCK, 8, 1), OpFlags::NONE));
    assert_eq!(client.wait(first), Status::Ok);
    domain.drain(|| domain.clock().now() > Nanos(5_000_000_000));
    let next = Workqueue::of(domain).inspect().next.expect("what waits is given up some time");
    assert!(next > Nanos(30_000_000_000), "{next:?}");
    assert_eq!(client.wait(waits), Status::NoSpace);
}
