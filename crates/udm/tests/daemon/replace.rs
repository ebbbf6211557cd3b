//! Another daemon goes on in the place of the one that runs.

use crate::common::{Nbd, NbdHold, Place, stderr, stdout, until};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SECTORS: u64 = 2048;

fn hold(place: &Place, name: &str) -> NbdHold {
    NbdHold::open(&place.dir().join("nbd.sock"), name).unwrap()
}

/// Replaces the daemon. The processes before and after.
#[track_caller]
fn replace(place: &Place) -> (u32, u32) {
    let before = place.daemon_pid().unwrap();
    let output = place.udm(["daemon", "--replace"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), place.log());
    let after = place.daemon_pid().unwrap();
    assert_ne!(before, after);
    (before, after)
}

/// A replacement that must fail with those words, and leave the daemon that runs.
#[track_caller]
fn refused(place: &Place, expect: &str) {
    let before = place.daemon_pid();
    let output = place.udm(["daemon", "--replace"]);
    assert_eq!(output.status.code(), Some(1), "{}", place.log());
    let told = stderr(&output);
    assert!(told.contains(expect) && told.contains("the daemon that runs goes on"), "{told} lacks {expect}");
    assert_eq!(place.daemon_pid(), before);
    assert!(place.is_served());
}

#[test]
fn devices_and_clients_go_on() {
    let place = Place::new();
    let disk = place.file("disk", 4 << 20);
    place.create(&["low", "--uuid", "U"], &format!("0 {SECTORS} linear {} 0", disk.display()));
    place.create(&["high"], &format!("0 {SECTORS} linear 600:0 0"));
    place.create(&["r"], &format!("0 {SECTORS} ram"));
    place.create(&["n"], "0 1024 linear null:size=1M:memory=1 0\n1024 1024 linear null:size=1M:memory=1 0");
    place.create(&["still"], "0 8 zero");
    place.ok("suspend still");
    assert!(place.udm(["load", "still", "--table", "0 16 zero"]).status.success());
    assert!(place.udm(["load", "high", "--table", &format!("0 {SECTORS} zero")]).status.success());
    place.ok("set high compile=0");
    place.ok("export low --tcp 127.0.0.1:0");
    let (mut high, mut r, mut n) = (hold(&place, "high"), hold(&place, "r"), hold(&place, "n"));
    for (client, byte) in [(&mut high, 1), (&mut r, 2), (&mut n, 3)] {
        client.request(4096, &Nbd::Write(&[byte; 512])).unwrap();
        client.request(1000 * 512, &Nbd::Write(&[byte + 10; 512])).unwrap();
        client.request(1030 * 512, &Nbd::Write(&[byte + 20; 512])).unwrap();
    }
    let picture = || {
        let commands =
            ["table", "table --inactive", "info -c --noheadings -o name,uuid,major,minor,attr,open,events", "export"];
        commands.map(|line| place.ok(line)).concat()
    };
    let (before, writes) = (picture(), place.ok("info --json high"));
    let mut processes = Vec::new();
    for round in 0..3 {
        processes.push(replace(&place).1);
        assert_eq!(picture(), before, "round {round}");
        for (client, byte) in [(&mut high, 1), (&mut r, 2), (&mut n, 3)] {
            assert_eq!(client.request(4096, &Nbd::Read(512)).unwrap(), [byte; 512], "round {round}");
            assert_eq!(client.request(1000 * 512, &Nbd::Read(512)).unwrap(), [byte + 10; 512], "round {round}");
            assert_eq!(client.request(1030 * 512, &Nbd::Read(512)).unwrap(), [byte + 20; 512], "round {round}");
            assert_eq!(client.request(8192, &Nbd::Read(512)).unwrap(), [0; 512], "round {round}");
        }
        assert_eq!(hold(&place, "r").request(4096, &Nbd::Read(512)).unwrap(), [2; 512], "a new client");
    }
    let count = |text: &str| -> u64 {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        json["devices"][0]["writes"].as_u64().unwrap()
    };
    assert_eq!(count(&place.ok("info --json high")), count(&writes), "what was counted is kept");
    assert!(place.ok("info --json high").contains("\"compile\":false"));
    place.ok("resume still");
    assert_eq!(place.ok("table still"), "0 16 zero \n");
    drop((high, r, n));
    place.ok("remove r");
    place.ok("daemon --stop");
    let left: Vec<_> =
        ["control.sock", "udm.sock", "nbd.sock"].iter().filter(|n| place.dir().join(n).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    until("nobody stays behind", || !processes.iter().copied().any(lives));
}

/// The kinds of descriptors that the daemon has, and how many of each.
fn descriptors(place: &Place) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let all = std::fs::read_dir(format!("/proc/{}/fd", place.daemon_pid().unwrap())).unwrap();
    for at in all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()) {
        let at = at.to_string_lossy();
        *kinds.entry(at.split_once(":[").map_or(&*at, |(kind, _)| kind).to_owned()).or_default() += 1;
    }
    kinds
}

