//! Devices that grow beneath snapshots and with them: the origin, the COW device, the snapshot itself.

use super::*;

/// As far as they can grow.
const MOST: u64 = 20_000;

/// An origin and COW devices that are linears, to be loaded anew.
struct Growing {
    rig: Rig,
    origin: Arc<MappedDevice>,
    disk: Arc<Disk>,
    cows: Vec<Arc<Disk>>,
}

impl Growing {
    fn new(size: u64, cows: &[u64]) -> Self {
        let rig = Rig::default();
        let disk = rig.disk("/o", MOST);
        let cow = |(i, size): (usize, &u64)| {
            let disk = rig.disk(&format!("/c{i}"), 4 * MOST);
            rig.device(&format!("c{i}"), &format!("0 {size} linear /c{i} 0"));
            disk
        };
        let cows = cows.iter().enumerate().map(cow).collect();
        rig.device("o", &format!("0 {size} linear /o 0"));
        let origin = rig.device("origin", &format!("0 {size} snapshot-origin {{o}}"));
        write(&rig.io(&origin), 0, size, 1);
        Self { rig, origin, disk, cows }
    }

    fn snap(&self, name: &str, size: u64, cow: usize, rest: &str) -> Arc<MappedDevice> {
        self.rig.device(name, &format!("0 {size} snapshot {{o}} {{c{cow}}} {rest}"))
    }

    /// The device beneath, then what shows it.
    fn grow_origin(&self, size: u64) {
        self.rig.reload(&self.rig.registry.by_name("o").unwrap(), &format!("0 {size} linear /o 0"));
        self.rig.reload(&self.origin, &format!("0 {size} snapshot-origin {{o}}"));
    }

    fn grow_cow(&self, cow: usize, size: u64) {
        let md = self.rig.registry.by_name(&format!("c{cow}")).unwrap();
        self.rig.reload(&md, &format!("0 {size} linear /c{cow} 0"));
    }

    fn grow_snap(&self, md: &Arc<MappedDevice>, size: u64, cow: usize, rest: &str) {
        suspend(md);
        self.rig.reload(md, &format!("0 {size} snapshot {{o}} {{c{cow}}} {rest}"));
    }

    fn write(&self, md: &Arc<MappedDevice>, sector: u64, count: u64, generation: u64) {
        write(&self.rig.io(md), sector, count, generation);
    }

    fn read(&self, md: &Arc<MappedDevice>) -> Vec<u8> {
        read(&self.rig.io(md), 0, md.sectors().get())
    }
}

fn put(into: &mut [u8], sector: u64, count: u64, generation: u64) {
    let at = sector as usize * 512;
    into[at..at + count as usize * 512].copy_from_slice(&pattern(sector, count, generation));
}

/// Where bytes differ, as sectors.
fn differ(a: &[u8], b: &[u8]) -> Vec<usize> {
    assert_eq!(a.len(), b.len());
    a.chunks(512).zip(b.chunks(512)).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect()
}

/// Trap: what is known of which parts nobody needs ends where the origin ended when it was first met; a write past that
/// said it of others too. And the table of exceptions had as many places as the origin had chunks, so that one more
/// lost the snapshot.
#[test]
fn what_is_written_past_the_old_end_is_kept_for_a_snapshot_that_grew() {
    for store in ["P 8", "PO 1", "N 16", "P 128"] {
        // Chunks of one sector are many, and need not go far.
        let far = if store == "PO 1" { 1200 } else { MOST };
        for (old, new) in
            [(256, 512), (256, 1040), (1000, far), (8192, MOST)].into_iter().filter(|(_, new)| *new <= far)
        {
            let w = Growing::new(old, &[4 * MOST, 4 * MOST]);
            let (snap, fixed) = (w.snap("s", old, 0, store), w.snap("f", old, 1, "P 8"));
            w.write(&w.origin, 0, 40, 2);
            w.grow_origin(new);
            // Nobody has to keep what is there now, and all know it.
            w.write(&w.origin, old, new - old, 3);
            w.write(&w.origin, old, new - old, 4);
            w.grow_snap(&snap, new, 0, store);
            let mut expect = pattern(0, old, 1);
            expect.extend(pattern(old, new - old, 4));
            assert_eq!(differ(&w.read(&snap), &expect), [], "{store}: grown from {old} to {new}");
            // One place after the other, and the next at once after it.
            for at in (old..new - 8).step_by(((new - old) / 40).max(8) as usize) {
                w.write(&w.origin, at, 3, 5);
                w.write(&w.origin, at + 3, 5, 6);
            }
            w.write(&snap, new - 1, 1, 7);
            put(&mut expect, new - 1, 1, 7);
            assert_eq!(differ(&w.read(&snap), &expect), [], "{store}: written after it grew from {old} to {new}");
            w.write(&w.origin, 0, new, 8);
            assert_eq!(differ(&w.read(&snap), &expect), [], "{store}: all written after it grew from {old} to {new}");
            assert_eq!(differ(&w.read(&fixed), &pattern(0, old, 1)), [], "one that has not grown");
            assert!(status(&snap).contains('/'), "{store}: {}", status(&snap));
            if store.starts_with('P') {
                w.rig.registry.remove(&snap, false).unwrap();
                let again = w.snap("s2", new, 0, store);
                assert_eq!(differ(&w.read(&again), &expect), [], "{store}: made again");
            }
        }
    }
}

