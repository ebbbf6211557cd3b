//! Snapshots over disks in memory: what is seen where, in which order, and what goes wrong how.

mod grow;
mod merge_back;
#[path = "../rig/mod.rs"]
mod rig;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_kcopyd::{CopyOptions, Kcopyd};

const SIZE: u64 = 256;

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Info { noflush: false })
}

fn table(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Table)
}

/// An origin of 256 sectors with known content, on a disk `/o`; and a COW disk `/cN` for each of `cows` sectors.
struct World {
    rig: Rig,
    origin: Arc<MappedDevice>,
    disk: Arc<Disk>,
    cows: Vec<Arc<Disk>>,
}

fn world(cows: &[u64]) -> World {
    world_on(Rig::default(), cows)
}

fn world_on(rig: Rig, cows: &[u64]) -> World {
    let disk = rig.disk("/o", SIZE);
    let cows = cows.iter().enumerate().map(|(i, size)| rig.disk(&format!("/c{i}"), *size)).collect();
    let origin = rig.device("origin", &format!("0 {SIZE} snapshot-origin /o"));
    write(&rig.io(&origin), 0, SIZE, 1);
    World { rig, origin, disk, cows }
}

impl World {
    fn snap(&self, name: &str, cow: usize, rest: &str) -> Arc<MappedDevice> {
        self.rig.device(name, &format!("0 {SIZE} snapshot /o /c{cow} {rest}"))
    }
    fn read(&self, md: &Arc<MappedDevice>, sector: u64, count: u64) -> Vec<u8> {
        read(&self.rig.io(md), sector, count)
    }
    fn write(&self, md: &Arc<MappedDevice>, sector: u64, count: u64, generation: u64) {
        write(&self.rig.io(md), sector, count, generation);
    }
}

#[test]
fn a_snapshot_shows_the_origin_as_it_was_and_its_own_writes() {
    for store in ["P 8", "PO 8", "N 8", "P 16", "N 32"] {
        let w = world(&[1024]);
        let snap = w.snap("snap", 0, store);
        w.write(&w.origin, 3, 40, 2);
        assert_eq!(w.read(&snap, 0, SIZE), pattern(0, SIZE, 1), "{store}");
        assert_eq!(w.read(&w.origin, 3, 40), pattern(3, 40, 2));
        w.write(&snap, 5, 2, 3);
        w.write(&snap, 64, 32, 4);
        w.write(&snap, 200, 1, 5);
        let mut expect = pattern(0, SIZE, 1);
        for (at, n, generation) in [(5, 2, 3), (64, 32, 4), (200, 1, 5)] {
            expect[at * 512..(at + n) * 512].copy_from_slice(&pattern(at as u64, n as u64, generation));
        }
        assert_eq!(w.read(&snap, 0, SIZE), expect, "{store}");
        assert_eq!(w.read(&w.origin, 44, SIZE - 44), pattern(44, SIZE - 44, 1));
        assert_eq!(table(&snap), format!("/o /c0 {store}"));
    }
}

fn register(w: &World, name: &str) -> Arc<MappedDevice> {
    w.rig.registry.create(name, "", None).unwrap()
}

fn load_error(w: &World, table: &str) -> String {
    let md = register(w, "bad");
    let error = w.rig.load(&md, table, false).unwrap_err().to_string();
    w.rig.registry.remove(&md, false).unwrap();
    error
}

/// A channel with bios to one device under way.
struct Asking {
    channel: Channel,
    dev: Attached,
    bufs: Vec<Vec<u8>>,
    done: Vec<(u64, Status)>,
}

impl Asking {
    fn new(w: &World, md: &Arc<MappedDevice>) -> Self {
        let channel = w.rig.domain.channel().unwrap();
        let dev = channel.attach(md.clone());
        Self { channel, dev, bufs: Vec::new(), done: Vec::new() }
    }
    fn write(&mut self, sector: u64, count: u64, generation: u64, token: u64) {
        let mut buf = pattern(sector, count, generation);
        let at = Sector::new(sector);
        // SAFETY: `bufs` keeps the memory, which does not move with its vector.
        assert!(unsafe { self.channel.submit(self.dev, Op::Write, OpFlags::NONE, at, &mut buf, token) });
        self.bufs.push(buf);
    }
    fn read(&mut self, sector: u64, count: u64, token: u64) {
        let mut buf = vec![0; count as usize * 512];
        let at = Sector::new(sector);
        // SAFETY: as above.
        assert!(unsafe { self.channel.submit(self.dev, Op::Read, OpFlags::NONE, at, &mut buf, token) });
        self.bufs.push(buf);
    }
    /// What has ended by now, in order.
    fn done(&mut self) -> Vec<u64> {
        self.channel.poll();
        while let Some(c) = self.channel.completed() {
            self.done.push((c.token, c.status));
        }
        self.done.iter().map(|d| d.0).collect()
    }
    /// Waits until so many have ended.
    fn until(&mut self, n: usize) -> Vec<(u64, Status)> {
        while self.done().len() < n {
            std::thread::yield_now();
        }
        self.done.clone()
    }
}

