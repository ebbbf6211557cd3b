//! What a daemon makes of the state that the one before left.

use crate::common::{Nbd, NbdHold, Place, stderr, stdout, until};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const SECTORS: u64 = 2048;

/// Ends the daemon as a power cut would.
fn kill(place: &Place) {
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
}

/// Whether a process has a file open.
fn has_open(pid: u32, file: &Path) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|path| path == file)
}

fn hold(place: &Place, name: &str) -> NbdHold {
    NbdHold::open(&place.dir().join("nbd.sock"), name).unwrap()
}

/// All that users see of the devices.
fn picture(place: &Place) -> String {
    let commands =
        ["info -c --noheadings -o name,uuid,major,minor,attr,segments", "table", "table --inactive", "ls --tree"];
    let mut text: String = commands.iter().map(|line| place.ok(line)).collect();
    text += &place.ok("export");
    text += &place.ok("info --json");
    text
}

#[test]
fn everything_comes_back() {
    let place = Place::new();
    let disk = place.file("disk", 4 << 20);
    let disk = disk.display();
    place.create(&["low", "--minor", "7", "--major", "600"], &format!("0 {SECTORS} linear {disk} 0"));
    // Its number is below that of what it stands on.
    place.create(&["high", "--uuid", "U-1"], &format!("0 {SECTORS} linear 600:7 0"));
    place.create(&["ro", "--readonly"], "0 8 zero\n8 8 error");
    place.create(&["still"], "0 8 zero");
    place.ok("suspend still");
    assert!(place.udm(["load", "still", "--table", "0 16 zero"]).status.success());
    place.ok("create bare --notable");
    place.ok("set high compile=0 clone_always=1 read_ahead=77");
    place.ok("setgeometry low 4 16 32 0");
    place.ok("export high --tcp 127.0.0.1:0");
    hold(&place, "high").request(4096, &Nbd::Write(&[7; 512])).unwrap();
    let _ = place.ok("export");
    let pictures = [picture(&place), {
        kill(&place);
        picture(&place)
    }];
    // What is counted begins anew, as are those who hold a device open.
    let strip = |text: &str| {
        let json: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let keep = ["name", "uuid", "minor", "state", "read_only", "read_ahead", "compile", "clone_always", "lost"];
        let devices = json["devices"].as_array().unwrap().iter();
        let devices: Vec<_> = devices.map(|d| keep.map(|key| d[key].clone())).collect();
        (text.lines().rev().skip(1).map(str::to_owned).collect::<Vec<_>>(), devices)
    };
    assert_eq!(strip(&pictures[0]), strip(&pictures[1]));
    assert_eq!(hold(&place, "high").request(4096, &Nbd::Read(512)).unwrap(), [7; 512]);
    assert!(place.ok("info still").contains("State:             SUSPENDED"), "{}", place.ok("info still"));
    place.ok("resume still");
    assert_eq!(place.ok("table still"), "0 16 zero \n");
    let state = std::fs::read_to_string(place.dir().join("state.json")).unwrap();
    assert!(state.contains("\"geometry\": [\n        4,\n        16,\n        32,\n        0\n      ]"), "{state}");
}

#[test]
fn what_was_in_memory_is_an_error_and_never_empty() {
    let place = Place::new();
    let (origin, cow) = (place.file("origin", 1 << 20), place.file("cow", 1 << 20));
    place.create(&["r"], &format!("0 {SECTORS} ram"));
    place.create(&["above"], &format!("0 {SECTORS} linear 600:0 0"));
    place.create(&["n"], &format!("0 {SECTORS} linear null:size=1M:memory=1 0"));
    place.create(&["nothing"], &format!("0 {SECTORS} linear null:size=1M 0"));
    place.create(&["s"], &format!("0 {SECTORS} snapshot {} {} N 8", origin.display(), cow.display()));
    for round in 0..2 {
        kill(&place);
        for name in ["r", "n", "s"] {
            assert_eq!(place.ok(&format!("table {name}")), format!("0 {SECTORS} error \n"), "round {round}");
            assert_eq!(hold(&place, name).request(0, &Nbd::Read(512)), Err(5), "{name}, round {round}");
            assert!(place.ok(&format!("info --json {name}")).contains("in the memory of a daemon"), "{name}");
        }
        assert_eq!(hold(&place, "above").request(0, &Nbd::Read(512)), Err(5), "what stands on it");
        assert_eq!(hold(&place, "nothing").request(0, &Nbd::Read(512)).unwrap(), [0; 512]);
        assert!(place.ok("daemon --status").contains("lost: r: its data was in the memory"), "round {round}");
    }
    // Who wants an empty one says so; then it is lost no more, until the next crash.
    assert!(place.udm(["load", "r", "--table", &format!("0 {SECTORS} ram")]).status.success());
    place.ok("resume r");
    assert!(!place.ok("daemon --status").contains("lost: r:"));
    assert_eq!(hold(&place, "above").request(0, &Nbd::Read(512)).unwrap(), [0; 512]);
    for name in ["above", "r", "n", "s", "nothing"] {
        place.ok(&format!("remove {name}"));
    }
    kill(&place);
    assert_eq!(place.ok("ls"), "No devices found\n");
}

