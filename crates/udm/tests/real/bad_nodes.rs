//! Nodes where something is missing, in the way, or in a circle: an error that says what to do, and never a hang.

use crate::disks::Disk;
use crate::programs::{fails, installed, installed_as, outcome, run};
use crate::udm::{Udm, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

fn node(udm: &Udm, name: &str) -> PathBuf {
    udm.nbd_socket().with_file_name("dev").join(name)
}

fn node_text(udm: &Udm, name: &str) -> String {
    node(udm, name).to_str().expect("text").to_owned()
}

/// Whether a node can be made here; the daemon's own words if not.
fn can(udm: &Udm, kind: &str) -> bool {
    let made = udm.run(&["create", "probe", &format!("--node={kind}"), "--table", "0 8 zero"]);
    udm.run(&["remove", "probe"]);
    if made.code != 0 {
        println!("SKIP {}", made.stderr.trim());
    }
    made.code == 0
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIP only root can take devices away");
    }
    root
}

#[track_caller]
fn refused(udm: &Udm, words: &[&str], expect: &str) {
    let printed = udm.run(words);
    assert!(printed.code != 0 && printed.stderr.contains(expect), "{words:?}, {expect:?}: {}", printed.stderr);
}

/// A daemon in the foreground, ended in order.
fn serve(udm: &Udm, mut command: Command) -> Option<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("it can be run");
    let mut served = false;
    // The directory may be another user's: then root has to name it.
    let dir = udm.nbd_socket().with_file_name("");
    let dir = dir.to_str().expect("text");
    wait_until("it serves, or has ended", || {
        served = udm.run(&["--dir", dir, "daemon", "--status"]).code == 0;
        served || child.try_wait().expect("a child").is_some()
    });
    served.then_some(child)
}

/// A daemon whose /dev has these nodes and no others; `None`, and said so, where there is no way to that.
fn serve_with(udm: &Udm, devices: &[&str]) -> Option<Child> {
    if !is_root() || !installed("unshare") {
        return None;
    }
    let script = "mount -t tmpfs none /dev; for n in \"null c 1 3\" \"urandom c 1 9\" $DEVICES; do mknod /dev/$n; done; exec \"$@\"";
    let script = script.replace("$DEVICES", &devices.iter().map(|d| format!("\"{d}\"")).collect::<Vec<_>>().join(" "));
    let daemon = udm.command();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &script, "sh"]).arg(daemon.get_program()).arg("daemon");
    command.env("UDM_DIR", udm.nbd_socket().parent().expect("a directory"));
    let served = serve(udm, command);
    if served.is_none() {
        println!("SKIP no mount namespace can be made here");
    }
    served
}

const FUSE: &str = "fuse c 10 229";
const LOOP_CONTROL: &str = "loop-control c 10 237";

#[test]
fn without_fuse() {
    let udm = Udm::new();
    let Some(mut daemon) = serve_with(&udm, &[]) else { return };
    for kind in ["fuse", "auto"] {
        let made = udm.run(&["create", "a", &format!("--node={kind}"), "--table", "0 8 zero"]);
        assert!(made.code != 0 && made.stderr.contains("modprobe fuse"), "{kind}: {}", made.stderr);
        // The device is there, and reached in other ways.
        assert!(udm.ok(&["export", "a"]).contains("nbd+unix"));
        udm.ok(&["remove", "a"]);
    }
    udm.ok(&["daemon", "--stop"]);
    daemon.wait().expect("a child");
}

#[test]
fn without_loop_devices() {
    for (devices, why) in [(&[FUSE][..], "modprobe loop"), (&[FUSE, LOOP_CONTROL], "no loop device is left")] {
        let udm = Udm::new();
        let Some(mut daemon) = serve_with(&udm, devices) else { return };
        let made = udm.run(&["create", "a", "--node=loop", "--table", "0 8 zero"]);
        if made.stderr.contains("modprobe fuse") {
            println!("SKIP {}", made.stderr);
        } else {
            assert!(made.code != 0 && made.stderr.contains(why), "{why}: {}", made.stderr);
            assert_eq!(udm.ok(&["node"]), "");
            // Whoever did not insist has a file.
            let added = udm.run(&["node", "add", "a"]);
            assert_eq!(added.code, 0, "{}", added.stderr);
            assert!(udm.ok(&["node"]).starts_with("a\tfuse\t"));
            udm.ok(&["remove", "a"]);
        }
        udm.ok(&["daemon", "--stop"]);
        daemon.wait().expect("a child");
    }
}