fn ops(disk: &Disk) -> Vec<String> {
    disk.log().into_iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn an_origin_write_waits_until_every_snapshot_has_the_chunk_on_its_device() {
    let w = world(&[1024, 1024]);
    let _snaps = [w.snap("s0", 0, "P 8"), w.snap("s1", 1, "P 8")];
    // The second COW device keeps everything for itself.
    w.cows[1].holding.store(true, Ordering::Relaxed);
    w.disk.log();
    let mut asking = Asking::new(&w, &w.origin);
    asking.write(10, 1, 2, 1);
    // Its data, then its list.
    for _ in 0..2 {
        assert_eq!(asking.done(), [] as [u64; 0]);
        assert!(!w.disk.log().iter().any(|l| l.starts_with("Write")), "the origin is written too soon");
        assert_eq!(w.cows[1].release(), 1);
    }
    assert_eq!(asking.until(1), [(1, Status::Ok)]);
    assert_eq!(w.disk.log(), ["Write 10+1"]);
}

#[test]
fn a_snapshots_exception_is_flushed_before_its_list_and_the_list_goes_with_fua() {
    for fua in [true, false] {
        let rig = Rig::default();
        rig.disk("/o", SIZE);
        let limits = Limits { write_cache: true, fua, ..Limits::default() };
        let cow = rig.disk_with("/c", 1024, limits);
        let origin = rig.device("origin", &format!("0 {SIZE} snapshot-origin /o"));
        rig.device("snap", &format!("0 {SIZE} snapshot /o /c P 8"));
        cow.log();
        write(&rig.io(&origin), 0, 1, 2);
        let last = if fua { "Write 8+8 fua" } else { "Write 8+8" };
        let mut expect = vec!["Write 16+8", "Flush 0+0", last];
        if !fua {
            expect.push("Flush 0+0");
        }
        assert_eq!(cow.log(), expect);
    }
}

#[test]
fn one_read_of_the_origin_serves_all_snapshots() {
    let w = world(&[1024; 8]);
    let snaps: Vec<_> = (0..8).map(|i| w.snap(&format!("s{i}"), i, "P 8")).collect();
    w.disk.log();
    w.write(&w.origin, 8, 32, 2);
    assert_eq!(w.disk.log(), ["Read 8+32", "Write 8+32"], "four chunks, read once, as one");
    for (snap, cow) in snaps.iter().zip(&w.cows) {
        let writes = cow.log().iter().filter(|l| l.starts_with("Write 16")).count();
        assert_eq!(writes, 1, "four chunks written as one");
        assert_eq!(w.read(snap, 0, SIZE), pattern(0, SIZE, 1));
    }
    // A chunk that all have needs nothing.
    w.disk.log();
    w.write(&w.origin, 9, 3, 3);
    assert_eq!(ops(&w.disk), ["Write 9+3"]);
    assert_eq!(w.read(&snaps[7], 9, 3), pattern(9, 3, 1));
}

#[test]
fn one_read_of_the_origin_serves_snapshots_with_different_chunks() {
    /// A write to the origin, and what it has the origin's disk do. A row is of writes one after the other.
    type Step = ((u64, u64), &'static [&'static str]);
    const ROWS: &[&[Step]] = &[
        &[
            ((0, 8), &["Read 0+128", "Write 0+8"]),
            ((4, 8), &["Write 4+8"]),
            ((16, 1), &["Read 16+16", "Write 16+1"]),
            ((33, 1), &["Read 32+32", "Write 33+1"]),
            ((130, 20), &["Read 128+128", "Write 130+20"]),
        ],
        &[((0, 256), &["Read 0+256", "Write 0+256"]), ((0, 256), &["Write 0+256"])],
        &[((120, 16), &["Read 0+256", "Write 120+16"]), ((100, 8), &["Read 96+16", "Write 100+8"])],
        // Two ranges that have nothing to do with each other.
        &[((0, 1), &["Read 0+128", "Write 0+1"]), ((100, 50), &["Read 96+160", "Write 100+50"])],
    ];
    for row in ROWS {
        let w = world(&[1024; 3]);
        let snaps = [w.snap("s0", 0, "P 128"), w.snap("s1", 1, "P 16"), w.snap("s2", 2, "N 32")];
        for (i, ((at, len), expect)) in row.iter().enumerate() {
            w.disk.log();
            w.write(&w.origin, *at, *len, 2 + i as u64);
            assert_eq!(w.disk.log(), *expect, "{at}+{len} of {row:?}");
        }
        for (i, snap) in snaps.iter().enumerate() {
            assert!(w.read(snap, 0, SIZE) == pattern(0, SIZE, 1), "snapshot {i}, {row:?}");
        }
    }
}

#[test]
fn a_read_that_fails_costs_those_snapshots_only_that_need_it() {
    let w = world(&[1024; 3]);
    let snaps = [w.snap("s0", 0, "P 128"), w.snap("s1", 1, "P 16"), w.snap("s2", 2, "N 32")];
    // What the largest chunk needs, and the others do not.
    let bad = |bio: &Bio| bio.op() == Op::Read && bio.end_sector() > Sector::new(100);
    *w.disk.fail_if.lock().unwrap() = Some(Box::new(bad));
    w.disk.log();
    w.write(&w.origin, 0, 8, 2);
    assert_eq!(w.disk.log(), ["Read 0+128", "Read 0+128", "Read 0+16", "Read 0+32", "Write 0+8"]);
    *w.disk.fail_if.lock().unwrap() = None;
    assert_eq!(status(&snaps[0]), "Invalid");
    for snap in &snaps[1..] {
        assert!(w.read(snap, 0, SIZE) == pattern(0, SIZE, 1));
    }
    assert_eq!(w.read(&w.origin, 0, 8), pattern(0, 8, 2));
}

#[test]
fn copies_that_a_full_copier_refuses_keep_their_order() {
    let domain = Domain::default();
    // One at a time, and hardly any that wait.
    Kcopyd::copy_as(&domain, CopyOptions { pieces: 1, jobs: 2, merge: false, ..CopyOptions::default() });
    let w = world_on(Rig::with(udm_targets::TARGETS, domain), &[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.disk.log();
    *w.disk.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op() == Op::Read));
    let mut asking = Asking::new(&w, &w.origin);
    (0..8).for_each(|i| asking.write(i * 16, 1, 2, i));
    assert_eq!(w.disk.held(), 1);
    // Two go on, and there is room for others, which come at once.
    w.disk.release();
    asking.done();
    w.disk.release();
    asking.done();
    (8..16).for_each(|i| asking.write(i * 16, 1, 2, i));
    *w.disk.hold_if.lock().unwrap() = None;
    w.disk.release();
    asking.until(16);
    let reads: Vec<String> = w.disk.log().into_iter().filter(|line| line.starts_with("Read")).collect();
    let expect: Vec<String> = (0..16).map(|i| format!("Read {}+8", i * 16)).collect();
    assert_eq!(reads, expect);
    assert!(w.read(&snap, 0, SIZE) == pattern(0, SIZE, 1));
}

