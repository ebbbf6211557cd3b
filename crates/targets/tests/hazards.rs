//! Changes beneath a running stack that are easy to get wrong: smaller tables, weaker disks, longer stacks, stale
//! handles.

mod rig;
use rig::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use udm_base::{Errno, Sector, Sectors};
use udm_core::*;
use udm_io::*;

#[test]
fn a_device_beneath_may_shrink() {
    for below in ["0 50 linear /a 0", "0 20 linear /a 0\n20 30 linear /a 20"] {
        let rig = Rig::default();
        rig.disk("/a", 1000);
        let small = rig.device("small", "0 100 linear /a 0");
        let io = rig.io(&rig.device("top", "0 100 linear {small} 0"));
        rig.reload(&small, below);
        assert_eq!(io.read(Sector::new(49), &mut [0; 512]), Ok(()));
        assert_eq!(io.read(Sector::new(50), &mut [0; 512]), Err(Status::Io));
        assert_eq!(io.read(Sector::new(49), &mut [0; 1024]), Err(Status::Io));
    }
}

#[test]
fn a_compiled_path_asks_nothing_of_a_disk_that_it_cannot_do() {
    let rig = Rig::default();
    rig.disk("/able", 1000);
    let weak = Limits { max_sectors: Sectors::new(8), fua: false, write_cache: true, ..Limits::default() };
    let disk = rig.disk_with("/weak", 1000, weak);
    let below = rig.device("below", "0 100 linear /able 0");
    let io = rig.io(&rig.device("top", "0 100 linear {below} 0"));
    rig.reload(&below, "0 100 linear /weak 0");
    io.write(Sector::new(1), &[1; 512], OpFlags::FUA).unwrap();
    assert_eq!(disk.log(), ["Write 1+1", "Flush 0+0"]);
    write(&io, 0, 20, 1);
    assert_eq!(disk.log(), ["Write 0+8", "Write 8+8", "Write 16+4"]);
}

#[test]
fn a_flush_in_place_of_fua_reaches_every_device_of_a_stack() {
    let rig = Rig::default();
    let weak = Limits { fua: false, write_cache: true, ..Limits::default() };
    let disks = ["/a", "/b", "/c"].map(|name| rig.disk_with(name, 1000, weak));
    rig.device("one", "0 100 linear /a 0\n100 100 linear /b 0");
    rig.device("two", "0 100 linear /c 0");
    let io = rig.io(&rig.device("top", "0 200 linear {one} 0\n200 100 linear {two} 0"));
    io.write(Sector::new(250), &[1; 512], OpFlags::FUA).unwrap();
    let flushed = disks.map(|d| d.log().last().cloned());
    assert_eq!(flushed, ["Flush 0+0"; 3].map(|s| Some(s.to_owned())));
}

/// A target that keeps bios until it may serve them, or until a suspension wants them back.
struct Waiting;

static READY: AtomicBool = AtomicBool::new(false);
static KEPT: Mutex<Vec<Bio>> = Mutex::new(Vec::new());

impl Target for Waiting {
    fn map(&self, _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        if READY.load(Ordering::SeqCst) {
            let status = if at == Sectors::new(7) { Status::Ok } else { Status::Invalid };
            return Map::Ended(bio, status);
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

static WAITING: TargetType = TargetType::new("waiting", [1, 0, 0], |_| Ok(NewTarget::new(Waiting).in_place()));

#[test]
fn noflush_pushes_bios_of_a_compiled_path_back() {
    let linear = udm_targets::TARGETS.iter().find(|t| t.name == "linear").unwrap();
    let rig = Rig::with_types(vec![&WAITING, linear].leak());
    let below = rig.device("below", "0 100 waiting");
    let top = rig.device("top", "0 90 linear {below} 3");
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(top);
    let mut buf = vec![0u8; 512];
    // SAFETY: `buf` stays until the completion below.
    assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(4), &mut buf, 1) });
    below.suspend(SuspendOptions { noflush: true, ..Default::default() }, &|| false).unwrap();
    channel.poll();
    assert_eq!(channel.completed(), None, "pushed back, not failed");
    READY.store(true, Ordering::SeqCst);
    resume(&below);
    channel.poll();
    assert_eq!(channel.completed(), Some(Completion { token: 1, status: Status::Ok }));
}