/// Trap: the last chunk was copied as far as the origin went then. What follows at its place was never written.
#[test]
fn a_snapshot_that_ended_within_a_chunk_shows_what_the_origin_has_when_it_grows() {
    for (store, old, new) in [("P 16", 100, 256), ("N 64", 100, 110), ("PO 128", 129, 2000), ("P 8", 250, 251)] {
        for early in [false, true] {
            let w = Growing::new(old, &[4 * MOST]);
            let snap = w.snap("s", old, 0, store);
            let cow = BlockingIo::new(&w.rig.domain, w.cows[0].clone()).unwrap();
            if store.starts_with('N') {
                write(&cow, 0, 4096, 99);
            }
            // The chunk is copied before or after the origin has grown.
            if early {
                w.write(&w.origin, old - 1, 1, 2);
            }
            w.grow_origin(new);
            w.write(&w.origin, old, new - old, 3);
            w.write(&w.origin, old - 1, 1, 2);
            w.write(&w.origin, old, new - old, 4);
            w.grow_snap(&snap, new, 0, store);
            w.write(&w.origin, old, new - old, 5);
            w.write(&snap, new - 1, 1, 6);
            let mut expect = pattern(0, old, 1);
            expect.extend(pattern(old, new - old, 4));
            put(&mut expect, new - 1, 1, 6);
            assert_eq!(differ(&w.read(&snap), &expect), [], "{store} {old} {new} {early}");
        }
    }
}

/// A COW device that fails then costs the snapshot, which would show what was never there.
#[test]
fn an_end_that_cannot_be_filled_makes_the_snapshot_invalid() {
    let w = Growing::new(100, &[4 * MOST]);
    let snap = w.snap("s", 100, 0, "P 16");
    w.write(&w.origin, 99, 1, 2);
    w.grow_origin(256);
    *w.disk.fail_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    w.grow_snap(&snap, 256, 0, "P 16");
    *w.disk.fail_if.lock().unwrap() = None;
    assert_eq!(status(&snap), "Invalid");
    w.write(&w.origin, 0, 256, 3);
}

#[test]
fn a_cow_device_that_grows_has_room_for_more() {
    for (store, expect) in [("P 8", "32/4096 16"), ("PO 8", "32/4096 16"), ("N 8", "16/4096 0")] {
        let w = Growing::new(2048, &[64]);
        let snap = w.snap("s", 2048, 0, store);
        w.write(&w.origin, 0, 16, 2);
        w.grow_cow(0, 4096);
        assert_eq!(status(&snap), expect);
        let events = snap.info().event_nr;
        w.write(&w.origin, 0, 2048, 3);
        w.write(&w.origin, 0, 2048, 4);
        assert!(w.read(&snap) == pattern(0, 2048, 1), "{store}: {}", status(&snap));
        assert_eq!(snap.info().event_nr, events, "{store}: half full is nothing to tell");
        w.write(&w.origin, 0, 2048, 5);
    }
}

/// It may grow whenever there is room for one more, over areas of the list too.
#[test]
fn a_cow_device_grows_a_chunk_at_a_time() {
    // 32 exceptions in an area.
    for (store, first) in [("P 1", 3), ("N 1", 1)] {
        let w = Growing::new(256, &[first]);
        let snap = w.snap("s", 256, 0, store);
        let mut size = first;
        for at in 0..256 {
            let usage = || status(&snap).split_once('/').unwrap().0.parse::<u64>().unwrap();
            size = size.max(usage() + 3);
            w.grow_cow(0, size);
            w.write(&w.origin, at, 1, 2);
        }
        assert!(w.read(&snap) == pattern(0, 256, 1), "{store}: {}", status(&snap));
        // And without, it is full.
        w.grow_origin(1024);
        w.grow_snap(&snap, 1024, 0, store);
        w.write(&w.origin, 256, 768, 2);
        assert_eq!(status(&snap), "Invalid");
    }
}

/// Trap: the snapshot ended within a chunk, and the origin has grown. What lies at the chunk's place after the
/// snapshot's end is not to go into the origin.
#[test]
fn a_merge_leaves_what_lies_past_the_snapshot_alone() {
    for (merged, chunk) in [(100, 16), (256, 16), (100, 128), (1000, 64)] {
        let w = Growing::new(100, &[4 * MOST]);
        let rest = format!("P {chunk}");
        let snap = w.snap("s", 100, 0, &rest);
        w.write(&snap, 90, 10, 2);
        w.write(&snap, 3, 1, 2);
        w.grow_origin(1000);
        w.write(&w.origin, 100, 900, 3);
        suspend(&snap);
        w.rig.reload(&w.origin, &format!("0 {merged} snapshot-merge {{o}} {{c0}} {rest}"));
        let channel = w.rig.domain.channel().unwrap();
        while !status(&w.origin).starts_with(&format!("{}/", 2 * chunk)) {
            channel.poll();
            std::thread::yield_now();
        }
        w.rig.registry.remove(&snap, false).unwrap();
        w.rig.reload(&w.origin, "0 1000 snapshot-origin {o}");
        let mut expect = pattern(0, 100, 1);
        expect.extend(pattern(100, 900, 3));
        put(&mut expect, 90, 10, 2);
        put(&mut expect, 3, 1, 2);
        assert_eq!(differ(&w.read(&w.origin), &expect), [], "as {merged} sectors, chunks of {chunk}");
    }
}