#[test]
fn a_file_that_is_gone_takes_its_device_alone() {
    let place = Place::new();
    let [a, b, cow] = ["a", "b", "cow"].map(|name| place.file(name, 1 << 20));
    place.create(&["va"], &format!("0 {SECTORS} linear {} 0", a.display()));
    place.create(&["vb"], &format!("0 {SECTORS} linear {} 0", b.display()));
    place.create(&["vs"], &format!("0 {SECTORS} snapshot 600:1 {} P 8", cow.display()));
    hold(&place, "va").request(0, &Nbd::Write(&[5; 512])).unwrap();
    let aside = |path: &PathBuf| path.with_extension("aside");
    for path in [&a, &cow] {
        std::fs::rename(path, aside(path)).unwrap();
    }
    kill(&place);
    assert_eq!(place.ok("table va"), format!("0 {SECTORS} error \n"));
    assert_eq!(place.ok("table vs"), format!("0 {SECTORS} error \n"));
    assert_eq!(hold(&place, "vb").request(0, &Nbd::Read(512)).unwrap(), [0; 512]);
    let log = place.log();
    assert!(log.contains("va comes back as error: ") && log.contains(&a.display().to_string()), "{log}");
    for path in [&a, &cow] {
        std::fs::rename(aside(path), path).unwrap();
    }
    kill(&place);
    place.ok("ls");
    assert_eq!(hold(&place, "va").request(0, &Nbd::Read(512)).unwrap(), [5; 512], "its table was kept");
    assert_eq!(place.ok("table vs"), format!("0 {SECTORS} error \n"), "its origin may have been written to meanwhile");
}

#[test]
fn states_that_are_not_understood() {
    let place = Place::new();
    place.zero("vol");
    let path = place.dir().join("state.json");
    place.ok("daemon --stop");
    let good = std::fs::read_to_string(&path).unwrap();
    for (bad, why) in [
        (good[..good.len() / 2].to_owned(), "cut short"),
        (String::new(), "cut short"),
        (good.replace("\"version\": 3", "\"version\": 9"), "it has version 9"),
        (good.replace("\"exports\"", "\"export\""), "unknown field"),
        ("\u{0}".repeat(100), "no state"),
    ] {
        std::fs::write(&path, &bad).unwrap();
        let before = place.log().len();
        assert_eq!(place.ok("ls"), "No devices found\n", "{why}");
        let log = place.log().split_off(before);
        assert!(log.contains(why) && log.contains("state.json.last"), "{log}");
        assert_eq!(std::fs::read_to_string(path.with_extension("json.last")).unwrap(), bad);
        kill(&place);
    }
    // One device that cannot be is not the others' fault.
    let strange = good.replace("0 2048 zero", "0 2048 no-such-target");
    let two = good.clone();
    for (text, expect) in [(strange, "0 2048 error \n"), (two, "0 2048 zero \n")] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(place.ok("table vol"), expect);
        kill(&place);
    }
    std::fs::write(&path, good.replace("\"name\": \"vol\"", "\"name\": \"a/b\"")).unwrap();
    assert_eq!(place.ok("ls"), "No devices found\n");
    assert!(place.log().contains("a/b is not restored"), "{}", place.log());
}

