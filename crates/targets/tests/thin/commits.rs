//! When what was written becomes durable, and in which order.

use super::pools::*;
use super::rig::*;
use udm_base::{Sector, Sectors};
use udm_core::{StatusKind, TableSlot};
use udm_io::*;
use udm_sim::Sim;

/// Trap: the data device is flushed before any metadata are written; these are flushed before the superblock is.
#[test]
fn a_commit_flushes_the_data_before_it_writes_metadata() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    for fua in [false, true] {
        pool.rig.log();
        let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
        io.write(Sector::new(if fua { BLOCK } else { 0 }), &pattern(0, 8, 1), flags).unwrap();
        if !fua {
            io.flush().unwrap();
        }
        let log = pool.rig.log();
        let place =
            |what: &str| log.iter().position(|l| l.starts_with(what)).unwrap_or_else(|| panic!("{what}: {log:#?}"));
        let last = |what: &str| log.iter().rposition(|l| l.starts_with(what)).unwrap();
        let prepared = place("data: WriteZeroes");
        let (data_flush, metadata) = (place("data: Flush"), place("meta: Write"));
        let (flush, superblock) = (place("meta: Flush"), place("meta: Write 0+8"));
        assert!(prepared < data_flush && data_flush < metadata && metadata < flush && flush < superblock, "{log:#?}");
        assert!(log[superblock].ends_with(" fua") && last("meta: ") == superblock, "{log:#?}");
        if fua {
            let write = log.iter().position(|l| l.starts_with("data: Write ") && l.ends_with("fua")).unwrap();
            assert!(superblock < write, "the write comes after the commit: {log:#?}");
        }
    }
    pool.rig.log();
    io.flush().unwrap();
    write(&io, 0, 8, 2);
    io.flush().unwrap();
    assert!(!pool.rig.log().iter().any(|l| l.starts_with("meta:")), "nothing changed, nothing to commit");
    pool.check();
}

/// `pool_status`, `drivers/md/dm-thin.c`, 6.12: it commits, unless it is asked not to.
#[test]
fn a_status_commits_unless_it_is_asked_not_to() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    write(&pool.rig.io(&thin), 0, 8, 1);
    pool.rig.log();
    let as_is = pool.md.table(TableSlot::Active).unwrap().lines(StatusKind::Info { noflush: true })[0].params.clone();
    let wrote = |log: Vec<String>| log.iter().any(|l| l.starts_with("meta: Write"));
    assert!(!wrote(pool.rig.log()));
    assert_eq!(as_is.split(' ').nth(2), Some("1/16"), "what is allocated is told all the same");
    assert_eq!(pool.status().split(' ').nth(2), Some("1/16"));
    assert!(wrote(pool.rig.log()));
}

/// A write that fills its block is done before its mapping is: else a commit in between would show what lay there
/// before.
#[test]
fn a_block_is_mapped_after_it_was_filled() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let mut client = Client::new(&pool.rig, &thin);
    for (used, (sector, count)) in [(0, BLOCK), (BLOCK, 8)].into_iter().enumerate() {
        *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
        let token = client.write(sector, pattern(sector, count, 1), OpFlags::NONE);
        assert_eq!(client.status(token), None);
        // A commit of everything that there is.
        let before = pool.as_after_power_cut();
        pool.ok("set_transaction_id 0 0");
        let after = pool.as_after_power_cut();
        for pool in [before, after] {
            let io = pool.rig.io(&pool.activate("thin", 0, 16));
            assert_eq!(read(&io, sector, count), zeroes(count));
            assert!(pool.used() <= used as u64, "the block that is being filled belongs to nobody");
            drop(io);
            pool.check();
        }
        *pool.data.hold_if.lock().unwrap() = None;
        pool.data.release();
        assert_eq!(client.wait(token), Status::Ok);
        pool.rig.io(&thin).flush().unwrap();
    }
    drop(client);
    pool.check();
}

/// Trap: at least once a second while something is not durable, and not all the time.
#[test]
fn what_was_written_is_durable_a_second_later() {
    let sim = Sim::new(1);
    let pool = Pool::in_rig(Rig::with(udm_targets::TARGETS, sim.domain()), 16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, 8, 1);
    let (start, channel) = (channel_now(&pool), pool.rig.domain.channel().unwrap());
    pool.rig.log();
    let mut committed = Vec::new();
    while channel.now().since(start) < 3_500_000_000 {
        channel.poll();
        channel.wait(None, &mut Vec::new()).unwrap();
        if pool.rig.log().iter().any(|l| l.starts_with("meta: Write 0+8")) {
            committed.push(channel.now().since(start));
        }
    }
    assert_eq!(committed.len(), 1, "one commit makes all durable: {committed:?}");
    assert!((900_000_000..=1_100_000_000).contains(&committed[0]), "{committed:?}");
    drop(channel);
    pool.check();
}

