//! Devices in the file system, made by the command line and used by the kernel and its programs. What the machine does
//! not let us do is skipped, and said.

use crate::common::{Place, stderr, stdout, until};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use udm_testing::{FuseUring, installed};

/// Whether a node can be made here; the daemon's own words if not.
fn can(place: &Place, kind: &str) -> bool {
    let made = place.udm(["create", "probe", &format!("--node={kind}"), "--table", "0 8 zero"]);
    place.udm(["remove", "probe"]);
    if !made.status.success() {
        println!("SKIP {}", stderr(&made).trim());
    }
    made.status.success()
}

#[track_caller]
fn run<S: AsRef<OsStr>>(program: &str, words: impl IntoIterator<Item = S>) -> String {
    let output = Command::new(program).args(words).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{program}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[track_caller]
fn refused(output: &Output, expect: &str) {
    assert!(!output.status.success() && stderr(output).contains(expect), "{expect:?}: {}", stderr(output));
}

fn node(place: &Place, name: &str) -> PathBuf {
    place.dir().join("dev").join(name)
}

fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// The node that `info --json` shows.
fn shown(place: &Place, name: &str) -> serde_json::Value {
    let info: serde_json::Value = serde_json::from_str(&place.ok(&format!("info --json {name}"))).unwrap();
    info["devices"][0]["node"].clone()
}

#[test]
fn a_file() {
    let place = Place::new();
    if !can(&place, "fuse") {
        return;
    }
    place.create(&["vol", "--node=fuse"], "0 2048 ram");
    let path = node(&place, "vol");
    assert_eq!(shown(&place, "vol")["path"], path.to_str().unwrap());
    assert_eq!(shown(&place, "vol")["kind"], "fuse");
    assert_eq!(place.ok("node"), format!("vol\tfuse\t{}\t-\t-\n", path.display()));
    let file = rw(&path);
    file.write_all_at(&[7; 5000], 100).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; 5000];
    file.read_exact_at(&mut back, 100).unwrap();
    assert_eq!(back, [7; 5000]);

    // It is open, and so is the device.
    assert!(place.ok("info vol").contains("Open count:        1"));
    refused(&place.udm(["remove", "vol"]), "busy");
    place.ok("rename vol other");
    assert!(!path.exists() && node(&place, "other").exists());
    assert!(place.udm(["load", "other", "--table", "0 1024 zero"]).status.success());
    place.ok("resume other");
    assert_eq!(fs::metadata(node(&place, "other")).unwrap().len(), 512 * 1024);
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 5000);
    assert_eq!(back, [0; 5000]);
    assert!(place.udm(["load", "-r", "other", "--table", "0 1024 zero"]).status.success());
    place.ok("resume other");
    assert!(file.write_at(&[1; 512], 0).is_err());
    assert_eq!(fs::metadata(node(&place, "other")).unwrap().mode() & 0o777, 0o400);

    place.ok("node remove other");
    assert_eq!((place.ok("node"), shown(&place, "other")), (String::new(), serde_json::Value::Null));
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 5000);
    drop(file);
    // It was closed before, and so it is no longer busy.
    place.ok("remove other");
    assert_eq!(fs::read_dir(node(&place, "")).unwrap().count(), 1);
}

#[test]
fn what_is_refused() {
    let place = Place::new();
    refused(
        &place.udm(["create", "a", "--node=best", "--table", "0 8 zero"]),
        "expected auto, ublk, fuse, loop or none",
    );
    refused(&place.udm(["node", "add", "a"]), "no device has the name \"a\"");
    place.zero("a");
    refused(&place.udm(["node", "remove", "a"]), "has no node");
    refused(&place.udm(["node", "add", "a", "--kind", "ublk"]), "no ublk");
    refused(&place.udm(["node", "add", "a", "--kind", "best"]), "expected auto");
    refused(&place.udm(["node", "add", "a", "--kind", "fuse", "--mapper"]), "a name in /dev/mapper");
    place.ok("node add a --kind none");
    // Not the option of a dmsetup.
    let dmsetup = place.command("dmsetup").args(["create", "b", "--node", "--table", "0 8 zero"]).output().unwrap();
    assert!(!dmsetup.status.success());
    if can(&place, "fuse") {
        place.create(&[".files"], "0 8 zero");
        refused(&place.udm(["node", "add", ".files", "--kind", "fuse"]), "cannot be the name of a file");
        assert_eq!(place.ok("node"), "");
    }
}

