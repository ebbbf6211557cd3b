//! Tables that are refused, and what those that load print.

mod rig;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use udm_base::Errno;
use udm_core::{StatusKind, TableSlot};

fn check(table: &str, expect: Result<&str, &str>) {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    rig.disk("/b", 1000);
    let md = rig.registry.create("x", "", None).unwrap();
    let got = rig.load(&md, table, false).map(|()| {
        let lines = md.table(TableSlot::Inactive).unwrap().lines(StatusKind::Table);
        lines.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    });
    assert_eq!(got.map_err(|e| e.message), expect.map(str::to_owned).map_err(str::to_owned), "{table}");
}

#[test]
fn good_tables_print_as_they_load() {
    for table in [
        "0 100 zero",
        "0 100 error",
        "0 1 zero\n1 99 error\n100 1000 zero",
        "0 1000 linear /a 0",
        "0 10 linear /a 990\n10 10 linear /b 5",
        "0 96 striped 2 16 /a 0 /b 7",
        "0 96 striped 3 8 /a 0 /b 7 /a 500",
        "0 100 ram",
    ] {
        check(table, Ok(table));
    }
}

#[test]
fn bad_tables_say_where_and_what() {
    for (table, expect) in [
        ("0 0 zero", "line 1: zero-length target: expected a length of at least 1 sector\n  0 0 zero\n    ^"),
        (
            "0 10 zero\n11 10 zero",
            "line 2: Gap in table: expected a start of 10, where the line before ends; found 11: a gap lies between the two\n  11 10 zero\n  ^^",
        ),
        (
            "0 10 zero\n9 10 zero",
            "line 2: Gap in table: expected a start of 10, where the line before ends; found 9: the two overlap\n  9 10 zero\n  ^",
        ),
        (
            "5 10 zero",
            "line 1: Gap in table: expected a start of 0, where the device begins; found 5\n  5 10 zero\n  ^",
        ),
        (
            "0 18446744073709551615 zero",
            "line 1: Target offset + length overflows: expected an end below 2^55 sectors, found 0 + 18446744073709551615\n  0 18446744073709551615 zero\n    ^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "0 10 liner /a 0",
            "line 1: unknown target type: found \"liner\"; did you mean linear?\n  0 10 liner /a 0\n       ^^^^^",
        ),
        (
            "0 10 qqqqqqqq",
            "line 1: unknown target type: found \"qqqqqqqq\"; known are error, linear, loop, ram, snapshot, snapshot-merge, snapshot-origin, striped, thin, thin-pool, zero\n  0 10 qqqqqqqq\n       ^^^^^^^^",
        ),
        (
            "0 10 zero x",
            "line 1: zero: No arguments required: expected no arguments, found 1 argument\n  0 10 zero x\n            ^",
        ),
        (
            "0 10 linear /a",
            "line 1: linear: Invalid argument count: expected <device> <start sector>, found 1 argument\n  0 10 linear /a\n                ^",
        ),
        (
            "0 10 linear /a x",
            "line 1: linear: Invalid device sector: expected a start sector as a decimal number, found \"x\"\n  0 10 linear /a x\n                 ^",
        ),
        (
            "0 10 linear /nope 0",
            "line 1: linear: Device lookup failed: /nope: no such file\n  0 10 linear /nope 0\n              ^^^^^",
        ),
        (
            "0 10 linear /a 991",
            "line 1: /a too small for target: expected 10 sectors from 991, found a device of 1000 sectors\n  0 10 linear /a 991",
        ),
        (
            "0 10 linear /a 18446744073709551615",
            "line 1: /a too small for target: expected 10 sectors from 18446744073709551615, found a device of 1000 sectors\n  0 10 linear /a 18446744073709551615",
        ),
        (
            "0 10 striped 0 8 /a 0",
            "line 1: striped: Invalid stripe count: expected a number of stripes from 1 to 4294967295, found 0\n  0 10 striped 0 8 /a 0\n               ^",
        ),
        (
            "0 10 striped 3 8 /a 0",
            "line 1: striped: Target length not divisible by number of stripes: expected a length that 3 divides, found 10\n  0 10 striped 3 8 /a 0\n               ^",
        ),
        (
            "0 16 striped 2 6 /a 0 /b 0",
            "line 1: striped: Target length not divisible by chunk size: expected a multiple of 2 stripes × 6 sectors, found 16\n  0 16 striped 2 6 /a 0 /b 0\n                 ^",
        ),
        (
            "0 16 striped 2 8 /a 0",
            "line 1: striped: Not enough destinations specified: expected <stripes> <chunk sectors> and <device> <start sector> for each stripe, found 4 arguments\n  0 16 striped 2 8 /a 0\n                       ^",
        ),
        (
            "0 16 striped 2 8 /a 0 /b y",
            "line 1: striped: Couldn't parse stripe destination: expected a start sector as a decimal number, found \"y\"\n  0 16 striped 2 8 /a 0 /b y\n                           ^",
        ),
        (
            "0 10 ram\n10 10 zero",
            "line 2: singleton target must appear alone in table: ram must be the only target of its table\n  10 10 zero",
        ),
        (
            "0 10 zero\n10 10 ram",
            "line 2: singleton target must appear alone in table: ram must be the only target of its table\n  10 10 ram\n        ^^^",
        ),
        (
            "0 10 loop",
            "line 1: loop: Invalid argument count: expected <path> [<offset in sectors>], found 0 arguments\n  0 10 loop\n            ^",
        ),
    ] {
        check(table, Err(expect));
    }
}