#[test]
fn snapshots_with_different_chunks_each_keep_what_they_need() {
    let w = world(&[1024; 3]);
    let snaps = [w.snap("s0", 0, "P 32"), w.snap("s1", 1, "N 8"), w.snap("s2", 2, "P 16")];
    w.write(&w.origin, 20, 30, 2);
    w.write(&snaps[1], 24, 1, 3);
    w.write(&w.origin, 100, 1, 4);
    for (i, snap) in snaps.iter().enumerate() {
        let mut expect = pattern(0, SIZE, 1);
        if i == 1 {
            expect[24 * 512..25 * 512].copy_from_slice(&pattern(24, 1, 3));
        }
        assert_eq!(w.read(snap, 0, SIZE), expect, "snapshot {i}");
    }
}

#[test]
fn a_snapshot_that_joins_gets_chunks_that_were_free_before() {
    let w = world(&[1024, 2048, 1024]);
    // Without a snapshot, with one, with one that is finer, with a coarser, and with one fewer: each time writes that
    // copy, and again writes that copy nothing.
    let rewrite = |generation| {
        w.write(&w.origin, 0, SIZE, generation);
        w.write(&w.origin, 32, 16, generation + 1);
        w.write(&w.origin, 33, 1, generation + 2);
    };
    let frozen = |generation| {
        let mut all = pattern(0, SIZE, generation);
        all[32 * 512..48 * 512].copy_from_slice(&pattern(32, 16, generation + 1));
        all[33 * 512..34 * 512].copy_from_slice(&pattern(33, 1, generation + 2));
        all
    };
    rewrite(10);
    let coarse = w.snap("s0", 0, "P 16");
    w.write(&w.origin, 40, 1, 20);
    rewrite(20);
    let fine = w.snap("s1", 1, "P 1");
    w.write(&w.origin, 40, 1, 30);
    rewrite(30);
    let last = w.snap("s2", 2, "P 32");
    w.write(&w.origin, 40, 1, 40);
    rewrite(40);
    for (snap, generation) in [(&coarse, 10), (&fine, 20), (&last, 30)] {
        assert!(w.read(snap, 0, SIZE) == frozen(generation), "the snapshot of generation {generation}");
    }
    drop(fine);
    w.rig.registry.remove(&w.rig.registry.by_name("s1").unwrap(), false).unwrap();
    rewrite(50);
    for (snap, generation) in [(&coarse, 10), (&last, 30)] {
        assert!(w.read(snap, 0, SIZE) == frozen(generation), "the snapshot of generation {generation}");
    }
    assert!(w.read(&w.origin, 0, SIZE) == frozen(50));
}

#[test]
fn many_exceptions_share_one_write_of_the_list() {
    let w = world(&[2048]);
    let _snap = w.snap("s", 0, "P 8");
    w.cows[0].log();
    w.write(&w.origin, 0, 200, 2);
    let log = w.cows[0].log();
    let lists = log.iter().filter(|l| l.starts_with("Write 8+")).count();
    assert_eq!(lists, 1, "25 chunks, one write of the list: {log:?}");
}

#[test]
fn exceptions_commit_in_the_order_of_their_allocation() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.cows[0].log();
    w.cows[0].holding.store(true, Ordering::Relaxed);
    let mut asking = Asking::new(&w, &snap);
    // Two whole chunks: their data goes at once, and comes back in the other order.
    asking.write(64, 8, 2, 1);
    asking.write(128, 8, 3, 2);
    assert_eq!(w.cows[0].held(), 2);
    w.cows[0].release_last();
    asking.done();
    assert_eq!((asking.done(), w.cows[0].held()), (vec![], 1), "the second waits for the first");
    w.cows[0].release();
    asking.done();
    assert_eq!(w.cows[0].held(), 1, "one list for both");
    w.cows[0].release();
    asking.until(2);
    let log = w.cows[0].log();
    assert_eq!(log.iter().filter(|l| l.starts_with("Write 8+")).count(), 1, "{log:?}");
}

#[test]
fn a_full_chunk_write_skips_the_read() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.disk.log();
    w.write(&snap, 64, 8, 2);
    assert_eq!(w.disk.log(), [] as [&str; 0]);
    w.write(&snap, 72, 7, 2);
    assert_eq!(w.disk.log(), ["Read 72+8"]);
    assert_eq!(w.read(&snap, 64, 16), [pattern(64, 15, 2), pattern(79, 1, 1)].concat());
}

#[test]
fn a_snapshot_read_on_its_way_holds_back_the_origins_write() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.disk.holding.store(true, Ordering::Relaxed);
    let mut reading = Asking::new(&w, &snap);
    reading.read(16, 8, 1);
    assert_eq!(w.disk.held(), 1);
    w.disk.log();
    w.cows[0].log();
    let mut writing = Asking::new(&w, &w.origin);
    writing.write(16, 8, 2, 1);
    // The copy's read comes back, but not the snapshot's.
    w.disk.release_last();
    while !w.cows[0].log().iter().any(|l| l.starts_with("Write 8+8")) {
        writing.done();
    }
    writing.done();
    assert!(!w.disk.log().iter().any(|l| l.starts_with("Write")), "the origin is written under a read");
    // A read that comes now finds the exception.
    let mut late = Asking::new(&w, &snap);
    late.read(16, 8, 2);
    assert_eq!(late.done(), [2]);
    w.disk.release();
    reading.until(1);
    assert_eq!(reading.bufs[0], pattern(16, 8, 1));
    while w.disk.held() == 0 {
        writing.done();
    }
    assert_eq!(w.disk.log(), ["Write 16+8"]);
    w.disk.release();
    writing.until(1);
    assert_eq!(w.read(&snap, 16, 8), pattern(16, 8, 1));
}

#[test]
fn writes_to_a_chunk_under_copy_wait_for_it_in_order() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.disk.holding.store(true, Ordering::Relaxed);
    let mut asking = Asking::new(&w, &snap);
    for generation in 2..6 {
        asking.write(17, 2, generation, generation);
    }
    assert_eq!((asking.done(), w.disk.held()), (vec![], 1));
    w.disk.holding.store(false, Ordering::Relaxed);
    w.disk.release();
    assert_eq!(asking.until(4).iter().map(|d| d.0).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(w.read(&snap, 16, 8), [pattern(16, 1, 1), pattern(17, 2, 5), pattern(19, 5, 1)].concat());
}

#[test]
fn a_first_resume_waits_for_the_origins_writes_in_flight() {
    let w = world(&[1024]);
    resume_waits(&w, &w.origin);
}

