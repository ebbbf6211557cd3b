//! Suspend, resume, swap and remove, with bios on their way.

mod rig;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use udm_base::{Errno, Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_testing::Sleeper;

fn token(channel: &Channel) -> Option<u64> {
    channel.poll();
    channel.completed().map(|c| {
        assert_eq!(c.status, Status::Ok);
        c.token
    })
}

#[test]
fn bios_of_a_suspended_device_are_held_and_go_on() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 linear /a 0");
    let top = rig.device("top", "0 100 linear {x} 0");
    let channel = rig.domain.channel().unwrap();
    let (dev, above) = (channel.attach(md.clone()), channel.attach(top.clone()));
    suspend(&md);
    suspend(&md);
    let range = |dev, t| channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::new(1), Sectors::new(1), t);
    let mut buf = vec![7u8; 512];
    assert!(range(dev, 1));
    // SAFETY: `buf` stays until the completion below.
    assert!(unsafe { channel.submit(above, Op::Write, OpFlags::NONE, Sector::new(2), &mut buf, 2) });
    assert_eq!((token(&channel), disk.log().len()), (None, 0), "compiled paths stop at a suspended device too");
    resume(&md);
    assert_eq!([token(&channel), token(&channel), token(&channel)], [Some(1), Some(2), None]);
    assert_eq!(disk.log().len(), 2);
}

/// A target that can serve nothing before it is resumed, as a snapshot that takes over from another table.
struct Late(AtomicBool);

impl Target for Late {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        let status = if self.0.load(Ordering::SeqCst) { Status::Ok } else { Status::Io };
        Map::Ended(bio, status)
    }
    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
    fn resume(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

static LATE: TargetType = TargetType::new("late", [1, 0, 0], |_| Ok(NewTarget::new(Late(AtomicBool::new(false)))));

#[test]
fn no_bio_comes_before_the_targets_are_resumed() {
    static TYPES: [&TargetType; 1] = [&LATE];
    let rig = Rig::with_types(&TYPES);
    let md = rig.device("x", "0 100 late");
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    suspend(&md);
    assert!(channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 1));
    assert!(channel.submit_range(dev, Op::WriteZeroes, OpFlags::NONE, Sector::ZERO, Sectors::new(8), 2));
    assert_eq!(token(&channel), None);
    rig.reload(&md, "0 100 late");
    assert_eq!([token(&channel), token(&channel), token(&channel)], [Some(1), Some(2), None]);
}

#[test]
fn suspend_waits_for_bios_in_flight_by_every_path() {
    for compile in [true, false] {
        let rig = Rig::default();
        let disk = rig.disk("/a", 1000);
        let md = rig.device("x", "0 100 linear /a 0");
        let top = rig.device("top", "0 100 linear {x} 0");
        top.set_compile(compile);
        disk.holding.store(true, Ordering::Relaxed);
        let channel = rig.domain.channel().unwrap();
        let above = channel.attach(top.clone());
        let mut buf = vec![7u8; 512];
        // SAFETY: `buf` stays until the completion below.
        assert!(unsafe { channel.submit(above, Op::Write, OpFlags::NONE, Sector::new(2), &mut buf, 2) });
        let done = Arc::new(AtomicBool::new(false));
        let (there, set) = (md.clone(), done.clone());
        let (waits, suspending) = Sleeper::new();
        let suspender = std::thread::spawn(move || {
            waits.now();
            suspend(&there);
            set.store(true, Ordering::SeqCst);
        });
        suspending.until_asleep();
        assert!(!done.load(Ordering::SeqCst), "compile {compile}: a bio is in flight");
        // This thread ends the bio from outside its channel, and does not poll: the mailbox is served by the suspender.
        let ender = std::thread::spawn(move || disk.release());
        assert_eq!(ender.join().unwrap(), 1);
        suspender.join().unwrap();
        assert_eq!(channel.completed().map(|c| c.token), Some(2));
        resume(&md);
    }
}