/// What two daemons said to each other is over when one of them has gone.
#[test]
fn nothing_is_left_of_a_hand_over() {
    let place = Place::new();
    place.zero("vol");
    let before = descriptors(&place);
    for _ in 0..2 {
        replace(&place);
        // The client that has asked may still be on its way out, then as now.
        until("there are no more sockets and pipes than before", || {
            let now = descriptors(&place);
            ["socket", "pipe"].iter().all(|kind| now.get(*kind) <= before.get(*kind))
        });
    }
}

/// Stands before the server of another daemon: connects clients to it once `together` of them are there.
fn relay(at: &Path, to: PathBuf, together: Arc<AtomicUsize>) {
    let listener = UnixListener::bind(at).unwrap();
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        for client in listener.incoming() {
            waiting.push(client.unwrap());
            if waiting.len() < together.load(Ordering::SeqCst) {
                continue;
            }
            together.store(1, Ordering::SeqCst);
            for client in waiting.drain(..) {
                let server = UnixStream::connect(&to).unwrap();
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server.try_clone().unwrap(), client.try_clone().unwrap()),
                ] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        }
    });
}

/// No server beneath keeps the others waiting while nobody serves.
#[test]
fn remote_devices_are_opened_together() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let (far, place) = (Place::new(), Place::new());
    let (at, together) = (place.root().join("relay.sock"), Arc::new(AtomicUsize::new(1)));
    relay(&at, far.dir().join("nbd.sock"), together.clone());
    for name in NAMES {
        far.create(&[name], &format!("0 {SECTORS} ram"));
        place.create(&[name], &format!("0 {SECTORS} linear nbd+unix:///{name}?socket={} 0", at.display()));
    }
    // Above them all, from memory that passes from one to the other.
    place.create(&["top"], "0 512 linear 600:0 0\n512 512 linear 600:1 0\n1024 512 linear null:size=1M:memory=1 0");
    place.create(&["still"], "0 512 linear 600:2 0");
    place.ok("suspend still");
    let mut top = hold(&place, "top");
    for (at, byte) in [(0, 1), (512, 2), (1024, 3)] {
        top.request(at * 512, &Nbd::Write(&[byte; 512])).unwrap();
    }
    let before = ["table", "info -c --noheadings -o name,attr,open"].map(|line| place.ok(line));
    together.store(NAMES.len(), Ordering::SeqCst);
    replace(&place);
    assert_eq!(["table", "info -c --noheadings -o name,attr,open"].map(|line| place.ok(line)), before);
    for (at, byte) in [(0, 1), (512, 2), (1024, 3)] {
        assert_eq!(top.request(at * 512, &Nbd::Read(512)).unwrap(), [byte; 512]);
    }
}

#[test]
fn without_a_daemon_one_is_started() {
    let place = Place::new();
    place.ok("daemon --replace");
    assert!(place.is_served());
}

