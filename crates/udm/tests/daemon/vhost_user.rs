//! Devices of the daemon as disks over vhost-user: `udm export --vhost-user`, and what becomes of them.

use crate::common::{Place, stderr, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use udm_export::vhost_user::front::{Done, FrontEnd, FrontOptions, FrontQueue, Kind, Part};

fn options() -> FrontOptions {
    FrontOptions { queue_size: 64, memory: 1 << 20, ..FrontOptions::default() }
}

fn connect(path: &Path) -> (FrontEnd, FrontQueue) {
    let (front, mut queues) = FrontEnd::connect(path, options()).unwrap();
    (front, queues.remove(0))
}

/// Waits for the next request that is done.
fn await_one(queue: &mut FrontQueue) -> Done {
    queue.kick();
    loop {
        if let Some(done) = queue.completed() {
            return done;
        }
        queue.wait(Duration::from_secs(60)).unwrap();
    }
}

/// Does one request and waits for it; its status.
fn perform(queue: &mut FrontQueue, what: Kind, sector: u64, data: &[Part]) -> u8 {
    assert!(queue.submit(what, sector, data, 0));
    await_one(queue).status
}

fn part(front: &FrontEnd, offset: u64, len: u32) -> Part {
    Part { guest: front.data_guest(offset), len }
}

#[test]
fn exports() {
    let place = Place::new();
    assert!(place.udm(["create", "vol", "--table", "0 2048 ram"]).status.success());
    let socket = place.root().join("vol.sock");
    let uri = format!("vhost-user:{}\n", socket.display());
    assert_eq!(place.ok("export vol --vhost-user vol.sock --queues 2 --queue-size 64 --mode interrupt"), uri);
    assert!(place.ok("export vol").contains(&format!("vol\t{uri}")));
    let refused = |words: &[&str], expect: &str| {
        let output = place.udm(words);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
        assert!(stderr(&output).contains(expect), "{} lacks {expect}", stderr(&output));
    };
    refused(&["export", "vol", "--vhost-user", "vol.sock"], "another server listens there");
    refused(&["export", "nosuch", "--vhost-user", "x"], "no device has the name");
    refused(&["export", "vol", "--vhost-user", "x", "--queues", "0"], "--queues=0");
    refused(&["export", "vol", "--vhost-user", "x", "--queue-size", "100"], "--queue-size=100");
    refused(&["export", "vol", "--vhost-user", "x", "--mode", "fast"], "expected interrupt, adaptive or polled");
    refused(&["export", "vol", "--queues", "2"], "--vhost-user");
    refused(&["export", "vol", "--remove", "--vhost-user", "other"], "no such export");

    let (mut front, mut queue) = connect(&socket);
    assert_eq!((front.config().queues, front.config().sectors.get()), (2, 2048));
    front.memory().write(front.data(), &[7; 4096]);
    assert_eq!(perform(&mut queue, Kind::Write, 8, &[part(&front, 0, 4096)]), 0);
    assert_eq!(perform(&mut queue, Kind::Read, 8, &[part(&front, 4096, 4096)]), 0);
    assert_eq!(front.memory().read(front.data() + 4096, 4096), [7; 4096]);
    refused(&["remove", "vol"], "busy");
    // A new table of another size.
    assert!(place.udm(["load", "vol", "--table", "0 4096 zero"]).status.success());
    place.ok("resume vol");
    assert!(front.wait_for_change(Duration::from_secs(60)).unwrap());
    front.reload_config().unwrap();
    assert_eq!(front.config().sectors.get(), 4096);
    assert_eq!(perform(&mut queue, Kind::Read, 4088, &[part(&front, 0, 4096)]), 0);
    place.ok("export vol --remove");
    until("the front end to be hung up on", || front.has_hung_up());
    assert!(!socket.exists());
    place.ok("remove vol");
}

/// Killed in the middle of writes, again and again: each is answered once by some daemon, and what was answered is
/// there.
#[test]
fn killed_under_load() {
    let place = Place::new();
    let file = place.root().join("disk");
    std::fs::File::create(&file).and_then(|f| f.set_len(1 << 20)).unwrap();
    let table = format!("0 2048 linear {} 0", file.display());
    assert!(place.udm(["create", "vol", "--table", &table]).status.success());
    let socket = place.root().join("vol.sock");
    place.ok("export vol --vhost-user vol.sock");
    let (mut front, mut queue) = connect(&socket);
    // What each sector was last written with, and what is on its way there.
    let mut there: BTreeMap<u64, u8> = BTreeMap::new();
    let mut out: BTreeMap<u64, u8> = BTreeMap::new();
    let (mut number, mut answered) = (0u64, 0u64);
    for round in 0..4 {
        let until_then = answered + 200;
        let mut killed = false;
        while answered < until_then || !killed {
            while out.len() < 32 {
                let sector = number * 13 % 64;
                if out.contains_key(&sector) {
                    break;
                }
                let byte = (number % 251) as u8 + 1;
                front.memory().write(front.data() + sector * 512, &[byte; 512]);
                assert!(queue.submit(Kind::Write, sector, &[part(&front, sector * 512, 512)], sector));
                out.insert(sector, byte);
                number += 1;
            }
            queue.kick();
            if answered >= until_then - 100 && !killed {
                killed = true;
                place.signal(Signal::KILL);
                until("the daemon to be gone", || !place.is_served());
                // Any command starts the next one.
                place.ok("ls");
                front.reconnect(&socket).unwrap();
            }
            while let Some(done) = queue.completed() {
                assert_eq!(done.status, 0, "round {round}");
                let byte = out.remove(&done.token).expect("each is answered once");
                there.insert(done.token, byte);
                answered += 1;
            }
            queue.wait(Duration::from_millis(1)).unwrap();
        }
    }
    while !out.is_empty() {
        queue.kick();
        while let Some(done) = queue.completed() {
            let byte = out.remove(&done.token).expect("each is answered once");
            there.insert(done.token, byte);
        }
        queue.wait(Duration::from_millis(1)).unwrap();
    }
    for (sector, byte) in there {
        assert_eq!(perform(&mut queue, Kind::Read, sector, &[part(&front, 65536, 512)]), 0);
        assert_eq!(front.memory().read(front.data() + 65536, 512), [byte; 512], "sector {sector}");
    }
}

/// Another daemon goes on, again and again, under a load that checks what it reads: the front end notices nothing.
#[test]
fn replaced_under_load() {
    let place = Place::new();
    let file = place.file("disk", 1 << 20);
    place.create(&["vol"], &format!("0 2048 linear {} 0", file.display()));
    place.create(&["mem"], "0 2048 ram");
    place.ok("export vol --vhost-user vol.sock --queues 2 --queue-size 64");
    place.ok("export mem --vhost-user mem.sock --mode interrupt");
    // Nobody is connected there, and as many queues as that are named by nobody.
    place.ok("export mem --vhost-user idle.sock --queues 1");
    let exports = place.ok("export");
    let done = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let load = |name: &'static str| {
        let (mut front, mut queue) = connect(&place.root().join(name));
        let mut there: BTreeMap<u64, u8> = BTreeMap::new();
        let mut number = 0u64;
        while !done.load(Ordering::Acquire) {
            let sectors: Vec<u64> = (0..16).map(|slot| (number + slot) * 13 % 64 * 8).collect();
            let bytes: Vec<u8> = (0..16).map(|slot| ((number + slot) % 251) as u8 + 1).collect();
            for write in [true, false] {
                for slot in 0..16u64 {
                    let (sector, byte) = (sectors[slot as usize], bytes[slot as usize]);
                    let data = part(&front, slot * 4096, 4096);
                    front.memory().write(front.data() + slot * 4096, &[if write { byte } else { 0 }; 4096]);
                    let what = if write { Kind::Write } else { Kind::Read };
                    assert!(queue.submit(what, sector, &[data], slot));
                    there.insert(sector, byte);
                }
                for _ in 0..16 {
                    let answer = await_one(&mut queue);
                    assert_eq!(answer.status, 0, "{name}");
                    let found = front.memory().read(front.data() + answer.token * 4096, 4096);
                    let byte = bytes[answer.token as usize];
                    assert!(found.iter().all(|b| *b == byte), "{name}: {} at {number}", answer.token);
                }
            }
            number += 16;
            answered.fetch_add(1, Ordering::Release);
        }
        // Also what was written under daemons that have gone.
        for (sector, byte) in there {
            assert_eq!(perform(&mut queue, Kind::Read, sector, &[part(&front, 65536, 512)]), 0);
            assert_eq!(front.memory().read(front.data() + 65536, 512), [byte; 512], "{name}: sector {sector}");
        }
        assert!(!front.has_hung_up(), "{name}");
        (front, queue)
    };
    let (mut front, mut queue) = std::thread::scope(|scope| {
        let loads = ["vol.sock", "mem.sock"].map(|name| scope.spawn(move || load(name)));
        // Whatever fails, the loads end.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let end = Done(&done);
        for _ in 0..4 {
            let before = answered.load(Ordering::Acquire);
            until("the loads go on", || answered.load(Ordering::Acquire) > before + 20);
            let process = place.daemon_pid();
            place.ok("daemon --replace");
            assert_ne!(place.daemon_pid(), process);
            assert_eq!(place.ok("export"), exports);
        }
        let before = answered.load(Ordering::Acquire);
        until("the loads go on", || answered.load(Ordering::Acquire) > before + 20);
        drop(end);
        let [vol, _mem] = loads.map(|load| load.join().unwrap());
        vol
    });
    // It is held open by who is connected, and told of a new size, as if nothing had happened.
    assert!(!place.udm(["remove", "vol"]).status.success());
    assert!(place.udm(["load", "vol", "--table", "0 4096 zero"]).status.success());
    place.ok("resume vol");
    assert!(front.wait_for_change(Duration::from_secs(60)).unwrap());
    assert_eq!(perform(&mut queue, Kind::Read, 4088, &[part(&front, 0, 4096)]), 0);
    drop((front, queue));
    assert!(place.root().join("idle.sock").exists());
    drop(connect(&place.root().join("idle.sock")));
    // A daemon that is killed afterwards comes again with what its state says.
    place.signal(Signal::KILL);
    until("the daemon to be gone", || !place.is_served());
    assert_eq!(place.ok("export vol").lines().count(), exports.lines().filter(|l| l.contains("vol")).count());
}

/// A device that keeps requests: the replacement is refused, and all goes on.
#[test]
fn a_replacement_waits_for_requests() {
    let place = Place::new();
    place.create(&["vol"], "0 2048 ram");
    place.ok("export vol --vhost-user vol.sock");
    let (front, mut queue) = connect(&place.root().join("vol.sock"));
    place.ok("suspend vol");
    assert!(queue.submit(Kind::Write, 8, &[part(&front, 0, 4096)], 1));
    queue.kick();
    until("it has taken the request", || place.ok("info -c --noheadings -o name,suspended vol").contains("Suspended"));
    let output = place.udm(["daemon", "--replace"]);
    // It may have been too late to take the request: then the next daemon has it.
    if !output.status.success() {
        assert!(stderr(&output).contains("requests of a virtual machine to vol"), "{}", stderr(&output));
    }
    assert_eq!(queue.completed(), None);
    place.ok("resume vol");
    assert_eq!(await_one(&mut queue).status, 0);
    place.ok("daemon --replace");
    assert_eq!(perform(&mut queue, Kind::Read, 8, &[part(&front, 0, 4096)]), 0);
}