#[test]
fn a_table_of_nothing_is_refused() {
    let rig = Rig::default();
    let md = rig.registry.create("x", "", None).unwrap();
    assert_eq!(rig.load(&md, "", false).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn loops_are_refused_also_by_way_of_inactive_tables() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let a = rig.device("a", "0 100 linear /a 0");
    let b = rig.device("b", "0 100 linear {a} 0");
    rig.device("c", "0 100 linear {b} 0");
    for table in ["0 100 linear {a} 0", "0 100 linear {b} 0", "0 100 linear {c} 0", "0 8 zero\n8 92 linear {c} 0"] {
        let error = rig.load(&a, table, false).unwrap_err();
        assert_eq!(error.errno, Errno::ELOOP, "{}", error.message);
    }
    rig.device("d", "0 100 zero");
    rig.load(&b, "0 100 linear {d} 0", false).unwrap();
    let d = rig.registry.by_name("d").unwrap();
    assert_eq!(rig.load(&d, "0 100 linear {b} 0", false).unwrap_err().errno, Errno::ELOOP, "b is inactive above d");
}

#[test]
fn too_deep_a_stack_is_refused() {
    let rig = Rig::default();
    let mut below = rig.device("l0", "0 8 zero");
    for i in 1..udm_io::LEVELS - 1 {
        below = rig.device(&format!("l{i}"), &format!("0 8 linear {} 0", below.devt()));
    }
    let top = rig.registry.create("top", "", None).unwrap();
    let error = rig.load(&top, &format!("0 8 linear {} 0", below.devt()), false).unwrap_err();
    assert_eq!(error.errno, Errno::ELOOP);
    assert!(error.message.contains("at most 31"), "{}", error.message);
}

#[test]
fn blocks_of_4096_bytes_bind_the_table() {
    let rig = Rig::default();
    rig.disk_with("/k", 1000, udm_io::Limits { logical_block_size: 4096, ..Default::default() });
    let md = rig.registry.create("x", "", None).unwrap();
    for (table, good) in [
        ("0 80 linear /k 8", true),
        ("0 80 linear /k 4", false),
        ("0 81 linear /k 8", false),
        ("0 4 zero\n4 8 linear /k 8", false),
        ("0 8 zero\n8 8 linear /k 8", true),
    ] {
        assert_eq!(rig.load(&md, table, false).is_ok(), good, "{table}");
    }
    resume(&md);
    let io = rig.io(&md);
    assert_eq!(io.read(udm_base::Sector::new(1), &mut [0; 512]), Err(udm_io::Status::Invalid));
    assert_eq!(io.read(udm_base::Sector::new(0), &mut [0; 4096]), Ok(()));
}

#[test]
fn names_and_uuids() {
    let rig = Rig::default();
    let long = "n".repeat(127);
    for (name, errno) in [
        ("ok", None),
        (&*long, None),
        ("", Some(Errno::EINVAL)),
        ("a/b", Some(Errno::EINVAL)),
        ("control", Some(Errno::EINVAL)),
        (&"n".repeat(128), Some(Errno::EINVAL)),
        ("ok", Some(Errno::EBUSY)),
    ] {
        assert_eq!(rig.registry.create(name, "", None).err().map(|e| e.errno), errno, "{name}");
    }
    let u = rig.registry.create("u", "UUID-1", Some(77)).unwrap();
    assert_eq!(u.devt().to_string(), "600:77");
    assert_eq!(rig.registry.create("v", "UUID-1", None).unwrap_err().errno, Errno::EBUSY);
    assert_eq!(rig.registry.create("v", "", Some(77)).unwrap_err().errno, Errno::EBUSY);
    assert_eq!(rig.registry.create("v", "", None).unwrap().devt().minor, 2);
    assert_eq!(rig.registry.set_uuid(&u, "other").unwrap_err().errno, Errno::EINVAL);
    rig.registry.rename(&u, "w").unwrap();
    assert!(rig.registry.by_name("u").is_none() && rig.registry.by_name("w").is_some());
    assert_eq!(rig.registry.rename(&u, "ok").unwrap_err().errno, Errno::EBUSY);
}

/// A registry in which whatever begins with `/slow` is opened only when the test says so.
struct Slow {
    registry: udm_core::Registry,
    entered: std::sync::mpsc::Receiver<()>,
    open: Arc<AtomicBool>,
}

impl Slow {
    fn new() -> Self {
        let (enter, entered) = std::sync::mpsc::channel();
        let open = Arc::new(AtomicBool::new(false));
        let opens = open.clone();
        let enter = std::sync::Mutex::new(enter);
        let host = move |request: &udm_core::HostRequest<'_>| {
            if request.spec.starts_with("/slow") {
                enter.lock().unwrap().send(()).unwrap();
                while !opens.load(Ordering::Relaxed) {
                    if (request.cancel)() {
                        return Err(udm_core::Error::new(Errno::EINTR, "given up"));
                    }
                    std::thread::yield_now();
                }
            }
            let dev = udm_io::MemoryDevice::new(udm_base::Sectors::new(1024)).unwrap();
            Ok(Arc::new(dev) as Arc<dyn udm_io::BlockDevice>)
        };
        let domain = udm_io::Domain::default();
        Self { registry: udm_core::Registry::new(domain, udm_targets::TARGETS, Box::new(host)), entered, open }
    }

    fn device(&self, name: &str) -> Arc<udm_core::MappedDevice> {
        let md = self.registry.create(name, "", None).unwrap();
        load(&md, "0 16 zero").unwrap();
        resume(&md);
        md
    }
}

