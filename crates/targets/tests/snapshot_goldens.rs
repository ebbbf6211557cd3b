//! Stores that the kernel wrote (`tests/goldens/snapshot`): snapshots of them show what the kernel read, with its status,
//! and merging them, from wherever the kernel had stopped, gives the origin just that.

mod rig;
use rig::*;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use udm_base::Sector;
use udm_core::*;
use udm_io::*;
use udm_sim::golden::unpack;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/snapshot")
}

/// SHA-256 in hexadecimal, by coreutils' program; nothing where there is none.
fn sha256(bytes: &[u8]) -> Option<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(bytes).ok()?;
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.split(' ').next()?.to_owned())
}

/// A disk with what the golden holds.
fn disk(rig: &Rig, golden: &str, what: &str) -> u64 {
    let packed = std::fs::read(directory().join(format!("{golden}.{what}.pages.gz"))).unwrap();
    let image = unpack(&packed).unwrap();
    let sectors = image.len() as u64 / 512;
    let disk = rig.disk(&format!("/{what}"), sectors);
    BlockingIo::new(&rig.domain, disk).unwrap().write(Sector::ZERO, &image, OpFlags::NONE).unwrap();
    sectors
}

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Info)
}

fn has_checksum(md: &Arc<MappedDevice>, rig: &Rig, sectors: u64, expect: &str, what: &str) {
    let Some(found) = sha256(&read(&rig.io(md), 0, sectors)) else {
        println!("SKIP the checksum of {what}: there is no sha256sum here");
        return;
    };
    assert_eq!(found, expect, "{what}");
}

/// One golden. Returns whether it was merged.
fn check(name: &str, text: &str) -> bool {
    let rig = Rig::default();
    disk(&rig, name, "cow");
    disk(&rig, name, "origin");
    let last = |start: &str| text.lines().rfind(|line| line.starts_with(start)).map(str::to_owned);
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let Some(create) = last("+ dmsetup create snap ") else { panic!("{name}: no snapshot was made") };
    let create = words(&create);
    let at = create.iter().position(|w| w == "snapshot").expect("a snapshot's table");
    let (sectors, store): (u64, _) = (create[at - 1].parse().unwrap(), create[at + 3..].join(" "));
    let origin = rig.device("origin", &format!("0 {sectors} snapshot-origin /origin"));
    let snap = rig.device("snap", &format!("0 {sectors} snapshot /origin /cow {store}"));
    if let Some(line) = last("status snap ") {
        let expect = words(&line)[5..].join(" ");
        // An overflow is forgotten with its table; the store is full all the same.
        if expect != "Overflow" {
            assert_eq!(status(&snap), expect, "{name}");
        }
    }
    if status(&snap) == "Invalid" {
        assert_eq!(rig.io(&snap).read(Sector::ZERO, &mut [0; 512]), Err(Status::Io), "{name}");
        return false;
    }
    let Some(volume) = last("volume snap ") else { return false };
    let expect = words(&volume)[3].clone();
    has_checksum(&snap, &rig, sectors, &expect, name);
    suspend(&snap);
    rig.reload(&origin, &format!("0 {sectors} snapshot-merge /origin /cow {store}"));
    rig.registry.remove(&snap, false).unwrap();
    has_checksum(&origin, &rig, sectors, &expect, &format!("{name}, while it is merged"));
    loop {
        let now = status(&origin);
        let (allocated, rest) = now.split_once('/').unwrap_or_else(|| panic!("{name}: {now}"));
        if rest.split(' ').next_back() == Some(allocated) {
            break;
        }
        std::thread::yield_now();
    }
    rig.reload(&origin, &format!("0 {sectors} snapshot-origin /origin"));
    has_checksum(&origin, &rig, sectors, &expect, &format!("{name}, merged"));
    true
}

#[test]
fn what_the_kernel_wrote_is_read_and_merged() {
    let mut merged = 0;
    for entry in std::fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "txt") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            merged += usize::from(check(&name, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(merged >= 8, "{merged} were valid");
}
