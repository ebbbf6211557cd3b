//! From an empty metadata device to volumes and snapshots, and back after everything was closed.

use super::pools::*;
use super::rig::*;

/// Trap: what looks whether a device is another pool's must not keep that pool open, nor take one for gone that is
/// still being closed.
#[test]
fn pools_come_and_go_beside_each_other() {
    let come_and_go = || {
        let rig = Rig::default();
        let (metadata, data) = (rig.disk("meta", 8192), rig.disk("data", 16 * BLOCK));
        let mut pool = Pool::again(rig, metadata, data, 16);
        for id in 0..60 {
            pool.ok(&format!("create_thin {id}"));
            pool.remove("pool");
            let Pool { rig, metadata, data, md, .. } = pool;
            drop(md);
            pool = Pool::again(rig, metadata, data, 16);
        }
    };
    std::thread::scope(|threads| (0..3).for_each(|_| drop(threads.spawn(come_and_go))));
}

#[test]
fn a_pool_lives_on_after_it_was_closed() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 32);
    let io = pool.rig.io(&thin);
    assert_eq!(read(&io, 0, 16), zeroes(16), "nothing was written yet");
    write(&io, 5, 20, 1);
    write(&io, 120, 300, 2);
    assert_eq!(read(&io, 5, 20), pattern(5, 20, 1));
    assert_eq!(read(&io, 120, 300), pattern(120, 300, 2));
    assert_eq!(read(&io, 25, 95), zeroes(95), "the rest of the block was zeroed");
    assert_eq!((pool.used(), info(&thin)), (4, "512 511".into()));
    io.flush().unwrap();

    let snap = pool.snap("snap", 1, 0, 32);
    let old = pool.rig.io(&snap);
    write(&io, 121, 10, 3);
    assert_eq!(read(&old, 120, 300), pattern(120, 300, 2), "the snapshot stays as it was");
    assert_eq!(read(&io, 121, 10), pattern(121, 10, 3));
    assert_eq!(read(&io, 131, 289), pattern(131, 289, 2), "what was not written was copied");
    assert_eq!(pool.used(), 6);
    write(&old, 0, 128, 4);
    assert_eq!(read(&old, 0, 128), pattern(0, 128, 4));
    assert_eq!(read(&io, 5, 20), pattern(5, 20, 1));
    drop((io, old, thin, snap));

    for name in ["thin", "snap", "pool"] {
        pool.remove(name);
    }
    let Pool { rig, metadata, data, md, .. } = pool;
    drop(md);
    check_metadata(&rig, &metadata);
    let pool = Pool::again(rig, metadata, data, 64);
    let (thin, snap) = (pool.activate("thin", 0, 32), pool.activate("snap", 1, 32));
    let (io, old) = (pool.rig.io(&thin), pool.rig.io(&snap));
    assert_eq!(read(&io, 121, 10), pattern(121, 10, 3));
    assert_eq!(read(&io, 131, 289), pattern(131, 289, 2));
    assert_eq!(read(&old, 120, 300), [pattern(120, 8, 4), pattern(128, 292, 2)].concat());
    drop((io, old, thin, snap));
    pool.check();
}

/// A pool whose metadata does not answer is its own trouble.
#[test]
fn a_pool_that_cannot_be_opened_yet_delays_no_other() {
    let rig = Rig::default();
    let (stuck, data) = (rig.disk("stuck", 1024 * 8), rig.disk("stuck data", 16 * BLOCK));
    stuck.holding.store(true, std::sync::atomic::Ordering::Relaxed);
    rig.add("stuckdata", data);
    let table = format!("0 {} thin-pool stuck stuckdata {BLOCK} 0", 16 * BLOCK);
    let [first, second] = ["first", "second"].map(|name| rig.registry.create(name, "", None).unwrap());
    std::thread::scope(|s| {
        let opening = s.spawn(|| rig.load(&first, &table, false));
        while stuck.held() == 0 {
            std::thread::yield_now();
        }
        let error = rig.load(&second, &table, false).unwrap_err();
        assert_eq!(error.errno, udm_base::Errno::EBUSY, "{error}");
        let (metadata, data) = (rig.disk("meta", 1024 * 8), rig.disk("data", 16 * BLOCK));
        rig.reload(&second, &super::pools::table(16, ""));
        drop((metadata, data));
        stuck.holding.store(false, std::sync::atomic::Ordering::Relaxed);
        while !opening.is_finished() {
            stuck.release();
            std::thread::yield_now();
        }
        opening.join().unwrap().unwrap();
    });
    resume(&first);
}