#[test]
fn a_first_resume_waits_for_each_device_that_shows_the_origin() {
    // Whichever of two has the write.
    for first in [true, false] {
        let w = world(&[1024]);
        let twin = w.rig.device("twin", &format!("0 {SIZE} snapshot-origin /o"));
        resume_waits(&w, if first { &w.origin } else { &twin });
    }
}

/// A snapshot is resumed for the first time while a write to the origin through `above` is in flight.
fn resume_waits(w: &World, above: &Arc<MappedDevice>) {
    w.disk.holding.store(true, Ordering::Relaxed);
    let mut writing = Asking::new(w, above);
    writing.write(16, 8, 2, 1);
    let snap = register(w, "s");
    w.rig.load(&snap, &format!("0 {SIZE} snapshot /o /c0 P 8"), false).unwrap();
    let (there, set) = (snap.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let done = set.clone();
    let resuming = std::thread::spawn(move || {
        resume(&there);
        set.store(true, Ordering::SeqCst);
    });
    // Until the origin is held: a write that comes now is not seen by the disk.
    let mut token = 2;
    while !done.load(Ordering::SeqCst) {
        let before = w.disk.held();
        writing.write(200, 1, 3, token);
        token += 1;
        if w.disk.held() == before {
            break;
        }
        // However long it takes, only one is out besides the first.
        w.disk.release_last();
        writing.done();
        std::thread::yield_now();
    }
    let early = done.load(Ordering::SeqCst);
    w.disk.holding.store(false, Ordering::Relaxed);
    w.disk.release();
    resuming.join().unwrap();
    writing.until(token as usize - 1);
    assert!(!early, "resumed over a write in flight");
    // What was in flight is part of what the snapshot shows, and what came later is not: but for those held until then.
    assert_eq!(w.read(&snap, 16, 8), pattern(16, 8, 2));
    w.write(above, 16, 8, 9);
    assert_eq!(w.read(&snap, 16, 8), pattern(16, 8, 2));
}

#[test]
fn a_full_cow_device_makes_the_snapshot_invalid_or_overflow() {
    for (store, from_origin, expect, reads) in [
        ("P 8", true, "Invalid", false),
        ("PO 8", true, "Invalid", false),
        ("N 8", true, "Invalid", false),
        ("P 8", false, "Invalid", false),
        ("N 8", false, "Invalid", false),
        ("PO 8", false, "Overflow", true),
    ] {
        let w = world(&[64]);
        let snap = w.snap("s", 0, store);
        let events = snap.info().event_nr;
        let target = if from_origin { &w.origin } else { &snap };
        let io = w.rig.io(target);
        let wrote = (0..16).map(|i| io.write(Sector::new(i * 8), &pattern(i * 8, 8, 2), OpFlags::NONE));
        let failed = wrote.filter(Result::is_err).count();
        assert_eq!(status(&snap), expect, "{store}");
        assert_eq!(failed > 0, !from_origin, "the origin never suffers: {store}");
        assert!(snap.info().event_nr >= events + 2, "one before it is full, one when it is");
        let read = w.rig.io(&snap).read(Sector::new(200), &mut [0; 512]);
        assert_eq!(read.is_ok(), reads, "{store}");
        if from_origin {
            assert_eq!(w.read(&w.origin, 0, 128), pattern(0, 128, 2));
        }
        // It stays so.
        w.rig.registry.remove(&snap, false).unwrap();
        drop(io);
        if store != "N 8" && expect == "Invalid" {
            let snap = w.snap("s", 0, store);
            assert_eq!(status(&snap), "Invalid");
            assert_eq!(w.rig.io(&snap).read(Sector::ZERO, &mut [0; 512]), Err(Status::Io));
        }
    }
}

#[test]
fn the_origin_is_not_written_before_the_header_says_that_the_snapshot_is_invalid() {
    let w = world(&[32]);
    let _snap = w.snap("s", 0, "P 8");
    // Room for two chunks.
    w.write(&w.origin, 0, 16, 2);
    w.cows[0].holding.store(true, Ordering::Relaxed);
    w.disk.log();
    let mut writing = Asking::new(&w, &w.origin);
    writing.write(100, 1, 3, 1);
    // It finds the snapshot invalid already, and waits none the less.
    writing.write(200, 1, 3, 2);
    assert_eq!((writing.done(), w.disk.log()), (vec![], vec![]));
    assert!(w.cows[0].release() > 0);
    while writing.done().len() < 2 {
        w.cows[0].release();
    }
    assert_eq!(w.read(&w.origin, 100, 1), pattern(100, 1, 3));
    w.cows[0].log();
    w.write(&w.origin, 150, 1, 4);
    assert_eq!(w.cows[0].log(), [] as [&str; 0], "nobody asks an invalid snapshot");
}

#[test]
fn a_cow_device_that_fails_costs_the_snapshot_and_not_the_origin() {
    let w = world(&[1024, 1024]);
    let (bad, good) = (w.snap("bad", 0, "P 8"), w.snap("good", 1, "P 8"));
    w.cows[0].failing.store(true, Ordering::Relaxed);
    w.write(&w.origin, 0, 40, 2);
    assert_eq!((status(&bad).as_str(), status(&good).contains('/')), ("Invalid", true));
    assert_eq!(w.read(&w.origin, 0, 40), pattern(0, 40, 2));
    assert_eq!(w.read(&good, 0, SIZE), pattern(0, SIZE, 1));
}

#[test]
fn a_snapshot_goes_on_after_it_was_removed_and_made_again() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.write(&w.origin, 0, 100, 2);
    w.write(&snap, 3, 2, 3);
    let before = status(&snap);
    w.rig.registry.remove(&snap, false).unwrap();
    // The header's chunk size counts.
    let snap = w.snap("s", 0, "P 64");
    assert_eq!((status(&snap), table(&snap)), (before, "/o /c0 P 8".into()));
    let mut expect = pattern(0, SIZE, 1);
    expect[3 * 512..5 * 512].copy_from_slice(&pattern(3, 2, 3));
    assert_eq!(w.read(&snap, 0, SIZE), expect);
    w.write(&w.origin, 100, 100, 4);
    assert_eq!(w.read(&snap, 0, SIZE), expect);
}

