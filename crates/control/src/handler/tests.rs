use super::{Caller, Changed, Outcome, handle};
use crate::codec::{Command, Flags, RequestBuilder, Response, TargetSpec};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::Arc;
use udm_base::{ArgError, DevT, Errno, Sector, Sectors};
use udm_core::{
    Ctr, Error, HOST_MAJOR, HostOpener, MAJOR, Map, NewTarget, Registry, StatusKind, Target, TargetDevice, TargetType,
};
use udm_io::{Bio, Cx, Domain, MemoryDevice, Status};

/// Ends every bio; answers the messages `echo WORDS…` and `event`.
struct Nil;

fn nil(_: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    Ok(NewTarget::new(Nil))
}

impl Target for Nil {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Ended(bio, Status::Ok)
    }

    fn status(&self, kind: StatusKind) -> String {
        match kind {
            StatusKind::Info { .. } => "i".into(),
            StatusKind::Table => "t".into(),
            StatusKind::Measurement => "m=1".into(),
        }
    }

    fn message(&self, words: &[&str]) -> Result<String, Error> {
        match words {
            ["echo", rest @ ..] => Ok(rest.join("|")),
            _ => Err(Error::new(Errno::EINVAL, format!("unknown message {words:?}"))),
        }
    }
}

/// Stands on the devices that its arguments name.
struct On(Vec<TargetDevice>);

fn on(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let mut devices = Vec::new();
    while let Some(arg) = ctr.args.take() {
        let dev = ctr.device(&arg, "Device lookup failed")?;
        devices.push(TargetDevice { dev, start: Sector::ZERO, len: ctr.len });
    }
    Ok(NewTarget::new(On(devices.clone())).maps_to(devices))
}

impl Target for On {
    fn map(&self, _: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'_> {
        Map::Remapped(bio, &*self.0[0].dev)
    }

    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
}

static NIL: TargetType = TargetType::new("nil", [1, 2, 3], nil);
static ON: TargetType = TargetType::new("on", [4, 5, 6], on);
static TYPES: &[&TargetType] = &[&NIL, &ON];

struct World {
    registry: Registry,
    reap: RefCell<Box<dyn Fn()>>,
    cancelled: Cell<bool>,
}

impl World {
    fn new() -> Self {
        let host: Box<HostOpener> = Box::new(|request| {
            if request.spec == "none" {
                let message = format!("{:?} in {}: no such file", request.spec, request.cwd.display());
                return Err(Error::new(Errno::ENOENT, message));
            }
            // Asked while it is being opened.
            (request.cancel)();
            Ok(Arc::new(MemoryDevice::new(Sectors::new(64)).unwrap()))
        });
        let registry = Registry::new(Domain::default(), TYPES, host);
        Self { registry, reap: RefCell::new(Box::new(|| ())), cancelled: Cell::new(false) }
    }

