//! Zeroes written to blocks without data are forgotten, and nobody can tell.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;

fn skipped(md: &Arc<MappedDevice>) -> (u64, u64) {
    let skips = md.zero_skips();
    (skips.bios, skips.bytes)
}

#[test]
fn zeroes_to_blocks_without_data_are_forgotten() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write_zeroes(&io, 0, 4 * BLOCK);
    write_zeroes(&io, 700, 3);
    assert_eq!((pool.used(), skipped(&thin)), (0, (5, (4 * BLOCK + 3) * 512)));
    // A byte that is not zero, wherever it is, has its block provisioned.
    for (block, byte) in [(0, 0), (1, 65535), (2, 32768), (3, 12345)] {
        let mut data = zeroes(BLOCK);
        data[byte] = 1;
        io.write(Sector::new(block * BLOCK), &data, OpFlags::NONE).unwrap();
        assert_eq!((pool.used(), read(&io, block * BLOCK, BLOCK)), (block + 1, data));
    }
    assert_eq!(skipped(&thin).0, 5, "and is not counted");
    pool.check();
}

#[test]
fn blocks_with_data_get_their_zeroes() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    let snap = pool.snap("snap", 1, 0, 16);
    // Shared, in part and as a whole; then one's own.
    write_zeroes(&io, 8, 8);
    assert_eq!(read(&io, 0, 24), [pattern(0, 8, 1), zeroes(8), pattern(16, 8, 1)].concat());
    let old = pool.rig.io(&snap);
    assert_eq!(read(&old, 0, BLOCK), pattern(0, BLOCK, 1));
    write_zeroes(&old, 0, BLOCK);
    write_zeroes(&io, 16, 112);
    assert_eq!((read(&old, 0, BLOCK), read(&io, 16, 112)), (zeroes(BLOCK), zeroes(112)));
    assert_eq!((skipped(&thin), skipped(&snap)), ((0, 0), (0, 0)));
    pool.check();
}

/// Trap (a): with `skip_block_zeroing` a block that was left out could later show what lay there before.
#[test]
fn without_zeroing_nothing_is_forgotten() {
    for (features, word) in [
        ("", "skip_zero_writes"),
        ("1 skip_block_zeroing", "enable_zero_writes"),
        ("3 skip_block_zeroing skip_zero_writes unmap_zero_writes", "enable_zero_writes"),
        ("1 enable_zero_writes", "enable_zero_writes"),
    ] {
        let pool = Pool::new(16, features);
        assert_eq!(pool.status().rsplit(' ').next(), Some(word), "{features}");
        // What lies on the data device.
        let disk = BlockingIo::new(&pool.rig.domain, pool.data.clone()).unwrap();
        write(&disk, 0, 16 * BLOCK, 9);
        let thin = pool.thin("thin", 0, 16);
        let io = pool.rig.io(&thin);
        write_zeroes(&io, 0, 8);
        let expect = if word == "skip_zero_writes" { (0, 1) } else { (1, 0) };
        assert_eq!((pool.used(), skipped(&thin).0), expect, "{features}");
        // The same block, written elsewhere: the zeroes must still be there.
        write(&io, 64, 8, 1);
        assert_eq!(read(&io, 0, 8), zeroes(8), "{features}");
        write(&io, BLOCK, BLOCK, 1);
        write_zeroes(&io, BLOCK, BLOCK);
        write(&io, BLOCK, 8, 2);
        assert_eq!(read(&io, BLOCK + 8, BLOCK - 8), zeroes(BLOCK - 8), "{features}");
        pool.check();
    }
}

/// Trap (b): what made the block one without data has to be durable when the zeroes are.
#[test]
fn a_forgotten_write_is_as_durable_as_any() {
    for fua in [true, false] {
        let pool = Pool::new(16, "1 no_discard_passdown");
        let thin = pool.thin("thin", 0, 16);
        let io = pool.rig.io(&thin);
        write(&io, 0, BLOCK, 1);
        io.flush().unwrap();
        discard(&io, 0, BLOCK);
        io.write(Sector::ZERO, &zeroes(8), if fua { OpFlags::FUA } else { OpFlags::NONE }).unwrap();
        assert_eq!(skipped(&thin).0, 1, "there was a write to forget");
        if !fua {
            io.flush().unwrap();
        }
        // The power goes: what is on the disks, and nothing else.
        let after = pool.as_after_power_cut();
        let io = after.rig.io(&after.activate("thin", 0, 16));
        assert_eq!(read(&io, 0, 8), zeroes(8), "fua: {fua}");
        after.check();
    }
}

/// Trap (c): zeroes that meet another write to their block come before or after it as they were submitted.
#[test]
fn zeroes_keep_their_order_with_other_writes() {
    for zeroes_first in [true, false] {
        let pool = Pool::new(16, "");
        let thin = pool.thin("thin", 0, 16);
        let mut client = Client::new(&pool.rig, &thin);
        // The block is being provisioned for another write meanwhile.
        *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() != Op::Read));
        let other = client.write(100, pattern(100, 4, 1), OpFlags::NONE);
        let both = [(8, zeroes(8)), (8, pattern(8, 8, 2))];
        let order = if zeroes_first { [0, 1] } else { [1, 0] };
        let tokens = order.map(|i| client.write(both[i].0, both[i].1.clone(), OpFlags::NONE));
        assert_eq!(tokens.map(|t| client.status(t)), [None, None], "they wait for the block");
        *pool.data.hold_if.lock().unwrap() = None;
        assert_eq!(client.status(other), None);
        pool.data.release();
        for token in tokens.into_iter().chain([other]) {
            assert_eq!(client.wait(token), Status::Ok);
        }
        let last = both[order[1]].1.clone();
        assert_eq!(read(&pool.rig.io(&thin), 8, 8), last, "zeroes first: {zeroes_first}");
        drop(client);
        pool.check();
    }
}