#[test]
fn without_root() {
    const NOBODY: u32 = 65534;
    for helper in [true, false] {
        let udm = Udm::new();
        let dir = udm.nbd_socket().with_file_name("");
        let mut command = udm.command();
        command.arg("daemon").env("PATH", if helper { "/usr/bin:/bin" } else { "/nonexistent" });
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(NOBODY), Some(NOBODY)).expect("root may");
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        let Some(mut daemon) = serve(&udm, command) else {
            println!("SKIP another user cannot run the program where it is");
            return;
        };
        // Root has to name a directory that is another user's.
        let dir = dir.to_str().expect("text");
        let run = |words: &[&str]| udm.run(&[&["--dir", dir], words].concat());
        let ok = |words: &[&str]| udm.ok(&[&["--dir", dir], words].concat());
        ok(&["create", "a", "--table", "0 2048 ram"]);
        for (words, expect) in [
            (["node", "add", "a", "--kind", "loop"].as_slice(), "a loop device needs root"),
            (&["node", "add", "a", "--kind", "auto", "--mapper"], "it needs root"),
        ] {
            refused(&udm, &[&["--dir", dir], words].concat(), expect);
        }
        let added = run(&["node", "add", "a"]);
        if !helper {
            assert!(added.code != 0 && added.stderr.contains("fusermount3"), "{}", added.stderr);
        } else if added.code == 0 {
            assert!(ok(&["node"]).starts_with("a\tfuse\t"));
            ok(&["node", "remove", "a"]);
        } else {
            println!("SKIP {}", added.stderr.trim());
        }
        ok(&["daemon", "--stop"]);
        daemon.wait().expect("a child");
    }
}

#[test]
fn a_second_daemon_leaves_the_nodes_of_the_first() {
    let udm = Udm::new();
    if !can(&udm, "fuse") {
        return;
    }
    udm.ok(&["create", "a", "--node=fuse", "--table", "0 8 ram"]);
    let file = File::options().read(true).write(true).open(node(&udm, "a")).expect("a node");
    file.write_all_at(&[7; 512], 0).expect("a device");
    refused(&udm, &["daemon"], "already serves");
    let mut back = [0; 512];
    file.read_exact_at(&mut back, 0).expect("it is still served");
    assert_eq!((back, fs::read(node(&udm, "a")).expect("it is still there").len()), ([7; 512], 4096));
}