#[test]
fn a_cancelled_suspend_leaves_the_device_running() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 linear /a 0");
    disk.holding.store(true, Ordering::Relaxed);
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 1);
    let error = md.suspend(SuspendOptions::default(), &|| true).unwrap_err();
    assert_eq!(error.errno, Errno::EINTR);
    assert!(!md.info().suspended);
    channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 2);
    assert_eq!(disk.release(), 2);
    assert_eq!([token(&channel), token(&channel)], [Some(1), Some(2)]);
}

#[test]
fn resume_swaps_tables_and_keeps_what_it_cannot_swap() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 linear /a 0");
    let info = || {
        let i = md.info();
        (i.active, i.inactive, i.suspended, i.target_count)
    };
    rig.load(&md, "0 50 zero\n50 250 zero", false).unwrap();
    assert_eq!((info(), md.sectors()), ((true, true, false, 1), Sectors::new(100)));
    resume(&md);
    assert_eq!((info(), md.sectors()), ((true, false, false, 2), Sectors::new(300)));
    suspend(&md);
    assert_eq!(info(), (true, false, true, 2));
    rig.load(&md, "0 10 zero", false).unwrap();
    assert!(md.clear() && !md.clear());
    resume(&md);
    assert_eq!((info(), md.sectors()), ((true, false, false, 2), Sectors::new(300)));
    let empty = rig.registry.create("empty", "", None).unwrap();
    resume(&empty);
    suspend(&empty);
    assert_eq!(empty.resume(SuspendOptions::default(), &|| false).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn open_devices_are_busy_or_deferred() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let below = rig.device("below", "0 100 linear /a 0");
    let top = rig.device("top", "0 100 linear {below} 0");
    assert_eq!(below.info().open_count, 1);
    assert_eq!(rig.registry.remove(&below, false).unwrap_err().errno, Errno::EBUSY);
    assert_eq!(rig.registry.remove(&below, true), Ok(Removal::Deferred));
    assert!(below.info().deferred_remove);
    let handle = top.open().unwrap();
    assert_eq!(rig.registry.remove(&top, true), Ok(Removal::Deferred));
    drop(handle);
    assert!(rig.registry.list().is_empty(), "the last close removed both");
    assert_eq!(top.open().err().map(|e| e.errno), Some(Errno::ENXIO));
    assert_eq!(rig.registry.remove(&top, false).unwrap_err().errno, Errno::ENXIO);
}

#[test]
fn a_removed_device_fails_what_it_held() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 linear /a 0");
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    suspend(&md);
    channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 1);
    rig.registry.remove(&md, false).unwrap();
    channel.poll();
    assert_eq!(channel.completed(), Some(Completion { token: 1, status: Status::Io }));
    channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 2);
    assert_eq!(channel.completed(), Some(Completion { token: 2, status: Status::Io }));
}

#[test]
fn tables_let_go_of_devices_when_they_are_swapped() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let below = rig.device("below", "0 100 linear /a 0");
    let middle = rig.device("middle", "0 100 linear {below} 0");
    let top = rig.device("top", "0 100 linear {middle} 0");
    let io = rig.io(&top);
    write(&io, 0, 8, 1);
    rig.reload(&middle, "0 100 zero");
    assert_eq!(below.info().open_count, 0);
    assert!(read(&io, 0, 8).iter().all(|b| *b == 0), "the path above follows the swap");
    assert_eq!((below.totals().writes, below.totals().remapped), (1, 1), "what a path counted stays counted");
    rig.registry.remove(&below, false).unwrap();
    drop(below);
    // The disk is the rig's and this test's; no table holds it.
    assert_eq!(Arc::strong_count(&disk), 2);
}

/// The targets' only reason to answer Requeue is that they cannot serve now.
mod requeueing {
    use super::*;
    pub(super) static READY: AtomicBool = AtomicBool::new(false);
    pub(super) static KEPT: std::sync::Mutex<Vec<Bio>> = std::sync::Mutex::new(Vec::new());
    pub(super) struct Waiting;
    impl Target for Waiting {
        fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
            if READY.load(Ordering::SeqCst) {
                return Map::Ended(bio, Status::Ok);
            }
            KEPT.lock().unwrap().push(bio);
            Map::Kept
        }
        fn status(&self, _: StatusKind) -> String {
            String::new()
        }
        fn presuspend(&self, noflush: bool) {
            let status = if noflush { Status::Requeue } else { Status::Ok };
            std::mem::take(&mut *KEPT.lock().unwrap()).into_iter().for_each(|b| b.end(status));
        }
    }
    pub(super) static TYPE: TargetType =
        TargetType::new("waiting", [1, 0, 0], |_| Ok(NewTarget::new(Waiting).in_place()));
    pub(super) static TYPES: &[&TargetType] = &[&TYPE];
}

