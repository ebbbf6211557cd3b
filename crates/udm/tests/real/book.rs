//! What README and the book tell the reader to type works as they say: each page's commands are run in order, in a
//! directory of their own.

use crate::disks::Disk;
use crate::programs::installed_as;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Every page with commands, and what the reader is taken to have before.
const PAGES: &[(&str, &str)] = &[
    ("README.md", "qemu-img create -q -f qcow2 image.qcow2 64M"),
    ("docs/src/daemon.md", ""),
    ("docs/src/getting-started.md", ""),
    ("docs/src/naming.md", ""),
    (
        "docs/src/nbd.md",
        "udm create disk --table '0 131072 ram'; truncate -s 16M image.raw; qemu-img create -q -f qcow2 image.qcow2 64M",
    ),
    ("docs/src/polling.md", "udm create disk --table '0 131072 linear null:size=64M:poll_queues=1 0'"),
    ("docs/src/commands/bench.md", ""),
    ("docs/src/commands/create.md", ""),
    ("docs/src/commands/export.md", ""),
    ("docs/src/commands/load.md", "truncate -s 2G big.img; udm create disk --table '0 2097152 linear /tmp/big.img 0'"),
    (
        "docs/src/commands/remove.md",
        "udm create base --table '0 8 ram'; udm create top --table '0 8 linear /dev/mapper/base 0'",
    ),
    ("docs/src/commands/run.md", "truncate -s 16M image.raw"),
    ("docs/src/commands/set.md", ""),
    (
        "docs/src/commands/snapshot.md",
        r"truncate -s 1M origin.img; { printf 'SnAp\1\0\0\0\1\0\0\0\20\0\0\0'; head -c 100000 /dev/zero; } > cow.img",
    ),
    ("docs/src/commands/splitname.md", ""),
    (
        "docs/src/commands/table.md",
        "udm create base --table '0 8 ram'; udm create top --table '0 8 linear /dev/mapper/base 0'",
    ),
    ("docs/src/commands/target-version.md", ""),
    (
        "docs/src/commands/thin.md",
        "truncate -s 4M meta.img; truncate -s 64M data.img; \
         udm create pool --table '0 131072 thin-pool /tmp/meta.img /tmp/data.img 128 0'",
    ),
    ("docs/src/commands/wait.md", "udm create disk --table '0 8 ram'"),
    ("docs/src/targets/error.md", "truncate -s 1M a.img"),
    ("docs/src/targets/linear.md", "truncate -s 1G a.img b.img; truncate -s 2G sdb"),
    ("docs/src/targets/loop.md", "truncate -s 2G b.img"),
    ("docs/src/targets/ram.md", ""),
    ("docs/src/targets/striped.md", "truncate -s 1G a.img b.img"),
    ("docs/src/targets/thin-pool.md", "truncate -s 4M sdb1; truncate -s 64M sdb2"),
    (
        "docs/src/targets/thin.md",
        "truncate -s 4M meta.img; truncate -s 64M data.img; \
         udm create pool --table '0 131072 thin-pool /tmp/meta.img /tmp/data.img 128 0'",
    ),
    ("docs/src/targets/zero.md", "truncate -s 1M a.img"),
];

/// Programs that pages use; a page is skipped for one that is missing.
const PROGRAMS: &[(&str, &str)] = &[
    ("nbdinfo", "--version"),
    ("nbdcopy", "--version"),
    ("qemu-img", "--version"),
    ("fio", "--version"),
    ("mkfs.ext4", "-V"),
];

