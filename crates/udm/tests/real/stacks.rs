//! Snapshots and thin volumes upon each other, under a load that looks at what it reads: fio's through NBD, and
//! `udm bench`'s.

use crate::lab::Lab;
use crate::programs::{fio, run};
use crate::udm::wait_until;

/// Bytes of every device that is written.
const SIZE: u64 = 16 << 20;
const SECTORS: u64 = SIZE / 512;

/// A stack; its devices to be written, and one that must stay what it was when the load began.
struct Stack {
    lab: Lab,
    written: &'static [&'static str],
    frozen: Option<&'static str>,
}

/// A pool with one volume `thin` and one for a COW device, on devices that tables know by these names.
fn pool(lab: &Lab, data: &str) {
    let meta = lab.disk.file("meta", 4 << 20);
    lab.udm.create("pool", &format!("0 {} thin-pool {meta} {data} 128 0", 4 * SECTORS));
    for (id, name, sectors) in [(0, "thin", SECTORS), (1, "cow", 2 * SECTORS)] {
        lab.udm.ok(&["message", "pool", "0", &format!("create_thin {id}")]);
        lab.udm.create(name, &format!("0 {sectors} thin /dev/mapper/pool {id}"));
    }
}

/// An origin over `base` and a snapshot of it on `cow`, both to be written, and one more that is not.
fn snapshots(lab: &Lab, base: &str, cow: &str) {
    let other = lab.disk.file("other", 3 * SIZE);
    lab.udm.create("origin", &format!("0 {SECTORS} snapshot-origin {base}"));
    lab.udm.create("snap", &format!("0 {SECTORS} snapshot {base} {cow} PO 16"));
    lab.udm.create("frozen", &format!("0 {SECTORS} snapshot {base} {other} P 64"));
}

fn snapshot_of_a_thin() -> Stack {
    let lab = Lab::new();
    let data = lab.disk.file("data", 4 * SIZE);
    pool(&lab, &data);
    snapshots(&lab, "/dev/mapper/thin", "/dev/mapper/cow");
    Stack { lab, written: &["origin", "snap"], frozen: Some("frozen") }
}

fn pool_on_an_origin() -> Stack {
    let lab = Lab::new();
    let data = lab.disk.file("data", 4 * SIZE);
    let other = lab.disk.file("other", 5 * SIZE);
    lab.udm.create("data", &format!("0 {} snapshot-origin {data}", 4 * SECTORS));
    // As large as what the load of one volume fills first.
    lab.udm.create("frozen", &format!("0 {SECTORS} snapshot {data} {other} P 64"));
    pool(&lab, "/dev/mapper/data");
    Stack { lab, written: &["thin", "cow"], frozen: Some("frozen") }
}

fn thin_on_striped() -> Stack {
    let lab = Lab::new();
    let (first, half) = (lab.disk.file("first", 2 * SIZE), 2 * SECTORS);
    lab.udm.create("second", &format!("0 {half} ram"));
    lab.udm.create("data", &format!("0 {} striped 2 32 {first} 0 /dev/mapper/second 0", 4 * SECTORS));
    pool(&lab, "/dev/mapper/data");
    Stack { lab, written: &["thin", "cow"], frozen: None }
}

fn options<'a>(uri: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    uri.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

/// Two loads at once, each on its own device; afterwards what was frozen is all zeroes still.
#[track_caller]
fn check(make: fn() -> Stack) {
    if !fio::installed() {
        return;
    }
    let Stack { lab, written, frozen } = make();
    for load in [
        ["--rw=randwrite", "--bs=4k", "--verify=crc32c"].as_slice(),
        &["--rw=randrw", "--bsrange=512-64k", "--verify=crc32c", "--verify_backlog=32"],
        &["--rw=write", "--bs=256k", "--verify=crc32c", "--fsync=4"],
    ] {
        std::thread::scope(|threads| {
            for name in written {
                let uri = lab.udm.uri(name);
                threads.spawn(move || run("fio", &options(&fio::options(&uri, 1, SIZE), load)));
            }
        });
    }
    if let Some(frozen) = frozen {
        let uri = fio::options(&lab.udm.uri(frozen), 1, SIZE);
        run("fio", &options(&uri, &["--rw=read", "--bs=64k", "--verify=pattern", "--verify_pattern=0x00"]));
    }
}