#[test]
fn a_handover_wants_the_source_suspended_and_the_heir_first() {
    let w = world(&[1024]);
    let source = w.snap("source", 0, "P 8");
    w.write(&w.origin, 0, 8, 2);
    let heir = register(&w, "heir");
    let line = format!("0 {SIZE} snapshot /o /c0 PO 8");
    w.rig.load(&heir, &line, false).unwrap();
    let third = load_error(&w, &line);
    assert!(third.contains("Snapshot cow pairing for exception table handover failed"), "{third}");
    let resume = |md: &Arc<MappedDevice>| md.resume(SuspendOptions::default(), &|| false);
    let error = resume(&heir).unwrap_err().to_string();
    assert!(error.contains("Unable to perform snapshot handover until source is suspended"), "{error}");
    suspend(&source);
    let error = resume(&source).unwrap_err().to_string();
    assert!(error.contains("Unable to resume snapshot source until handover completes"), "{error}");
    resume(&heir).unwrap();
    resume(&source).unwrap();
    assert_eq!(status(&source), "Invalid");
    assert_eq!(w.rig.io(&source).read(Sector::ZERO, &mut [0; 512]), Err(Status::Io));
    w.write(&w.origin, 8, 8, 2);
    w.rig.registry.remove(&source, false).unwrap();
    w.write(&w.origin, 16, 8, 2);
    assert_eq!(w.read(&heir, 0, SIZE), pattern(0, SIZE, 1));
    assert_eq!(table(&heir), "/o /c0 PO 8");
}

#[test]
fn a_reload_hands_over_to_the_same_device_and_an_heir_without_source_is_invalid() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    w.write(&w.origin, 0, 8, 2);
    w.rig.reload(&snap, &format!("0 {SIZE} snapshot /o /c0 PO 8"));
    w.write(&w.origin, 8, 8, 2);
    assert_eq!(w.read(&snap, 0, SIZE), pattern(0, SIZE, 1));
    let heir = register(&w, "heir");
    w.rig.load(&heir, &format!("0 {SIZE} snapshot /o /c0 P 8"), false).unwrap();
    w.rig.registry.remove(&snap, false).unwrap();
    resume(&heir);
    assert_eq!(status(&heir), "Invalid");
    assert_eq!(w.rig.io(&heir).read(Sector::ZERO, &mut [0; 512]), Err(Status::Io));
    w.write(&w.origin, 16, 8, 2);
}

#[test]
fn a_read_only_snapshot_keeps_the_origins_chunks_and_refuses_writes() {
    let w = world(&[1024]);
    let snap = register(&w, "s");
    w.rig.load(&snap, &format!("0 {SIZE} snapshot /o /c0 P 8"), true).unwrap();
    resume(&snap);
    w.write(&w.origin, 0, 100, 2);
    assert_eq!(w.read(&snap, 0, SIZE), pattern(0, SIZE, 1));
    let io = w.rig.io(&snap);
    assert_eq!(io.write(Sector::ZERO, &[0; 512], OpFlags::NONE), Err(Status::ReadOnly));
}

#[test]
fn discards_zero_places_and_are_passed_down() {
    let w = world(&[1024]);
    let snap = w.snap("s", 0, "P 8");
    let discard = |md: &Arc<MappedDevice>, at, len| {
        w.rig.io(md).range(Op::Discard, OpFlags::NONE, Sector::new(at), Sectors::new(len))
    };
    assert_eq!(discard(&snap, 0, 8), Err(Status::NotSupported));
    assert_eq!(discard(&w.origin, 0, 8), Err(Status::NotSupported));
    w.rig.registry.remove(&snap, false).unwrap();
    for (features, pass) in [("1 discard_zeroes_cow", false), ("2 discard_zeroes_cow discard_passdown_origin", true)] {
        let snap = w.snap("s", 0, &format!("P 8 {features}"));
        assert_eq!(table(&snap), format!("/o /c0 P 8 {features}"));
        w.write(&snap, 0, 8, 2);
        w.disk.log();
        discard(&snap, 0, 16).unwrap();
        assert_eq!(w.read(&snap, 0, 8), vec![0; 4096], "a chunk that has a place is zeroed");
        let passed = w.disk.log().iter().filter(|l| l.starts_with("Discard")).count();
        assert_eq!(passed, if pass { 2 } else { 0 });
        w.rig.registry.remove(&snap, false).unwrap();
    }
}

#[test]
fn merging_gives_the_origin_what_the_snapshot_shows() {
    let w = world(&[4096, 4096]);
    let (snap, other) = (w.snap("s", 0, "P 8"), w.snap("other", 1, "P 16"));
    w.write(&w.origin, 0, 50, 2);
    w.write(&snap, 40, 60, 3);
    w.write(&snap, 200, 9, 4);
    let shown = w.read(&snap, 0, SIZE);
    let mut others = pattern(0, SIZE, 1);
    assert_eq!(w.read(&other, 0, SIZE), others);
    suspend(&snap);
    let table = format!("0 {SIZE} snapshot-merge /o /c0 P 8");
    w.rig.reload(&w.origin, &table);
    w.rig.registry.remove(&snap, false).unwrap();
    assert_eq!(w.read(&w.origin, 0, SIZE), shown);
    // Written while it is merged: to chunks that are, and to those that are not.
    w.write(&w.origin, 41, 100, 5);
    while status(&w.origin) != "16/4096 16" {
        std::thread::yield_now();
    }
    let mut expect = shown;
    expect[41 * 512..141 * 512].copy_from_slice(&pattern(41, 100, 5));
    assert_eq!(w.read(&w.origin, 0, SIZE), expect);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-origin /o"));
    assert_eq!(w.read(&w.origin, 0, SIZE), expect);
    assert_eq!(w.read(&other, 0, SIZE), others, "another snapshot does not see the merge");
    w.write(&other, 0, 1, 6);
    others[..512].copy_from_slice(&pattern(0, 1, 6));
    assert_eq!(w.read(&other, 0, SIZE), others);
}