#[test]
fn noflush_pushes_bios_back() {
    let rig = Rig::with_types(requeueing::TYPES);
    let md = rig.device("x", "0 100 waiting");
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    let mut buf = vec![0u8; 512];
    // SAFETY: `buf` stays until the completion below.
    let mut read = |t| assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::ZERO, &mut buf, t) });
    read(1);
    md.suspend(SuspendOptions { noflush: true, ..Default::default() }, &|| false).unwrap();
    assert_eq!(token(&channel), None, "pushed back, not completed");
    requeueing::READY.store(true, Ordering::SeqCst);
    resume(&md);
    assert_eq!(token(&channel), Some(1));
    requeueing::READY.store(false, Ordering::SeqCst);
    read(2);
    suspend(&md);
    assert_eq!(token(&channel), Some(2), "without noflush the target finishes it");
}

/// A target whose chunks each do something else with what comes first, and serve it when it comes again.
mod parts {
    use super::*;
    use std::sync::Mutex;
    use udm_base::ArgError;
    pub(super) const CHUNK: u64 = 8;
    pub(super) static AGAIN: AtomicBool = AtomicBool::new(false);
    static KEPT: Mutex<Vec<(Bio, u8)>> = Mutex::new(Vec::new());
    struct Parts {
        disk: Arc<dyn BlockDevice>,
        /// `d` serves, `F` fails, `f` fails once; `k` keeps and pushes back, `g` keeps and serves, `h` keeps and fails.
        ways: Vec<u8>,
        begin: Sector,
    }
    fn ctr(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
        let disk = ctr.args.need("disk", "a disk")?;
        let disk = ctr.device(&disk, "disk")?;
        let ways = ctr.args.need("ways", "letters")?.text.into_bytes();
        let all = TargetDevice { dev: disk.clone(), start: Sector::ZERO, len: disk.sectors() };
        let made = NewTarget::new(Parts { disk, ways, begin: ctr.begin }).maps_to([all]);
        Ok(made.split_at(Sectors::new(CHUNK)).sees_flushes())
    }
    impl Target for Parts {
        fn map(&self, _: &Cx<'_>, mut bio: Bio, at: Sectors) -> Map<'_> {
            let way = self.ways[(at.get() / CHUNK) as usize % self.ways.len()];
            if bio.op() != Op::Flush {
                bio.set_sector(self.begin + at);
            }
            match way {
                b'F' => Map::Ended(bio, Status::Io),
                _ if AGAIN.load(Ordering::SeqCst) => Map::Remapped(bio, &*self.disk),
                b'd' => Map::Remapped(bio, &*self.disk),
                b'f' => Map::Ended(bio, Status::Io),
                way => {
                    KEPT.lock().unwrap().push((bio, way));
                    Map::Kept
                }
            }
        }
        fn status(&self, _: StatusKind) -> String {
            String::new()
        }
        fn presuspend(&self, noflush: bool) {
            for (bio, way) in std::mem::take(&mut *KEPT.lock().unwrap()) {
                bio.end(match way {
                    b'k' if noflush => Status::Requeue,
                    b'h' => Status::Io,
                    _ => Status::Ok,
                });
            }
        }
    }
    pub(super) static TYPE: TargetType = TargetType::new("parts", [1, 0, 0], ctr);
    pub(super) static TYPES: &[&TargetType] = &[&TYPE, udm_targets::TARGETS[0], udm_targets::TARGETS[1]];

