//! Discards: which blocks they unmap, and what the data device hears of them.

use super::pools::*;
use super::rig::*;
use udm_base::{Sector, Sectors};
use udm_io::*;

fn discards(pool: &Pool) -> Vec<String> {
    pool.data.log().into_iter().filter(|l| l.starts_with("Discard")).collect()
}

#[test]
fn whole_blocks_are_unmapped_and_passed_down() {
    for (features, from, count, used, beneath) in [
        ("", 0, 4 * BLOCK, 0, vec!["Discard 0+512"]),
        ("", BLOCK, 2 * BLOCK, 2, vec!["Discard 128+256"]),
        // Parts of blocks are left as they are.
        ("", 1, 2 * BLOCK - 1, 3, vec!["Discard 128+128"]),
        ("", 1, 2 * BLOCK - 2, 4, vec![]),
        ("", 8, 8, 4, vec![]),
        ("1 no_discard_passdown", 0, 4 * BLOCK, 0, vec![]),
    ] {
        let pool = Pool::new(16, features);
        let io = pool.rig.io(&pool.thin("thin", 0, 16));
        write(&io, 0, 4 * BLOCK, 1);
        pool.data.log();
        discard(&io, from, count);
        assert_eq!(
            (pool.used(), discards(&pool)),
            (used, beneath.iter().map(|s| s.to_string()).collect()),
            "{from}+{count}"
        );
        let mut expect = pattern(0, 4 * BLOCK, 1);
        let (first, end) = (from.div_ceil(BLOCK) * BLOCK, (from + count) / BLOCK * BLOCK);
        if first < end {
            expect[first as usize * 512..end as usize * 512].fill(0);
        }
        assert!(read(&io, 0, 4 * BLOCK) == expect, "{from}+{count}");
        drop(io);
        pool.check();
    }
}

/// Trap: what others still refer to is not discarded beneath.
#[test]
fn shared_blocks_are_not_passed_down() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, 4 * BLOCK, 1);
    let snap = pool.snap("snap", 1, 0, 16);
    write(&io, BLOCK, BLOCK, 2);
    pool.data.log();
    discard(&io, 0, 4 * BLOCK);
    assert_eq!(discards(&pool), ["Discard 512+128"], "the one that is its own");
    let old = pool.rig.io(&snap);
    assert!(read(&old, 0, 4 * BLOCK) == pattern(0, 4 * BLOCK, 1));
    discard(&old, 0, 4 * BLOCK);
    assert_eq!(discards(&pool), ["Discard 0+512"], "and when nobody has them any more");
    assert_eq!(pool.used(), 0);
    drop((io, old));
    pool.check();
}

/// Trap: a discard that fails beneath has unmapped its blocks all the same.
#[test]
fn a_discard_that_fails_beneath_unmaps() {
    let pool = Pool::new(16, "");
    let io = pool.rig.io(&pool.thin("thin", 0, 16));
    write(&io, 0, 2 * BLOCK, 1);
    *pool.data.fail_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Discard));
    discard(&io, 0, BLOCK);
    assert_eq!((pool.used(), read(&io, 0, BLOCK)), (1, zeroes(BLOCK)));
    assert!(pool.status().contains(" rw "));
    drop(io);
    pool.check();
}

#[test]
fn a_pool_that_ignores_discards_has_none() {
    let pool = Pool::new(16, "1 ignore_discard");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    let refused = io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(BLOCK));
    assert_eq!((refused, thin.limits().max_discard), (Err(Status::NotSupported), Sectors::ZERO));
    drop(io);
    pool.check();
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    assert_eq!((thin.limits().max_discard.get(), thin.limits().discard_granularity), (1024 * BLOCK, 65536));
    pool.check();
}

/// A data device that cannot discard a whole block is not told (`disable_passdown_if_not_supported`).
#[test]
fn a_data_device_without_discards_hears_of_none() {
    let rig = Rig::default();
    let limits = Limits { max_discard: Sectors::new(BLOCK - 1), ..Limits::default() };
    rig.disk("meta", 8192);
    let data = rig.disk_with("data", 16 * BLOCK, limits);
    let md = rig.device("pool", &table(16, ""));
    md.message(Sector::ZERO, &["create_thin", "0"]).unwrap();
    let thin = rig.device("thin", "0 1024 thin {pool} 0");
    let io = rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    data.log();
    discard(&io, 0, BLOCK);
    assert_eq!(read(&io, 0, BLOCK), zeroes(BLOCK));
    assert!(!data.log().iter().any(|l| l.starts_with("Discard")));
}

/// A large discard that covers many runs, and writes that come for its blocks meanwhile.
#[test]
fn writes_to_blocks_that_are_being_discarded_wait() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 64);
    let io = pool.rig.io(&thin);
    for block in (0..40).step_by(2) {
        write(&io, block * BLOCK, BLOCK, 1);
    }
    let mut client = Client::new(&pool.rig, &thin);
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Discard));
    let discard = client.range(Op::Discard, OpFlags::NONE, 0, 40 * BLOCK);
    let write = client.write(6 * BLOCK, pattern(6 * BLOCK, 8, 2), OpFlags::NONE);
    let elsewhere = client.write(50 * BLOCK, pattern(50 * BLOCK, 8, 2), OpFlags::NONE);
    assert_eq!(client.wait(elsewhere), Status::Ok);
    assert_eq!((client.status(discard), client.status(write)), (None, None));
    *pool.data.hold_if.lock().unwrap() = None;
    while pool.data.release() > 0 {}
    assert_eq!((client.wait(discard), client.wait(write)), (Status::Ok, Status::Ok));
    assert_eq!(read(&io, 6 * BLOCK, 16), [pattern(6 * BLOCK, 8, 2), zeroes(8)].concat());
    assert_eq!(pool.used(), 2);
    drop((client, io));
    pool.check();
}
