//! WRITE ZEROES and what `base:allocation` says.

use super::pools::*;
use super::rig::*;
use udm_base::{Sector, Sectors};
use udm_io::*;

fn zero(io: &BlockingIo, flags: OpFlags, sector: u64, count: u64) {
    io.range(Op::WriteZeroes, flags, Sector::new(sector), Sectors::new(count)).unwrap();
}

#[test]
fn write_zeroes_provisions_only_what_it_must() {
    // Whether the block has data, the request's flag and range; blocks in use afterwards.
    for (mapped, flags, from, count, used) in [
        (false, OpFlags::NONE, 0, BLOCK, 0),
        (false, OpFlags::NONE, 8, 8, 0),
        (false, OpFlags::NO_UNMAP, 8, 8, 1),
        (false, OpFlags::NO_UNMAP, 0, BLOCK, 1),
        (true, OpFlags::NONE, 0, BLOCK, 0),
        (true, OpFlags::NONE, 8, 8, 1),
        (true, OpFlags::NO_UNMAP, 0, BLOCK, 1),
        (true, OpFlags::FUA, 8, 8, 1),
        (false, OpFlags::FUA.with(OpFlags::NO_UNMAP), 8, 8, 1),
    ] {
        for snapshot in [false, true] {
            let pool = Pool::new(16, "");
            let thin = pool.thin("thin", 0, 16);
            let io = pool.rig.io(&thin);
            let mut expect = zeroes(BLOCK);
            if mapped {
                write(&io, 0, BLOCK, 1);
                expect = pattern(0, BLOCK, 1);
            }
            let kept = u64::from(mapped && snapshot);
            if snapshot {
                pool.ok("create_snap 1 0");
            }
            zero(&io, flags, from, count);
            expect[from as usize * 512..(from + count) as usize * 512].fill(0);
            let what = format!("mapped {mapped} {flags:?} {from}+{count}, snapshot {snapshot}");
            assert_eq!(read(&io, 0, BLOCK), expect, "{what}");
            assert_eq!(pool.used(), used + kept, "{what}");
            if snapshot && mapped {
                let old = pool.rig.io(&pool.activate("snap", 1, 16));
                assert_eq!(read(&old, 0, BLOCK), pattern(0, BLOCK, 1), "{what}");
            }
            pool.check();
        }
    }
}

/// Where new blocks are not zeroed a promise of zeroes has to be written down.
#[test]
fn without_zeroing_zeroes_are_written() {
    let pool = Pool::new(16, "1 skip_block_zeroing");
    let disk = BlockingIo::new(&pool.rig.domain, pool.data.clone()).unwrap();
    write(&disk, 0, 16 * BLOCK, 9);
    let io = pool.rig.io(&pool.thin("thin", 0, 16));
    zero(&io, OpFlags::NONE, 0, 2 * BLOCK);
    write(&io, 8, 1, 1);
    assert_eq!(read(&io, 0, 24), [zeroes(8), pattern(8, 1, 1), zeroes(15)].concat());
    zero(&io, OpFlags::NONE, BLOCK, BLOCK);
    write(&io, BLOCK, 1, 1);
    assert_eq!(read(&io, BLOCK + 1, 127), zeroes(127));
    pool.check();
}

#[test]
fn write_zeroes_hides_an_external_origin() {
    let pool = Pool::new(16, "");
    let origin = pool.rig.disk("origin", 2 * BLOCK);
    write(&BlockingIo::new(&pool.rig.domain, origin).unwrap(), 0, 2 * BLOCK, 7);
    pool.ok("create_thin 0");
    let io = pool.rig.io(&pool.rig.device("thin", &format!("0 {} thin {{pool}} 0 origin", 8 * BLOCK)));
    zero(&io, OpFlags::NONE, 0, BLOCK);
    zero(&io, OpFlags::NONE, BLOCK + 8, 8);
    assert_eq!(read(&io, 0, BLOCK), zeroes(BLOCK));
    assert_eq!(read(&io, BLOCK, 24), [pattern(BLOCK, 8, 7), zeroes(8), pattern(BLOCK + 16, 8, 7)].concat());
    // Mapped by now: to unmap it would bring the origin back.
    zero(&io, OpFlags::NONE, 0, BLOCK);
    assert_eq!((read(&io, 0, BLOCK), pool.used()), (zeroes(BLOCK), 2));
    pool.check();
}

#[test]
fn allocation_is_told() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 2 * BLOCK, 2 * BLOCK, 1);
    let ask = |sector, count| {
        let found = io.extents(Sector::new(sector), Sectors::new(count));
        found.into_iter().map(|e| (e.sectors.get(), e.kind)).collect::<Vec<_>>()
    };
    assert_eq!(ask(0, 16 * BLOCK), [(2 * BLOCK, ExtentKind::Hole)]);
    assert_eq!(ask(5, 10), [(10, ExtentKind::Hole)]);
    assert_eq!(ask(2 * BLOCK + 5, 14 * BLOCK - 5), [(2 * BLOCK - 5, ExtentKind::Data)]);
    assert_eq!(ask(4 * BLOCK, 12 * BLOCK), [(12 * BLOCK, ExtentKind::Hole)]);
    pool.rig.disk("origin", 5 * BLOCK);
    pool.ok("create_thin 1");
    let other = pool.rig.device("other", &format!("0 {} thin {{pool}} 1 origin", 8 * BLOCK));
    let io = pool.rig.io(&other);
    let found = io.extents(Sector::ZERO, Sectors::new(8 * BLOCK));
    assert_eq!(found[0].kind, ExtentKind::Data, "an origin shows through");
    let found = io.extents(Sector::new(6 * BLOCK), Sectors::new(2 * BLOCK));
    assert_eq!(found[0].kind, ExtentKind::Hole);
    drop(other);
    pool.check();
}

/// A pool that waits for its metadata device is asked without waiting for it.
#[test]
fn who_asks_for_allocation_does_not_wait_for_the_pool() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    write(&pool.rig.io(&thin), 0, BLOCK, 1);
    *pool.metadata.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
    let channel = pool.rig.domain.channel().unwrap();
    let dev = channel.attach(thin.clone());
    assert!(channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 0));
    channel.poll();
    assert!(pool.metadata.held() > 0, "the commit is under way");
    let mut questions = Questions::new(&channel);
    let asked = questions.ask(&channel, &*thin, Sector::ZERO, Sectors::new(2 * BLOCK));
    channel.poll();
    assert_eq!(questions.next_answer(), None);
    *pool.metadata.hold_if.lock().unwrap() = None;
    pool.metadata.release();
    let answer = loop {
        channel.poll();
        if let Some(answer) = questions.next_answer() {
            break answer;
        }
    };
    assert_eq!(answer, (asked, vec![Extent { sectors: Sectors::new(BLOCK), kind: ExtentKind::Data }]));
    while channel.completed().is_none() {
        channel.poll();
    }
    channel.detach(dev);
    drop(channel);
    // A device that does not run knows nothing, and says so at once.
    let io = pool.rig.io(&thin);
    suspend(&thin);
    let found = io.extents(Sector::ZERO, Sectors::new(16 * BLOCK));
    assert_eq!(found, [Extent { sectors: Sectors::new(16 * BLOCK), kind: ExtentKind::Data }]);
}