fn channel_now(pool: &Pool) -> Nanos {
    pool.rig.domain.clock().now()
}

/// One commit serves all flushes that came before it began.
#[test]
fn flushes_are_served_together() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 64);
    let io = pool.rig.io(&thin);
    let mut client = Client::new(&pool.rig, &thin);
    write(&io, 0, 8, 1);
    pool.rig.log();
    // The first commit is under way when the others come.
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Flush));
    let tokens: Vec<u64> = (0..9).map(|_| client.range(Op::Flush, OpFlags::NONE, 0, 0)).collect();
    assert!(tokens.iter().all(|t| client.status(*t).is_none()));
    *pool.data.hold_if.lock().unwrap() = None;
    pool.data.release();
    assert!(tokens.iter().all(|t| client.wait(*t) == Status::Ok));
    let superblocks = pool.rig.log().iter().filter(|l| l.starts_with("meta: Write 0+8")).count();
    assert_eq!(superblocks, 1);
    drop(client);
    pool.check();
}

/// The words of `check`, where a client sees a flush: what it was told before is there after the power went.
#[test]
fn what_was_flushed_is_there_after_the_power_went() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 64);
    let io = pool.rig.io(&thin);
    for round in 0..6u64 {
        write(&io, round * 200, 300, round);
        match round {
            0 | 3 => io.flush().unwrap(),
            1 => {
                let sector = Sector::new(round * 200 + 40);
                io.write(sector, &pattern(sector.get(), 8, 99), OpFlags::FUA).unwrap();
            }
            2 => pool.ok("create_snap 1 0"),
            _ => discard(&io, 0, 2 * BLOCK),
        }
        io.flush().unwrap();
        let expect = read(&io, 0, 2000);
        let after = pool.as_after_power_cut();
        let again = after.rig.io(&after.activate("thin", 0, 64));
        assert!(read(&again, 0, 2000) == expect, "round {round}");
        drop(again);
        after.check();
    }
    drop(io);
    pool.check();
}

thread_local! {
    /// A client that comes while the thread is somewhere else.
    static OTHER: std::cell::RefCell<Option<(Channel, Attached)>> = const { std::cell::RefCell::new(None) };
}

/// Trap: a bio that comes during a commit which its time has brought. Afterwards nothing is left to commit, and so no
/// time is set at which the worker would look again.
#[test]
fn what_comes_during_a_commit_is_served_after_it() {
    let sim = Sim::new(1);
    let pool = Pool::in_rig(Rig::with(udm_targets::TARGETS, sim.domain()), 16, "");
    let thin = pool.thin("thin", 0, 16);
    let channel = pool.rig.domain.channel().unwrap();
    let dev = channel.attach(thin.clone());
    OTHER.set(Some((channel, dev)));
    let with = |then: &mut dyn FnMut(&Channel)| OTHER.with_borrow(|other| then(&other.as_ref().unwrap().0));
    write(&pool.rig.io(&thin), 0, 8, 1);
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| {
        if bio.op() == Op::Flush {
            OTHER.with_borrow(|other| {
                let Some((channel, dev)) = other else { return };
                let (at, one) = (Sector::new(BLOCK), Sectors::new(8));
                channel.submit_range(*dev, Op::WriteZeroes, OpFlags::NO_UNMAP, at, one, 7);
            });
        }
        false
    }));
    // Long after the pool was busy: nobody looks after it but for the commit.
    sim.clock().advance_to(sim.clock().now().after(5_000_000_000));
    with(&mut |channel| {
        channel.poll();
        assert_eq!(channel.outstanding(), 1, "the commit has flushed the data device");
    });
    *pool.data.hold_if.lock().unwrap() = None;
    with(&mut |channel| {
        // The simulation panics when nothing happens any more.
        while channel.completed().is_none() {
            if channel.poll() == 0 {
                channel.wait(None, &mut Vec::new()).unwrap();
            }
        }
    });
    OTHER.set(None);
    drop(thin);
    pool.check();
}