/// Pools and snapshots are committed, let go of, and opened by the next; under a load that checks what it reads.
#[test]
fn pools_and_snapshots_under_load() {
    const BLOCKS: u64 = 48;
    let place = Place::new();
    let [meta, data, origin, cow] =
        [("meta", 4 << 20), ("data", 32 << 20), ("origin", 8 << 20), ("cow", 16 << 20)].map(|(n, s)| place.file(n, s));
    place.create(&["pool"], &format!("0 65536 thin-pool {} {} 128 0", meta.display(), data.display()));
    place.ok("message pool 0 create_thin 0");
    place.create(&["vol"], "0 65536 thin 600:0 0");
    place.create(&["real"], &format!("0 16384 linear {} 0", origin.display()));
    place.create(&["snap"], &format!("0 16384 snapshot 600:2 {} P 16", cow.display()));
    place.create(&["org"], "0 16384 snapshot-origin 600:2");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = |name: &'static str, step: u64| {
            let (mut client, done) = (hold(&place, name), &done);
            scope.spawn(move || {
                let mut rounds = 0u64;
                while !done.load(Ordering::Acquire) || rounds < 2 {
                    for at in 0..BLOCKS {
                        let data = [(rounds * 7 + at) as u8; 4096];
                        client.request(at * step, &Nbd::Write(&data)).unwrap();
                    }
                    for at in 0..BLOCKS {
                        let found = client.request(at * step, &Nbd::Read(4096)).unwrap();
                        assert!(found.iter().all(|b| *b == (rounds * 7 + at) as u8), "{name}, round {rounds}, {at}");
                    }
                    rounds += 1;
                }
            })
        };
        let loads = [load("vol", 64 << 10), load("org", 16 << 10)];
        for _ in 0..4 {
            replace(&place);
        }
        done.store(true, Ordering::Release);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    let mut snap = hold(&place, "snap");
    for at in 0..BLOCKS {
        assert_eq!(snap.request(at << 14, &Nbd::Read(4096)).unwrap(), [0; 4096], "the snapshot is as it was made");
    }
    drop(snap);
    for name in ["vol", "pool", "snap", "org", "real"] {
        until(&format!("{name} is free"), || place.udm(["remove", name]).status.success());
    }
    place.ok(&format!("thin check {}", meta.display()));
}

#[test]
fn what_cannot_be_passed_on_is_refused() {
    let place = Place::new();
    let [disk, origin, cow] = ["disk", "origin", "cow"].map(|name| place.file(name, 1 << 20));
    place.create(&["v"], &format!("0 {SECTORS} linear {} 0", disk.display()));
    let mut client = hold(&place, "v");
    client.request(0, &Nbd::Write(&[1; 512])).unwrap();
    let check = |client: &mut NbdHold| assert_eq!(client.request(0, &Nbd::Read(512)).unwrap(), [1; 512]);
    place.create(&["s"], &format!("0 {SECTORS} snapshot {} {} N 8", origin.display(), cow.display()));
    refused(&place, "s is a transient snapshot");
    place.ok("remove s");
    check(&mut client);
    std::fs::rename(&disk, disk.with_extension("moved")).unwrap();
    refused(&place, "is not the file that the running daemon has open");
    place.file("disk", 1 << 20);
    refused(&place, "is not the file that the running daemon has open");
    std::fs::rename(disk.with_extension("moved"), &disk).unwrap();
    check(&mut client);
    replace(&place);
    check(&mut client);
}

/// Enough of another daemon to fail as one may.
struct Failing(UnixStream);

