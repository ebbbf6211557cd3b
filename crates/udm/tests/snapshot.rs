//! `udm snapshot` on COW devices as files.

mod common;

use common::{Place, stderr, stdout};
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