/// Trap (d): where an external origin shows through, zeroes are data like any other.
#[test]
fn zeroes_hide_an_external_origin() {
    let pool = Pool::new(16, "");
    let origin = pool.rig.disk("origin", 3 * BLOCK + 64);
    let disk = BlockingIo::new(&pool.rig.domain, origin).unwrap();
    write(&disk, 0, 3 * BLOCK + 64, 7);
    pool.ok("create_thin 0");
    let thin = pool.rig.device("thin", &format!("0 {} thin {{pool}} 0 origin", 8 * BLOCK));
    let io = pool.rig.io(&thin);
    write_zeroes(&io, 0, 8);
    assert_eq!((read(&io, 0, 16), pool.used()), ([zeroes(8), pattern(8, 8, 7)].concat(), 1));
    write_zeroes(&io, BLOCK, BLOCK);
    assert_eq!((read(&io, BLOCK, BLOCK), pool.used()), (zeroes(BLOCK), 2));
    // The last block of the origin: the part before its end, and the part that begins there.
    write_zeroes(&io, 3 * BLOCK + 60, 4);
    assert_eq!((pool.used(), skipped(&thin).0), (3, 0));
    let fresh = pool.used();
    write_zeroes(&io, 4 * BLOCK, 8);
    assert_eq!((pool.used(), skipped(&thin).0), (fresh, 1), "wholly past the end");
    assert_eq!(read(&io, 3 * BLOCK, 60), pattern(3 * BLOCK, 60, 7));
    drop(disk);
    pool.check();
}

#[test]
fn zeroes_past_the_end_of_an_origin_are_forgotten_within_its_last_block_too() {
    let pool = Pool::new(16, "");
    let origin = pool.rig.disk("origin", 64);
    let disk = BlockingIo::new(&pool.rig.domain, origin).unwrap();
    write(&disk, 0, 64, 7);
    pool.ok("create_thin 0");
    let thin = pool.rig.device("thin", &format!("0 {} thin {{pool}} 0 origin", 8 * BLOCK));
    let io = pool.rig.io(&thin);
    write_zeroes(&io, 64, 64);
    assert_eq!((pool.used(), skipped(&thin).0), (0, 1));
    write(&io, 70, 1, 1);
    let expect = [pattern(0, 64, 7), zeroes(6), pattern(70, 1, 1), zeroes(57)].concat();
    assert_eq!(read(&io, 0, BLOCK), expect);
    pool.check();
}

/// Trap (e): without space zeroes that need none go on; where metadata may not change they fail as any write.
#[test]
fn zeroes_need_no_space_but_a_pool_that_works() {
    let pool = Pool::new(2, "1 error_if_no_space");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, 2 * BLOCK, 1);
    assert_eq!(io.write(Sector::new(5 * BLOCK), &pattern(0, 8, 1), OpFlags::NONE), Err(Status::NoSpace));
    assert!(pool.status().contains(" out_of_data_space "), "{}", pool.status());
    write_zeroes(&io, 6 * BLOCK, 64);
    assert_eq!(skipped(&thin).0, 1);
    pool.rig.reload(&pool.md, &pool.table("1 read_only"));
    assert!(pool.status().contains(" ro "), "{}", pool.status());
    assert_eq!(io.write(Sector::new(6 * BLOCK), &zeroes(64), OpFlags::NONE), Err(Status::Io));
    assert_eq!(skipped(&thin).0, 1);
    let nothing = io.range(Op::WriteZeroes, OpFlags::NONE, Sector::new(6 * BLOCK), Sectors::new(8));
    assert_eq!(nothing, Err(Status::Io));
    pool.check();
}

/// The switch is thrown on a live pool by a reload; it takes effect at the resume.
#[test]
fn the_switch_is_thrown_on_a_live_pool() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write_zeroes(&io, 0, 8);
    assert_eq!(pool.used(), 0);
    pool.rig.load(&pool.md, &pool.table("1 enable_zero_writes"), false).unwrap();
    write_zeroes(&io, 0, 8);
    assert_eq!(pool.used(), 0, "loaded, not resumed");
    resume(&pool.md);
    write_zeroes(&io, 0, 8);
    assert_eq!(pool.used(), 1);
    assert_eq!(shown(&pool.md), "meta data 128 0 1 enable_zero_writes ");
    pool.rig.reload(&pool.md, &pool.table(""));
    write_zeroes(&io, BLOCK, 8);
    assert_eq!((pool.used(), skipped(&thin).0), (1, 3));
    pool.check();
}

/// Off by default: zeroes over a whole block that has data unmap it.
#[test]
fn zeroes_over_a_whole_block_unmap_it_when_asked_to() {
    let pool = Pool::new(16, "1 unmap_zero_writes");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, 2 * BLOCK, 1);
    write_zeroes(&io, 0, BLOCK);
    write_zeroes(&io, BLOCK, BLOCK - 1);
    assert_eq!((pool.used(), read(&io, 0, BLOCK)), (1, zeroes(BLOCK)));
    let without = Pool::new(16, "");
    let io = without.rig.io(&without.thin("thin", 0, 16));
    write(&io, 0, BLOCK, 1);
    write_zeroes(&io, 0, BLOCK);
    assert_eq!((without.used(), read(&io, 0, BLOCK)), (1, zeroes(BLOCK)));
    without.check();
    pool.check();
}
