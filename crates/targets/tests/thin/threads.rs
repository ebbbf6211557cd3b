//! Volumes of one pool under load from several threads, while everything else that can be asked of a pool is asked.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_testing::until;

/// Blocks of a volume, and of a thread's part of it.
const BLOCKS: u64 = 32;
const PART: u64 = BLOCKS / 2;
/// What is told apart, in sectors.
const UNIT: u64 = 8;

/// The same numbers every time, for each seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A part of a volume that only one thread writes to, and what has to be there: for each unit its generation, 0 for
/// zeroes.
struct Part {
    io: BlockingIo,
    from: u64,
    units: Vec<u64>,
    random: Random,
}

impl Part {
    fn new(rig: &Rig, md: &Arc<MappedDevice>, number: u64) -> Self {
        let units = vec![0; (PART * BLOCK / UNIT) as usize];
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (number + 1));
        Self { io: rig.io(md), from: number % 2 * PART * BLOCK, units, random }
    }

    fn expected(&self, unit: u64, count: u64) -> Vec<u8> {
        let of = |unit: u64| match self.units[unit as usize] {
            0 => zeroes(UNIT),
            generation => pattern(self.from + unit * UNIT, UNIT, generation),
        };
        (unit..unit + count).flat_map(of).collect()
    }

    fn step(&mut self, generation: u64) {
        let all = self.units.len() as u64;
        let in_block = BLOCK / UNIT;
        // A unit, a few that may lie over a block's end, or a block.
        let (unit, count) = match self.random.below(4) {
            0 | 1 => (self.random.below(all), 1),
            2 => (self.random.below(all - 8), 1 + self.random.below(8)),
            _ => (self.random.below(PART) * in_block, in_block),
        };
        let (at, sectors) = (self.from + unit * UNIT, count * UNIT);
        let flags = if self.random.below(16) == 0 { OpFlags::FUA } else { OpFlags::NONE };
        let mut now = None;
        match self.random.below(16) {
            0..=6 => {
                self.io.write(Sector::new(at), &pattern(at, sectors, generation), flags).unwrap();
                now = Some(generation);
            }
            7 => {
                self.io.write(Sector::new(at), &zeroes(sectors), flags).unwrap();
                now = Some(0);
            }
            8 => {
                self.io.range(Op::WriteZeroes, flags, Sector::new(at), Sectors::new(sectors)).unwrap();
                now = Some(0);
            }
            9 if count == in_block => {
                discard(&self.io, at, sectors);
                now = Some(0);
            }
            10 if flags != OpFlags::NONE => self.io.flush().unwrap(),
            _ => {
                let expected = self.expected(unit, count);
                assert!(read(&self.io, at, sectors) == expected, "sector {at} is not what was written there");
            }
        }
        if let Some(now) = now {
            self.units[unit as usize..(unit + count) as usize].fill(now);
        }
    }
}

/// Takes a snapshot of a volume in use, sees that it stays as it is, breaks its sharing, and deletes it.
fn snapshot_of(pool: &Pool, id: u32, origin: u32) {
    pool.ok(&format!("create_snap {id} {origin}"));
    let snap = pool.rig.registry.create("snap", "", None).unwrap();
    while let Err(e) = pool.rig.load(&snap, &format!("0 {} thin {{pool}} {id}", BLOCKS * BLOCK), false) {
        assert!(e.to_string().contains("while pool is suspended"), "{e}");
        std::thread::yield_now();
    }
    resume(&snap);
    let io = pool.rig.io(&snap);
    let first = read(&io, 0, BLOCKS * BLOCK);
    write(&io, BLOCK, 8, 1 << 40);
    discard(&io, 3 * BLOCK, BLOCK);
    let again = read(&io, 0, BLOCKS * BLOCK);
    let range = |from: u64, to: u64| (from * 512) as usize..(to * 512) as usize;
    for part in [range(0, BLOCK), range(BLOCK + 8, 3 * BLOCK), range(4 * BLOCK, BLOCKS * BLOCK)] {
        assert!(first[part.clone()] == again[part], "a snapshot has changed");
    }
    assert!(again[range(BLOCK, BLOCK + 8)] == pattern(BLOCK, 8, 1 << 40));
    assert!(again[range(3 * BLOCK, 4 * BLOCK)] == zeroes(BLOCK));
    drop((io, snap));
    pool.remove("snap");
    pool.ok(&format!("delete {id}"));
}

