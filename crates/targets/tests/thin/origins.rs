//! External origins: what shows through, and what is copied.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_core::*;
use udm_io::*;

fn with_origin(pool: &Pool, sectors: u64, blocks: u64) -> Arc<MappedDevice> {
    let origin = pool.rig.disk("origin", sectors);
    write(&BlockingIo::new(&pool.rig.domain, origin).unwrap(), 0, sectors, 7);
    pool.ok("create_thin 0");
    pool.rig.device("thin", &format!("0 {} thin {{pool}} 0 origin", blocks * BLOCK))
}

#[test]
fn an_origin_shows_through_until_it_is_written_over() {
    let size = 2 * BLOCK + 50;
    let pool = Pool::new(16, "");
    let disk = BlockingIo::new(&pool.rig.domain, pool.data.clone()).unwrap();
    write(&disk, 0, 16 * BLOCK, 9);
    let thin = with_origin(&pool, size, 6);
    let io = pool.rig.io(&thin);
    let mut expect = [pattern(0, size, 7), zeroes(6 * BLOCK - size)].concat();
    assert!(read(&io, 0, 6 * BLOCK) == expect, "past the end there are zeroes");
    assert!(read(&io, size - 4, 8) == expect[(size as usize - 4) * 512..(size as usize + 4) * 512]);
    // Within, over the end, past it, and a whole block.
    for (n, (sector, count)) in [(8, 8), (size - 4, 8), (4 * BLOCK + 8, 8), (BLOCK, BLOCK)].into_iter().enumerate() {
        write(&io, sector, count, n as u64);
        expect[sector as usize * 512..(sector + count) as usize * 512]
            .copy_from_slice(&pattern(sector, count, n as u64));
        assert!(read(&io, 0, 6 * BLOCK) == expect, "{sector}+{count}");
    }
    discard(&io, 0, BLOCK);
    expect[..BLOCK as usize * 512].copy_from_slice(&pattern(0, BLOCK, 7));
    assert!(read(&io, 0, 6 * BLOCK) == expect, "a discard brings the origin back");
    assert_eq!(pool.used(), 3);
    drop((io, disk, thin));
    pool.check();
}

/// Clones of requests, as under a device above, see the same.
#[test]
fn reads_over_the_origins_end_are_cut_in_clones_too() {
    let pool = Pool::new(16, "");
    let thin = with_origin(&pool, BLOCK + 9, 6);
    thin.set_clone_always(true);
    let io = pool.rig.io(&thin);
    let expect = [pattern(0, BLOCK + 9, 7), zeroes(5 * BLOCK - 9)].concat();
    assert!(read(&io, 0, 6 * BLOCK) == expect);
    drop((io, thin));
    pool.check();
}

#[test]
fn an_origin_may_be_a_volume_of_another_pool_or_a_linear() {
    let pool = Pool::new(16, "");
    pool.rig.disk("d", 4 * BLOCK);
    let lin = pool.rig.device("lin", &format!("0 {} linear d 0", 4 * BLOCK));
    write(&pool.rig.io(&lin), 0, 4 * BLOCK, 5);
    pool.ok("create_thin 0");
    let thin = pool.rig.device("thin", &format!("0 {} thin {{pool}} 0 {{lin}}", 4 * BLOCK));
    let io = pool.rig.io(&thin);
    write(&io, 8, 8, 6);
    assert!(read(&io, 0, 24) == [pattern(0, 8, 5), pattern(8, 8, 6), pattern(16, 8, 5)].concat());
    assert!(pool.rig.registry.remove(&lin, false).is_err(), "it is held");
    drop((io, thin, lin));
    pool.remove("thin");
    pool.remove("lin");
    pool.check();
}