#[test]
fn every_device() {
    let place = Place::new();
    if !can(&place, "fuse") {
        return;
    }
    place.ok("daemon --stop --forget");
    let mut daemon = place.command("udm").args(["daemon", "--node=fuse"]).spawn().unwrap();
    until("it serves", || place.udm(["daemon", "--status"]).status.success());
    place.zero("a");
    place.create(&["b", "--node=none"], "0 8 zero");
    place.ok("create bare --notable");
    place.zero("c");
    assert!(node(&place, "a").exists() && node(&place, "c").exists());
    place.ok("node remove c");
    place.zero("d");
    let nodes = place.ok("node");
    let names: Vec<_> = nodes.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, ["a", "d"]);
    place.ok("daemon --stop");
    daemon.wait().unwrap();
}

#[test]
fn after_a_kill() {
    let place = Place::new();
    if !can(&place, "fuse") {
        return;
    }
    let image = place.root().join("image");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    place.create(&["vol", "--node=fuse"], &format!("0 2048 linear {} 0", image.display()));
    let file = rw(&node(&place, "vol"));
    file.write_all_at(&[5; 4096], 0).unwrap();
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
    // What it had mounted is dead, and says so.
    assert!(fs::metadata(node(&place, "vol")).is_err());
    assert!(file.read_at(&mut [0; 512], 0).is_err());
    // The next has the device, its node, and a mount of its own.
    assert_eq!(shown(&place, "vol")["kind"], "fuse");
    assert_eq!(fs::read(node(&place, "vol")).unwrap()[..4096], [5; 4096]);
    assert!(file.read_at(&mut [0; 512], 0).is_err());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The directory's and the file's.
    assert_eq!(mounts.matches(place.dir().to_str().unwrap()).count(), 2);
    drop(file);
    place.ok("daemon --stop");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(place.dir().to_str().unwrap()));
}

/// A mount that goes with the test.
struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    fn new(place: &Place, device: &Path, name: &str, options: &str) -> Self {
        let dir = place.root().join(name);
        fs::create_dir_all(&dir).unwrap();
        run("mount", ["-o", options, device.to_str().unwrap(), dir.to_str().unwrap()]);
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::empty());
    }
}

/// Blocks of its pool that have data, and blocks that it has mapped.
fn pool_used(place: &Place) -> u64 {
    let status = place.ok("status pool");
    status.split_whitespace().nth(5).and_then(|used| used.split('/').next()?.parse().ok()).unwrap()
}

fn thin(id: u64, sectors: u64) -> String {
    format!("0 {sectors} thin /dev/mapper/pool {id}")
}