fn check(steps: u64, pool: Pool) {
    let volumes: Vec<_> = (0..2).map(|id| pool.thin(&format!("thin{id}"), id, BLOCKS)).collect();
    let (busy, done) = (AtomicBool::new(true), AtomicU64::new(0));
    let (pool_ref, busy_ref, done_ref) = (&pool, &busy, &done);
    let parts = std::thread::scope(|threads| {
        let work = |number: u64| {
            let volume = &volumes[number as usize / 2];
            threads.spawn(move || {
                let mut part = Part::new(&pool_ref.rig, volume, number);
                for step in 1..=steps {
                    part.step(step);
                    done_ref.fetch_add(1, Ordering::Relaxed);
                }
                part.units
            })
        };
        let working: Vec<_> = (0..4).map(work).collect();
        threads.spawn(move || {
            for (id, origin) in (10..).zip([0, 1].into_iter().cycle()) {
                snapshot_of(pool_ref, id, origin);
                if !busy_ref.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        threads.spawn(move || {
            let features = [
                "",
                "1 no_discard_passdown",
                "1 enable_zero_writes",
                "2 unmap_zero_writes skip_zero_writes",
                "1 error_if_no_space",
            ];
            for words in features.iter().cycle() {
                pool_ref.rig.reload(&pool_ref.md, &pool_ref.table(words));
                suspend(&pool_ref.md);
                std::thread::yield_now();
                resume(&pool_ref.md);
                assert!(pool_ref.status().contains(" rw "), "{}", pool_ref.status());
                if !busy_ref.load(Ordering::Relaxed) {
                    break;
                }
                let next = done_ref.load(Ordering::Relaxed) + 40;
                let goes_on = || done_ref.load(Ordering::Relaxed) >= next || !busy_ref.load(Ordering::Relaxed);
                until("the load goes on", goes_on);
            }
        });
        let parts: Vec<Vec<u64>> =
            working.into_iter().map(|thread| thread.join().expect("a thread of the load")).collect();
        busy.store(false, Ordering::Relaxed);
        parts
    });
    for (number, units) in (0..).zip(parts) {
        let part = Part { units, ..Part::new(&pool.rig, &volumes[number as usize / 2], number) };
        let sectors = PART * BLOCK;
        assert!(read(&part.io, part.from, sectors) == part.expected(0, sectors / UNIT), "what was written last");
    }
    drop(volumes);
    pool.check();
}

/// Trap: what two threads, the worker and control threads do to a pool together.
#[test]
fn volumes_keep_what_threads_write_while_all_else_changes() {
    check(400, Pool::new(256, ""));
}

/// Trap: a wake-up is lost when who has run the worker goes elsewhere, and a write that waits for a block sleeps as the
/// workqueue does.
#[test]
fn single_writes_to_fresh_blocks_come_home_while_others_run_the_worker() {
    const WRITES: u64 = 1000;
    let pool = Pool::new(4 * WRITES, "");
    let volumes: Vec<_> = (0..2).map(|id| pool.thin(&format!("thin{id}"), id, WRITES)).collect();
    let busy = AtomicBool::new(true);
    let (pool_ref, busy_ref) = (&pool, &busy);
    std::thread::scope(|threads| {
        let write_each = |md: &Arc<MappedDevice>| {
            let md = md.clone();
            threads.spawn(move || {
                let io = pool_ref.rig.io(&md);
                (0..WRITES).for_each(|block| write(&io, block * BLOCK + 8, 8, block + 1));
            })
        };
        let writing: Vec<_> = volumes.iter().map(write_each).collect();
        threads.spawn(move || {
            while busy_ref.load(Ordering::Relaxed) {
                assert!(pool_ref.status().contains(" rw "), "{}", pool_ref.status());
                short_life(pool_ref);
            }
        });
        writing.into_iter().for_each(|thread| thread.join().expect("a thread that writes"));
        busy.store(false, Ordering::Relaxed);
    });
    for md in &volumes {
        let io = pool.rig.io(md);
        for block in 0..WRITES {
            let at = block * BLOCK + 8;
            assert!(read(&io, at, 8) == pattern(at, 8, block + 1), "block {block} is not what was written there");
        }
    }
    drop(volumes);
    pool.check();
}

/// Runs the worker from the channel of control threads, and from one that is soon gone: makes a volume, has a block of
/// it filled and unmapped, so that a commit waits for what is in flight, and deletes it.
fn short_life(pool: &Pool) {
    let md = pool.thin("short", 10, 4);
    let io = pool.rig.io(&md);
    write(&io, 0, 8, 1);
    discard(&io, 0, BLOCK);
    io.flush().unwrap();
    drop((io, md));
    pool.remove("short");
    pool.ok("delete 10");
}