impl Failing {
    fn new(socket: &str) -> Self {
        let mut this = Self(UnixStream::connect(socket).unwrap());
        for line in [r#"{"op":"hello","version":1}"#, r#"{"op":"replace","version":3}"#] {
            writeln!(this.0, "{line}").unwrap();
            let mut answer = Vec::new();
            while answer.last() != Some(&b'\n') {
                let mut byte = [0];
                this.0.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            assert!(answer.starts_with(b"{\"ok\""), "{}", String::from_utf8_lossy(&answer));
        }
        this
    }

    /// The kind of the next message. Its descriptors are lost.
    fn receive(&mut self) -> String {
        let mut head = [0; 16];
        self.0.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        let (mut text, mut bytes) = (vec![0; word(4)], vec![0; word(8)]);
        self.0.read_exact(&mut text).unwrap();
        self.0.read_exact(&mut bytes).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        text["kind"].as_str().unwrap().to_owned()
    }

    fn send(&mut self, kind: &str, state: &str) {
        let text = format!(r#"{{"kind":"{kind}","name":"","state":{state}}}"#);
        self.0.write_all(b"udmP").unwrap();
        self.0.write_all(&[text.len() as u32, 0, 0].map(u32::to_le_bytes).concat()).unwrap();
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Everything, up to the end.
    fn take_all(&mut self) {
        assert_eq!(self.receive(), "state");
        self.send("ready", "null");
        while self.receive() != "end" {}
    }

    /// Neither answers nor ends, until it is killed.
    fn hang(&mut self) {
        let _ = File::create(std::env::var("UDM_TEST_HANGS").unwrap());
        loop {
            std::thread::park();
        }
    }
}

type Fault = fn(&mut Failing);

const FAULTS: [(&str, Fault); 7] = [
    ("dies at once", |_| {}),
    ("does not understand the state", |new| {
        new.receive();
        new.send("refused", "\"I am of another kind\"");
    }),
    ("dies in the middle", |new| {
        new.receive();
        new.send("ready", "null");
        new.receive();
    }),
    ("dies before it serves", Failing::take_all),
    ("cannot open something", |new| {
        new.take_all();
        new.send("refused", "\"no such file\"");
    }),
    ("talks nonsense", |new| {
        new.take_all();
        new.0.write_all(&[0x55; 64]).unwrap();
    }),
    ("answers something else", |new| {
        new.take_all();
        new.send("hello", "null");
    }),
];

/// What a new daemon may stop at for ever.
const HANGS: [(&str, Fault); 3] = [
    ("hangs at once", |new| new.hang()),
    ("hangs when it is given everything", |new| {
        new.receive();
        new.send("ready", "null");
        new.hang();
    }),
    ("hangs before it serves", |new| {
        new.take_all();
        new.hang();
    }),
];

/// Not a test but the new daemon of one: a process of its own, since the old daemon kills it.
#[test]
#[ignore = "it is run by another test"]
fn a_failing_daemon() {
    let (Ok(socket), Ok(fault)) = (std::env::var("UDM_TEST_SOCKET"), std::env::var("UDM_TEST_FAULT")) else { return };
    FAULTS.into_iter().chain(HANGS).nth(fault.parse().unwrap()).unwrap().1(&mut Failing::new(&socket));
}

/// Whatever becomes of the new daemon, and whenever, the old one has everything.
#[test]
fn a_new_daemon_that_fails() {
    let place = Place::new();
    let disk = place.file("disk", 1 << 20);
    let (meta, data) = (place.file("meta", 4 << 20), place.file("data", 8 << 20));
    place.create(&["r"], &format!("0 {SECTORS} ram"));
    place.create(&["v"], &format!("0 {SECTORS} linear {} 0", disk.display()));
    place.create(&["pool"], &format!("0 16384 thin-pool {} {} 128 0", meta.display(), data.display()));
    place.ok("message pool 0 create_thin 0");
    place.create(&["t"], "0 65536 thin 600:2 0");
    place.ok("export v --tcp 127.0.0.1:0");
    let mut clients = ["r", "v", "t"].map(|name| hold(&place, name));
    let node = place.udm(["node", "add", "v", "--kind", "fuse"]);
    let open = node
        .status
        .success()
        .then(|| std::fs::OpenOptions::new().read(true).write(true).open(place.dir().join("dev/v")).unwrap());
    if open.is_none() {
        println!("SKIP nodes across daemons: {}", stderr(&node).trim());
    }
    let pid = place.daemon_pid();
    let claimed = Claimed::new(&place);
    let (table, export) = (place.ok("table"), place.ok("export"));
    for (round, (what, _)) in FAULTS.into_iter().enumerate() {
        let byte = round as u8 + 1;
        for client in &mut clients {
            client.request(4096 * u64::from(byte), &Nbd::Write(&[byte; 512])).unwrap();
        }
        let new = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "replace::a_failing_daemon"])
            .env("UDM_TEST_SOCKET", place.dir().join("udm.sock"))
            .env("UDM_TEST_FAULT", round.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&new.stdout);
        assert!(said.contains("running 1 test") && !said.contains("FAILED"), "{what}: {said}{}", stderr(&new));
        for client in &mut clients {
            for byte in 1..=byte {
                let found = client.request(4096 * u64::from(byte), &Nbd::Read(512)).unwrap();
                assert_eq!(found, [byte; 512], "a new daemon that {what}");
            }
        }
        if let Some(open) = &open {
            let mut found = [0; 512];
            open.write_all_at(&[byte; 512], 256 << 10).unwrap();
            open.read_exact_at(&mut found, 256 << 10).unwrap();
            assert_eq!(found, [byte; 512], "a new daemon that {what}");
        }
        if let Some(claimed) = &claimed {
            assert!(claimed.is_held(), "a new daemon that {what}: anybody may have the disk");
        }
        assert_eq!(place.daemon_pid(), pid, "{what}");
        assert_eq!((place.ok("table"), place.ok("export")), (table.clone(), export.clone()), "{what}");
    }
    replace(&place);
    for client in &mut clients {
        assert_eq!(client.request(4096, &Nbd::Read(512)).unwrap(), [1; 512]);
    }
    if let Some(claimed) = &claimed {
        assert!(claimed.is_held());
        place.ok("remove claimed");
        assert!(!claimed.is_held(), "who gave it does not keep it");
    }
}

/// A loop device of the kernel beneath the device `claimed`.
struct Claimed(String);

impl Claimed {
    /// `None`, and said so, where there is none.
    fn new(place: &Place) -> Option<Self> {
        let file = place.file("claimed", 1 << 20);
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            println!("SKIP claims across daemons: no loop device can be set up here");
            return None;
        };
        let claimed = Self(String::from_utf8(made.stdout).unwrap().trim().to_owned());
        place.create(&["claimed"], &format!("0 8 linear {} 0", claimed.0));
        Some(claimed)
    }

