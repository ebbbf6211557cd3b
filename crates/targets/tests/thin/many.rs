//! Many volumes in a pool, and volumes of which far more is touched than the mapping cache has directories for.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_core::*;
use udm_io::*;

/// Reads a sector of a volume's block. Whether it was there at once, without a question to the pool.
fn read_at_once(rig: &Rig, md: &Arc<MappedDevice>, sector: u64, generation: u64) -> bool {
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    let mut data = vec![0xaa; 512];
    // SAFETY: the buffer is kept until the completion has been taken.
    assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, udm_base::Sector::new(sector), &mut data, 1) });
    let at_once = channel.completed();
    let mut done = at_once;
    while done.is_none() {
        channel.poll();
        done = channel.completed();
    }
    assert_eq!(done, Some(Completion { token: 1, status: Status::Ok }));
    assert!(data == pattern(sector, 1, generation), "sector {sector}");
    at_once.is_some()
}

/// Trap: the 513th volume that is touched finds the cache full of directories, and what is found cannot be noted.
#[test]
fn each_of_many_volumes_is_served() {
    const VOLUMES: u32 = 600;
    let pool = Pool::new(u64::from(VOLUMES), "1 skip_block_zeroing");
    let volumes: Vec<_> = (0..VOLUMES).map(|id| pool.thin(&format!("thin{id}"), id, 4)).collect();
    for (id, volume) in (1..).zip(&volumes) {
        let io = pool.rig.io(volume);
        write(&io, BLOCK, 1, id);
        assert!(read(&io, 0, 1) == zeroes(1));
    }
    for (id, volume) in (1..).zip(&volumes) {
        assert!(read_at_once(&pool.rig, volume, BLOCK, id), "volume {id} of {VOLUMES} is known");
    }
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
    let known = (0..PARTS).filter(|p| read_at_once(&pool.rig, &thin, part(*p), *p)).count();
    assert!((500..PARTS as usize).contains(&known), "{known} of {PARTS} parts are known");
    // All that needs to know what a block is: flushed and forced writes, zeroes, a snapshot, discards.
    let last = part(PARTS - 1);
    let fua = |generation| io.write(udm_base::Sector::new(last), &pattern(last, 1, generation), OpFlags::FUA);
    fua(1).unwrap();
    write(&io, last + 2 * BLOCK, 1, 1);
    fua(2).unwrap();
    io.range(Op::WriteZeroes, OpFlags::NONE, udm_base::Sector::new(last + 1), udm_base::Sectors::new(4)).unwrap();
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