#[test]
fn a_merge_stops_at_a_suspension_fails_with_its_disk_and_takes_discards_without_effect() {
    let w = world(&[4096]);
    let snap = w.snap("s", 0, "P 8 1 discard_zeroes_cow");
    w.write(&snap, 0, SIZE, 2);
    suspend(&snap);
    w.disk.failing.store(true, Ordering::Relaxed);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 8 1 discard_zeroes_cow"));
    w.rig.registry.remove(&snap, false).unwrap();
    while status(&w.origin) != "Merge failed" {
        std::thread::yield_now();
    }
    w.disk.failing.store(false, Ordering::Relaxed);
    let io = w.rig.io(&w.origin);
    io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(8)).unwrap();
    assert_eq!(w.read(&w.origin, 0, SIZE), pattern(0, SIZE, 2), "it goes on as it is");
    w.write(&w.origin, 5, 3, 3);
    drop(io);
    // Another goes on with it, stopped in between.
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-origin /o"));
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 8"));
    suspend(&w.origin);
    let stopped = w.cows[0].log().len();
    std::thread::yield_now();
    assert_eq!(w.cows[0].log().len(), 0, "nothing is done while it is suspended, after {stopped}");
    resume(&w.origin);
    while status(&w.origin) != "16/4096 16" {
        std::thread::yield_now();
    }
    assert_eq!(w.read(&w.origin, 0, SIZE), [pattern(0, 5, 2), pattern(5, 3, 3), pattern(8, SIZE - 8, 2)].concat());
}

/// Only chunks that a write covers are copied, at each step of a sequence and for each snapshot.
#[test]
fn nothing_is_copied_ahead_of_the_writer() {
    let w = world(&[1024, 1024]);
    let _snaps = [w.snap("s0", 0, "P 8"), w.snap("s1", 1, "N 8")];
    for (sector, count, chunks) in [(0, 8, 0..8), (8, 8, 8..16), (16, 3, 16..24), (24, 16, 24..40), (43, 1, 40..48)] {
        w.disk.log();
        w.cows.iter().for_each(|cow| drop(cow.log()));
        w.write(&w.origin, sector, count, 2);
        let length = chunks.end - chunks.start;
        assert_eq!(w.disk.log(), [format!("Read {}+{length}", chunks.start), format!("Write {sector}+{count}")]);
        // The first has a list to write, too.
        let writes = w.cows.iter().map(|cow| cow.log().len()).collect::<Vec<_>>();
        assert_eq!(writes, [2, 1]);
        // Nor later: the next step finds nothing there.
        let channel = w.rig.domain.channel().unwrap();
        while channel.poll() > 0 {}
        assert_eq!(w.disk.log(), [] as [&str; 0]);
    }
}

#[test]
fn a_merge_waits_until_other_snapshots_have_their_exceptions() {
    let w = world(&[4096, 4096]);
    let (snap, other) = (w.snap("s", 0, "P 8"), w.snap("other", 1, "P 16"));
    w.write(&snap, 0, 64, 2);
    suspend(&snap);
    // The other's device keeps the copies for itself.
    w.cows[1].holding.store(true, Ordering::Relaxed);
    w.disk.log();
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 8"));
    for step in ["its data", "its list"] {
        while w.cows[1].held() == 0 {
            std::thread::yield_now();
        }
        let written = w.disk.log().into_iter().filter(|line| line.starts_with("Write")).count();
        assert_eq!(written, 0, "the origin is written before the other snapshot has {step}");
        w.cows[1].release();
    }
    w.cows[1].holding.store(false, Ordering::Relaxed);
    w.cows[1].release();
    while status(&w.origin) != "16/4096 16" {
        std::thread::yield_now();
    }
    assert_eq!(w.read(&w.origin, 0, 64), pattern(0, 64, 2));
    assert_eq!(w.read(&other, 0, SIZE), pattern(0, SIZE, 1));
    w.rig.registry.remove(&snap, false).unwrap();
}

#[test]
fn a_suspension_stops_a_merge_between_two_rounds() {
    // The merge may have come to its end before the thread that suspends it had a CPU; not every time.
    assert!((0..50).any(|_| merge_is_stopped_by_a_suspension()), "it goes on to the end each time");
}