    fn outcome(&self, command: Command, build: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Outcome {
        let bytes = build(RequestBuilder::new(command)).build().unwrap();
        let caller =
            Caller { cwd: Path::new("/cwd"), cancel: &|| self.cancelled.get(), reap: &|| (self.reap.borrow())() };
        handle(&self.registry, &caller, command.ioctl_number(), &bytes)
    }

    fn ask(&self, command: Command, build: impl FnOnce(RequestBuilder) -> RequestBuilder) -> Result<Vec<u8>, String> {
        let answer = self.outcome(command, build).answer;
        assert!(Response::parse(&answer.buf).is_ok(), "even a refusal has the interface's version");
        match answer.errno {
            0 => Ok(answer.buf),
            errno => Err(format!("{:?}: {}", Errno::new(errno), answer.detail)),
        }
    }

    /// `ask`, with the flags of the answer as text.
    fn flags(&self, command: Command, build: impl FnOnce(RequestBuilder) -> RequestBuilder) -> String {
        match self.ask(command, build) {
            Ok(buf) => format!("{:?}", Response::parse(&buf).unwrap().header().flags),
            Err(error) => error,
        }
    }

    fn create(&self, name: &str) -> String {
        self.flags(Command::DevCreate, |r| r.name(name.as_bytes()))
    }

    fn load(&self, name: &str, lines: &[(u64, u64, &str, &str)], flags: Flags) -> String {
        let specs = lines.iter().map(|(start, len, kind, params)| {
            TargetSpec::new(Sector::new(*start), Sectors::new(*len), kind.as_bytes(), params.as_bytes())
        });
        self.flags(Command::TableLoad, |r| r.name(name.as_bytes()).flags(flags).targets(specs))
    }

    fn live(&self, name: &str, kind: &str, params: &str) {
        self.create(name);
        self.load(name, &[(0, 8, kind, params)], Flags::default());
        self.flags(Command::DevSuspend, |r| r.name(name.as_bytes()));
    }

    fn names(&self) -> Vec<String> {
        self.registry.list().iter().map(|md| md.device_name()).collect()
    }
}

#[test]
fn version() {
    let world = World::new();
    let buf = world.ask(Command::Version, |r| r).unwrap();
    assert_eq!(Response::parse(&buf).unwrap().header().version, [4, 48, 0]);
    let outcome =
        handle(&world.registry, &Caller { cwd: Path::new("/"), cancel: &|| false, reap: &|| () }, 0xc138_fdff, &buf);
    assert_eq!(outcome.answer.errno, Errno::ENOTTY.get());
    assert_eq!(outcome.changed, Changed::Nothing);
}

#[test]
fn names_and_numbers_of_new_devices() {
    let world = World::new();
    let check = |name: &str, uuid: &str, minor: Option<u32>, expect: Result<(u32, u32), &str>| {
        let got = world.ask(Command::DevCreate, |r| {
            let r = r.name(name.as_bytes()).uuid(uuid.as_bytes());
            match minor {
                Some(minor) => r.flags(Flags::PERSISTENT_DEV).dev(DevT::new(7, minor)),
                None => r,
            }
        });
        let got = got.map(|buf| Response::parse(&buf).unwrap().header().device().unwrap());
        match (got, expect) {
            (Ok(dev), Ok((major, minor))) => assert_eq!(dev, DevT::new(major, minor), "{name}"),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{got} lacks {expect}"),
            (got, expect) => panic!("{name}: {got:?}, expected {expect:?}"),
        }
    };
    check("a", "", None, Ok((MAJOR, 0)));
    check("b", "B", None, Ok((MAJOR, 1)));
    check("c", "", Some(5), Ok((MAJOR, 5)));
    check("d", "", None, Ok((MAJOR, 2)));
    check("a", "", None, Err("EBUSY: a device named \"a\" exists"));
    check("e", "B", None, Err("EBUSY: the uuid \"B\" belongs to \"b\""));
    check("e", "", Some(5), Err("EBUSY: minor 5 belongs to \"c\""));
    check("a/b", "", None, Err("EINVAL: \"a/b\" cannot be a device's name"));
    check("control", "", None, Err("EINVAL"));
    check("", "", None, Err("EINVAL"));
    assert_eq!(world.names(), ["a", "b", "c", "d"]);
}

#[test]
fn how_a_device_is_found() {
    let world = World::new();
    world.flags(Command::DevCreate, |r| r.name(b"a").uuid(b"U"));
    let check = |build: fn(RequestBuilder) -> RequestBuilder, expect: &str| {
        let got = world.ask(Command::DevStatus, build).map(|buf| {
            let response = Response::parse(&buf).unwrap();
            let header = response.header();
            format!(
                "{} {} {}",
                String::from_utf8_lossy(header.name()),
                String::from_utf8_lossy(header.uuid()),
                header.device().unwrap()
            )
        });
        let got = got.unwrap_or_else(|e| e);
        assert!(got.contains(expect), "{got} lacks {expect}");
    };
    check(|r| r.name(b"a"), "a U 600:0");
    check(|r| r.uuid(b"U"), "a U 600:0");
    check(|r| r.dev(DevT::new(MAJOR, 0)), "a U 600:0");
    check(|r| r.name(b"x"), "ENXIO: no device has the name \"x\"");
    check(|r| r.name(b"\xff"), "ENXIO");
    check(|r| r.uuid(b"V"), "ENXIO: no device has the uuid \"V\"");
    check(|r| r.dev(DevT::new(MAJOR, 9)), "ENXIO: no device has the number 600:9");
    check(|r| r.dev(DevT::new(7, 0)), "ENXIO");
    check(|r| r, "ENXIO: no device is named");
    check(|r| r.name(b"a").dev(DevT::new(MAJOR, 0)), "ENXIO: no device is named");
    check(|r| r.name(b"a").uuid(b"U"), "EINVAL");
}

#[test]
fn flags_through_a_life() {
    let world = World::new();
    let n = Flags::default();
    let status = |flags: Flags| world.flags(Command::DevStatus, |r| r.name(b"a").flags(flags));
    let suspend = |flags: Flags| world.flags(Command::DevSuspend, |r| r.name(b"a").flags(flags));
    let one = [(0, 8, "nil", "")];
    assert_eq!(world.create("a"), "{}");
    assert_eq!(world.load("a", &one, n), "{INACTIVE_PRESENT}");
    assert_eq!(status(n), "{INACTIVE_PRESENT}");
    assert_eq!(suspend(n), "{ACTIVE_PRESENT}");
    assert_eq!(world.load("a", &one, Flags::READONLY), "{ACTIVE_PRESENT, INACTIVE_PRESENT}");
    assert_eq!(
        status(Flags::QUERY_INACTIVE_TABLE),
        "{READONLY, ACTIVE_PRESENT, INACTIVE_PRESENT, QUERY_INACTIVE_TABLE}"
    );
    assert_eq!(suspend(Flags::SUSPEND), "{SUSPEND, ACTIVE_PRESENT, INACTIVE_PRESENT}");
    assert_eq!(suspend(Flags::SUSPEND | Flags::NOFLUSH), "{SUSPEND, ACTIVE_PRESENT, INACTIVE_PRESENT, NOFLUSH}");
    assert_eq!(suspend(n), "{READONLY, ACTIVE_PRESENT}");
    world.load("a", &one, n);
    assert_eq!(world.flags(Command::TableClear, |r| r.name(b"a")), "{READONLY, ACTIVE_PRESENT}");
    assert_eq!(world.flags(Command::TableClear, |r| r.name(b"a")), "{READONLY, ACTIVE_PRESENT}");
    world.create("bare");
    assert_eq!(world.flags(Command::DevSuspend, |r| r.name(b"bare").flags(Flags::SUSPEND)), "{SUSPEND}");
    let resumed = world.flags(Command::DevSuspend, |r| r.name(b"bare"));
    assert!(resumed.starts_with("EINVAL: bare has no table"), "{resumed}");
}

#[test]
fn tables_that_are_refused() {
    let world = World::new();
    world.create("a");
    let check = |lines: &[(u64, u64, &str, &str)], expect: &str| {
        let got = world.load("a", lines, Flags::default());
        assert!(got.contains(expect), "{got} lacks {expect}");
    };
    check(&[], "EINVAL: the table has no targets");
    check(&[(0, 8, "nill", "")], "EINVAL: line 1: unknown target type: found \"nill\"; did you mean nil?");
    check(&[(0, 8, "nil", ""), (9, 1, "nil", "")], "line 2: Gap in table");
    check(&[(0, 8, "on", "none")], "ENOENT: line 1: on: Device lookup failed: \"none\" in /cwd");
    check(&[(0, 8, "on", "x none")], "\n  0 8 on x none\n           ^^^^");
    check(&[(0, 65, "on", "x")], "too small");
    let outcome = world.outcome(Command::TableLoad, |r| {
        r.name(b"a").targets([TargetSpec::new(Sector::ZERO, Sectors::new(8), b"on", b"\xff")])
    });
    assert_eq!(outcome.answer.errno, Errno::EINVAL.get());
    assert_eq!(world.load("x", &[(0, 8, "nil", "")], Flags::default()), "ENXIO: no device has the name \"x\"");
    assert_eq!(world.flags(Command::DevStatus, |r| r.name(b"a")), "{}", "none of them stayed");
}

#[test]
fn status_and_table() {
    let world = World::new();
    world.live("a", "nil", "");
    world.load("a", &[(0, 4, "nil", ""), (4, 4, "nil", "")], Flags::default());
    let check = |command: Command, flags: Flags, expect: &[&str]| {
        let buf = world.ask(command, |r| r.name(b"a").flags(flags).event_nr(99)).unwrap();
        let response = Response::parse(&buf).unwrap();
        let lines = response.targets().unwrap();
        let lines: Vec<_> = lines
            .iter()
            .map(|l| {
                let text = |b| String::from_utf8_lossy(b).into_owned();
                format!("{} {} {} {}", l.start, l.len, text(l.target_type), text(l.params))
            })
            .collect();
        assert_eq!(lines, expect, "{command:?} {flags:?}");
    };
    check(Command::TableStatus, Flags::default(), &["0 8 nil i"]);
    check(Command::TableStatus, Flags::STATUS_TABLE, &["0 8 nil t"]);
    check(Command::TableStatus, Flags::IMA_MEASUREMENT, &["0 8 nil target_name=nil,target_version=1.2.3,m=1;"]);
    check(Command::TableStatus, Flags::QUERY_INACTIVE_TABLE, &["0 4 nil i", "4 4 nil i"]);
    check(Command::DevWait, Flags::STATUS_TABLE, &["0 8 nil t"]);
    let buf = world.ask(Command::TableStatus, |r| r.name(b"a").capacity(0)).unwrap();
    let response = Response::parse(&buf).unwrap();
    assert!(response.is_full() && response.header().target_count == 1);
}

#[test]
fn dependencies_have_numbers() {
    let world = World::new();
    world.live("low", "nil", "");
    world.live("top", "on", "/dev/mapper/low x y");
    let deps = |name: &str| {
        let buf = world.ask(Command::TableDeps, |r| r.name(name.as_bytes())).unwrap();
        Response::parse(&buf).unwrap().deps().unwrap()
    };
    let host = |minor| DevT::new(HOST_MAJOR, minor);
    assert_eq!(deps("top"), [host(0), host(1), DevT::new(MAJOR, 0)], "what was opened last comes first");
    assert_eq!(deps("top"), [host(0), host(1), DevT::new(MAJOR, 0)], "numbers stay");
    assert_eq!(deps("low"), []);
    assert_eq!(world.registry.host_devices().iter().map(|d| d.0).collect::<Vec<_>>(), [host(0), host(1)]);
}

#[test]
fn lists() {
    let world = World::new();
    world.flags(Command::DevCreate, |r| r.name(b"b").uuid(b"LVM-1"));
    world.create("a");
    world.create("bc");
    let list = |build: fn(RequestBuilder) -> RequestBuilder| {
        let buf = world.ask(Command::ListDevices, build).unwrap();
        let response = Response::parse(&buf).unwrap();
        let names = response.names().unwrap();
        names
            .iter()
            .map(|n| {
                let uuid = n.uuid.map(|u| format!("={}", String::from_utf8_lossy(u))).unwrap_or_default();
                format!("{}@{}{uuid}", String::from_utf8_lossy(n.name), n.dev)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(list(|r| r), ["a@600:1", "b@600:0", "bc@600:2"]);
    assert_eq!(list(|r| r.flags(Flags::UUID)), ["a@600:1", "b@600:0=LVM-1", "bc@600:2"]);
    assert_eq!(list(|r| r.name(b"b")), ["b@600:0", "bc@600:2"]);
    assert_eq!(list(|r| r.uuid(b"LVM-")), ["b@600:0"]);
    assert_eq!(list(|r| r.name(b"x")), [] as [&str; 0]);
}

#[test]
fn target_versions() {
    let world = World::new();
    let versions = |command: Command, name: &[u8]| {
        world.ask(command, |r| r.name(name)).map(|buf| {
            let response = Response::parse(&buf).unwrap();
            let list = response.versions().unwrap();
            list.iter().map(|v| format!("{} {:?}", String::from_utf8_lossy(v.name), v.version)).collect::<Vec<_>>()
        })
    };
    assert_eq!(versions(Command::ListVersions, b"").unwrap(), ["nil [1, 2, 3]", "on [4, 5, 6]"]);
    assert_eq!(versions(Command::GetTargetVersion, b"on").unwrap(), ["on [4, 5, 6]"]);
    let error = versions(Command::GetTargetVersion, b"off").unwrap_err();
    assert_eq!(error, "EINVAL: no target is called \"off\": known are nil, on");
}

#[test]
fn messages() {
    let world = World::new();
    world.live("a", "nil", "");
    world.create("bare");
    let check = |name: &str, sector: u64, text: &str, expect: Result<Option<&str>, &str>| {
        let got =
            world.ask(Command::TargetMsg, |r| r.name(name.as_bytes()).message(Sector::new(sector), text.as_bytes()));
        match (got, expect) {
            (Ok(buf), Ok(expect)) => {
                let response = Response::parse(&buf).unwrap();
                assert_eq!(response.message_output().unwrap(), expect.map(str::as_bytes), "{text}");
            }
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{got} lacks {expect}"),
            (got, expect) => panic!("{text}: {got:?}, expected {expect:?}"),
        }
    };
    check("a", 0, r"echo one  two\ three", Ok(Some("one|two three")));
    check("a", 7, "echo", Ok(None));
    check("a", 8, "echo x", Err("EINVAL: sector 8 lies past"));
    check("a", 0, "", Err("EINVAL: Empty message"));
    check("a", 0, "what", Err("EINVAL: unknown message"));
    check("a", 0, "@cancel_deferred_remove", Ok(None));
    check("a", 0, "@cancel_deferred_remove x", Err("EINVAL: Invalid arguments"));
    check("a", 0, "@stats_list", Err("EINVAL: Unsupported message sent to DM core"));
    check("bare", 0, "anything", Ok(None));
    check("x", 0, "anything", Err("ENXIO"));
}

#[test]
fn renaming() {
    let world = World::new();
    world.live("a", "nil", "");
    world.flags(Command::DevCreate, |r| r.name(b"b").uuid(b"B"));
    let rename = |name: &str, new: &str, flags: Flags| {
        world.flags(Command::DevRename, |r| r.name(name.as_bytes()).flags(flags).text(new.as_bytes()))
    };
    let check = |name: &str, new: &str, flags: Flags, expect: &str| {
        let got = rename(name, new, flags);
        assert!(got.starts_with(expect), "{name} to {new}: {got}, expected {expect}");
    };
    let events = |name: &str| world.registry.by_name(name).unwrap().info().event_nr;
    let n = Flags::default();
    check("a", "aa", n, "{ACTIVE_PRESENT}");
    assert_eq!(events("aa"), 1);
    check("a", "x", n, "ENXIO");
    check("aa", "aa", n, "EBUSY");
    check("aa", "b", n, "EBUSY: the name \"b\" belongs to \"b\"");
    check("aa", "x/y", n, "EINVAL");
    check("aa", "", n, "EINVAL");
    check("aa", "..", n, "EINVAL");
    check("b", "bb", n, "{");
    assert_eq!(events("bb"), 0, "an event needs a table");
    check("aa", "B", Flags::UUID, "EBUSY");
    check("aa", "A", Flags::UUID, "{");
    check("aa", "A2", Flags::UUID, "EINVAL: aa has the uuid \"A\"");
    assert_eq!(world.registry.by_uuid("A").unwrap().device_name(), "aa");
    let by_uuid = world.flags(Command::DevRename, |r| r.uuid(b"A").text(b"new"));
    assert!(by_uuid.starts_with("ENXIO"), "{by_uuid}");
}

#[test]
fn removing_what_is_held() {
    let world = World::new();
    world.live("a", "nil", "");
    let held = RefCell::new(Some(world.registry.by_name("a").unwrap().open().unwrap()));
    let remove = |flags: Flags| world.flags(Command::DevRemove, |r| r.name(b"a").flags(flags));
    let reaped = std::rc::Rc::new(Cell::new(0));
    let count = reaped.clone();
    *world.reap.borrow_mut() = Box::new(move || count.set(count.get() + 1));
    assert!(remove(Flags::default()).starts_with("EBUSY: a is in use: 1 export or table above holds it"));
    assert_eq!(reaped.get(), 1, "a busy device is asked for its hang-ups");
    assert_eq!(remove(Flags::DEFERRED_REMOVE), "{ACTIVE_PRESENT, DEFERRED_REMOVE}");
    assert_eq!(world.flags(Command::DevStatus, |r| r.name(b"a")), "{ACTIVE_PRESENT, DEFERRED_REMOVE}");
    held.take();
    assert_eq!(world.names(), [] as [&str; 0]);
    // A client that has gone: its close comes with the reaping.
    world.live("a", "nil", "");
    let held = RefCell::new(Some(world.registry.by_name("a").unwrap().open().unwrap()));
    *world.reap.borrow_mut() = Box::new(move || drop(held.take()));
    assert_eq!(remove(Flags::DEFERRED_REMOVE), "{ACTIVE_PRESENT}");
    assert!(remove(Flags::default()).starts_with("ENXIO"));
}

#[test]
fn removing_all() {
    let world = World::new();
    world.live("a-low", "nil", "");
    world.live("b-top", "on", "/dev/mapper/a-low");
    world.live("c-held", "nil", "");
    world.live("d-gone", "nil", "");
    let held = world.registry.by_name("c-held").unwrap().open().unwrap();
    let gone = RefCell::new(Some(world.registry.by_name("d-gone").unwrap().open().unwrap()));
    *world.reap.borrow_mut() = Box::new(move || drop(gone.take()));
    assert_eq!(world.flags(Command::RemoveAll, |r| r), "{}");
    assert_eq!(world.names(), ["c-held"]);
    world.flags(Command::RemoveAll, |r| r.flags(Flags::DEFERRED_REMOVE));
    assert_eq!(world.names(), ["c-held"]);
    drop(held);
    assert_eq!(world.names(), [] as [&str; 0]);
}

#[test]
fn waiting() {
    let world = World::new();
    world.live("a", "nil", "");
    world.cancelled.set(true);
    let wait = |nr: u32| world.flags(Command::DevWait, |r| r.name(b"a").event_nr(nr));
    assert!(wait(0).starts_with("EINTR"), "a caller that has gone does not wait for ever");
    world.registry.by_name("a").unwrap().event();
    assert_eq!(wait(0), "{ACTIVE_PRESENT}");
    assert_eq!(wait(77), "{ACTIVE_PRESENT}");
    assert!(wait(1).starts_with("EINTR"));
}

#[test]
fn events_of_all_devices() {
    let world = World::new();
    let nr = || {
        let buf = world.ask(Command::DevArmPoll, |r| r).unwrap();
        Response::parse(&buf).unwrap().header().event_nr
    };
    let before = nr();
    world.create("a");
    assert_eq!(nr(), before + 1);
    world.create("a");
    assert_eq!(nr(), before + 1, "a refusal is no event");
    world.flags(Command::DevRemove, |r| r.name(b"a"));
    assert_eq!(nr(), before + 2);
}

#[test]
fn geometry() {
    let world = World::new();
    world.live("a", "nil", "");
    world.create("bare");
    let check = |name: &str, text: &str, expect: &str| {
        let got = world.flags(Command::DevSetGeometry, |r| r.name(name.as_bytes()).text(text.as_bytes()));
        assert!(got.starts_with(expect), "{text}: {got}, expected {expect}");
    };
    check("a", "8 16 63 0", "{");
    assert_eq!(world.registry.by_name("a").unwrap().geometry().heads, 16);
    check("a", "1 1 1 2", "EINVAL");
    check("a", "65536 16 63 0", "EINVAL");
    check("a", "8 16 63", "EINVAL");
    check("bare", "8 16 63 0", "{");
    check("x", "8 16 63 0", "ENXIO");
}

#[test]
fn secrets_are_not_quoted() {
    let world = World::new();
    world.create("a");
    let load = |kind: &str, params: &str, flags| world.load("a", &[(0, 8, kind, params)], flags);
    for (kind, params) in [("on", "none SECRET"), ("SECRET", "")] {
        let plain = load(kind, params, Flags::default());
        let hidden = load(kind, params, Flags::SECURE_DATA);
        assert!(!hidden.contains("SECRET") && hidden.contains("DM_SECURE_DATA"), "{hidden}");
        assert_eq!(plain.split(':').next(), hidden.split(':').next(), "the same error number");
    }
    let message =
        |flags| world.flags(Command::TargetMsg, |r| r.name(b"a").flags(flags).message(Sector::ZERO, b"@SECRET"));
    assert!(message(Flags::default()).contains("SECRET"));
    assert!(!message(Flags::SECURE_DATA).contains("SECRET"));
    // What is not of the text is told.
    assert!(world.load("x", &[(0, 8, "nil", "SECRET")], Flags::SECURE_DATA).contains("no device has the name"));
}

/// Neither are they told to who asks what a command waits for.
#[test]
fn secrets_are_not_shown_while_they_are_opened() {
    let world = World::new();
    world.create("a");
    let told = RefCell::new(Vec::new());
    let ask = || {
        told.borrow_mut().extend(world.registry.waits_for("a"));
        false
    };
    for flags in [Flags::default(), Flags::SECURE_DATA] {
        let spec = TargetSpec::new(Sector::ZERO, Sectors::new(8), b"on", b"SECRET");
        let request = RequestBuilder::new(Command::TableLoad).name(b"a").flags(flags).targets([spec]).build().unwrap();
        let caller = Caller { cwd: Path::new("/"), cancel: &ask, reap: &|| () };
        assert_eq!(handle(&world.registry, &caller, Command::TableLoad.ioctl_number(), &request).answer.errno, 0);
    }
    assert_eq!(told.into_inner(), ["opens SECRET", "opens a device beneath"]);
}

#[test]
fn what_counts_as_a_change() {
    let world = World::new();
    // Nobody waits.
    world.cancelled.set(true);
    for &command in Command::ALL {
        // There is one, but for the command that makes it.
        world.flags(Command::RemoveAll, |r| r);
        let made =
            if command == Command::DevCreate { 0 } else { world.registry.create("a", "", None).unwrap().devt().minor };
        let changed = world.outcome(command, |r| r.name(b"a").text(b"x")).changed;
        let only_asks = format!("{command:?}").contains("Status")
            || format!("{command:?}").contains("Version")
            || matches!(command, Command::ListDevices | Command::TableDeps | Command::DevWait | Command::DevArmPoll);
        let expect = match command {
            _ if only_asks => Changed::Nothing,
            Command::RemoveAll => Changed::Everything,
            _ => Changed::Device(made),
        };
        assert_eq!(changed, expect, "{command:?}");
    }
    assert_eq!(world.outcome(Command::DevRemove, |r| r.name(b"no such")).changed, Changed::Nothing);
}