#[test]
fn ending_keeps_the_devices_unless_told_to_forget_them() {
    let place = Place::new();
    place.zero("vol");
    place.ok("daemon --stop");
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
    place.ok("daemon --stop --forget");
    assert_eq!(place.ok("ls"), "No devices found\n");
    place.zero("vol");
    place.ok("daemon --stop");
    assert!(place.ok("daemon --stop --forget").contains("no daemon runs"));
    assert_eq!(place.ok("ls"), "No devices found\n");
    place.zero("vol");
    place.ok("daemon --stop");
    let mut daemon =
        place.command("udm").args(["daemon", "--no-restore"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    until("it answers", || std::os::unix::net::UnixStream::connect(place.dir().join("control.sock")).is_ok());
    assert_eq!(place.ok("ls"), "No devices found\n");
    let kept = std::fs::read_to_string(place.dir().join("state.json.last")).unwrap();
    assert!(kept.contains("0 2048 zero"), "{kept}");
    place.ok("daemon --stop");
    daemon.wait().unwrap();
    let output = place.udm(["daemon", "--forget"]);
    assert!(!output.status.success(), "{}", stdout(&output));
}

/// A daemon that is killed under load has, after the next one's start, all that was acknowledged before a flush: on a
/// thin volume, and in a snapshot that was made meanwhile.
#[test]
fn nothing_acknowledged_is_missing_after_a_kill_under_load() {
    const BLOCKS: u64 = 64;
    let place = Place::new();
    let (meta, data) = (place.file("meta", 4 << 20), place.file("data", 32 << 20));
    place.create(&["pool"], &format!("0 65536 thin-pool {} {} 128 0", meta.display(), data.display()));
    place.ok("message pool 0 create_thin 0");
    place.create(&["vol"], "0 65536 thin 600:0 0");
    let block = |round: u64, at: u64| vec![(round * 31 + at * 7 + 1) as u8; 4096];
    for life in 0..3u64 {
        let (first, snap) = (life * 1000, format!("snap{life}"));
        let flushed = AtomicU64::new(0);
        let mut client = hold(&place, "vol");
        for at in 0..BLOCKS {
            client.request(at << 16, &Nbd::Write(&block(first, at))).unwrap();
        }
        client.request(0, &Nbd::Flush).unwrap();
        place.ok("suspend vol");
        place.ok(&format!("message pool 0 create_snap {} 0", life + 1));
        place.ok("resume vol");
        place.create(&[&snap], &format!("0 65536 thin 600:0 {}", life + 1));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // Each round writes all blocks, and is flushed; the kill finds it anywhere.
                for round in first + 1.. {
                    for at in 0..BLOCKS {
                        if client.ask(at << 16, &Nbd::Write(&block(round, at))).is_err() {
                            return round;
                        }
                    }
                    if client.ask(0, &Nbd::Flush).is_err() {
                        return round;
                    }
                    flushed.store(round, Ordering::Release);
                }
                unreachable!("the daemon ends first")
            });
            until("rounds are flushed", || flushed.load(Ordering::Acquire) >= first + 3 + life);
            kill(&place);
            let last = writer.join().unwrap();
            let done = flushed.load(Ordering::Acquire);
            place.ok("ls");
            let mut client = hold(&place, "vol");
            for at in 0..BLOCKS {
                let found = client.request(at << 16, &Nbd::Read(4096)).unwrap();
                let written = (done..=last).any(|round| found == block(round, at));
                assert!(written, "block {at} after life {life} is none of rounds {done} to {last}: {}", found[0]);
            }
            let mut client = hold(&place, &snap);
            for at in 0..BLOCKS {
                assert_eq!(client.request(at << 16, &Nbd::Read(4096)).unwrap(), block(first, at), "{snap}, block {at}");
            }
        });
    }
    for name in ["snap0", "snap1", "snap2", "vol", "pool"] {
        until(&format!("{name} is free"), || place.udm(["remove", name]).status.success());
    }
    place.ok(&format!("thin check {}", meta.display()));
}

/// Files of a process that is just ending are locked for a moment: the next daemon waits for them.
#[test]
fn what_is_locked_for_a_moment_is_waited_for() {
    let place = Place::new();
    let cow = place.file("cow", 1 << 20);
    let origin = place.file("origin", 1 << 20);
    let table = format!("0 {SECTORS} snapshot {} {} P 8", origin.display(), cow.display());
    place.create(&["s"], &table);
    kill(&place);
    let locked = File::options().read(true).write(true).open(&cow).unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    until("it is ours", || rustix::fs::fcntl_lock(&locked, lock).is_ok());
    let (place, cow) = (&place, &cow);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            until("a daemon wants it", || place.daemon_pid().is_some_and(|pid| has_open(pid, cow)));
            drop(locked);
        });
        assert_eq!(place.ok("table s"), format!("{table}\n"));
    });
}

