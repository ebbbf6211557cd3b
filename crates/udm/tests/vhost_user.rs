//! Devices of the daemon as disks over vhost-user: `udm export --vhost-user`, and what becomes of them.

mod common;

use common::{Place, stderr, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, FrontQueue, Kind, Part};

fn options() -> FrontOptions {
    FrontOptions { queue_size: 64, memory: 1 << 20, ..FrontOptions::default() }
}

fn connect(path: &Path) -> (FrontEnd, FrontQueue) {
    let (front, mut queues) = FrontEnd::connect(path, options()).unwrap();
    (front, queues.remove(0))
}

/// Does one request and waits for it; its status.
fn perform(queue: &mut FrontQueue, what: Kind, sector: u64, data: &[Part]) -> u8 {
    assert!(queue.submit(what, sector, data, 0));
    queue.kick();
    loop {
        if let Some(done) = queue.completed() {
            return done.status;
        }
        queue.wait(Duration::from_secs(1)).unwrap();
    }
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

/// Killed in the middle of writes, again and again: each is answered once by some daemon, and what was answered is there.
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