/// False: it was at its end before.
fn merge_is_stopped_by_a_suspension() -> bool {
    let w = world(&[4096]);
    // 32 exceptions an area, so that there are many rounds.
    let snap = w.snap("s", 0, "P 1");
    w.write(&snap, 0, SIZE, 2);
    suspend(&snap);
    w.disk.holding.store(true, Ordering::Relaxed);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 1"));
    w.rig.registry.remove(&snap, false).unwrap();
    while w.disk.held() == 0 {
        std::thread::yield_now();
    }
    // Its first round is under way: the suspension waits for that, and for no other.
    let (md, set) = (w.origin.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let done = set.clone();
    let suspending = std::thread::spawn(move || {
        suspend(&md);
        set.store(true, Ordering::SeqCst);
    });
    while !done.load(Ordering::SeqCst) {
        w.disk.release();
        std::thread::yield_now();
    }
    suspending.join().unwrap();
    let left = status(&w.origin);
    if left.starts_with("2/") {
        return false;
    }
    w.disk.log();
    w.cows[0].log();
    w.disk.holding.store(false, Ordering::Relaxed);
    let channel = w.rig.domain.channel().unwrap();
    while channel.poll() > 0 {}
    assert_eq!((w.disk.log(), w.cows[0].log(), status(&w.origin)), (vec![], vec![], left), "it is not quiet");
    resume(&w.origin);
    while status(&w.origin) != "2/4096 2" {
        std::thread::yield_now();
    }
    assert_eq!(w.read(&w.origin, 0, SIZE), pattern(0, SIZE, 2));
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-origin /o"));
    assert_eq!(w.read(&w.origin, 0, SIZE), pattern(0, SIZE, 2));
    true
}

#[test]
fn writes_into_chunks_that_are_being_merged_wait() {
    let w = world(&[4096]);
    let snap = w.snap("s", 0, "P 8");
    w.write(&snap, 0, 32, 2);
    suspend(&snap);
    w.disk.holding.store(true, Ordering::Relaxed);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 8"));
    while w.disk.held() == 0 {
        std::thread::yield_now();
    }
    let mut writing = Asking::new(&w, &w.origin);
    w.cows[0].log();
    writing.write(3, 2, 3, 1);
    assert_eq!((writing.done(), ops(&w.cows[0])), (vec![], vec![]), "a write into a chunk under way");
    w.disk.holding.store(false, Ordering::Relaxed);
    w.disk.release();
    assert_eq!(writing.until(1), [(1, Status::Ok)]);
    assert_eq!(w.read(&w.origin, 0, 8), [pattern(0, 3, 2), pattern(3, 2, 3), pattern(5, 3, 2)].concat());
    w.rig.registry.remove(&snap, false).unwrap();
}

#[test]
fn bad_tables_say_what_was_expected() {
    let w = world(&[1024, 8]);
    for (args, expect) in [
        ("snapshot /o /c0 P", "requires 4 or more arguments"),
        ("snapshot /x /c0 P 8", "Cannot get origin device"),
        ("snapshot /o /x P 8", "Cannot get COW device"),
        ("snapshot /o /o P 8", "COW device cannot be the same as origin device"),
        ("snapshot /o /c0 X 8", "Exception store type is not P or N"),
        ("snapshot /o /c0 PX 8", "Unsupported persistent store option"),
        ("snapshot /o /c0 P x", "Invalid chunk size"),
        ("snapshot /o /c0 P 12", "power of 2"),
        ("snapshot /o /c0 N 0", "Chunk size not set"),
        ("snapshot /o /c0 P 8 3 a b c", "Invalid number of feature arguments"),
        ("snapshot /o /c0 P 8 1 no_such", "Unrecognised feature requested"),
        ("snapshot /o /c0 P 8 1 discard_passdown_origin", "depends on discard_zeroes_cow"),
        ("snapshot /o /c1 P 8", "Failed to read snapshot metadata"),
        ("snapshot-merge /o /c0 N 8", "does not support snapshot-merge"),
        ("snapshot-origin", "origin: incorrect number of arguments"),
        ("snapshot-origin /x", "Cannot get target device"),
    ] {
        let error = load_error(&w, &format!("0 {SIZE} {args}"));
        assert!(error.contains(expect), "{args}: {error}");
    }
    let io = BlockingIo::new(&w.rig.domain, w.cows[0].clone()).unwrap();
    io.write(Sector::ZERO, &[0x55; 512], OpFlags::NONE).unwrap();
    let error = load_error(&w, &format!("0 {SIZE} snapshot /o /c0 P 8"));
    assert!(error.contains("Failed to read snapshot metadata") && error.len() > 60, "{error}");
}

#[test]
fn snapshots_of_snapshots_and_stacks_beneath() {
    let w = world(&[2048, 2048]);
    let rig = &w.rig;
    rig.disk("/deep", 512);
    let real = rig.device("real", "0 100 linear /deep 7\n100 156 linear /deep 200");
    write(&rig.io(&real), 0, SIZE, 1);
    let cow = rig.device("cow", "0 2048 striped 2 8 /c0 0 /c1 0");
    let top = rig.device("top", &format!("0 {SIZE} snapshot-origin {{real}}"));
    let first = rig.device("first", &format!("0 {SIZE} snapshot {{real}} {{cow}} P 16"));
    // The first is an origin too.
    rig.disk("/c2", 2048);
    let above = rig.device("above", &format!("0 {SIZE} snapshot-origin {{first}}"));
    let second = rig.device("second", &format!("0 {SIZE} snapshot {{first}} /c2 P 8"));
    for (md, at, n, generation) in [(&top, 90, 30, 2), (&above, 80, 60, 3), (&second, 100, 20, 4), (&top, 0, 256, 5)] {
        w.write(md, at, n, generation);
    }
    assert_eq!(w.read(&top, 0, SIZE), pattern(0, SIZE, 5));
    let expect = [pattern(0, 80, 1), pattern(80, 60, 3), pattern(140, SIZE - 140, 1)].concat();
    assert_eq!(w.read(&first, 0, SIZE), expect);
    let expect = [pattern(0, 100, 1), pattern(100, 20, 4), pattern(120, SIZE - 120, 1)].concat();
    assert_eq!(w.read(&second, 0, SIZE), expect);
    for md in [&second, &above, &first, &top, &cow, &real] {
        suspend(md);
        resume(md);
    }
    assert_eq!(w.read(&second, 0, SIZE), expect);
}

/// A write of a whole chunk of a snapshot has ended beneath, but the thread that sent it does not look. The origin's
/// writers share a batch with it, and do not wait for that thread.
#[test]
fn an_origins_writers_do_not_wait_for_a_thread_that_does_not_look() {
    let w = world(&[1 << 16]);
    let snap = w.snap("snap", 0, "P 8");
    let (mut first, mut second) = (Client::new(&w.rig, &snap), Client::new(&w.rig, &w.origin));
    w.cows[0].holding.store(true, Ordering::SeqCst);
    let whole = first.write(0, pattern(0, 8, 2), OpFlags::NONE);
    assert_eq!((first.status(whole), w.cows[0].held()), (None, 1));
    w.cows[0].holding.store(false, Ordering::SeqCst);
    let write = second.write(64, pattern(64, 8, 3), OpFlags::NONE);
    assert_eq!(second.status(write), None);
    std::thread::scope(|threads| threads.spawn(|| w.cows[0].release()).join().unwrap());
    assert_eq!(second.wait(write), Status::Ok);
    assert_eq!(first.wait(whole), Status::Ok);
}

/// Threads write to the origin and to snapshots while others read what must not change; snapshots come and go
/// meanwhile.
#[test]
fn many_threads_see_what_was_frozen() {
    let w = world(&[1 << 16, 1 << 16, 1 << 16]);
    let stays = w.snap("stays", 0, "P 8");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let w = &w;
    std::thread::scope(|scope| {
        let (stays, stop) = (&stays, &stop);
        for thread in 0..2u64 {
            scope.spawn(move || {
                let io = w.rig.io(&w.origin);
                for i in 0..400u64 {
                    let at = (i * 37 + thread * 11) % (SIZE - 20);
                    write(&io, at, 1 + i % 20, 100 + i);
                }
                stop.store(true, Ordering::SeqCst);
            });
            scope.spawn(move || {
                let io = w.rig.io(stays);
                let mut i = thread * 5;
                while !stop.load(Ordering::SeqCst) {
                    // The upper half is only read; the lower is this thread's to write, by quarters.
                    let at = 128 + i * 13 % 120;
                    assert_eq!(read(&io, at, 8), pattern(at, 8, 1), "sector {at} of the snapshot has changed");
                    let mine = thread * 64 + i % 56;
                    write(&io, mine, 8, 5000 + i);
                    assert_eq!(read(&io, mine, 8), pattern(mine, 8, 5000 + i));
                    i += 1;
                }
            });
        }
        scope.spawn(move || {
            for i in 0..16 {
                let cow = 1 + i % 2;
                w.cows[cow].clear_header();
                let snap = w.snap("comes", cow, "P 16");
                let first = w.read(&snap, 0, SIZE);
                std::thread::yield_now();
                assert_eq!(w.read(&snap, 0, SIZE), first, "a snapshot has changed");
                w.rig.registry.remove(&snap, false).unwrap();
            }
        });
    });
    assert_eq!(w.read(&stays, 128, 128), pattern(128, 128, 1));
}

/// Who resumes a merge holds its device, who resumes a snapshot wants it: neither waits for the other for ever.
#[test]
fn snapshots_come_while_merges_are_suspended_and_resumed() {
    for with_twin in [false, true] {
        snapshots_come(with_twin);
    }
}

fn snapshots_come(with_twin: bool) {
    let w = world(&[4096, 4096, 4096]);
    let twin = with_twin.then(|| w.rig.device("twin", &format!("0 {SIZE} snapshot-origin /o")));
    let snap = w.snap("s", 0, "P 1");
    w.write(&snap, 0, SIZE, 2);
    suspend(&snap);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 1"));
    w.rig.registry.remove(&snap, false).unwrap();
    let w = &w;
    std::thread::scope(|scope| {
        for md in [Some(&w.origin), twin.as_ref()].into_iter().flatten() {
            scope.spawn(move || {
                for i in 0..300 {
                    suspend(md);
                    resume(md);
                    w.write(md, i % 50 * 5, 3, 9);
                }
            });
        }
        for cow in [1, 2] {
            scope.spawn(move || {
                for _ in 0..300 {
                    w.cows[cow].clear_header();
                    let name = format!("comes{cow}");
                    let snap = w.snap(&name, cow, "P 8");
                    let first = w.read(&snap, 0, SIZE);
                    assert_eq!(w.read(&snap, 0, SIZE), first, "a snapshot has changed");
                    w.rig.registry.remove(&snap, false).unwrap();
                }
            });
        }
    });
    while status(&w.origin) != "2/4096 2" {
        std::thread::yield_now();
    }
}

/// More is written than fits into the copier's memory, to many snapshots at once.
#[test]
fn copies_stay_within_their_memory() {
    let rig = Rig::default();
    let size: u64 = 48 << 11;
    rig.disk("/o", size);
    let origin = rig.device("origin", &format!("0 {size} snapshot-origin /o"));
    let snaps: Vec<_> = (0..8)
        .map(|i| {
            rig.disk(&format!("/c{i}"), 2 * size);
            rig.device(&format!("s{i}"), &format!("0 {size} snapshot /o /c{i} N 16"))
        })
        .collect();
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(origin.clone());
    let mut buf = vec![7u8; 1 << 20];
    for i in 0..48 {
        // SAFETY: `buf` stays until all completions have been taken; it is only read.
        assert!(unsafe { channel.submit(dev, Op::Write, OpFlags::NONE, Sector::new(i << 11), &mut buf, i) });
    }
    let mut done = 0;
    while done < 48 {
        channel.poll();
        while let Some(c) = channel.completed() {
            assert_eq!(c.status, Status::Ok);
            done += 1;
        }
    }
    let table = snaps[0].table(TableSlot::Active).unwrap();
    let stats = table.targets().next().unwrap().message(&["copy_stats"]).unwrap();
    let value = |key: &str| -> u64 {
        stats.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok()).unwrap()
    };
    assert!(value("pool_peak") <= 32 << 20, "{stats}");
    assert_eq!((value("bytes_read"), value("bytes_written")), (48 << 20, 8 * (48 << 20)), "{stats}");
    assert_eq!(value("out_of_order"), 0);
    assert!(value("reads") <= 100, "in long pieces: {stats}");
}