fn load(md: &Arc<udm_core::MappedDevice>, table: &str) -> Result<(), udm_core::Error> {
    load_unless(md, table, &|| false)
}

fn load_unless(
    md: &Arc<udm_core::MappedDevice>,
    table: &str,
    cancel: udm_core::Cancel<'_>,
) -> Result<(), udm_core::Error> {
    let options = udm_core::LoadOptions { read_only: false, cwd: std::path::Path::new("/"), cancel, secret: false };
    md.load_as(&udm_core::TableLine::parse_all(table).unwrap(), &options)
}

#[test]
fn a_device_that_is_slow_to_open_delays_no_other_load() {
    let slow = Slow::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| slow.device(name));
    let gone = AtomicBool::new(false);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| load(&a, "0 16 linear /slow 0"));
        let leaving = s.spawn(|| load_unless(&b, "0 16 linear /slow 0", &|| gone.load(Ordering::Relaxed)));
        slow.entered.recv().unwrap();
        slow.entered.recv().unwrap();
        assert_eq!(slow.registry.waits_for("a").as_deref(), Some("opens /slow"));
        // Of others, and of the device itself.
        load(&c, "0 16 linear /fast 0").unwrap();
        resume(&c);
        load(&a, "0 16 linear /fast 0").unwrap();
        gone.store(true, Ordering::Relaxed);
        assert_eq!(leaving.join().unwrap().unwrap_err().errno, Errno::EINTR);
        slow.open.store(true, Ordering::Relaxed);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(slow.registry.waits_for("a"), None);
}

/// What two loads find when they begin is not what they find when they are done.
#[test]
fn two_loads_at_a_time_close_no_loop_and_build_no_tower() {
    let together = |one: (&str, &str), other: (&str, &str), slow: &Slow| {
        let of = |(name, table): (&str, &str)| (slow.registry.by_name(name).unwrap(), table.to_owned());
        let ((a, first), (b, second)) = (of(one), of(other));
        let both = std::thread::scope(|s| {
            let both = [s.spawn(move || load(&a, &first)), s.spawn(move || load(&b, &second))];
            slow.entered.recv().unwrap();
            slow.entered.recv().unwrap();
            slow.open.store(true, Ordering::Relaxed);
            both.map(|load| load.join().unwrap())
        });
        let refused: Vec<_> = both.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].errno, Errno::ELOOP);
    };
    let slow = Slow::new();
    let (a, b) = (slow.device("a"), slow.device("b"));
    let over = |beneath: &str| format!("0 8 linear {beneath} 0\n8 8 linear /slow 0");
    together(("a", &over(&b.devt().to_string())), ("b", &over(&a.devt().to_string())), &slow);

    let slow = Slow::new();
    let tower = |name: &str, floors: usize| {
        let mut top = slow.device(&format!("{name}0"));
        for floor in 1..floors {
            let next = slow.device(&format!("{name}{floor}"));
            load(&next, &format!("0 16 linear {} 0", top.devt())).unwrap();
            resume(&next);
            top = next;
        }
        top.devt().to_string()
    };
    // Each fits on the ground floor of the next, but not all three above each other.
    let (low, middle, _) = (tower("low", 12), tower("mid", 12), tower("top", 12));
    together(("mid0", &over(&low)), ("top0", &over(&middle)), &slow);
}