/// A target that fails every bio, and counts how often it is told.
struct Failing;

static TOLD: AtomicU32 = AtomicU32::new(0);
static FAILING: TargetType = TargetType::new("failing", [1, 0, 0], |_| Ok(NewTarget::new(Failing).in_place()));

impl Target for Failing {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Ended(bio, Status::Io)
    }
    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
    fn failed(&self, what: Failed, _: Status) -> bool {
        assert!(matches!(what, Failed::At(at) if at == Sectors::new(7)), "{what:?}");
        TOLD.fetch_add(1, Ordering::Relaxed);
        false
    }
}

#[test]
fn a_target_is_told_once_of_an_error() {
    let linear = udm_targets::TARGETS.iter().find(|t| t.name == "linear").unwrap();
    let rig = Rig::with_types(vec![&FAILING, linear].leak());
    let below = rig.device("below", "0 100 failing");
    let middle = rig.device("middle", "0 90 linear {below} 3");
    let io = rig.io(&rig.device("top", "0 80 linear {middle} 2"));
    for (n, compile) in [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate() {
        below.set_compile(compile.0);
        middle.set_compile(compile.1);
        assert_eq!(io.read(Sector::new(2), &mut [0; 512]), Err(Status::Io));
        assert_eq!(TOLD.load(Ordering::Relaxed), n as u32 + 1, "{compile:?}");
    }
}

#[test]
fn two_stacks_are_not_joined_to_one_that_is_too_deep() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let chain = |name: &str| {
        let mut stack = vec![rig.device(&format!("{name}0"), "0 100 linear /a 0")];
        for i in 1..20 {
            stack.push(rig.device(&format!("{name}{i}"), &format!("0 100 linear {} 0", stack[i - 1].devt())));
        }
        stack
    };
    let (upper, lower) = (chain("u"), chain("l"));
    let join = |i: usize| rig.load(&upper[0], &format!("0 100 linear {} 0", lower[i].devt()), false);
    assert_eq!(join(19).unwrap_err().errno, Errno::ELOOP);
    assert_eq!(join(11).unwrap_err().errno, Errno::ELOOP, "20 above 12 are one too many");
    join(10).unwrap();
    resume(&upper[0]);
    rig.io(&upper[19]).flush().unwrap();
}

#[test]
fn a_stack_with_two_tables_on_every_floor_is_looked_through_once() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let mut below = rig.device("l0", "0 100 linear /a 0").devt();
    for i in 1..31 {
        let md = rig.device(&format!("l{i}"), &format!("0 100 linear {below} 0"));
        rig.load(&md, &format!("0 100 linear {below} 0"), false).unwrap();
        below = md.devt();
    }
    assert_eq!(rig.registry.by_name("l30").unwrap().level(), 31);
}

#[test]
fn what_is_removed_gets_no_name_any_more() {
    let rig = Rig::default();
    let md = rig.device("x", "0 100 zero");
    rig.registry.remove(&md, false).unwrap();
    assert_eq!(rig.registry.rename(&md, "y").unwrap_err().errno, Errno::ENXIO);
    assert_eq!(rig.registry.set_uuid(&md, "U").unwrap_err().errno, Errno::ENXIO);
    assert!(rig.registry.list().is_empty());
    assert!(rig.registry.by_uuid("U").is_none());
}

#[test]
#[should_panic(expected = "another domain")]
fn a_device_is_not_used_from_another_domain() {
    let rig = Rig::default();
    let md = rig.device("x", "0 100 zero");
    Domain::default().channel().unwrap().attach(md);
}
