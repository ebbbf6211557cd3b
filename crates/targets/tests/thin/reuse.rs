//! When a data block may be used anew.

use super::pools::*;
use super::rig::*;
use udm_io::*;

/// Trap: a block freed in the open transaction is not used before the commit, since the power may go; when no other is
/// free, the pool commits and looks again.
#[test]
fn a_freed_block_is_used_after_the_commit() {
    // With `error_if_no_space` it must not even seem for a moment that there is none.
    for features in ["", "1 no_discard_passdown", "1 error_if_no_space"] {
        let pool = Pool::new(2, features);
        let thin = pool.thin("thin", 0, 16);
        let io = pool.rig.io(&thin);
        write(&io, 0, 2 * BLOCK, 1);
        io.flush().unwrap();
        discard(&io, 0, BLOCK);
        pool.rig.log();
        write(&io, 5 * BLOCK, BLOCK, 2);
        let log = pool.rig.log();
        let superblock = log.iter().position(|l| l.starts_with("meta: Write 0+8")).expect("a commit");
        let written = log.iter().position(|l| l.starts_with("data: Write 0+")).expect("the block is used again");
        assert!(superblock < written, "{log:#?}");
        assert_eq!(read(&io, 5 * BLOCK, BLOCK), pattern(5 * BLOCK, BLOCK, 2));
        drop(io);
        pool.check();
    }
}

/// Trap: a read in flight on a block that was discarded delays its reuse.
#[test]
fn a_read_in_flight_delays_reuse() {
    let pool = Pool::new(1, "1 no_discard_passdown");
    let (thin, other) = (pool.thin("thin", 0, 16), pool.thin("other", 1, 16));
    let mut client = Client::new(&pool.rig, &thin);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    io.flush().unwrap();
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    let read = client.read(0, 8);
    assert_eq!(client.status(read), None);
    discard(&io, 0, BLOCK);
    *pool.data.hold_if.lock().unwrap() = None;
    pool.data.log();
    let mut second = Client::new(&pool.rig, &other);
    let write = second.write(0, pattern(0, BLOCK, 2), OpFlags::NONE);
    for _ in 0..100 {
        assert_eq!(second.status(write), None, "the block is still being read");
    }
    assert_eq!(pool.data.log(), Vec::<String>::new(), "and nobody writes to it");
    pool.data.release();
    assert_eq!((client.wait(read), second.wait(write)), (Status::Ok, Status::Ok));
    assert_eq!(client.data(read), pattern(0, 8, 1), "what it was when it was read");
    drop((client, second, io));
    pool.check();
}

/// Trap: as before, for a block that was shared, and that nobody has any more since the last one got a copy.
#[test]
fn a_read_in_flight_on_a_shared_block_delays_reuse() {
    let pool = Pool::new(3, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    let snap = pool.snap("snap", 1, 0, 16);
    let mut client = Client::new(&pool.rig, &snap);
    // So that the mapping is known, and the read needs nobody.
    let known = client.read(0, 8);
    client.wait(known);
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    let held = client.read(0, 8);
    assert_eq!(client.status(held), None);
    *pool.data.hold_if.lock().unwrap() = None;
    // Both get blocks of their own; the first block is nobody's.
    write(&io, 0, BLOCK, 2);
    write(&pool.rig.io(&snap), 0, BLOCK, 3);
    pool.data.log();
    let mut second = Client::new(&pool.rig, &thin);
    let next = second.write(BLOCK, pattern(BLOCK, BLOCK, 4), OpFlags::NONE);
    for _ in 0..100 {
        assert_eq!(second.status(next), None, "the block is still being read");
    }
    pool.data.release();
    assert_eq!((client.wait(held), second.wait(next)), (Status::Ok, Status::Ok));
    assert_eq!(client.data(held), pattern(0, 8, 1));
    drop((client, second, io));
    pool.check();
}

/// Trap: while a discard is under way beneath, its block is not used: the discard could come after the write.
#[test]
fn a_block_that_is_being_discarded_is_not_used() {
    let pool = Pool::new(1, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    io.flush().unwrap();
    let mut client = Client::new(&pool.rig, &thin);
    *pool.data.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Discard));
    let discard = client.range(Op::Discard, OpFlags::NONE, 0, BLOCK);
    assert_eq!(client.status(discard), None);
    let write = client.write(BLOCK, pattern(BLOCK, BLOCK, 2), OpFlags::NONE);
    for _ in 0..100 {
        assert_eq!(client.status(write), None);
    }
    pool.data.release();
    assert_eq!((client.wait(discard), client.wait(write)), (Status::Ok, Status::Ok));
    assert_eq!(read(&io, BLOCK, BLOCK), pattern(BLOCK, BLOCK, 2));
    drop((client, io));
    pool.check();
}
