//! What becomes of a pool whose devices fail, and that it never lies.

use super::pools::*;
use super::rig::*;
use udm_base::{Errno, Sector};
use udm_io::*;

/// Trap: after a failed commit the pool accepts nothing that it cannot keep, and nothing that was lost counts as
/// durable.
#[test]
fn a_failed_commit_makes_the_pool_read_only() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    io.flush().unwrap();
    write(&io, BLOCK, BLOCK, 2);
    let superblock = |bio: &Bio| bio.op() == Op::Write && bio.sector() == Sector::ZERO;
    // The superblock cannot be written once; then needs_check can.
    let failures = std::sync::atomic::AtomicU32::new(1);
    let once = move |bio: &Bio| superblock(bio) && failures.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
    use std::sync::atomic::Ordering::SeqCst;
    *pool.metadata.fail_if.lock().unwrap() = Some(Box::new(once));
    assert_eq!(io.flush(), Err(Status::Io), "what could not be made durable is not called so");
    let status = pool.status();
    assert!(status.contains(" ro ") && status.contains(" needs_check "), "{status}");
    assert_eq!(io.flush(), Err(Status::Io), "and not later either");
    assert_eq!(io.write(Sector::ZERO, &pattern(0, 8, 3), OpFlags::FUA), Err(Status::Io));
    // What is durable is there; what is lost is gone, and does not come back.
    assert_eq!(read(&io, 0, BLOCK), pattern(0, BLOCK, 1));
    assert_eq!(read(&io, BLOCK, BLOCK), zeroes(BLOCK));
    assert_eq!(io.write(Sector::new(2 * BLOCK), &pattern(0, 8, 3), OpFlags::NONE), Err(Status::Io));
    assert_eq!(pool.message("create_thin 7").unwrap_err().errno, Errno::EOPNOTSUPP);
    drop((io, thin));
    // A resume does not help, nor does opening it again: somebody has to check it.
    pool.rig.reload(&pool.md, &pool.table(""));
    assert!(pool.status().contains(" ro "), "{}", pool.status());
    let [notice] = &pool.md.notices()[..] else { panic!("who resumes it hears of it") };
    assert!(notice.contains("run `udm thin check --clear-needs-check-flag meta`"), "{notice}");
    let after = pool.as_after_power_cut();
    assert!(after.status().contains(" ro ") && after.status().contains(" needs_check "), "{}", after.status());
    let io = after.rig.io(&after.activate("thin", 0, 16));
    assert_eq!(read(&io, 0, BLOCK), pattern(0, BLOCK, 1));
    assert_eq!(io.write(Sector::new(2 * BLOCK), &pattern(0, 8, 3), OpFlags::NONE), Err(Status::Io));
}

/// The data cannot be flushed: then no mapping to it may become durable.
#[test]
fn data_that_cannot_be_flushed_is_not_committed() {
    let pool = Pool::new(16, "");
    let io = pool.rig.io(&pool.thin("thin", 0, 16));
    write(&io, 0, BLOCK, 1);
    *pool.data.fail_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Flush));
    assert_eq!(io.flush(), Err(Status::Io));
    *pool.data.fail_if.lock().unwrap() = None;
    assert!(pool.status().contains(" ro "), "{}", pool.status());
    let after = pool.as_after_power_cut();
    assert_eq!(after.used(), 0);
}

/// Metadata that cannot be written at all, not even needs_check: nothing is served any more.
#[test]
fn a_pool_without_metadata_device_fails() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    pool.metadata.failing.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(io.flush(), Err(Status::Io));
    assert_eq!((pool.status(), info(&thin)), ("Fail".to_owned(), "Fail".to_owned()));
    let mut buffer = vec![0; 512];
    assert_eq!(io.read(Sector::ZERO, &mut buffer), Err(Status::Io));
    assert_eq!(io.write(Sector::ZERO, &buffer, OpFlags::NONE), Err(Status::Io));
    assert_eq!(io.flush(), Err(Status::Io));
    assert!(pool.message("create_thin 3").is_err());
    let e = pool.rig.load(&thin, "0 128 thin {pool} 0", false).unwrap_err().to_string();
    assert!(e.contains("Couldn't open thin device, Pool is in fail mode"), "{e}");
}

/// A copy or zeroes that fail are the failure of their write, and of nothing else.
#[test]
fn a_block_that_cannot_be_prepared_fails_its_write() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    let used = pool.used();
    pool.ok("create_snap 1 0");
    for (sector, count) in [(0, 8), (0, BLOCK), (BLOCK, 8), (BLOCK, BLOCK)] {
        *pool.data.fail_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
        let result = io.write(Sector::new(sector), &pattern(sector, count, 2), OpFlags::NONE);
        assert_eq!(result, Err(Status::Io), "{sector}+{count}");
        *pool.data.fail_if.lock().unwrap() = None;
        assert_eq!((pool.used(), read(&io, 0, BLOCK)), (used, pattern(0, BLOCK, 1)), "{sector}+{count}");
        assert!(pool.status().contains(" rw "));
    }
    write(&io, 0, 8, 3);
    assert_eq!(read(&io, 0, 16), [pattern(0, 8, 3), pattern(8, 8, 1)].concat());
    drop(io);
    pool.check();
}

/// Nothing is written to metadata that cannot be opened.
#[test]
fn metadata_that_cannot_be_opened_are_left_alone() {
    let pool = Pool::new(16, "");
    drop(pool.thin("thin", 0, 16));
    for name in ["thin", "pool"] {
        pool.remove(name);
    }
    let Pool { rig, metadata, md, .. } = pool;
    drop(md);
    let io = BlockingIo::new(&rig.domain, metadata.clone()).unwrap();
    let good = read(&io, 0, 8);
    for (at, what) in [(32, "magic"), (0, "csum"), (336, "csum"), (8, "blocknr")] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        io.write(Sector::ZERO, &bad, OpFlags::NONE).unwrap();
        metadata.log();
        let md = rig.registry.create("bad", "", None).unwrap();
        let e = rig.load(&md, &table(16, ""), false).unwrap_err().to_string();
        assert!(e.contains("Error creating metadata object") && e.contains(what), "{e}");
        assert!(!metadata.log().iter().any(|l| l.starts_with("Write")), "{what}");
        rig.registry.remove(&md, false).unwrap();
    }
    io.write(Sector::ZERO, &good, OpFlags::NONE).unwrap();
    let md = rig.registry.create("bad", "", None).unwrap();
    let e = rig.load(&md, "0 2048 thin-pool meta data 256 0", false).unwrap_err().to_string();
    assert!(e.contains("data_block_size is 128"), "{e}");
}