    /// All words of three letters.
    pub(super) fn words() -> impl Iterator<Item = String> {
        const LETTERS: &[u8] = b"dFfkgh";
        let letter = |n: usize| char::from(LETTERS[n % LETTERS.len()]);
        (0..LETTERS.len().pow(3)).map(move |n| [n, n / 6, n / 36].map(letter).iter().collect())
    }
}

/// What becomes of a bio whose parts went these ways, before a suspension and after it.
fn fate(word: &str, noflush: bool) -> (Option<Status>, Status) {
    let has = |letters: &str| word.contains(|c| letters.contains(c));
    let is = |bad| if bad { Status::Io } else { Status::Ok };
    match noflush && has("k") {
        true => (None, is(has("F"))),
        false => (Some(is(has("Ffh"))), is(has("Ffh"))),
    }
}

/// Trap: of a bio that was split, one part is pushed back and the others are done, fail, or are under way: then the
/// whole is held, served again and ended once, whatever it asks for, and however many devices and frames are above.
#[test]
fn a_bio_of_which_a_part_is_pushed_back_is_held_as_a_whole() {
    use parts::{AGAIN, CHUNK};
    const LEN: u64 = 3 * CHUNK;
    let rig = Rig::with_types(parts::TYPES);
    let limits = Limits { write_cache: true, fua: false, ..Limits::default() };
    let disk = rig.disk_with("/a", LEN, limits);
    let md = rig.device("x", &format!("0 {LEN} parts /a d"));
    let mut above = vec![md.clone()];
    for level in 0..7 {
        let beneath = above[level].device_name();
        above.push(rig.device(&format!("l{level}"), &format!("0 {LEN} linear {{{beneath}}} 0")));
        above[level + 1].set_compile(level % 2 == 0);
    }
    let kinds = [
        (Op::Read, OpFlags::NONE),
        (Op::Write, OpFlags::NONE),
        (Op::Write, OpFlags::FUA),
        (Op::Read, OpFlags::HIPRI),
        (Op::Discard, OpFlags::NONE),
        (Op::WriteZeroes, OpFlags::NONE),
        (Op::Flush, OpFlags::NONE),
    ];
    let mut generation = 0;
    for (i, word) in parts::words().enumerate() {
        let chunk = |n: usize| format!("{} {CHUNK} parts /a {}", n as u64 * CHUNK, &word[n..=n]);
        for noflush in [false, true] {
            // As one target with chunks, and as three.
            let tables = [format!("0 {LEN} parts /a {word}"), [chunk(0), chunk(1), chunk(2)].join("\n")];
            rig.reload(&md, &tables[usize::from(noflush)]);
            let top = above[i % above.len()].clone();
            for (op, flags) in kinds {
                // A flush goes to targets; of one that is only one.
                let word = if op == Op::Flush && !noflush { &word[..1] } else { &word };
                let case = format!("{op:?} {flags:?} {word} noflush {noflush} under {}", top.device_name());
                generation += 1;
                AGAIN.store(false, Ordering::SeqCst);
                let mut client = Client::new(&rig, &top);
                let data = pattern(0, LEN, generation);
                let asked = match op {
                    Op::Write => client.write(0, data.clone(), flags),
                    Op::Read => client.submit(op, flags, 0, vec![0; data.len()]),
                    Op::Flush => client.range(op, flags, 0, 0),
                    _ => client.range(op, flags, 0, LEN),
                };
                md.suspend(SuspendOptions { noflush, ..Default::default() }, &|| false).unwrap();
                let (before, after) = fate(word, noflush);
                // Devices above follow a write with FUA up with a flush, which comes when this one is suspended.
                if flags != OpFlags::FUA || i % above.len() == 0 {
                    assert_eq!(client.status(asked), before, "{case}");
                }
                AGAIN.store(true, Ordering::SeqCst);
                disk.log();
                resume(&md);
                assert_eq!(client.wait(asked), after, "{case}");
                let log = disk.log();
                if before.is_none() && after == Status::Ok {
                    assert!(log.iter().any(|l| l.starts_with(&format!("{op:?}"))), "{case}: {log:?}");
                    let all = read(&BlockingIo::new(&rig.domain, disk.clone()).unwrap(), 0, LEN);
                    let expect = if op == Op::WriteZeroes { vec![0; data.len()] } else { data };
                    assert!(!matches!(op, Op::Write | Op::WriteZeroes) || all == expect, "{case}");
                    let flushes = log.iter().filter(|l| l.starts_with("Flush")).count();
                    assert!(flags != OpFlags::FUA || flushes >= 1, "{case}: {log:?}");
                }
            }
        }
    }
    assert_eq!(above.iter().map(|md| md.info().suspended).filter(|s| *s).count(), 0);
}

/// Writers check every block they read back, while tables are swapped under them at every level of the stack.
#[test]
fn tables_are_swapped_under_load() {
    let rig = Rig::default();
    rig.disk("/a", 4096);
    let base = rig.device("base", "0 2048 linear /a 0");
    let middle = rig.device("middle", "0 2048 linear {base} 0");
    let top = rig.device("top", "0 2048 linear {middle} 0");
    let stop = Arc::new(AtomicBool::new(false));
    let ios = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..3u64)
        .map(|w| {
            let (domain, top, stop, ios) = (rig.domain.clone(), top.clone(), stop.clone(), ios.clone());
            std::thread::spawn(move || {
                let io = BlockingIo::new(&domain, top).unwrap();
                let mut generation = 0;
                while !stop.load(Ordering::Relaxed) {
                    generation += 1;
                    let at = w * 600 + (generation * 37) % 560;
                    write(&io, at, 40, generation);
                    assert_eq!(rig::read(&io, at, 40), pattern(at, 40, generation));
                    ios.fetch_add(2, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let tables = [
        (&base, ["0 1024 linear /a 0\n1024 1024 linear /a 1024", "0 2048 linear /a 0"]),
        (&middle, ["0 1000 linear {base} 0\n1000 1048 linear {base} 1000", "0 2048 linear {base} 0"]),
        (&top, ["0 2048 striped 1 16 {middle} 0", "0 2048 linear {middle} 0"]),
    ];
    let mut swaps = 0;
    while swaps < 150 || ios.load(Ordering::Relaxed) < 5_000 {
        let (md, forms) = &tables[swaps % 3];
        rig.reload(md, forms[swaps / 3 % 2]);
        if swaps % 7 == 0 {
            base.set_compile(swaps % 2 == 0);
            middle.set_clone_always(swaps % 3 == 0);
        }
        swaps += 1;
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|w| w.join().unwrap());
    [&top, &middle, &base].into_iter().for_each(suspend);
    let t = [top.totals(), middle.totals(), base.totals()].map(|t| t.writes >= t.reads.min(1) && t.reads > 0);
    assert_eq!(t, [true; 3]);
}

#[test]
fn events_are_counted_and_waited_for() {
    let rig = Rig::default();
    let md = rig.device("x", "0 100 zero");
    let seen = md.info().event_nr;
    let there = md.clone();
    let waiter = std::thread::spawn(move || there.wait_event(seen, &|| false));
    md.event();
    waiter.join().unwrap().unwrap();
    assert_eq!(md.info().event_nr, seen + 1);
    assert_eq!(md.wait_event(seen + 1, &|| true).unwrap_err().errno, Errno::EINTR);
    assert_eq!(rig.registry.event_nr(), 1);
}

/// Whoever waits is told by what, while everything waits: what looks takes none of the locks that are held for long.
#[test]
fn what_a_suspension_and_a_removal_wait_for_can_be_told() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1024);
    let base = rig.device("base", "0 100 linear /a 8");
    let top = rig.device("top", "0 100 linear {base} 0");
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(top.clone());
    disk.holding.store(true, Ordering::Relaxed);
    let mut buf = vec![0; 1024];
    // SAFETY: the buffer outlives the bio, which is waited for.
    assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(4), &mut buf, 1) });
    assert!(channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 2));