/// What is acknowledged is there after a kill; where it cannot be written, the command says so, and what it did is
/// told.
#[test]
fn what_cannot_be_remembered_is_no_success() {
    let place = Place::new();
    place.zero("before");
    // No file can be begun here: neither a checkpoint nor a log.
    for name in ["state.json.new", "state.log.new"] {
        std::fs::create_dir(place.dir().join(name)).unwrap();
    }
    let create = |name: &str| place.udm(["create", name, "--table", "0 2048 zero"]);
    let told = create("first");
    kill(&place);
    if told.status.success() {
        assert!(place.ok("ls").contains("first"), "it was acknowledged: {}", place.ok("ls"));
    }
    // This daemon could not begin a checkpoint at all.
    let refused = create("second");
    assert_eq!(refused.status.code(), Some(1));
    let (told, file) = (stderr(&refused), place.dir().join("state.json").display().to_string());
    let expect = format!("nothing is done, since it could not be remembered: {file} cannot be written: Is a directory");
    assert!(told.contains(&expect), "{told} lacks {expect}");
    for line in ["remove before", "set before compile=0", "export before --tcp 127.0.0.1:0"] {
        let refused = place.udm(line.split(' '));
        assert!(stderr(&refused).contains("nothing is done"), "{line}: {}", stderr(&refused));
    }
    assert!(!place.ok("ls").contains("second") && place.ok("ls").contains("before"));
    for name in ["state.json.new", "state.log.new"] {
        std::fs::remove_dir(place.dir().join(name)).unwrap();
    }
    place.zero("second");
    kill(&place);
    assert!(place.ok("ls").contains("second"));
}

/// A disk that is full: here a file cannot grow beyond a limit.
#[test]
fn a_full_disk_is_told_and_got_over() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let place = Place::new();
    place.zero("before");
    let pid = Pid::from_raw(place.daemon_pid().unwrap() as i32);
    let limit = |current| prlimit(pid, Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
    limit(Some(0));
    let failed = place.udm(["create", "half", "--notable"]);
    assert_eq!(failed.status.code(), Some(1));
    let told = stderr(&failed);
    assert!(told.contains("it is done, but not remembered: ") && told.contains("File too large"), "{told}");
    let refused = place.udm(["create", "not", "--notable"]);
    assert!(stderr(&refused).contains("nothing is done"), "{}", stderr(&refused));
    limit(None);
    // The next command, or a second, writes what is missing.
    place.zero("after");
    kill(&place);
    let devices = place.ok("ls");
    assert!(["before", "half", "after"].iter().all(|name| devices.contains(name)), "{devices}");
    assert!(!devices.contains("not"), "{devices}");
}

/// Wherever a power cut ends the log, the daemon starts, and with all that the log holds before.
#[test]
fn a_log_that_was_cut_short() {
    let place = Place::new();
    let names = ["a", "b", "c", "d"];
    place.ok("ls");
    names.iter().for_each(|name| place.ok(&format!("create {name} --notable")).clear());
    kill(&place);
    let [path, state] = ["state.log", "state.json"].map(|name| place.dir().join(name));
    let (log, checkpoint) = (std::fs::read(&path).unwrap(), std::fs::read(&state).unwrap());
    let ends: Vec<usize> = (0..log.len()).filter(|at| log[*at] == b'\n').map(|at| at + 1).collect();
    assert_eq!(ends.len(), 1 + names.len(), "a head, and a record for each command");
    let cuts = ends.iter().enumerate().flat_map(|(count, end)| [(count, *end), (count, end + 1), (count, end + 40)]);
    for (count, cut) in cuts.filter(|(_, cut)| *cut <= log.len()) {
        std::fs::write(&path, &log[..cut]).unwrap();
        std::fs::write(&state, &checkpoint).unwrap();
        let devices = place.ok("ls");
        let expect: String = names[..count].iter().zip(0..).map(|(name, n)| format!("{name}\t(600:{n})\n")).collect();
        assert_eq!(devices, if count == 0 { "No devices found\n" } else { &expect }, "cut after {cut} bytes");
        kill(&place);
    }
    std::fs::write(&path, [&log[..], b"garbage"].concat()).unwrap();
    std::fs::write(&state, &checkpoint).unwrap();
    assert_eq!(place.ok("ls").lines().count(), names.len());
    assert!(place.log().contains("its last 7 bytes, after 4 good records, are no record"), "{}", place.log());
}

/// A state of the version before had no log.
#[test]
fn a_state_without_a_log_is_read() {
    let place = Place::new();
    place.zero("vol");
    place.ok("daemon --stop");
    let path = place.dir().join("state.json");
    assert!(!place.dir().join("state.log").exists(), "one that ends leaves a checkpoint only");
    let old = std::fs::read_to_string(&path).unwrap().replace("\"version\": 3", "\"version\": 2");
    assert!(old.contains("\"version\": 2"));
    std::fs::write(&path, old).unwrap();
    assert_eq!(place.ok("ls"), "vol\t(600:0)\n");
}