#[test]
fn a_table_on_a_node_of_its_own_daemon() {
    let udm = Udm::new();
    if !can(&udm, "fuse") {
        return;
    }
    const WHY: &str = "lies on a node of this daemon";
    udm.ok(&["create", "a", "--node=fuse", "--table", "0 65536 ram"]);
    let (file, real) = (node_text(&udm, "a"), node_text(&udm, ".files/a"));
    let disk = Disk::of_build();
    let link = disk.path("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    for path in [&*file, &*real, link.to_str().expect("text")] {
        let table = format!("0 8 linear {path} 0");
        refused(&udm, &["load", "a", "--table", &table], WHY);
        refused(&udm, &["create", "b", "--table", &table], WHY);
    }
    udm.ok(&["create", "b", "--table", "0 8 linear /dev/mapper/a 0"]);
    udm.ok(&["remove", "b"]);
    // Another daemon may: it waits for this one, and not for itself.
    let other = Udm::new();
    other.create("b", &format!("0 8 linear {file} 0"));
    other.ok(&["remove", "b"]);
    udm.ok(&["node", "remove", "a"]);
    if !can(&udm, "loop") || !installed_as("mkfs.ext4", "-V") {
        return;
    }
    // By its number, and in a file of a file system on it.
    udm.ok(&["node", "add", "a", "--kind", "loop"]);
    let device = fs::read_link(node(&udm, "a")).expect("a link to a block device");
    let number = device.to_str().and_then(|path| path.strip_prefix("/dev/loop")).expect("a loop device").to_owned();
    for spec in [device.to_str().expect("text"), &format!("7:{number}")] {
        refused(&udm, &["load", "a", "--table", &format!("0 8 linear {spec} 0")], WHY);
    }
    // On a loop device of somebody else's, whose file's name has become another's.
    let upper = disk.path("upper");
    std::os::unix::fs::symlink(device.to_str().expect("text"), &upper).expect("a link");
    let stacked = run("losetup", &["--find", "--show", upper.to_str().expect("text")]);
    fs::remove_file(&upper).expect("a link");
    let said = udm.run(&["load", "a", "--table", &format!("0 8 linear {} 0", stacked.trim())]);
    run("losetup", &["-d", stacked.trim()]);
    assert!(said.code != 0 && said.stderr.contains(WHY), "{}", said.stderr);
    run("mkfs.ext4", &["-q", &node_text(&udm, "a")]);
    let mounted = disk.path("mnt");
    fs::create_dir(&mounted).expect("a directory");
    run("mount", &[&node_text(&udm, "a"), mounted.to_str().expect("text")]);
    let image = mounted.join("image");
    fs::write(&image, [0; 8192]).expect("room");
    let stacked = run("losetup", &["--find", "--show", image.to_str().expect("text")]);
    let said = [image.to_str().expect("text"), stacked.trim()]
        .map(|spec| udm.run(&["create", "b", "--table", &format!("0 8 linear {spec} 0")]).stderr);
    // It is found by the file, not by its name.
    fs::remove_file(&image).expect("a file");
    let unnamed = udm.run(&["create", "b", "--table", &format!("0 8 linear {} 0", stacked.trim())]).stderr;
    run("losetup", &["-d", stacked.trim()]);
    run("umount", &[mounted.to_str().expect("text")]);
    for said in said.iter().chain([&unnamed]) {
        assert!(said.contains(WHY), "{said}");
    }
    assert!(said[1].contains("(by loop") && said[1].contains(mounted.to_str().expect("text")), "{}", said[1]);
}

#[test]
fn a_table_on_an_export_of_its_own_daemon() {
    const WHY: &str = "is an export of this daemon, which would wait for itself";
    let (udm, other, disk) = (Udm::new(), Udm::new(), Disk::of_build());
    udm.create("a", "0 65536 ram");
    // By whatever path it is named.
    let (link, hard) = (disk.path("link"), udm.nbd_socket().with_file_name("hard"));
    std::os::unix::fs::symlink(udm.nbd_socket(), &link).expect("a link");
    let port = |udm: &Udm, address: &str| {
        let uri = udm.ok(&["export", "a", "--tcp", address]);
        uri.trim().rsplit_once(':').and_then(|(_, at)| at.split('/').next()).expect("a port").to_owned()
    };
    let (local, any) = (port(&udm, "127.0.0.1:0"), port(&udm, "0.0.0.0:0"));
    let unix = |path: &std::path::Path| format!("nbd+unix:///a?socket={}", path.display());
    let own = [
        unix(&udm.nbd_socket()),
        unix(&link),
        unix(&hard),
        format!("nbd://127.0.0.1:{local}/a"),
        format!("nbd://localhost:{local}/a"),
        format!("nbd://127.0.0.1:{any}/a"),
        format!("nbd://127.9.9.9:{any}/a"),
    ];
    for round in ["made", "replaced", "made anew"] {
        // After a kill the socket is another.
        let _ = fs::remove_file(&hard);
        fs::hard_link(udm.nbd_socket(), &hard).expect("a link");
        for uri in &own {
            let table = format!("0 8 linear {uri} 0");
            refused(&udm, &["load", "a", "--table", &table], WHY);
            refused(&udm, &["create", "b", "--table", &table], WHY);
        }
        match round {
            "made" => drop(udm.ok(&["daemon", "--replace"])),
            _ => udm.kill(),
        }
        udm.ok(&["ls"]);
    }
    // Another daemon's are others, and what is no longer exported is nobody's.
    other.create("a", "0 65536 ram");
    let far = port(&other, "127.0.0.1:0");
    for uri in [other.uri("a"), format!("nbd://127.0.0.1:{far}/a")] {
        udm.create("b", &format!("0 8 linear {uri} 0"));
        udm.ok(&["remove", "b"]);
    }
    udm.ok(&["export", "a", "--remove"]);
    refused(&udm, &["create", "b", "--table", &format!("0 8 linear nbd://127.0.0.1:{local}/a 0")], "cannot connect");
}