    let told = rig.registry.inspect();
    assert_eq!(told.locks, Vec::<String>::new());
    let device = |told: &Inspection, name: &str| told.devices.iter().find(|d| d.name == name).cloned().unwrap();
    assert_eq!((device(&told, "base").state, device(&told, "base").in_flight), ("running", 2));
    let used = told.channels.iter().find(|used| used.channel.number == channel.id()).unwrap();
    let of = |op| used.bios.iter().filter(|g| g.op == op).map(|g| (&*g.device, g.count, g.first)).collect::<Vec<_>>();
    assert_eq!(of(Op::Read), [("/a", 1, (Sector::new(12), Sectors::new(2)))]);
    assert!(!of(Op::Flush).is_empty(), "{:?}", used.bios);

    let cancelled = AtomicBool::new(false);
    std::thread::scope(|s| {
        let until = |expect: &str, key: &str| {
            while !rig.registry.waits_for(key).is_some_and(|text| text.contains(expect)) {
                std::thread::yield_now();
            }
        };
        s.spawn(|| base.suspend(SuspendOptions::default(), &|| cancelled.load(Ordering::Relaxed)).unwrap_err());
        until("waits for bios in flight; 2 bios of base in flight", "base");
        s.spawn(|| base.resume(SuspendOptions::default(), &|| false).unwrap());
        until("waits for another command on the device", &base.devt().to_string());
        assert_eq!(rig.registry.waits_for("top"), None, "no command of its own");
        cancelled.store(true, Ordering::Relaxed);
    });
    std::thread::scope(|s| {
        s.spawn(|| rig.registry.remove(&top, false).unwrap());
        while rig.registry.waits_for("top").is_none() {
            std::thread::yield_now();
        }
        let told = rig.registry.inspect();
        assert_eq!(device(&told, "top").doing.len(), 1, "a device that is going is there still");
        // Its own mailbox serves the channel from there.
        while disk.release() > 0 || device(&rig.registry.inspect(), "base").in_flight > 0 {
            std::thread::yield_now();
        }
    });
    assert!(rig.registry.inspect().devices.iter().all(|d| d.name != "top"));
    assert!(rig.registry.inspect().channels.iter().all(|used| used.bios.is_empty()));
}