    /// Whether somebody has it for himself.
    fn is_held(&self) -> bool {
        let exclusively = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL;
        rustix::fs::open(&self.0, exclusively, rustix::fs::Mode::empty()).is_err()
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A process that is ended at the latest with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The old one waits for a while, which can be set, and goes on.
#[test]
fn a_new_daemon_that_hangs() {
    let place = Place::new();
    let table = format!("0 {SECTORS} ram");
    let made =
        place.command("udm").env("UDM_REPLACE_SECONDS", "1").args(["create", "r", "--table", &table]).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let mut client = hold(&place, "r");
    let (pid, table) = (place.daemon_pid(), place.ok("table"));
    for (round, (what, _)) in HANGS.into_iter().enumerate() {
        let byte = round as u8 + 1;
        client.request(4096, &Nbd::Write(&[byte; 512])).unwrap();
        let hangs = place.root().join(format!("hangs-{round}"));
        let new = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "replace::a_failing_daemon"])
            .env("UDM_TEST_SOCKET", place.dir().join("udm.sock"))
            .env("UDM_TEST_FAULT", (FAULTS.len() + round).to_string())
            .env("UDM_TEST_HANGS", &hangs)
            .stdout(std::process::Stdio::null())
            .spawn();
        let _new = Ended(new.unwrap());
        until("it hangs", || hangs.exists());
        // The old one does not.
        let words = ["does not answer", "does not take over", "does not take over"][round];
        until("the old one has had enough", || place.log().matches(words).count() > round.saturating_sub(1));
        assert_eq!(client.request(4096, &Nbd::Read(512)).unwrap(), [byte; 512], "a new daemon that {what}");
        assert_eq!(place.ok("table"), table);
        assert_eq!(place.daemon_pid(), pid, "{what}");
    }
}

/// The processes that another has started and not waited for.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether it still runs: nobody may have waited for one that has ended. (Its command line could not be read as long as
/// it waits for the disk.)
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The old daemon or the new one killed at any moment: whoever is left has all that was flushed, and if nobody is, the
/// next command's daemon has. Clients of an old one that goes on notice nothing.
#[test]
fn whoever_is_killed_whenever() {
    let place = Place::new();
    let disk = place.file("disk", 1 << 20);
    let (meta, data) = (place.file("meta", 4 << 20), place.file("data", 8 << 20));
    place.create(&["v"], &format!("0 {SECTORS} linear {} 0", disk.display()));
    place.create(&["pool"], &format!("0 16384 thin-pool {} {} 128 0", meta.display(), data.display()));
    place.ok("message pool 0 create_thin 0");
    place.create(&["t"], "0 65536 thin 600:1 0");
    let mut outcomes = [0; 3];
    for round in 0..16u64 {
        place.ok("ls");
        let old = place.daemon_pid().unwrap();
        let mut clients = ["v", "t"].map(|name| hold(&place, name));
        for client in &mut clients {
            client.request(round * 4096, &Nbd::Write(&[round as u8 + 1; 4096])).unwrap();
            client.request(0, &Nbd::Flush).unwrap();
        }
        let mut replacing = place.command("udm").args(["daemon", "--replace"]).spawn().unwrap();
        let mut new = None;
        until("there is a new daemon", || {
            new = children(replacing.id()).first().copied();
            new.is_some() || replacing.try_wait().unwrap().is_some()
        });
        // From before it asks to after it has taken over.
        std::thread::sleep(std::time::Duration::from_millis(round / 2 * 9));
        let victim = if round % 2 == 0 { new } else { Some(old) };
        if let Some(pid) = victim {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid as i32).unwrap(),
                rustix::process::Signal::KILL,
            );
            until("it is gone", || !lives(pid));
        }
        replacing.wait().unwrap();
        // A new one that took over has said so, and one that did not has ended with the command that started it.
        until("the other has ended", || new.is_none_or(|pid| !lives(pid) || place.daemon_pid() == Some(pid)));
        // Either all clients go on, or the old one is no more: it has given them away, or was killed.
        let read = |client: &mut NbdHold| client.ask(round * 4096, &Nbd::Read(4096));
        let served =
            clients.iter_mut().all(|client| matches!(read(client), Ok(Ok(data)) if data[0] == round as u8 + 1));
        if !served || victim == Some(old) {
            until("the old one has ended", || !lives(old));
        }
        outcomes[if !served { 2 } else { usize::from(!lives(old)) }] += 1;
        drop(clients);
        place.ok("ls");
        for name in ["v", "t"] {
            let mut client = hold(&place, name);
            for before in 0..=round {
                let found = client.request(before * 4096, &Nbd::Read(4096)).unwrap();
                assert!(found.iter().all(|b| *b == before as u8 + 1), "{name}: block {before} in round {round}");
            }
        }
    }
    println!(
        "clients went on {} times with the old one, {} with the new one, {} not",
        outcomes[0], outcomes[1], outcomes[2]
    );
}

