//! `udm cut` on a daemon's device, with clients of NBD on it and on one above it.

use crate::common::{Place, stderr, stdout, until};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use udm_base::Sector;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions};
use udm_io::{BlockingIo, Domain, OpFlags};
use udm_stack::OpenOptions;

const TABLE: &str = "0 2048 power-cut disk 0";

/// A client of the device.
fn connect(place: &Place, name: &str) -> Result<BlockingIo, String> {
    let domain = Domain::default();
    let output = place.udm(["export", name]);
    assert!(output.status.success(), "{}", stderr(&output));
    let uri = stdout(&output).trim().rsplit('\t').next().unwrap_or_default().to_owned();
    let dev = udm_stack::open_beneath(&uri, &OpenOptions::new(&domain)).map_err(|e| e.to_string())?;
    BlockingIo::new(&domain, Arc::clone(&dev)).map_err(|e| e.to_string())
}

fn write(io: &BlockingIo, sector: u64, byte: u8) {
    io.write(Sector::new(sector), &[byte; 512 * 8], OpFlags::NONE).unwrap();
}

fn cut(place: &Place, words: &[&str]) -> Result<String, String> {
    let output = place.udm(["cut"].iter().chain(words));
    if output.status.success() { Ok(stdout(&output)) } else { Err(stderr(&output)) }
}

