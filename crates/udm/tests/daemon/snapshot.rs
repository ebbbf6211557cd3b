//! `udm snapshot` on COW devices as files.

use crate::common::{Place, stderr, stdout};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use udm_base::{Sector, Sectors};
use udm_formats::snapshot::{Batch, ChunkSize, Content, Exception, Geometry, Store};

/// Chunks of 16 sectors on a device of 100, whose last chunk is cut short.
const CHUNK: u64 = 16;

/// A COW device with exceptions for the origin's chunks `olds`, and 0xc0 and the exception's number as data.
fn cow(olds: &[u64], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let chunk = ChunkSize::new(Sectors::new(CHUNK)).unwrap();
    let geometry = Geometry::new(chunk, Sectors::new(100 * CHUNK + 3), 512).unwrap();
    let mut disk = vec![0; geometry.device().as_len()];
    let (mut store, batch) = Store::format(geometry);
    write(&mut disk, &batch);
    store.finish(&batch, true);
    let exceptions: Vec<_> = olds.iter().map(|old| Exception { old: *old, new: store.allocate().unwrap() }).collect();
    for (n, exception) in exceptions.iter().enumerate() {
        let at = chunk.start(exception.new).bytes() as usize;
        disk[at..at + chunk.sectors().as_len()].fill(0xc0 + n as u8);
    }
    if !exceptions.is_empty() {
        write(&mut disk, &store.commit(&exceptions));
    }
    change(&mut disk);
    disk
}

fn write(disk: &mut [u8], batch: &Batch) {
    for write in batch.writes() {
        let place = &mut disk[write.sector.bytes() as usize..][..write.sectors.as_len()];
        match &write.content {
            Content::Zeroes => place.fill(0),
            Content::Bytes(bytes) => place.copy_from_slice(bytes),
        }
    }
}