#[track_caller]
fn file_system(mkfs: &[&str], check: &[&str], options: &str) {
    let place = Place::new();
    if !can(&place, "loop") || !installed(mkfs[0]) || !installed(check[0]) {
        return;
    }
    let sectors = 1 << 20;
    for (name, size) in [("meta", 16 << 20), ("data", sectors * 512)] {
        let file = File::create(place.root().join(name)).unwrap();
        file.set_len(size).unwrap();
        let lines = format!("0 {} linear {} 0", size / 512, place.root().join(name).display());
        place.create(&[name], &lines);
    }
    place.create(&["pool"], &format!("0 {sectors} thin-pool /dev/mapper/meta /dev/mapper/data 128 0"));
    place.ok("message pool 0 create_thin 0");
    place.create(&["vol", "--node=loop"], &thin(0, sectors));
    let path = node(&place, "vol");
    assert!(fs::metadata(&path).unwrap().file_type().is_block_device());
    run(mkfs[0], mkfs[1..].iter().copied().chain([path.to_str().unwrap()]));
    let mounted = Mounted::new(&place, &path, "mnt", "rw");

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tree = mounted.0.join("tree");
    run("cp", [OsStr::new("-r"), source.as_os_str(), tree.as_os_str()]);
    let big = mounted.0.join("big");
    run("dd", words(&format!("if=/dev/urandom of={} bs=1M count=32 oflag=direct status=none", big.display())));
    let sum = run("sha256sum", [&big]);
    refused(&place.udm(["remove", "vol"]), "unmount or close it first");
    refused(&place.udm(["node", "remove", "vol"]), "in use");
    run("sync", [OsStr::new("-f"), mounted.0.as_os_str()]);

    // A snapshot of what is mounted and written to: as after a power cut, and what was synced is there.
    place.ok("suspend vol");
    place.ok("message pool 0 create_snap 1 0");
    place.ok("resume vol");
    fs::remove_dir_all(&tree).unwrap();
    fs::remove_file(&big).unwrap();
    place.create(&["snap", "--node=loop"], &thin(1, sectors));
    let snap = Mounted::new(&place, &node(&place, "snap"), "snap", options);
    run("diff", ["-r", source.to_str().unwrap(), snap.0.join("tree").to_str().unwrap()]);
    let of_snap = run("sha256sum", [snap.0.join("big")]);
    assert_eq!(of_snap.split(' ').next(), sum.split(' ').next());
    drop(snap);
    place.ok("remove snap");
    place.ok("message pool 0 delete 1");

    // What was removed goes back to the pool.
    let before = pool_used(&place);
    // A file system gives up what a removed file had when it gets round to it: XFS does so in the background.
    until("the pool gets back what the removed files had", || {
        run("sync", [OsStr::new("-f"), mounted.0.as_os_str()]);
        run("fstrim", [mounted.0.as_os_str()]);
        pool_used(&place) + 400 < before
    });
    drop(mounted);
    run(check[0], check[1..].iter().copied().chain([path.to_str().unwrap()]));
    place.ok("remove vol");
    assert_eq!(place.ok("node"), "");
}

#[test]
fn ext4_on_a_thin_volume() {
    file_system(&["mkfs.ext4", "-q"], &["e2fsck", "-f", "-n"], "rw");
}