#[test]
fn a_snapshot_of_a_thin_whose_pool_lies_on_an_origin() {
    let w = world(&[4096, 1 << 16]);
    let rig = &w.rig;
    rig.disk("/meta", 8192);
    rig.disk("/data", 32768);
    rig.device("data", "0 32768 snapshot-origin /data");
    let below = rig.device("below", "0 32768 snapshot /data /c1 P 32");
    let pool = rig.device("pool", "0 32768 thin-pool /meta {data} 128 0");
    pool.message(Sector::ZERO, &["create_thin", "0"]).unwrap();
    let thin = rig.device("thin", "0 2048 thin {pool} 0");
    let top = rig.device("top", "0 2048 snapshot-origin {thin}");
    w.write(&top, 100, 200, 1);
    let snap = rig.device("snap", "0 2048 snapshot {thin} /c0 PO 16");
    for i in 0..60 {
        w.write(&top, i * 31 % 1900, 1 + i % 100, 10 + i);
        w.write(&snap, 1000 + i * 7 % 900, 1 + i % 20, 100 + i);
        rig.io(&top).flush().unwrap();
    }
    assert_eq!(w.read(&snap, 100, 200), pattern(100, 200, 1));
    assert_eq!(w.read(&snap, 300, 700), vec![0; 700 * 512]);
    assert_eq!(w.read(&snap, 1000 + 59 * 7, 20), pattern(1000 + 59 * 7, 20, 159));
    assert_eq!(w.read(&top, 1829, 60), pattern(1829, 60, 69));
    assert_eq!(w.read(&below, 0, 32768), vec![0; 32768 * 512], "beneath it is frozen too");
    for md in [&snap, &top, &thin, &pool] {
        suspend(md);
        resume(md);
    }
    assert_eq!(w.read(&snap, 100, 200), pattern(100, 200, 1));
}
