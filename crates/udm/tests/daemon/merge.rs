//! `udm snapshot merge` with a daemon: a snapshot goes back to its origin, followed, left alone, and refused.

use crate::common::{Nbd, NbdHold, Place, stderr, stdout, until};
use serde_json::{Value, json};

/// Sectors of the origin.
const SECTORS: u64 = 8192;
const PIECE: usize = 64 << 10;

/// `base`, which nobody writes to directly; `origin` above it; and a snapshot of each kind, `s0` and so on.
fn made(kinds: &[&str]) -> Place {
    let place = Place::new();
    let path = |name: &str| place.root().join(name).display().to_string();
    let file = |name: &str, sectors: u64| std::fs::File::create(path(name)).unwrap().set_len(sectors * 512).unwrap();
    file("base.img", SECTORS);
    let make = |name: &str, table: String| {
        let output = place.udm(["create", name, "--table", &table]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
    };
    make("base", format!("0 {SECTORS} linear {} 0", path("base.img")));
    make("origin", format!("0 {SECTORS} snapshot-origin /dev/mapper/base"));
    for (n, kind) in kinds.iter().enumerate() {
        file(&format!("cow{n}"), 2 * SECTORS);
        make(&format!("s{n}"), format!("0 {SECTORS} snapshot /dev/mapper/base {} {kind}", path(&format!("cow{n}"))));
    }
    place
}

fn open(place: &Place, name: &str) -> NbdHold {
    NbdHold::open(&place.dir().join("nbd.sock"), name).unwrap()
}

/// Fills a piece of a device.
fn write(place: &Place, name: &str, piece: u64, byte: u8) {
    open(place, name).request(piece * PIECE as u64, &Nbd::Write(&[byte; PIECE])).unwrap();
}

/// What each piece of a device begins with.
fn pieces(place: &Place, name: &str) -> Vec<u8> {
    let mut device = open(place, name);
    let piece = |n: u64| device.request(n * PIECE as u64, &Nbd::Read(PIECE as u32)).unwrap();
    (0..SECTORS * 512 / PIECE as u64)
        .map(piece)
        .map(|bytes| {
            assert!(bytes.iter().all(|b| *b == bytes[0]), "one byte all over");
            bytes[0]
        })
        .collect()
}

/// A snapshot's device with nobody in it: a client's end is noticed a little later.
fn closed(place: &Place, name: &str) {
    until("its client has gone", || {
        let info: Value = serde_json::from_str(&place.ok(&format!("info --json {name}"))).unwrap();
        info["devices"][0]["open"] == 0
    });
}

fn names(place: &Place) -> Vec<String> {
    place.ok("ls").lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

#[test]
fn it_is_followed_to_its_end() {
    let place = made(&["P 16", "PO 32"]);
    (0..64).for_each(|piece| write(&place, "origin", piece, 1));
    (10..40).for_each(|piece| write(&place, "s0", piece, 2));
    let shown = pieces(&place, "s0");
    let other = pieces(&place, "s1");
    assert_eq!((other[0], shown[0], shown[10]), (0, 0, 2));
    closed(&place, "s0");
    let before = place.ok("info -c --noheadings -o events origin");
    let output = place.udm(["snapshot", "merge", "s0", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    // All 64 pieces have their exceptions.
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told, json!({"origin": "origin", "snapshot": "s0", "merged": SECTORS}));
    assert_eq!(names(&place), ["base", "origin", "s1"]);
    assert!(place.ok("table origin").contains("snapshot-origin"));
    assert_ne!(place.ok("info -c --noheadings -o events origin"), before, "there is an event at the end");
    assert_eq!(pieces(&place, "origin"), shown);
    assert_eq!(pieces(&place, "base"), shown);
    assert_eq!(pieces(&place, "s1"), other, "another snapshot does not see it");
    // Its COW device is an empty store.
    let info: Value = serde_json::from_str(&place.ok("snapshot info cow0 --json")).unwrap();
    assert_eq!((&info["exceptions"], &info["in_use"]), (&json!(0), &Value::Null));
    // And the origin goes on as one.
    write(&place, "origin", 3, 9);
    assert_eq!(pieces(&place, "s1"), other);
}

#[test]
fn it_is_left_alone_and_followed_later() {
    let place = made(&["P 16"]);
    (0..64).for_each(|piece| write(&place, "s0", piece, 3));
    // So that it takes its time; if it did not, nothing below would be otherwise.
    place.ok("message s0 0 copy_throttle 20");
    closed(&place, "s0");
    let said = place.ok("snapshot merge /dev/mapper/s0 --detach");
    assert_eq!(said, "merging s0 into origin: udm snapshot merge origin follows it\n");
    assert_eq!(names(&place), ["base", "origin"]);
    assert!(place.ok("table origin").contains("snapshot-merge"));
    assert!(place.ok("message origin 0 copy_stats").contains("jobs="), "statistics");
    // It is in use meanwhile.
    write(&place, "origin", 5, 4);
    place.ok("message origin 0 copy_throttle 100");
    let said = place.ok("snapshot merge origin");
    assert!(said.starts_with("merged into origin: "), "{said}");
    let mut expect = vec![3; 64];
    expect[5] = 4;
    assert_eq!(pieces(&place, "base"), expect);
    assert!(place.ok("table origin").contains("snapshot-origin"));
}

#[test]
fn what_cannot_be_merged_stays_as_it_is() {
    let place = made(&["P 16", "N 16", "P 8"]);
    let check = |words: &[&str], expect: &str| {
        let output = place.udm([["snapshot", "merge"].as_slice(), words].concat());
        let said = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{words:?}");
        assert!(said.contains(expect), "{words:?}: {said}");
        let suspended = place.ok("info -c --noheadings -o suspended,name");
        assert!(!suspended.contains("Suspended"), "after {words:?}: {suspended}");
        assert_eq!(names(&place), ["base", "origin", "s0", "s1", "s2"], "after {words:?}");
    };
    check(&["nowhere"], "cannot look at nowhere: No such device or address");
    check(&["base"], "base has the target linear: expected snapshot, or snapshot-merge to follow");
    check(&["s1"], "s1 is a transient snapshot: expected one with a store P or PO");
    check(&["s0", "--into", "base"], "base does not show s0's origin");
    // Somebody has it open.
    let hold = open(&place, "s0");
    check(&["s0"], "s0 is open, 1 times, by clients or devices above it: close it first");
    drop(hold);
    closed(&place, "s0");
    // Two devices show the origin, or none.
    let table = format!("0 {SECTORS} snapshot-origin /dev/mapper/base");
    assert!(place.udm(["create", "twin", "--table", &table]).status.success());
    let output = place.udm(["snapshot", "merge", "s0"]);
    assert!(stderr(&output).contains("is shown by origin, twin: choose one by --into"), "{}", stderr(&output));
    place.ok("remove twin");
    place.ok("remove origin");
    let output = place.udm(["snapshot", "merge", "s0"]);
    assert!(stderr(&output).contains("no device shows s0's origin"), "{}", stderr(&output));
    assert!(place.udm(["create", "origin", "--table", &table]).status.success());
    // Another is being merged: what was begun is undone.
    (0..64).for_each(|piece| write(&place, "s0", piece, 3));
    place.ok("message s0 0 copy_throttle 20");
    closed(&place, "s0");
    assert!(place.udm(["create", "twin", "--table", &table]).status.success());
    place.ok("snapshot merge s0 --into origin --detach");
    let output = place.udm(["snapshot", "merge", "s2"]);
    let said = stderr(&output);
    assert!(said.contains("cannot load a table for twin: Invalid argument") || output.status.success(), "{said}");
    if !output.status.success() {
        assert!(said.contains("A snapshot is already merging."), "{said}");
        assert!(!place.ok("info -c --noheadings -o suspended,name").contains("Suspended"));
        assert!(place.ok("table twin").contains("snapshot-origin") && place.ok("ls").contains("s2"));
    }
    place.ok("message origin 0 copy_throttle 100");
}