/// Whether targets of [`STUBBORN`] refuse to go on, and how many of them have gone.
static REFUSES: AtomicBool = AtomicBool::new(false);
static GONE: AtomicU64 = AtomicU64::new(0);

/// A target that may refuse to go on, as a pool does whose devices are not what they were.
struct Stubborn(Arc<dyn BlockDevice>);

impl Target for Stubborn {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Remapped(bio, &*self.0)
    }
    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
    fn preresume(&self) -> Result<(), Error> {
        if REFUSES.load(Ordering::SeqCst) { Err(Error::new(Errno::EINVAL, "no more")) } else { Ok(()) }
    }
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::SeqCst);
    }
}

static STUBBORN: TargetType = TargetType::new("stubborn", [1, 0, 0], |ctr| {
    let arg = ctr.args.need("Invalid argument count", "a device")?;
    let dev = ctr.device(&arg, "Device lookup failed")?;
    let whole = TargetDevice { dev: dev.clone(), start: Sector::ZERO, len: Sectors::new(100) };
    Ok(NewTarget::new(Stubborn(dev)).maps_to([whole]).in_place())
});

#[test]
fn a_suspension_that_was_given_up_and_cannot_be_taken_back_still_waits_for_its_bios() {
    static TYPES: [&TargetType; 1] = [&STUBBORN];
    let rig = Rig::with_types(&TYPES);
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 stubborn /a");
    disk.holding.store(true, Ordering::Relaxed);
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 1);
    REFUSES.store(true, Ordering::SeqCst);
    let given_up: Cancel<'_> = &|| true;
    let errno = |done: Result<(), Error>| done.map_err(|e| e.errno);
    assert_eq!(errno(md.suspend(SuspendOptions::default(), given_up)), Err(Errno::EINVAL));
    assert!(md.info().suspended, "its target does not go on");
    rig.load(&md, "0 100 stubborn /a", false).unwrap();
    // The table may not change beneath the bio that is in flight.
    assert_eq!(errno(md.resume(SuspendOptions::default(), given_up)), Err(Errno::EINVAL));
    assert_eq!(GONE.load(Ordering::SeqCst), 0);
    REFUSES.store(false, Ordering::SeqCst);
    assert_eq!(errno(md.resume(SuspendOptions::default(), given_up)), Err(Errno::EINTR));
    assert_eq!((md.info().suspended, GONE.load(Ordering::SeqCst)), (false, 0));
    disk.release();
    resume(&md);
    assert_eq!((token(&channel), GONE.load(Ordering::SeqCst)), (Some(1), 1));
}