#[test]
fn a_server_that_does_not_answer_delays_no_start() {
    let far = Place::new();
    let disk = far.file("disk", 1 << 20);
    far.create(&["disk"], &format!("0 {SECTORS} linear {} 0", disk.display()));
    let socket = far.dir().join("nbd.sock");
    let place = Place::new();
    place.create(&["low"], &format!("0 1024 linear nbd+unix:///disk?socket={} 0", socket.display()));
    place.create(&["top"], "0 1024 linear /dev/mapper/low 0");
    place.create(&["near"], "0 8 zero");
    place.ok("set top read_ahead=77");
    place.ok("suspend top");
    let before = place.ok("table");
    kill(&place);

    // From now on who listens there says nothing.
    far.ok("daemon --stop");
    let silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(place.ok("table"), "low: \nnear: 0 8 zero \ntop: \n");
    place.create(&["more"], "0 8 zero");
    until("it is told what is waited for", || {
        let dump = place.ok("debug dump");
        dump.contains("command RESTORE low") && dump.contains(": opens nbd+unix:///disk")
    });
    let refused = place.udm(["daemon", "--replace"]);
    assert!(!refused.status.success() && stderr(&refused).contains("still being opened: low, top"), "{refused:?}");
    // One that nobody wants any more is not waited for.
    place.ok("remove more");
    kill(&place);

    // Killed in the middle, it has forgotten nothing.
    drop(silent);
    std::fs::remove_file(&socket).unwrap();
    far.ok("ls");
    place.ok("ls");
    until("all is there again", || place.ok("table") == before);
    until("as it was", || place.ok("info -c --noheadings -o suspended top").trim() == "Suspended");
    assert!(place.ok("info --json top").contains(r#""read_ahead":77"#));
    place.ok("resume top");
    hold(&place, "top").request(0, &Nbd::Read(512)).unwrap();
}

/// A table that is loaded with DM_SECURE_DATA may have a key in it: it is in no file and in no log.
#[test]
fn secret_tables_are_in_no_file() {
    use std::io::Write;
    use udm_base::{Sector, Sectors};
    use udm_control::codec::{Command, Flags, RequestBuilder, TargetSpec};
    use udm_control::wire;
    let place = Place::new();
    let file = place.file("KEY", 1 << 20);
    place.ok("create vol --notable");
    let load = |params: &str| {
        let target = TargetSpec::new(Sector::ZERO, Sectors::new(SECTORS), b"linear", params.as_bytes());
        let request = RequestBuilder::new(Command::TableLoad).name(b"vol").flags(Flags::SECURE_DATA).targets([target]);
        let mut stream = std::os::unix::net::UnixStream::connect(place.dir().join("control.sock")).unwrap();
        wire::write_hello(&mut stream, b"/").unwrap();
        wire::write_request(&mut stream, Command::TableLoad.ioctl_number(), &request.build().unwrap()).unwrap();
        stream.flush().unwrap();
        let answer = wire::read_answer(&mut stream).unwrap();
        (answer.errno, answer.detail)
    };
    let is_nowhere = |when: &str| {
        for name in ["log", "state.json", "state.log", "state.json.last", "state.log.last"] {
            let text = std::fs::read(place.dir().join(name)).unwrap_or_default();
            assert!(
                !String::from_utf8_lossy(&text).contains("KEY"),
                "{name} {when}: {}",
                String::from_utf8_lossy(&text)
            );
        }
    };
    let (errno, detail) = load("/nosuch/KEY 0");
    assert!(errno == 2 && detail.contains("DM_SECURE_DATA") && !detail.contains("KEY"), "{errno}: {detail}");
    is_nowhere("after a refusal");
    assert_eq!(load(&format!("{} 0", file.display())), (0, String::new()));
    is_nowhere("after a load");
    place.ok("resume vol");
    is_nowhere("after a resume");
    let table = format!("0 {SECTORS} linear {} 0\n", file.display());
    assert_eq!(place.ok("table vol"), table, "who has the device is shown it");
    hold(&place, "vol").request(0, &Nbd::Write(&[9; 512])).unwrap();
    let replaced = place.udm(["daemon", "--replace"]);
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    assert_eq!(place.ok("table vol"), table, "the next daemon is told from memory to memory");
    is_nowhere("after a replacement");
    kill(&place);
    assert_eq!(place.ok("table vol"), format!("0 {SECTORS} error \n"));
    assert!(place.ok("daemon --status").contains("lost: vol: it was loaded with DM_SECURE_DATA"));
    is_nowhere("after a kill");
    assert_eq!(load(&format!("{} 0", file.display())), (0, String::new()));
    place.ok("resume vol");
    assert_eq!(hold(&place, "vol").request(0, &Nbd::Read(512)).unwrap(), [9; 512]);
    place.ok("daemon --stop");
    is_nowhere("after the end");
}