/// Commands at any moment, and one that waits all the time.
#[test]
fn commands_notice_nothing() {
    let place = Place::new();
    place.zero("v");
    place.ok("suspend v");
    place.ok("resume v");
    let events = place.ok("info -c --noheadings -o events v");
    let mut waiting = place.command("udm").args(["wait", "v", events.trim()]).spawn().unwrap();
    until("it waits", || place.ok("daemon --status").contains("DM_DEV_WAIT"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let commands =
            ["ls", "info --json v", "set v compile=0", "table v", "export", "create w --notable", "remove w"];
        let loops = [0, 3].map(|first| {
            let (place, done) = (&place, &done);
            scope.spawn(move || {
                let mut count = 0;
                while !done.load(Ordering::Acquire) {
                    // Only one of the two makes and removes.
                    let chosen = if first == 0 { &commands[..] } else { &commands[..5] };
                    for line in chosen {
                        place.ok(line);
                        count += 1;
                    }
                }
                count
            })
        });
        for _ in 0..6 {
            replace(&place);
        }
        done.store(true, Ordering::Release);
        loops.into_iter().for_each(|commands| assert!(commands.join().unwrap() > 0));
    });
    assert!(waiting.try_wait().unwrap().is_none(), "it still waits");
    until("it waits in the last one", || place.ok("daemon --status").contains("DM_DEV_WAIT"));
    place.ok("rename v u");
    assert!(waiting.wait().unwrap().success());
}

/// A new daemon that may open too few files is refused before anything stops; however few or many they are, somebody
/// serves.
#[test]
fn with_too_few_descriptors() {
    let place = Place::new();
    place.create(&["v"], &format!("0 {SECTORS} ram"));
    place.ok("export v --tcp 127.0.0.1:0");
    let mut client = hold(&place, "v");
    client.request(0, &Nbd::Write(&[7; 512])).unwrap();
    let pid = place.daemon_pid().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let (mut refused, mut replaced) = (0, 0);
    for limit in (16..open + 64).step_by(2) {
        let limited = ["-c", "ulimit -n $0 && exec \"$@\"", &limit.to_string(), crate::common::UDM];
        let mut command = Command::new("sh");
        command.args(limited).arg("--dir").arg(place.dir()).args(["daemon", "--replace"]);
        let output = command.output().unwrap();
        if output.status.success() {
            replaced += 1;
        } else {
            let told = stderr(&output);
            assert!(told.contains(&format!("may open {limit} files")), "at {limit}: {told}");
            assert!(place.is_served(), "at {limit}: {}", place.log());
            refused += 1;
        }
        assert_eq!(client.request(0, &Nbd::Read(512)).unwrap(), [7; 512], "at {limit}");
    }
    assert!(refused > 0 && replaced > 0, "{refused} refused, {replaced} replaced");
    assert!(!place.log().contains("does not take over"), "nothing has stopped for one that was refused");
}