#[test]
fn a_snapshot_of_a_thin() {
    check(snapshot_of_a_thin);
}

#[test]
fn a_pool_whose_data_lie_on_an_origin() {
    check(pool_on_an_origin);
}

#[test]
fn a_thin_on_striped() {
    check(thin_on_striped);
}

/// fio writes and verifies while a snapshot goes back to the origin beneath it.
#[test]
fn a_merge_under_load() {
    if !fio::installed() {
        return;
    }
    let lab = Lab::new();
    let (base, cow) = (lab.disk.file("base", SIZE), lab.disk.file("cow", 2 * SIZE));
    snapshots(&lab, &base, &cow);
    // What the snapshot shows at the end of the device, and the load leaves alone.
    let whole = fio::options(&lab.udm.uri("snap"), 1, SIZE);
    run("fio", &options(&whole, &["--rw=write", "--bs=64k", "--verify=crc32c"]));
    lab.udm.ok(&["message", "snap", "0", "copy_throttle", "20"]);
    wait_until("fio is noticed to have gone", || lab.udm.number("snap", "open") == 0);
    lab.udm.ok(&["snapshot", "merge", "snap", "--detach"]);
    let half = fio::options(&lab.udm.uri("origin"), 1, SIZE / 2);
    run("fio", &options(&half, &["--rw=randwrite", "--bs=4k", "--verify=crc32c"]));
    run("fio", &options(&half, &["--rw=randrw", "--bs=16k", "--verify=crc32c", "--verify_backlog=16"]));
    run("fio", &options(&half, &["--rw=write", "--bs=64k", "--verify=crc32c"]));
    lab.udm.ok(&["message", "origin", "0", "copy_throttle", "100"]);
    let said = lab.udm.ok(&["snapshot", "merge", "origin"]);
    assert!(said.starts_with("merged into origin: "), "{said}");
    // What was written meanwhile, and what came from the snapshot.
    let upper = format!("--offset={}", SIZE / 2);
    let (size, verify) = (format!("--size={}", SIZE / 2), ["--verify=crc32c", "--verify_only=1", "--bs=64k"]);
    run("fio", &options(&half, &[&["--rw=write"], verify.as_slice()].concat()));
    let whole = fio::options(&lab.udm.uri("origin"), 1, SIZE);
    run("fio", &options(&whole, &[&["--rw=write", &upper, &size], verify.as_slice()].concat()));
    let uri = fio::options(&lab.udm.uri("frozen"), 1, SIZE);
    run("fio", &options(&uri, &["--rw=read", "--bs=64k", "--verify=pattern", "--verify_pattern=0x00"]));
}

/// `udm bench`, which checks each read, and at the end all that was written.
#[track_caller]
fn bench(lab: &Lab, words: &[&str]) {
    let said = lab.udm.run(&[&["bench", "--rw=randrw", "--iodepth=16", "--verify"], words].concat());
    assert!(said.code == 0, "udm bench {words:?}: {}{}", said.stdout, said.stderr);
}

/// The same stacks under the load that needs no other program.
#[test]
fn stacks_under_our_own_load() {
    for make in [snapshot_of_a_thin, pool_on_an_origin, thin_on_striped] {
        let Stack { lab, written, .. } = make();
        for name in written {
            bench(&lab, &["--device", name, "--bs=8k", "--number-ios=1500", "--fill"]);
        }
    }
    // In one process: an origin, and the first of two snapshots.
    let specification = "b,,,,0 32768 ram;c0,,,,0 65536 ram;c1,,,,0 65536 ram;\
        o,,,,0 32768 snapshot-origin /dev/mapper/b;s0,,,,0 32768 snapshot /dev/mapper/b /dev/mapper/c0 P 16;\
        s1,,,,0 32768 snapshot /dev/mapper/b /dev/mapper/c1 N 64";
    let lab = Lab::new();
    for device in ["o", "s0"] {
        for bs in ["4k", "64k"] {
            let words =
                ["--concise", specification, "--device", device, "--number-ios=1000", "--numjobs=2", "--bs", bs];
            bench(&lab, &words);
        }
    }
}