#[test]
fn xfs_on_a_thin_volume() {
    file_system(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"], "rw,nouuid");
}

#[test]
fn a_block_device_after_a_kill() {
    let place = Place::new();
    if !can(&place, "loop") || !installed("mkfs.ext4") {
        return;
    }
    let image = place.root().join("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    place.create(&["vol", "--node=loop"], &format!("0 131072 linear {} 0", image.display()));
    let path = node(&place, "vol");
    run("mkfs.ext4", ["-q", path.to_str().unwrap()]);
    let mounted = Mounted::new(&place, &path, "mnt", "rw");
    fs::write(mounted.0.join("kept"), "what was synced").unwrap();
    run("sync", [OsStr::new("-f"), mounted.0.as_os_str()]);
    let old = fs::read_link(&path).unwrap();
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
    // Nobody waits: what is mounted fails, and the name leads nowhere.
    assert!(fs::metadata(&path).is_err());
    let _ = fs::write(mounted.0.join("lost"), vec![1; 1 << 20]);
    // The device that is still mounted is not used again; the node is on another.
    assert_eq!(shown(&place, "vol")["kind"], "loop");
    let new = fs::read_link(&path).unwrap();
    assert_ne!(new, old);
    drop(mounted);
    let mounted = Mounted::new(&place, &path, "mnt", "rw");
    assert_eq!(fs::read_to_string(mounted.0.join("kept")).unwrap(), "what was synced");
    drop(mounted);
    run("e2fsck", ["-f", "-n", path.to_str().unwrap()]);
    place.ok("remove vol");
    until("the one of before is free", || {
        let backing = Path::new("/sys/block").join(old.file_name().unwrap()).join("loop/backing_file");
        !fs::read_to_string(backing).is_ok_and(|file| file.contains(place.dir().to_str().unwrap()))
    });
}

/// Others have the daemon replaced while files are written and read back: nobody notices.
#[test]
fn a_mounted_file_system_across_daemons() {
    const FILES: usize = 6;
    let place = Place::new();
    if !can(&place, "loop") || !installed("mkfs.ext4") {
        return;
    }
    let image = place.root().join("image");
    File::create(&image).unwrap().set_len(96 << 20).unwrap();
    place.create(&["vol", "--node=loop"], &format!("0 196608 linear {} 0", image.display()));
    let path = node(&place, "vol");
    run("mkfs.ext4", ["-q", path.to_str().unwrap()]);
    let device = fs::read_link(&path).unwrap();
    let mounted = Mounted::new(&place, &path, "mnt", "rw");
    let file = |writer: usize, i: usize| mounted.0.join(format!("{writer}-{i}"));
    let content = |writer: usize, i: usize, round: usize| {
        let word = format!("{writer} {i} {round};");
        word.bytes().cycle().take(100_000 + i * 4096).collect::<Vec<u8>>()
    };
    let done = AtomicBool::new(false);
    let last = std::thread::scope(|scope| {
        let load = |writer: usize| {
            let (file, content, done) = (&file, &content, &done);
            scope.spawn(move || {
                let mut rounds = 0;
                while !done.load(Ordering::Acquire) || rounds < 2 {
                    rounds += 1;
                    for i in 0..FILES {
                        let written = File::create(file(writer, i)).unwrap();
                        written.write_all_at(&content(writer, i, rounds), 0).unwrap();
                        written.sync_all().unwrap();
                        // So that it is read from the device.
                        rustix::fs::fadvise(&written, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    }
                    for i in 0..FILES {
                        assert!(fs::read(file(writer, i)).unwrap() == content(writer, i, rounds), "{writer}, {i}");
                    }
                }
                rounds
            })
        };
        let loads = [load(0), load(1)];
        let mut daemons = vec![place.daemon_pid().unwrap()];
        for _ in 0..3 {
            place.ok("daemon --replace");
            daemons.push(place.daemon_pid().unwrap());
            assert_eq!(fs::read_link(&path).unwrap(), device, "it is the same block device");
        }
        daemons.dedup();
        assert_eq!(daemons.len(), 4);
        done.store(true, Ordering::Release);
        loads.map(|load| load.join().unwrap())
    });
    drop(mounted);
    run("e2fsck", ["-f", "-n", path.to_str().unwrap()]);
    let mounted = Mounted::new(&place, &path, "mnt", "ro");
    for (writer, rounds) in last.into_iter().enumerate() {
        for i in 0..FILES {
            let found = fs::read(mounted.0.join(format!("{writer}-{i}"))).unwrap();
            assert!(found == content(writer, i, rounds), "{writer}, {i}");
        }
    }
    drop(mounted);
    place.ok("remove vol");
}

#[test]
fn requests_by_io_uring() {
    let place = Place::new();
    let offered = FuseUring::offered();
    if !can(&place, "loop") {
        return;
    }
    place.create(&["vol", "--node=loop"], "0 65536 ram");
    let path = node(&place, "vol");
    let file = rw(&path);
    if shown(&place, "vol")["transport"] != "fuse-io_uring" {
        println!("SKIP requests by io_uring: the kernel does not offer them, or the daemon lacks CAP_SYS_RESOURCE");
        return;
    }
    drop(offered);
    let data: Vec<u8> = (0..4u32 << 20).map(|i| (i / 7 % 251) as u8).collect();
    file.write_all_at(&data, 0).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(fs::read(&path).unwrap()[..data.len()] == data);
    // In use it cannot pass.
    refused(&place.udm(["daemon", "--replace"]), "cannot pass to another daemon");
    let mut back = vec![0; 8192];
    file.read_exact_at(&mut back, 4096).unwrap();
    assert!(back == data[4096..12288], "who has it open goes on");
    drop(file);
    until("the next has it", || place.udm(["daemon", "--replace"]).status.success());
    // By whatever the kernel offers then.
    assert!(fs::read(&path).unwrap()[..data.len()] == data);
    place.ok("daemon --stop");
    // As it was told.
    let _offered = FuseUring::offered();
    let told = place.command("udm").args(["daemon", "--no-fuse-io-uring"]).spawn().map(Told).unwrap();
    until("it serves", || place.is_served());
    place.create(&["new", "--node=fuse"], "0 8 zero");
    assert_eq!(
        (fs::read(node(&place, "new")).unwrap(), shown(&place, "new")["transport"].as_str()),
        (vec![0; 4096], Some("fuse"))
    );
    drop(told);
}

/// A daemon in the foreground.
struct Told(std::process::Child);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_that_is_taken_away() {
    let place = Place::new();
    if !can(&place, "loop") || !installed("umount") {
        return;
    }
    place.create(&["vol", "--node=loop"], "0 2048 ram");
    let device = PathBuf::from(shown(&place, "vol")["device"].as_str().unwrap());
    let backing = Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file");
    // Busy as it is, this ends the connection: the way out where the daemon hangs.
    let _ = Command::new("umount").arg("-f").arg(node(&place, "")).output().unwrap();
    until("the node is gone", || place.ok("node").is_empty());
    let ours = |file: String| file.contains(place.dir().to_str().unwrap()) || file.trim() == "/.files/vol";
    until("its block device is free", || !fs::read_to_string(&backing).is_ok_and(ours));
    // The next is mounted anew.
    place.ok("node add vol --kind loop");
    assert_eq!(fs::read(node(&place, "vol")).unwrap().len(), 1 << 20);
    place.ok("remove vol");
}

#[test]
fn a_block_device_that_changes() {
    let place = Place::new();
    if !can(&place, "loop") {
        return;
    }
    place.create(&["vol", "--node=loop"], "0 2048 ram");
    let path = node(&place, "vol");
    let device = shown(&place, "vol")["device"].as_str().unwrap().to_owned();
    let attribute = |name: &str| {
        let dir = Path::new("/sys/block").join(Path::new(&device).file_name().unwrap());
        fs::read_to_string(dir.join(name)).unwrap().trim().to_owned()
    };
    assert_eq!(attribute("size"), "2048");
    assert!(place.udm(["load", "vol", "--table", "0 4096 ram"]).status.success());
    place.ok("resume vol");
    assert_eq!(attribute("size"), "4096");
    for direct in ["", " oflag=direct"] {
        let source = place.root().join("source");
        fs::write(&source, (0..2u32 << 20).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
        let dd = format!("if={} of={} bs=1M conv=fsync,notrunc status=none{direct}", source.display(), path.display());
        run("dd", words(&dd));
        assert!(fs::read(node(&place, ".files/vol")).unwrap() == fs::read(&source).unwrap());
        run("blkdiscard", ["-z", path.to_str().unwrap()]);
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }
    // A link in /dev/mapper, that does not make the device's name one of two.
    if Path::new("/dev/mapper/vol").symlink_metadata().is_err() {
        place.ok("node add vol --kind loop --mapper");
        assert_eq!(fs::read_link("/dev/mapper/vol").unwrap(), path);
        place.create(&["top"], "0 8 linear /dev/mapper/vol 0");
        place.ok("remove top");
        place.ok("node add vol --kind loop");
        assert!(Path::new("/dev/mapper/vol").symlink_metadata().is_err());
    }
    // Suspended with a block device on it: the resume brings on what waited.
    place.ok("suspend vol");
    refused(&place.udm(["remove", "vol"]), "busy");
    place.ok("resume vol");
    place.ok("daemon --stop");
    assert!(!Path::new("/sys/block").join(Path::new(&device).file_name().unwrap()).join("loop").exists());
}

/// Whether requests to the device wait for a resume.
fn waits(place: &Place, name: &str) -> bool {
    let dump: serde_json::Value = serde_json::from_str(&place.ok("debug dump --json")).unwrap();
    dump["devices"].as_array().unwrap().iter().any(|device| device["name"] == name && device["held"] != 0)
}

/// The loop devices on the place's nodes.
fn attached(place: &Place) -> usize {
    let ours = |block: fs::DirEntry| {
        let file = fs::read_to_string(block.path().join("loop/backing_file"));
        file.is_ok_and(|file| file.contains(place.dir().to_str().unwrap()))
    };
    fs::read_dir("/sys/block").unwrap().flatten().map(ours).filter(|is| *is).count()
}

/// A device on one that is suspended, to which a loop device is being attached: the kernel has it flushed before.
fn attaching(place: &Place) -> Told {
    place.create(&["low"], &format!("0 2048 linear {} 0", place.file("image", 1 << 20).display()));
    place.create(&["vol"], "0 2048 linear /dev/mapper/low 0");
    place.ok("suspend low");
    let add = place.command("udm").args(words("node add vol --kind loop")).spawn().map(Told).unwrap();
    until("the kernel has it flushed", || waits(place, "low"));
    add
}

#[test]
fn others_go_on_while_a_block_device_waits_for_a_resume() {
    let place = Place::new();
    if !can(&place, "loop") {
        return;
    }
    let mut add = attaching(&place);
    place.create(&["other", "--node=loop"], "0 2048 ram");
    place.ok("suspend other");
    place.ok("resume other");
    place.ok("rename other another");
    assert_eq!(shown(&place, "vol")["note"], "its block device comes when vol answers");
    assert_eq!(place.ok("node").lines().count(), 2);
    place.ok("remove another");
    assert!(add.0.try_wait().unwrap().is_none(), "it waits");
    place.ok("resume low");
    assert!(add.0.wait().unwrap().success());
    fs::write(node(&place, "vol"), pattern()).unwrap();
    assert!(fs::read(place.root().join("image")).unwrap().starts_with(&pattern()));
    place.ok("remove vol");
    assert_eq!(attached(&place), 0);
}

fn pattern() -> Vec<u8> {
    (0..8192u32).map(|i| (i / 3 % 251) as u8).collect()
}

#[test]
fn killed_while_a_block_device_waits_for_a_resume() {
    let place = Place::new();
    if !can(&place, "loop") {
        return;
    }
    let mut add = attaching(&place);
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
    assert!(!add.0.wait().unwrap().success());
    until("the loop device is free", || attached(&place) == 0);
    // Nobody was told that it had a node.
    assert_eq!(shown(&place, "vol"), serde_json::Value::Null);
    place.ok("resume low");
    place.ok("node add vol --kind loop");
    // What is suspended has its node again, and its block device when it is resumed.
    place.ok("suspend low");
    place.signal(Signal::KILL);
    until("it is gone", || !place.is_served());
    assert_eq!(shown(&place, "vol")["device"], serde_json::Value::Null);
    place.ok("resume low");
    until("it is a block device", || shown(&place, "vol")["device"].is_string());
    assert_eq!(fs::read(node(&place, "vol")).unwrap(), vec![0; 1 << 20]);
    place.ok("remove vol");
    until("no loop device is left", || attached(&place) == 0);
}

#[test]
fn stopped_while_a_block_device_waits_for_a_resume() {
    let place = Place::new();
    if !can(&place, "loop") {
        return;
    }
    let mut add = attaching(&place);
    place.ok("daemon --stop");
    assert!(!add.0.wait().unwrap().success());
    until("the loop device is free", || attached(&place) == 0);
}

/// Who attaches and detaches, and who suspends and resumes what it is on, do not wait for each other.
#[test]
fn attached_and_detached_over_what_is_suspended_again_and_again() {
    let place = Place::new();
    if !can(&place, "loop") {
        return;
    }
    place.create(&["low"], "0 2048 ram");
    place.create(&["vol"], "0 2048 linear /dev/mapper/low 0");
    std::thread::scope(|scope| {
        let suspends = scope.spawn(|| {
            for _ in 0..30 {
                place.ok("suspend low");
                place.ok("resume low");
            }
        });
        while !suspends.is_finished() {
            place.ok("node add vol --kind loop");
            until("it is detached", || {
                let removed = place.udm(["node", "remove", "vol"]);
                let text = stderr(&removed);
                let refused = text.contains("resume it first") || text.contains("is in use");
                assert!(removed.status.success() || refused, "{text}");
                removed.status.success()
            });
        }
    });
    assert_eq!(attached(&place), 0);
}