/// Commands that wait for a server, or for I/O, go on waiting in the next daemon.
#[test]
fn commands_that_wait_go_on_waiting() {
    let place = Place::new();
    let far = place.root().join("far.sock");
    let silent = std::os::unix::net::UnixListener::bind(&far).unwrap();
    let table = format!("0 8 linear nbd+unix:///disk?socket={} 0", far.display());
    let mut load = place.command("udm");
    let load = load.args(["create", "far", "--table", &table]).stderr(std::process::Stdio::piped());
    let mut load = load.spawn().unwrap();
    let waits = || stdout(&place.udm(["daemon", "--status"])).contains("DM_TABLE_LOAD");
    until("it waits", waits);
    for _ in 0..2 {
        replace(&place);
        until("it waits in the next one", waits);
        assert!(load.try_wait().unwrap().is_none());
    }
    drop(silent);
    std::fs::remove_file(&far).unwrap();
    assert!(!load.wait().unwrap().success());
}

/// A daemon that asks to go on and then says nothing keeps nobody from it, nor this one from ending.
#[test]
fn one_that_asks_and_says_nothing() {
    let place = Place::new();
    place.zero("v");
    let socket = place.dir().join("udm.sock");
    let mut hung = Failing::new(socket.to_str().unwrap());
    assert_eq!(hung.receive(), "state");
    replace(&place);
    assert_eq!(hung.0.read(&mut [0]).unwrap(), 0, "it is hung up on");
    let mut hung = Failing::new(socket.to_str().unwrap());
    assert_eq!(hung.receive(), "state");
    place.ok("daemon --stop");
    assert!(!place.log().contains("commands are still under way"), "{}", place.log());
}

/// Gives a device a node; false, with the reason to skip printed, where there can be none.
fn has_node(place: &Place, name: &str) -> bool {
    let output = place.udm(["node", "add", name, "--kind", "fuse"]);
    if !output.status.success() {
        println!("SKIP nodes across daemons: {}", stderr(&output).trim());
    }
    output.status.success()
}

/// A node goes on with all that is open in it.
#[test]
fn nodes_go_on() {
    let place = Place::new();
    place.create(&["v"], &format!("0 {SECTORS} ram"));
    if !has_node(&place, "v") {
        return;
    }
    let node = place.dir().join("dev/v");
    let mut open = std::fs::OpenOptions::new().read(true).write(true).open(&node).unwrap();
    open.write_all(&[6; 4096]).unwrap();
    let picture = || ["node", "info -c --noheadings -o name,open v"].map(|line| place.ok(line)).concat();
    let before = picture();
    assert!(before.ends_with("v:1\n"), "{before}");
    let inode = std::fs::metadata(&node).unwrap().ino();
    for round in 0..3u8 {
        replace(&place);
        assert_eq!(picture(), before);
        let mut found = [0; 4096];
        File::open(&node).unwrap().read_exact(&mut found).unwrap();
        assert_eq!(found, [6; 4096]);
        assert_eq!((std::fs::metadata(&node).unwrap().ino(), open.metadata().unwrap().ino()), (inode, inode));
        // Where it was.
        open.write_all(&[round + 10; 4096]).unwrap();
        open.read_exact_at(&mut found, 4096 * (u64::from(round) + 1)).unwrap();
        assert_eq!(found, [round + 10; 4096]);
    }
    // More descriptors than one message has room for.
    (0..70).for_each(|n| place.create(&[&format!("z{n}"), "--node=fuse"], "0 8 zero"));
    replace(&place);
    assert_eq!(std::fs::read(place.dir().join("dev/z69")).unwrap(), [0; 4096]);
    open.read_exact_at(&mut [0; 512], 0).unwrap();
    (0..70).for_each(|n| drop(place.ok(&format!("remove z{n}"))));
    // What has lost its name is open all the same, and one more is made.
    place.ok("node remove v");
    place.create(&["w", "--node=fuse"], &format!("0 {SECTORS} ram"));
    replace(&place);
    open.read_exact_at(&mut [0; 512], 0).unwrap();
    assert!(!node.exists() && place.dir().join("dev/w").exists());
    drop(open);
    until("the file is closed", || place.ok("info -c --noheadings -o open v").trim() == "0");
    replace(&place);
    place.ok("remove v");
    place.ok("daemon --stop");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(place.dir().to_str().unwrap()));
}