/// A list that says more than the table: of a snapshot that was longer. What it says is there when it is that long
/// again.
#[test]
fn exceptions_past_the_end_wait_for_the_snapshot_to_grow() {
    for (short, merge) in [(64, false), (60, false), (64, true)] {
        let w = Growing::new(4000, &[4 * MOST]);
        let snap = w.snap("s", 4000, 0, "P 8");
        w.write(&w.origin, 0, 4000, 2);
        w.rig.registry.remove(&snap, false).unwrap();
        // The origin is cut short, too: else nobody would think of such a table.
        let o = w.rig.registry.by_name("o").unwrap();
        w.rig.reload(&w.origin, &format!("0 {short} snapshot-origin {{o}}"));
        w.rig.reload(&o, &format!("0 {short} linear /o 0"));
        let snap = w.snap("s2", short, 0, "P 8");
        assert_eq!(w.read(&snap), pattern(0, short, 1));
        w.grow_origin(4000);
        if merge {
            suspend(&snap);
            w.rig.reload(&w.origin, "0 4000 snapshot-merge {o} {c0} P 8");
            w.rig.registry.remove(&snap, false).unwrap();
            let channel = w.rig.domain.channel().unwrap();
            while !status(&w.origin).starts_with("16/") {
                channel.poll();
                std::thread::yield_now();
            }
            assert_eq!(differ(&w.read(&w.origin), &pattern(0, 4000, 1)), []);
            continue;
        }
        w.grow_snap(&snap, 4000, 0, "P 8");
        let mut expect = pattern(0, 4000, 1);
        // The end of a chunk in which a snapshot ends is filled when it grows.
        put(&mut expect, short, short.next_multiple_of(8) - short, 2);
        assert_eq!(differ(&w.read(&snap), &expect), [], "from {short}");
    }
}

/// Origin, COW device and snapshot grow in turns while two writers go on, and another snapshot is merged.
#[test]
fn all_grow_under_writers_and_a_merge() {
    for round in 0..3 {
        let w = Growing::new(256, &[512, 4 * MOST]);
        let snap = w.snap("s", 256, 0, "P 8");
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let generation = Arc::new(std::sync::atomic::AtomicU64::new(2));
        let writers: Vec<_> = (0..2u64)
            .map(|n| {
                let (domain, md, stop) = (w.rig.domain.clone(), w.origin.clone(), stop.clone());
                let generation = generation.clone();
                std::thread::spawn(move || {
                    let io = BlockingIo::new(&domain, md.clone()).unwrap();
                    let mut at = n * 7;
                    while !stop.load(Ordering::SeqCst) {
                        let size = md.sectors().get();
                        at = (at * 5 + 13 + n) % (size - 20);
                        // Sectors of its own, so that both can be told.
                        let at = at / 40 * 40 + n * 20;
                        let count = 20.min(size - at);
                        write(&io, at, count, generation.load(Ordering::SeqCst));
                    }
                })
            })
            .collect();
        let mut size = 256;
        let mut before = w.read(&snap);
        while size < 12_000 {
            size = size * 3 / 2 + 5;
            let steps: [&dyn Fn(); 2] = [&|| w.grow_origin(size), &|| w.grow_cow(0, 512 + 3 * size)];
            steps[round % 2]();
            steps[(round + 1) % 2]();
            w.grow_snap(&snap, size, 0, "P 8");
            let now = w.read(&snap);
            assert!(now[..before.len()] == before, "what it showed before it grew to {size}");
            generation.fetch_add(1, Ordering::SeqCst);
            before = now;
            if round == 2 && size > 2000 && size < 4000 {
                // One that comes and is taken back, as far as the origin goes, under the same writers.
                let other = w.snap("other", size, 1, "P 16");
                suspend(&other);
                w.rig.reload(&w.origin, &format!("0 {size} snapshot-merge {{o}} {{c1}} P 16"));
                w.rig.registry.remove(&other, false).unwrap();
                while !status(&w.origin).starts_with("32/") {
                    std::thread::yield_now();
                }
                w.rig.reload(&w.origin, &format!("0 {size} snapshot-origin {{o}}"));
                BlockingIo::new(&w.rig.domain, w.cows[1].clone())
                    .unwrap()
                    .write(Sector::ZERO, &[0; 16384], OpFlags::NONE)
                    .unwrap();
            }
        }
        for _ in 0..20 {
            assert!(w.read(&snap) == before, "what it shows after that");
        }
        stop.store(true, Ordering::SeqCst);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(w.read(&snap) == before && status(&snap).contains('/'), "{}", status(&snap));
    }
}