#[test]
fn a_daemon_ends_with_a_suspended_device_beneath_a_loop_device() {
    for beneath in [false, true] {
        let (udm, disk) = (Udm::new(), Disk::of_build());
        if !can(&udm, "loop") {
            return;
        }
        let file = disk.file("image", 4 << 20);
        udm.create("low", &format!("0 8192 linear {file} 0"));
        udm.ok(&["create", "vol", "--node=loop", "--table", "0 8192 linear /dev/mapper/low 0"]);
        let device = fs::read_link(node(&udm, "vol")).expect("a link to a block device");
        let sysfs = PathBuf::from("/sys/block").join(device.file_name().expect("a name")).join("loop");
        udm.ok(&["suspend", if beneath { "low" } else { "vol" }]);
        // Who writes waits, for the resume that does not come.
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=64k", "count=4", "conv=fsync,notrunc"]).arg(format!("of={}", device.display()));
        let mut dd = dd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("dd is there");
        wait_until("something waits", || {
            !fs::read_to_string(sysfs.with_file_name("inflight"))
                .is_ok_and(|text| text.split_whitespace().all(|count| count == "0"))
        });
        udm.ok(&["daemon", "--stop"]);
        assert!(!dd.wait().expect("a child").success(), "what waited fails");
        wait_until("its block device is free", || !sysfs.exists());
        let log = fs::read_to_string(udm.nbd_socket().with_file_name("log")).expect("a log");
        assert!(log.contains("vol is suspended, or what it is on"), "{log}");
    }
}

#[test]
fn a_mounted_device_that_grows_and_one_that_is_read_only() {
    let (udm, disk) = (Udm::new(), Disk::of_build());
    let tools = ["mkfs.xfs", "xfs_growfs", "xfs_repair"];
    if !can(&udm, "loop") || !tools.iter().all(|program| installed_as(program, "-V")) {
        return;
    }
    let (small, large) = (320 * 2048, 640 * 2048);
    let file = disk.file("image", large * 512);
    udm.ok(&["create", "vol", "--node=loop", "--table", &format!("0 {small} linear {file} 0")]);
    let node = node_text(&udm, "vol");
    run("mkfs.xfs", &["-q", &node]);
    let dir = disk.path("mnt");
    fs::create_dir(&dir).expect("a directory");
    let mounted = dir.to_str().expect("text");
    run("mount", &[&node, mounted]);
    let kept = fs::write(dir.join("kept"), "before it grew");
    udm.ok(&["load", "vol", "--table", &format!("0 {large} linear {file} 0")]);
    udm.ok(&["resume", "vol"]);
    let (grown, text) = outcome("xfs_growfs", &[mounted]);
    let big = File::create(dir.join("big")).and_then(|big| {
        rustix::fs::fallocate(big, rustix::fs::FallocateFlags::empty(), 0, 400 << 20).map_err(Into::into)
    });
    refused(&udm, &["remove", "vol"], "unmount or close it first");
    run("umount", &[mounted]);
    assert!(grown && kept.is_ok() && big.is_ok(), "{text}{kept:?}{big:?}");
    run("xfs_repair", &["-n", &node]);

    udm.ok(&["load", "-r", "vol", "--table", &format!("0 {large} linear {file} 0")]);
    udm.ok(&["resume", "vol"]);
    fails(
        "dd",
        &["if=/dev/zero", "count=1", &format!("of={node}")],
        &["Operation not permitted", "Read-only file system"],
    );
    fails("mount", &["-w", &node, mounted], &["write-protected", "read-only"]);
    run("mount", &["-o", "ro", &node, mounted]);
    let kept = fs::read_to_string(dir.join("kept"));
    run("umount", &[mounted]);
    assert_eq!(kept.expect("it was written"), "before it grew");
    let device = fs::read_link(&node).expect("a link to a block device");
    udm.ok(&["remove", "vol"]);
    // The number is somebody else's next.
    let marked = PathBuf::from("/sys/block").join(device.file_name().expect("a name")).join("ro");
    wait_until("it is no longer read-only", || !fs::read_to_string(&marked).is_ok_and(|text| text.starts_with('1')));
}