/// Requests that a device does not finish keep the daemon; they end with it when it goes on.
#[test]
fn requests_to_nodes_that_do_not_end() {
    let place = Place::new();
    place.create(&["v"], &format!("0 {SECTORS} ram"));
    if !has_node(&place, "v") {
        return;
    }
    let open = std::fs::OpenOptions::new().write(true).open(place.dir().join("dev/v")).unwrap();
    place.ok("suspend v");
    let (told, thread) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            told.send(rustix::thread::gettid()).unwrap();
            open.write_all_at(&[3; 4096], 0)
        });
        let call = format!("/proc/self/task/{}/syscall", thread.recv().unwrap().as_raw_nonzero());
        let write = format!("{} ", libc::SYS_pwrite64);
        until("it waits", || std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&write)));
        // Served in the order of arrival, so that the daemon has the write when this is done.
        std::fs::metadata(place.dir().join("dev/v")).unwrap();
        refused(&place, "requests to nodes");
        assert!(!writer.is_finished());
        place.ok("resume v");
        writer.join().unwrap().unwrap();
    });
    replace(&place);
    open.write_all_at(&[4; 4096], 0).unwrap();
}

/// A message with a descriptor, as a daemon sends it.
fn send_message(way: &UnixStream, kind: &str, name: &str, state: &str, fd: Option<&dyn AsFd>) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let text = format!(r#"{{"kind":"{kind}","name":"{name}","state":{state}}}"#);
    let numbers = [text.len() as u32, 0, u32::from(fd.is_some())].map(u32::to_le_bytes).concat();
    let bytes = [b"udmP", &numbers[..], text.as_bytes()].concat();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(way, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

/// An old daemon whose connection ends is not dead for that, and the new one does not serve beside it.
#[test]
fn an_old_daemon_that_hangs_up_and_lives() {
    use rustix::fs::{FlockOperation, flock};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    let place = Place::new();
    std::fs::create_dir(place.dir()).unwrap();
    std::fs::set_permissions(place.dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
    // This test is the old daemon: it has the directory, the right to serve, and the sockets.
    let lock = File::create_new(place.dir().join("lock")).unwrap();
    let right = File::open(place.dir()).unwrap();
    for file in [&lock, &right] {
        flock(file, FlockOperation::NonBlockingLockExclusive).unwrap();
    }
    let [control, second] = ["control.sock", "udm.sock"].map(|n| UnixListener::bind(place.dir().join(n)).unwrap());
    let mut command = place.command("udm");
    let client = command.args(["daemon", "--replace"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let (way, _) = second.accept().unwrap();
    let mut asked = String::new();
    for answer in ["{\"ok\":{\"version\":1,\"program\":\"old\",\"pid\":1}}\n", "{\"ok\":null}\n"] {
        asked.clear();
        while !asked.ends_with('\n') {
            let mut byte = [0];
            (&way).read_exact(&mut byte).unwrap();
            asked.push(byte[0].into());
        }
        (&way).write_all(answer.as_bytes()).unwrap();
    }
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    let version = &asked["version"];
    let state = r#"{"version":2,"devices":[],"exports":[],"vhost_user":[]}"#;
    send_message(&way, "state", "", &format!(r#"{{"version":{version},"state":{state},"files":[]}}"#), None);
    let mut new = Failing(way.try_clone().unwrap());
    assert_eq!(new.receive(), "ready");
    send_message(&way, "state", "", state, None);
    send_message(&way, "lock", "", "null", Some(&lock));
    send_message(&way, "socket", "control.sock", "null", Some(&control));
    send_message(&way, "socket", "udm.sock", "null", Some(&second));
    send_message(&way, "settings", "", r#"{"node":"none","rings":false,"poll_budget_us":20}"#, None);
    send_message(&way, "end", "", "null", None);
    assert_eq!(new.receive(), "serving");
    drop((way, new));
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", place.log());
    let told = stderr(&output);
    assert!(told.contains("still lives, and goes on"), "{told}");
    assert!(!place.dir().join("nbd.sock").exists(), "it has served nobody");
    // Else the place would look for a daemon.
    drop((control, second));
    std::fs::remove_dir_all(place.dir()).unwrap();
}
