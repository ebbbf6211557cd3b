//! Many volumes in a pool, and volumes of which far more is touched than the mapping cache has directories for.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_base::Sector;
use udm_core::*;
use udm_io::*;

/// Reads sectors of volumes, each said with the generation that was written there. How many of them were there though
/// the pool's worker waited for its metadata device: what they needed was known without it.
fn read_known(pool: &Pool, reads: &[(&Arc<MappedDevice>, u64, u64)]) -> usize {
    let channel = pool.rig.domain.channel().unwrap();
    channel.set_depth(reads.len());
    let mut writer = Client::new(&pool.rig, reads[0].0);
    *pool.metadata.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
    // A block that is not there yet, so that there is something to commit.
    let wrote = writer.write(3 * BLOCK, pattern(0, 1, 0), OpFlags::NONE);
    assert_eq!(writer.wait(wrote), Status::Ok);
    let flushed = writer.range(Op::Flush, OpFlags::NONE, 0, 0);
    while pool.metadata.held() == 0 {
        assert_eq!(writer.status(flushed), None);
    }
    let mut data = vec![[0xaa; 512]; reads.len()];
    for ((md, sector, _), data) in reads.iter().zip(&mut data) {
        let dev = channel.attach((*md).clone());
        // SAFETY: the buffers are kept until all completions have been taken.
        assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(*sector), data, 1) });
    }
    let completed =
        || std::iter::from_fn(|| channel.completed()).inspect(|done| assert_eq!(done.status, Status::Ok)).count();
    let known = completed();
    *pool.metadata.hold_if.lock().unwrap() = None;
    pool.metadata.release();
    let mut all = known;
    while all < reads.len() {
        channel.poll();
        all += completed();
    }
    for ((_, sector, generation), data) in reads.iter().zip(&data) {
        assert!(data[..] == pattern(*sector, 1, *generation), "sector {sector}");
    }
    assert_eq!(writer.wait(flushed), Status::Ok);
    known
}

/// Trap: the 513th volume that is touched finds the cache full of directories, and what is found cannot be noted.
#[test]
fn each_of_many_volumes_is_served() {
    const VOLUMES: u32 = 600;
    let pool = Pool::new(u64::from(VOLUMES) + 1, "1 skip_block_zeroing");
    let volumes: Vec<_> = (0..VOLUMES).map(|id| pool.thin(&format!("thin{id}"), id, 4)).collect();
    for (id, volume) in (1..).zip(&volumes) {
        let io = pool.rig.io(volume);
        write(&io, BLOCK, 1, id);
        assert!(read(&io, 0, 1) == zeroes(1));
    }
    let reads: Vec<_> = (1..).zip(&volumes).map(|(id, volume)| (volume, BLOCK, id)).collect();
    assert_eq!(read_known(&pool, &reads), reads.len());
    drop(reads);
    drop(volumes);
    pool.check();
}

/// The same with one volume of 38 PiB, of which the last part is past all that the cache has a place for: what is known
/// there is used and not noted.
#[test]
fn a_volume_is_served_wherever_it_is_touched() {
    const PARTS: u64 = 600;
    let pool = Pool::new(2 * PARTS, "1 skip_block_zeroing");
    let thin = pool.thin("thin", 0, PARTS << 30);
    let io = pool.rig.io(&thin);
    let part = |part: u64| (part << 30) * BLOCK;
    (0..PARTS).for_each(|p| write(&io, part(p), 1, p));
    for p in 0..PARTS {
        assert!(read(&io, part(p), 1) == pattern(part(p), 1, p));
        assert!(read(&io, part(p) + BLOCK, 1) == zeroes(1), "beside it nothing is mapped");
    }
    let reads: Vec<_> = (0..PARTS).map(|p| (&thin, part(p), p)).collect();
    let known = read_known(&pool, &reads);
    assert!((500..PARTS as usize).contains(&known), "{known} of {PARTS} parts are known");
    // All that needs to know what a block is: flushed and forced writes, zeroes, a snapshot, discards.
    let last = part(PARTS - 1);
    let fua = |generation| io.write(Sector::new(last), &pattern(last, 1, generation), OpFlags::FUA);
    fua(1).unwrap();
    write(&io, last + 2 * BLOCK, 1, 1);
    fua(2).unwrap();
    io.range(Op::WriteZeroes, OpFlags::NONE, Sector::new(last + 1), udm_base::Sectors::new(4)).unwrap();
    let snap = pool.snap("snap", 1, 0, PARTS << 30);
    let old = pool.rig.io(&snap);
    write(&io, last, 1, 3);
    assert!(read(&old, last, 2) == [pattern(last, 1, 2), zeroes(1)].concat());
    assert!(read(&io, last, 1) == pattern(last, 1, 3));
    discard(&io, last, BLOCK);
    assert!(read(&io, last, 1) == zeroes(1));
    assert!(read(&old, last, 1) == pattern(last, 1, 2));
    drop((io, old, thin, snap));
    pool.check();
}