/// What is told in gigabytes is tried in megabytes, and measurements need not be good ones. Files are in `/tmp`, which
/// becomes a directory of the test's own.
const SMALLER: &[(&str, &str)] = &[
    ("2097152", "131072"),
    ("4194304", "262144"),
    ("1G", "64M"),
    ("2G", "128M"),
    ("--runtime=3 --rounds=5", "--runtime=50ms --rounds=2"),
    ("--verify=crc32c\nudm", "--verify=crc32c --runtime=50ms\nudm"),
    ("--lat=off", "--lat=off --runtime=50ms"),
    ("--device d --rw=randread", "--device d --rw=randread --runtime=50ms"),
    ("/var/tmp/", "/tmp/"),
    ("/dev/sdb", "/tmp/sdb"),
];

/// The reader's shell. What would stay in the foreground for ever is ended after a while, as the reader would.
const SHELL: &str = r#"set -euo pipefail
set -m
qemu-system-x86_64() { :; }
make() { :; }
udm() {
    case "$*" in
        daemon) "$UDM" "$@" 2>/dev/null & until [ -S "$XDG_RUNTIME_DIR/udm/udm.sock" ]; do sleep 0.02; done ;;
        "run "*) timeout --preserve-status -s INT 2 "$UDM" "$@" ;;
        "wait "*) timeout 1 "$UDM" "$@" || test $? = 124 ;;
        *) "$UDM" "$@" ;;
    esac
}
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of a page.
fn blocks(page: &Path) -> String {
    let text = std::fs::read_to_string(page).expect("a page");
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let fence = line.starts_with("```");
        inside = if fence { !inside && *line == "```sh" } else { inside };
        inside && !fence
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[track_caller]
fn check(name: &str) {
    let (page, before) = PAGES.iter().find(|(page, _)| *page == name).expect("a page of the list");
    let blocks = blocks(&root().join(page));
    let script = format!("{before}\n{blocks}");
    if !PROGRAMS.iter().all(|(program, option)| !script.contains(program) || installed_as(program, option)) {
        return;
    }
    let disk = Disk::at("/tmp").expect("a directory in /tmp");
    let dir = disk.path("");
    let dir = dir.to_str().expect("text");
    let script = SMALLER.iter().fold(script, |script, (from, to)| script.replace(from, to)).replace("/tmp/", dir);
    let run = disk.path("runtime");
    std::fs::create_dir(&run).expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command.args(["100", "bash", "-c", &format!("{SHELL}{script}")]).current_dir(dir).stdin(Stdio::null());
    command.env_remove("UDM_DIR").env("XDG_RUNTIME_DIR", &run).env("UDM", env!("CARGO_BIN_EXE_udm"));
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let output = command.output().expect("timeout(1) and bash are there");
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    // Daemons end by themselves when their directories are gone.
    assert!(output.status.success(), "{page}: {}\n{script}\n----\n{printed}", output.status);
}

/// One test for each page, so that they run side by side and fail by name.
macro_rules! pages {
    ($($test:ident $page:literal)*) => {
        const TESTED: &[&str] = &[$($page),*];
        $(#[test]
        fn $test() {
            check($page);
        })*
    };
}

pages! {
    readme "README.md"
    daemon "docs/src/daemon.md"
    getting_started "docs/src/getting-started.md"
    nbd "docs/src/nbd.md"
    polling "docs/src/polling.md"
    run "docs/src/commands/run.md"
    bench "docs/src/commands/bench.md"
}

/// The pages that take no time.
#[test]
fn short_pages() {
    PAGES.iter().filter(|(page, _)| !TESTED.contains(page)).for_each(|(page, _)| check(page));
}

#[test]
fn every_page_with_commands_is_tried() {
    let book = root().join("docs/src");
    for dir in ["", "commands", "targets"] {
        for entry in std::fs::read_dir(book.join(dir)).expect("the book") {
            let path = entry.expect("a page").path();
            if path.extension().is_none_or(|e| e != "md") || blocks(&path).is_empty() {
                continue;
            }
            let name = path.strip_prefix(root()).expect("within").to_str().expect("text").to_owned();
            assert!(PAGES.iter().any(|(page, _)| *page == name), "{name} has commands that no test runs");
        }
    }
}
