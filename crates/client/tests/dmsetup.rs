//! The command line against a device mapper in memory: what the real dmsetup printed for the same
//! commands, and what goes beyond it.

#[path = "support/fake_kernel.rs"]
mod fake_kernel;
#[path = "support/golden.rs"]
mod golden;

use fake_kernel::{FakeKernel, MAJOR};
use golden::{Backing, Place, replay};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use udm_base::DevT;

/// An empty kernel and a place with four backing devices.
fn empty() -> (FakeKernel, Place, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let sysfs = dir.path().join("sys");
    let cwd = dir.path().join("cwd");
    std::fs::create_dir_all(sysfs.join("dev/block")).unwrap();
    std::fs::create_dir(&cwd).unwrap();
    let backing =
        (0..4).map(|i| Backing { path: format!("/dev/nul{i}"), major: 252, minor: i, name: format!("nul{i}") });
    let backing: Vec<Backing> = backing.collect();
    for device in &backing {
        let link = sysfs.join(format!("dev/block/{}:{}", device.major, device.minor));
        symlink(format!("../../devices/virtual/block/{}", device.name), link).unwrap();
    }
    let kernel = FakeKernel::new(backing.iter().map(|b| (b.path.clone(), DevT::new(b.major, b.minor))).collect());
    let place = Place { backing, dm_major: MAJOR, node_dir: "/dev/mapper".into(), sysfs, cwd };
    (kernel, place, dir)
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/dmsetup")
}

#[test]
fn goldens_replay() {
    let mut count = 0;
    let mut failures = String::new();
    let only = std::env::var("GOLDEN").unwrap_or_default();
    for entry in std::fs::read_dir(goldens()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".golden") || !name.contains(&only) {
            continue;
        }
        let (mut kernel, place, _dir) = empty();
        let diffs = replay(&mut kernel, &place, &std::fs::read_to_string(&path).unwrap());
        count += 1;
        for diff in diffs {
            failures += &format!("\n{name} {diff}\n");
        }
    }
    assert!(count > 0, "no goldens in {}", goldens().display());
    assert!(failures.is_empty(), "{failures}");
}