#[test]
fn a_cut_takes_what_no_flush_has_seen_and_all_who_use_it() {
    let place = Place::new();
    let disk = place.file("disk", 2048 * 512);
    place.create(&["x"], TABLE);
    place.create(&["top"], "0 1024 linear /dev/mapper/x 0");
    let (io, top) = (connect(&place, "x").unwrap(), connect(&place, "top").unwrap());
    write(&io, 0, 1);
    io.flush().unwrap();
    (1..40).for_each(|n| write(&io, n * 8, 2));
    top.write(Sector::new(1000), &[3; 512], OpFlags::FUA).unwrap();
    let before = std::fs::read(&disk).unwrap();
    assert!(before[..4096] == [1; 4096] && before[8 * 512..9 * 512] == [0; 512] && before[1000 * 512] == 3);
    // One that loses some and keeps some.
    let answer: Value =
        serde_json::from_str(&cut(&place, &["x", "--seed", "11", "--record", "record", "--json"]).unwrap()).unwrap();
    let number = |key: &str| answer[key].as_u64().unwrap();
    assert_eq!((number("seed"), number("writes"), number("disconnected")), (11, 39, 2), "{answer}");
    assert_eq!(number("whole") + number("torn") + number("lost"), 39, "{answer}");
    assert!(io.flush().is_err() && top.flush().is_err());
    for name in ["x", "top"] {
        let refused = connect(&place, name).err().unwrap();
        assert!(refused.contains(&format!("the power of {name} was cut; load its table again")), "{refused}");
    }
    let after = std::fs::read(&disk).unwrap();
    assert!(after[..4096] == [1; 4096] && after[1000 * 512] == 3);
    // The record says it again.
    std::fs::write(place.root().join("again"), &before).unwrap();
    cut(&place, &["again", "--replay", "record", "--seed", "11"]).unwrap();
    assert!(std::fs::read(place.root().join("again")).unwrap() == after);
    let list = stdout(&place.udm(["log-writes", "list", "record"]));
    assert_eq!(list.lines().filter(|line| line.contains("NONE")).count(), 39, "{list}");
    // Until it is loaded again.
    assert!(cut(&place, &["x"]).unwrap_err().contains("its power is off"));
    for words in [vec!["reload", "x", "--table", TABLE], vec!["resume", "x"]] {
        let output = place.udm(words);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let io = connect(&place, "x").unwrap();
    let mut sector = [0; 512];
    io.read(Sector::new(7), &mut sector).unwrap();
    assert_eq!(sector, [1; 512]);
    assert!(connect(&place, "top").is_ok());
    assert!(cut(&place, &["x"]).unwrap().contains("of 0 unflushed writes"), "a seed is chosen");
}

#[test]
fn what_cannot_be_cut() {
    let place = Place::new();
    place.file("disk", 2048 * 512);
    place.create(&["x"], TABLE);
    place.create(&["plain"], "0 2048 linear disk 0");
    std::fs::write(place.root().join("there"), "kept").unwrap();
    for (words, expect) in [
        (&["none"][..], "no device has the name \"none\""),
        (&["plain"], "plain has no power to cut"),
        (&["x", "--seed", "many"], "--seed"),
        (&["x", "--record", "there"], "File exists (os error 17); expected a new file"),
        (&["x", "--record", "no/where"], "No such file or directory"),
        (&["disk", "--replay", "there"], "--seed"),
        (&["disk", "--replay", "there", "--seed", "1"], "there: superblock, length"),
        (&["disk", "--replay", "disk", "--seed", "1"], "disk: superblock, magic"),
    ] {
        let said = cut(&place, words).expect_err(&format!("{words:?}"));
        assert!(said.contains(expect), "{words:?}: {said}");
    }
    assert_eq!(std::fs::read_to_string(place.root().join("there")).unwrap(), "kept");
    assert!(stdout(&place.udm(["status", "x"])).contains(" on "), "a cut that was refused has not been");
}

/// A daemon that ends, and one that is replaced, are no power cut.
#[test]
fn a_daemon_that_ends_loses_nothing() {
    let place = Place::new();
    let disk = place.file("disk", 2048 * 512);
    place.create(&["x"], TABLE);
    for (byte, words) in [(1, ["daemon", "--replace"]), (2, ["daemon", "--stop"])] {
        let io = connect(&place, "x").unwrap();
        write(&io, 16, byte);
        assert!(std::fs::read(&disk).unwrap()[16 * 512] != byte, "it is in memory");
        let output = place.udm(words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        assert_eq!(std::fs::read(&disk).unwrap()[16 * 512], byte, "{words:?}");
    }
}

/// A virtual machine, a client over TCP and a node: each is cut off, and has the device again when it is loaded.
#[test]
fn every_way_out_is_cut() {
    let place = Place::new();
    place.file("disk", 2048 * 512);
    place.create(&["x"], TABLE);
    let output = place.udm(["node", "add", "x", "--kind", "fuse"]);
    let node = output.status.success().then(|| PathBuf::from(stdout(&output).trim()));
    if node.is_none() {
        println!("SKIP {}", stderr(&output).trim());
    }
    place.ok("export x --vhost-user x.sock");
    let uri = place.ok("export x --tcp 127.0.0.1:0").trim().to_owned();
    let over_tcp = || {
        let domain = Domain::default();
        let dev = udm_stack::open_beneath(&uri, &OpenOptions::new(&domain)).map_err(|e| e.to_string())?;
        BlockingIo::new(&domain, dev).map_err(|e| e.to_string())
    };
    let options = || FrontOptions { queue_size: 64, memory: 1 << 20, ..FrontOptions::default() };
    let socket = place.root().join("x.sock");
    let mut front = FrontEnd::connect(&socket, options()).unwrap().0;
    let io = over_tcp().unwrap();
    write(&io, 0, 1);
    io.flush().unwrap();
    assert!(cut(&place, &["x"]).unwrap().contains("2 clients were hung up on"));
    until("the front end to be hung up on", || front.has_hung_up());
    drop(front);
    assert!(io.flush().is_err());
    assert!(over_tcp().err().unwrap().contains("the power of x was cut"));
    // It is let in by the socket, and hung up on at once.
    assert!(FrontEnd::connect(&socket, options()).is_err());
    let read = |path: &PathBuf| std::fs::File::open(path).and_then(|file| file.read_at(&mut [0; 512], 0));
    if let Some(node) = &node {
        assert_eq!(read(node).unwrap_err().raw_os_error(), Some(5));
    }
    place.ok("suspend x");
    place.ok("resume x");
    assert!(over_tcp().is_err(), "to be suspended brings no power");
    assert!(place.udm(["reload", "x", "--table", TABLE]).status.success());
    place.ok("resume x");
    assert!(over_tcp().is_ok());
    assert!(FrontEnd::connect(&socket, options()).is_ok());
    assert!(node.is_none_or(|node| read(&node).unwrap() == 512));
}
