//! What could go wrong between volumes, tables and threads.

use super::pools::*;
use super::rig::*;
use udm_base::{Sector, Sectors};
use udm_io::*;

/// A volume that nobody had open for a moment has the same uncommitted changes as before: a flush commits them.
#[test]
fn a_flush_commits_what_was_written_before_the_volume_was_opened_again() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    write(&pool.rig.io(&thin), 0, 8, 1);
    drop(thin);
    pool.remove("thin");
    let thin = pool.activate("thin", 0, 16);
    pool.rig.io(&thin).flush().unwrap();
    let after = pool.as_after_power_cut();
    let thin = after.activate("thin", 0, 16);
    assert_eq!(read(&after.rig.io(&thin), 0, 8), pattern(0, 8, 1));
    after.check();
    pool.check();
}

/// A data block that one volume gave up in the open transaction is that volume's again if the power goes. So the other
/// one cannot have it discarded before the commit.
#[test]
fn what_was_shared_at_the_last_commit_is_not_discarded_beneath_before_the_next() {
    // How the first volume lets go of the block: by a write, a discard, zeroes over all of it, its deletion.
    for how in ["write", "discard", "zeroes"] {
        let pool = Pool::new(16, "");
        let thin = pool.thin("thin", 0, 16);
        let io = pool.rig.io(&thin);
        write(&io, 0, BLOCK, 1);
        io.flush().unwrap();
        let snap = pool.snap("snap", 1, 0, 16);
        match how {
            "write" => write(&io, 0, 8, 2),
            "discard" => discard(&io, 0, BLOCK),
            _ => io.range(Op::WriteZeroes, OpFlags::NONE, Sector::ZERO, Sectors::new(BLOCK)).unwrap(),
        }
        discard(&pool.rig.io(&snap), 0, BLOCK);
        let after = pool.as_after_power_cut();
        let thin = after.activate("thin", 0, 16);
        let found = read(&after.rig.io(&thin), 8, BLOCK - 8);
        let gone = how != "write" && info(&thin) == "0 -";
        assert!(gone || found == pattern(8, BLOCK - 8, 1), "{how}: the volume lost what it had");
        after.check();
        drop((io, thin, snap));
        pool.check();
    }
}

/// A write that fills its block has ended beneath, but the thread that sent it does not look. Who waits for the block,
/// or for the pool, does not wait for that thread.
#[test]
fn nobody_waits_for_a_thread_that_does_not_look() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let mut first = Client::new(&pool.rig, &thin);
    let mut second = Client::new(&pool.rig, &thin);
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
    let whole = first.write(0, pattern(0, BLOCK, 1), OpFlags::NONE);
    let part = second.write(0, pattern(0, 8, 2), OpFlags::NONE);
    assert_eq!((pool.data.held(), second.status(part)), (1, None));
    *pool.data.hold_if.lock().unwrap() = None;
    std::thread::scope(|threads| threads.spawn(|| pool.data.release()).join().unwrap());
    assert_eq!(second.wait(part), Status::Ok);
    assert_eq!(first.wait(whole), Status::Ok);
    assert_eq!(read(&pool.rig.io(&thin), 0, 8), pattern(0, 8, 2));
    drop((first, second));
    pool.check();
}