fn file(place: &Place, name: &str, bytes: &[u8]) -> PathBuf {
    let path = place.root().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn json_of(place: &Place, words: &[&str]) -> Value {
    let output = place.udm(words);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_it_holds() {
    let place = Place::new();
    file(&place, "cow", &cow(&[7, 8, 3, 62], |_| {}));
    let info = place.udm(["snapshot", "info", "cow"]);
    assert!(stdout(&info).contains("Status:       96/1603 32\n"), "{}", stdout(&info));
    assert!(stdout(&info).contains("valid") && stderr(&info).is_empty());
    let expect = json!({
        "cow": "cow", "valid": true, "version": 1, "chunk_size": 16, "total": 1603, "allocated": 96, "metadata": 32,
        "exceptions": 4, "changed": 64, "ranges": 3, "changed_end": 1008, "in_use": null,
    });
    assert_eq!(json_of(&place, &["snapshot", "info", "cow", "--json"]), expect);
    let expect = json!({"chunk_size": 16, "exceptions": [
        {"origin": 48, "length": 16, "cow": 64},
        {"origin": 112, "length": 32, "cow": 32},
        {"origin": 992, "length": 16, "cow": 80},
    ]});
    assert_eq!(json_of(&place, &["snapshot", "ls", "--json", "cow"]), expect);
    let expect = json!({"chunk_size": 16, "compared": false, "origin_size": null, "changed": 64, "ranges": [
        {"start": 48, "length": 16}, {"start": 112, "length": 32}, {"start": 992, "length": 16},
    ]});
    assert_eq!(json_of(&place, &["snapshot", "diff", "cow", "--json"]), expect);
    let text = stdout(&place.udm(["snapshot", "diff", "cow"]));
    let numbers: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(numbers, [vec!["START", "LENGTH"], vec!["48", "16"], vec!["112", "32"], vec!["992", "16"]]);
    assert!(!place.dir().exists(), "no daemon was started");
}

#[test]
fn compared_with_the_origin() {
    let place = Place::new();
    file(&place, "cow", &cow(&[7, 62], |_| {}));
    // Chunk 62 is the last, and cut short after 8 sectors. Of chunk 7 only three sectors differ now.
    let mut origin = vec![0; Sectors::new(62 * CHUNK + 8).as_len()];
    let place_of = |sector: u64| Sector::new(sector).bytes() as usize;
    origin[place_of(112)..place_of(128)].fill(0xc0);
    origin[place_of(113) + 5] = 1;
    origin[place_of(120)..place_of(122)].fill(2);
    origin[place_of(992)..].fill(0xc1);
    origin[place_of(999) + 511] = 0;
    file(&place, "origin", &origin);
    let expect = json!({"chunk_size": 16, "compared": true, "origin_size": 1000, "changed": 4, "ranges": [
        {"start": 113, "length": 1}, {"start": 120, "length": 2}, {"start": 999, "length": 1},
    ]});
    let words = ["snapshot", "diff", "cow", "--origin", "origin", "--json", "--svg", "picture.svg"];
    assert_eq!(json_of(&place, &words), expect);
    let svg = std::fs::read_to_string(place.root().join("picture.svg")).unwrap();
    assert!(svg.contains("2 KiB of the origin's 500 KiB"), "{}", &svg[..900]);
    file(&place, "short", &[0; 4096]);
    let output = place.udm(["snapshot", "diff", "cow", "--origin", "short"]);
    assert!(!output.status.success() && stderr(&output).contains("ends at sector 8"), "{}", stderr(&output));
}

#[test]
fn what_is_wrong_has_a_place() {
    let place = Place::new();
    let check = |name: &str, bytes: &[u8], command: &str, expect: &str| {
        file(&place, name, bytes);
        let output = place.udm(["snapshot", command, name]);
        assert_eq!(output.status.code(), Some(1), "{name}: {}", stdout(&output));
        assert!(stderr(&output).contains(expect), "{name}: {}", stderr(&output));
    };
    check("foreign", &[7; 8192], "info", "foreign: chunk 0, magic: found 0x07070707");
    check("zero", &[0; 8192], "info", "there is no snapshot here");
    check(
        "tiny",
        &b"SnAp\x01\0\0\0\x01\0\0\0\x10\0\0\0".repeat(32),
        "ls",
        "the device's size: the COW device has 1 sectors",
    );
    check("dup", &cow(&[3, 3], |_| {}), "diff", "dup: chunk 1, entry 1 of area 0, old_chunk: found 3");
    check(
        "wild",
        &cow(&[3], |d| d[8192 + 8] = 200),
        "ls",
        "new_chunk: found 200, and the device ends after 100 chunks",
    );
    let invalid = cow(&[3], |d| d[4] = 0);
    check("invalid", &invalid, "diff", "the snapshot is invalid");
    check("invalid", &invalid, "ls", "the snapshot is invalid");
    let info = json_of(&place, &["snapshot", "info", "invalid", "--json"]);
    assert_eq!((&info["valid"], &info["allocated"]), (&json!(false), &Value::Null));
    let output = place.udm(["snapshot", "info", "nowhere"]);
    assert!(!output.status.success() && stderr(&output).contains("nowhere"), "{}", stderr(&output));
}

/// Makes a snapshot on a COW device of these bytes; what is said, without the names of places.
fn refused(place: &Place, name: &str, bytes: &[u8]) -> String {
    file(place, name, bytes);
    let table = format!("0 1000 snapshot base {name} P 16");
    let output = place.udm(["create", "x", "--table", &table]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{name}");
    assert_eq!(place.ok("ls"), "No devices found\n", "nothing is left of {name}");
    assert_eq!(std::fs::read(place.root().join(name)).unwrap(), bytes, "{name} was written to");
    let said = stderr(&output).replace(&format!("{}/", place.root().display()), "");
    // The caret is under the COW device.
    let caret = format!("  {table}\n{:>column$}\n", "^".repeat(name.len()), column = 23 + name.len());
    let said =
        said.strip_prefix("udm: cannot load a table for x: Invalid argument\nline 1: snapshot: ").unwrap_or(&said);
    said.strip_suffix(&caret).unwrap_or_else(|| panic!("no caret, {caret:?}, in {said}")).trim_end().to_owned()
}

#[test]
fn a_broken_store_is_refused_by_the_target_too() {
    let place = Place::new();
    file(&place, "base", &[0; 1000 * 512]);
    let header = |valid: u32, version: u32, chunk: u32| {
        let words: Vec<u8> = [0x7041_6e53, valid, version, chunk].iter().flat_map(|word| word.to_le_bytes()).collect();
        move |disk: &mut Vec<u8>| disk[..16].copy_from_slice(&words)
    };
    let area = CHUNK as usize * 512;
    let full: Vec<u64> = (0..512).collect();
    let big = |change: &dyn Fn(&mut Vec<u8>)| {
        // An area of 512 entries that are all in use: another has to follow.
        let mut disk = cow(&[], |disk| disk.resize(600 * CHUNK as usize * 512, 0));
        for (n, old) in full.iter().enumerate() {
            let entry = [*old, 2 + n as u64].map(u64::to_le_bytes).concat();
            disk[area + n * 16..area + n * 16 + 16].copy_from_slice(&entry);
        }
        change(&mut disk);
        disk
    };
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("small", vec![0; 512], "the COW device has 1 sectors"),
        ("header-only", vec![0; 16 * 512], "the header and the first area alone take two chunks of 16"),
        ("foreign", vec![7; 64 * 512], "chunk 0, magic: found 0x07070707"),
        ("version", cow(&[3], header(1, 2, 16)), "unable to handle snapshot disk version 2"),
        ("no-power", cow(&[3], header(1, 1, 12)), "invalid on-disk chunk size 12"),
        ("no-chunk", cow(&[3], header(1, 1, 0)), "invalid on-disk chunk size 0"),
        ("huge", cow(&[3], header(1, 1, 1 << 31)), "invalid on-disk chunk size 2147483648"),
        ("duplicate", cow(&[3, 3], |_| {}), "chunk 1, entry 1 of area 0, old_chunk: found 3"),
        ("outside", cow(&[3], |d| d[area + 8] = 200), "new_chunk: found 200, and the device ends after 100 chunks"),
        ("in-the-area", cow(&[3], |d| d[area + 8] = 1), "new_chunk: found 1"),
        // Cut short: of the exceptions' chunks, and of the second area.
        ("short", cow(&[3, 4, 5], |d| d.truncate(4 * area)), "new_chunk: found 4, and the device ends after 4 chunks"),
        (
            "no-second",
            big(&|disk| disk.truncate(514 * area)),
            "area 0 is full and the device ends before area 1, after 514 chunks",
        ),
    ];
    for (name, bytes, expect) in &rows {
        let said = refused(&place, name, bytes);
        assert!(said.starts_with("Failed to read snapshot metadata: ") && said.contains(expect), "{name}: {said}");
    }
}

#[test]
fn the_headers_chunk_counts_and_an_invalid_snapshot_shows_nothing() {
    let place = Place::new();
    file(&place, "base", &[1; 1000 * 512]);
    file(&place, "good", &cow(&[7], |_| {}));
    file(&place, "invalid", &cow(&[7], |disk| disk[4] = 0));
    for (name, status) in [("good", "48/1603 32"), ("invalid", "Invalid")] {
        // 32 sectors in the table, 16 in the header; a chunk of 0 is whatever there is.
        for chunk in [32, 0] {
            let table = format!("0 1000 snapshot base {name} P {chunk}");
            let output = place.udm(["create", "x", "--table", &table]);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(place.ok("status x"), format!("0 1000 snapshot {status}\n"));
            assert!(place.ok("table x").ends_with(" P 16\n"), "{}", place.ok("table x"));
            let mut device = crate::common::NbdHold::open(&place.dir().join("nbd.sock"), "x").unwrap();
            let read = device.request(7 * 16 * 512, &crate::common::Nbd::Read(512));
            let write = device.request(7 * 16 * 512 + 4096, &crate::common::Nbd::Write(&[5; 512]));
            // EIO, not what the COW device or the origin has.
            match name {
                "good" => assert_eq!((read, write), (Ok(vec![0xc0; 512]), Ok(vec![]))),
                _ => assert_eq!((read, write), (Err(5), Err(5))),
            }
            drop(device);
            crate::common::until("removed", || place.udm(["remove", "x"]).status.success());
        }
    }
    assert_eq!(std::fs::read(place.root().join("invalid")).unwrap(), cow(&[7], |disk| disk[4] = 0), "never written");
}

#[test]
fn while_it_is_in_use() {
    let place = Place::new();
    let path = file(&place, "cow", &cow(&[7], |_| {}));
    let lock = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let locked = rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    locked.unwrap();
    let output = place.udm(["snapshot", "info", "cow", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("it may change while it is read"), "{}", stderr(&output));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(info["in_use"].as_str().is_some_and(|text| text.contains("in use by")), "{info}");
    assert_eq!(info["exceptions"], 1);
}

#[test]
fn a_device_of_the_daemon() {
    let place = Place::new();
    file(&place, "cow.img", &cow(&[7], |_| {}));
    let table = format!("0 1603 linear {}/cow.img 0", place.root().display());
    assert!(place.udm(["create", "lvol-cow", "--table", &table]).status.success());
    for name in ["lvol-cow", "/dev/mapper/lvol-cow"] {
        assert_eq!(json_of(&place, &["snapshot", "info", name, "--json"])["exceptions"], 1);
    }
}

#[test]
fn what_the_kernel_wrote() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/snapshot");
    let place = Place::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(&goldens).unwrap() {
        let record = entry.unwrap().path();
        if record.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let unpack = |what: &str| {
            let packed = std::fs::read(record.with_extension(format!("{what}.pages.gz"))).unwrap();
            file(&place, what, &udm_sim::golden::unpack(&packed).unwrap())
        };
        unpack("cow");
        unpack("origin");
        let text = std::fs::read_to_string(&record).unwrap();
        // The last status is of what is kept: `status NAME START LENGTH TARGET STATUS…`.
        let mut of_snapshots =
            text.lines().filter(|line| line.starts_with("status snap ") || line.starts_with("status merge "));
        let status = of_snapshots.next_back().unwrap().split(' ').skip(5).collect::<Vec<_>>().join(" ");
        let output = place.udm(["snapshot", "info", "cow"]);
        assert!(output.status.success(), "{record:?}: {}", stderr(&output));
        let info = stdout(&output);
        if status == "Invalid" {
            assert!(info.contains("State:        Invalid\n"), "{record:?}: {info}");
        } else {
            assert!(info.contains(&format!("Status:       {status}\n")), "{record:?}: {status}\n{info}");
            let diff = json_of(&place, &["snapshot", "diff", "cow", "--origin", "origin", "--json", "--svg", "a.svg"]);
            let all = json_of(&place, &["snapshot", "info", "cow", "--json"]);
            assert!(diff["changed"].as_u64() <= all["changed"].as_u64(), "{record:?}");
        }
        seen += 1;
    }
    assert!(seen > 10, "{seen} records");
}
