//! Block devices of the host: a table has them for itself, as the kernel's device mapper does, and none that somebody
//! else has.

use crate::disks::Disk;
use crate::programs::{installed_as, outcome, run};
use crate::udm::Udm;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A loop device of the kernel with a file system on it; gone with the value.
struct Formatted {
    node: String,
    point: PathBuf,
    _disk: Disk,
}

impl Formatted {
    /// `None`, and said so, where that cannot be made.
    fn new() -> Option<Self> {
        if !installed_as("mkfs.ext4", "-V") {
            return None;
        }
        let disk = Disk::of_build();
        let (file, point) = (disk.file("disk", 16 << 20), disk.path("mnt"));
        let made = Command::new("losetup").args(["--find", "--show", &file]).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            println!("SKIP no loop device can be set up here");
            return None;
        };
        let node = String::from_utf8(made.stdout).expect("a path").trim().to_owned();
        std::fs::create_dir(&point).expect("a directory");
        let formatted = Self { node, point, _disk: disk };
        run("mkfs.ext4", &["-q", &formatted.node]);
        Some(formatted)
    }

    fn point(&self) -> &str {
        self.point.to_str().expect("text")
    }

    /// What mount(8) says when it cannot.
    fn mount(&self) -> Result<Mounted<'_>, String> {
        match outcome("mount", &[&self.node, self.point()]) {
            (true, _) => Ok(Mounted(&self.point)),
            (false, text) => Err(text),
        }
    }
}

impl Drop for Formatted {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.node]).status();
    }
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[track_caller]
fn refused(udm: &Udm, words: &[&str], expect: &str) {
    let said = udm.run(words);
    assert!(said.code != 0 && said.stderr.contains(expect), "{words:?}, {expect:?}: {}", said.stderr);
}

#[test]
fn a_table_does_not_lie_under_a_file_system() {
    let (Some(disk), udm, other) = (Formatted::new(), Udm::new(), Disk::of_build()) else { return };
    let (node, mounted) = (&disk.node, disk.mount().expect("it is free"));
    let (cow, meta, data) = (other.file("cow", 8 << 20), other.file("meta", 4 << 20), other.file("data", 8 << 20));
    udm.create("pool", &format!("0 16384 thin-pool {meta} {data} 128 0"));
    udm.ok(&["message", "pool", "0", "create_thin 0"]);
    let why = format!("is in use by the file system mounted at {}", disk.point());
    for table in [
        format!("0 8 linear {node} 0"),
        format!("0 16 striped 2 8 {node} 0 {cow} 0"),
        format!("0 8 snapshot-origin {node}"),
        format!("0 8 snapshot {node} {cow} P 8"),
        format!("0 8 thin /dev/mapper/pool 0 {node}"),
        format!("0 8 thin-pool {node} {cow} 128 0"),
    ] {
        refused(&udm, &["create", "x", "--table", &table], &why);
    }
    refused(&udm, &["create", "x", "-r", "--table", &format!("0 8 linear {node} 0")], &why);
    drop(mounted);
    udm.create("x", &format!("0 8 linear {node} 0"));
}

#[test]
fn one_claim_for_all_tables_and_from_daemon_to_daemon() {
    let (Some(disk), udm, far) = (Formatted::new(), Udm::new(), Udm::new()) else { return };
    let table = format!("0 8 linear {} 0", disk.node);
    udm.create("a", &table);
    udm.create("b", &table);
    udm.ok(&["create", "c", "-r", "--table", &table]);
    let held = |when: &str| {
        let said = disk.mount().err().unwrap_or_else(|| panic!("{when}: it is mounted under a table"));
        assert!(said.contains("busy") || said.contains("already mounted"), "{when}: {said}");
    };
    held("three tables");
    refused(&far, &["create", "x", "--table", &table], &format!("(pid {})", udm.daemon().as_raw_pid()));
    udm.ok(&["remove", "a"]);
    udm.ok(&["remove", "b"]);
    held("one table, which only reads");
    // Another daemon has it before this one lets go.
    let (done, tries) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                held("while the daemon is replaced");
                tries.store(true, Ordering::Release);
            }
        });
        for _ in 0..3 {
            udm.ok(&["daemon", "--replace"]);
        }
        done.store(true, Ordering::Release);
    });
    assert!(tries.load(Ordering::Acquire));
    held("replaced");
    udm.kill();
    assert!(udm.ok(&["table", "c"]).contains("linear"));
    held("after a kill");
    udm.ok(&["remove", "c"]);
    drop(disk.mount().expect("it is free"));
    // Nor does the daemon before keep what it gave.
    udm.create("a", &table);
    udm.ok(&["daemon", "--replace"]);
    udm.ok(&["remove", "a"]);
    drop(disk.mount().expect("it is free"));
}

#[test]
fn metadata_on_a_block_device_passes_to_the_next_daemon() {
    let (Some(disk), udm, other) = (Formatted::new(), Udm::new(), Disk::of_build()) else { return };
    let (node, data) = (&disk.node, other.file("data", 8 << 20));
    run("dd", &["if=/dev/zero", &format!("of={node}"), "bs=4k", "count=1", "conv=fsync"]);
    udm.create("pool", &format!("0 16384 thin-pool {node} {data} 128 0"));
    for when in ["made", "replaced", "killed"] {
        let table = format!("0 8 linear {node} 0");
        refused(&udm, &["create", "x", "--table", &table], "is in use by metadata, COW or pool data of another table");
        // The same pool's next table may have it.
        udm.ok(&["load", "pool", "--table", &format!("0 16384 thin-pool {node} {data} 128 0")]);
        udm.ok(&["resume", "pool"]);
        match when {
            "made" => drop(udm.ok(&["daemon", "--replace"])),
            _ => udm.kill(),
        }
        assert!(udm.ok(&["status", "pool"]).contains("rw"), "{when}");
    }
}
