//! What goes wrong beneath and beside the daemon: it and the other devices carry on.

use crate::disks::Disk;
use crate::lab::Lab;
use crate::programs::{fio, nbdsh};
use crate::udm::{Udm, wait_until};
use std::fs::File;
use std::process::{Child, Command, Stdio};

const SIZE: u64 = 16 << 20;
const SECTORS: u64 = SIZE / 512;

/// Cuts a file to half beneath a live device.
fn truncate(file: &std::path::Path) {
    File::options().write(true).open(file).and_then(|file| file.set_len(SIZE / 2)).expect("the file can be cut");
}

#[track_caller]
fn check_truncation(disk: &Disk, target: &str) {
    let lab = Lab::new();
    let file = disk.file("backing", SIZE);
    lab.udm.create("dev", &format!("0 {SECTORS} {target} {file} 0"));
    lab.udm.create("other", &format!("0 {SECTORS} ram"));
    let script = r#"
import errno, os
h.connect_uri(uri)
half = h.get_size() // 2
h.pwrite(b"a" * 8192, half - 4096)
h.flush()
os.truncate(path, half)
def fails(call, *args):
    try:
        call(*args)
        assert False, (call, args[1:], "succeeds")
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error.string
# What is left is there; what is gone is an error for those who want it, and stays one.
assert h.pread(4096, half - 4096) == b"a" * 4096
for again in range(2):
    fails(h.pread, 4096, half)
    fails(h.pread, 8192, half - 4096)
    fails(h.pread, 4096, 2 * half - 4096)
h.pwrite(b"b" * 4096, 0)
h.flush()
assert h.pread(4096, 0) == b"b" * 4096
# Given back, it serves again: nothing was poisoned.
os.truncate(path, 2 * half)
assert h.pread(4096, half) == bytes(4096)
h.pwrite(b"c" * 4096, half)
assert h.pread(4096, half) == b"c" * 4096
"#;
    nbdsh::script(&lab.udm.uri("dev"), &format!("path = {:?}", disk.path("backing")), script);
    truncate(&disk.path("backing"));
    nbdsh::script(
        &lab.udm.uri("other"),
        "",
        "h.connect_uri(uri); h.pwrite(b'x' * 512, 0); assert h.pread(512, 0) == b'x' * 512",
    );
    // The device is still there for all commands, and can be taken down.
    assert!(lab.udm.ok(&["status", "dev"]).contains(target));
    wait_until("its client has gone", || lab.udm.number("dev", "open") == 0);
    lab.udm.ok(&["remove", "dev"]);
}

#[test]
fn a_file_cut_beneath_a_live_device_is_an_error_of_its_own() {
    if !nbdsh::installed() {
        return;
    }
    for target in ["loop", "linear"] {
        check_truncation(&Disk::of_build(), target);
        if let Some(disk) = Disk::of_memory() {
            check_truncation(&disk, target);
        }
    }
}

/// fio that writes until it is ended.
fn endless_load(udm: &Udm, device: &str) -> Child {
    let mut options = fio::options(&udm.uri(device), 2, SIZE);
    options.extend(["--rw=randwrite", "--bs=16k", "--time_based", "--runtime=100"].map(Into::into));
    // Threads rather than processes: a kill ends them all.
    options.push("--thread".into());
    let mut command = Command::new("fio");
    command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().expect("fio can be run");
    wait_until("there is a load", || udm.number(device, "writes") > 500);
    child
}

#[test]
fn after_a_kill_under_load_the_next_command_finds_a_daemon() {
    if !fio::installed() || !nbdsh::installed() {
        return;
    }
    let lab = Lab::new();
    let file = lab.disk.file("backing", SIZE);
    let table = format!("0 {SECTORS} linear {file} 0");
    let (mut killed, mut first) = (Vec::new(), true);
    lab.udm.create("dev", &table);
    for round in 0..3 {
        lab.udm.create("gone", &format!("0 {SECTORS} ram"));
        let uri = lab.udm.uri("dev");
        if !first {
            // What was flushed before the kill is there.
            nbdsh::script(
                &uri,
                "",
                &format!("h.connect_uri(uri); assert h.pread(512, h.get_size() - 512) == b'{}' * 512", round - 1),
            );
        }
        nbdsh::script(
            &uri,
            "",
            &format!("h.connect_uri(uri); h.pwrite(b'{round}' * 512, h.get_size() - 512); h.flush()"),
        );
        first = false;
        let mut load = endless_load(&lab.udm, "gone");
        let daemon = lab.udm.daemon();
        lab.udm.kill();
        assert!(!load.wait().expect("fio ends").success(), "its disk has gone: it is told");
        killed.push(daemon);
        // No cleaning by hand: the next command starts another, which has the same devices.
        assert_eq!(lab.udm.ok(&["table", "dev"]), format!("{table}\n"));
        assert_eq!(lab.udm.ok(&["table", "gone"]), format!("0 {SECTORS} error \n"));
        assert!(!killed.contains(&lab.udm.daemon()));
        assert!(lab.udm.ok(&["daemon", "--status"]).contains("lost: gone: "), "it is told what has gone");
        lab.udm.ok(&["remove", "gone"]);
    }
}

#[test]
fn clients_killed_while_they_write_leave_nothing_open() {
    if !fio::installed() {
        return;
    }
    let lab = Lab::new();
    let file = lab.disk.file("backing", SIZE);
    lab.udm.create("dev", &format!("0 {SECTORS} linear {file} 0"));
    for _ in 0..3 {
        let mut load = endless_load(&lab.udm, "dev");
        assert!(lab.udm.number("dev", "open") >= 2);
        load.kill().expect("fio lives");
        load.wait().expect("fio ends");
        // At once, without a look at the count: who has gone is noticed before the answer "busy".
        lab.udm.ok(&["remove", "dev"]);
        lab.udm.create("dev", &format!("0 {SECTORS} linear {file} 0"));
    }
    assert_eq!(lab.udm.number("dev", "open"), 0);
}

#[test]
fn a_table_of_many_targets_is_like_any_other() {
    const TARGETS: u64 = 20_000;
    if !nbdsh::installed() {
        return;
    }
    let lab = Lab::new();
    let file = lab.disk.file("backing", TARGETS * 512);
    // Backwards, so that no two neighbours make one piece.
    let table: String = (0..TARGETS).map(|n| format!("{n} 1 linear {file} {}\n", TARGETS - 1 - n)).collect();
    let path = lab.disk.path("table");
    std::fs::write(&path, &table).expect("room for a table");
    // It may take so long that it says what it waits for.
    let created = lab.udm.run(&["create", "dev", path.to_str().expect("text")]);
    assert_eq!(created.code, 0, "{}", created.stderr);
    assert_eq!(lab.udm.ok(&["table", "dev"]).lines().count() as u64, TARGETS);
    let script = r"
h.connect_uri(uri)
data = b''.join(n.to_bytes(4, 'big') * 128 for n in range(1000))
h.pwrite(data, h.get_size() - len(data))
assert h.pread(len(data), h.get_size() - len(data)) == data
back = open(path, 'rb').read(len(data))
assert back == b''.join(n.to_bytes(4, 'big') * 128 for n in reversed(range(1000)))
";
    nbdsh::script(&lab.udm.uri("dev"), &format!("path = {:?}", lab.disk.path("backing")), script);
}
