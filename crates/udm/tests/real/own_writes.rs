//! Memory is short, and the kernel can only get some by writing through the daemon, which is short of it as well.

use crate::disks::Disk;
use crate::programs::{installed_as, run};
use crate::udm::{Udm, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Little enough to be full of what waits to be written.
const LIMIT: u64 = 128 << 20;
const WRITTEN_MIB: u64 = 400;

/// A memory cgroup of the test's own; empty when it is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Of version 1 or 2; `None`, and said so, where none can be made.
    fn new() -> Option<Self> {
        let name = format!("udm-test-{}", std::process::id());
        for (parent, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let dir = Path::new(parent).join(&name);
            if fs::create_dir(&dir).is_err() {
                continue;
            }
            let cgroup = Self(dir);
            if fs::write(cgroup.0.join(limit), LIMIT.to_string()).is_ok() {
                return Some(cgroup);
            }
        }
        println!("SKIP no memory cgroup can be made here");
        None
    }

    /// The command, run in it.
    fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "it still stands still in some runs: see \"When memory is short\" in the book"]
fn a_file_system_is_written_through_a_daemon_that_is_short_of_memory() {
    if !installed_as("mkfs.ext4", "-V") {
        return;
    }
    let Some(cgroup) = Cgroup::new() else { return };
    let (disk, udm) = (Disk::of_build(), Udm::new());
    let mut daemon = udm.command();
    daemon.arg("daemon");
    let mut daemon = cgroup.command(&daemon).stderr(Stdio::null()).spawn().expect("sh is there");
    wait_until("it serves", || udm.run(&["daemon", "--status"]).code == 0);
    let (metadata, data) = (disk.file("metadata", 8 << 20), disk.file("data", 1 << 30));
    udm.create("metadata", &format!("0 {} linear {metadata} 0", (8 << 20) / 512));
    udm.create("data", &format!("0 {} linear {data} 0", 2 << 20));
    udm.create("pool", &format!("0 {} thin-pool /dev/mapper/metadata /dev/mapper/data 128 0", 2 << 20));
    udm.ok(&["message", "pool", "0", "create_thin 0"]);
    let made = udm.run(&["create", "vol", "--node=loop", "--table", &format!("0 {} thin /dev/mapper/pool 0", 2 << 20)]);
    if made.code == 0 {
        let node = udm.nbd_socket().with_file_name("dev").join("vol");
        run("mkfs.ext4", &["-q", node.to_str().expect("text")]);
        let mounted = Mounted(disk.path("mnt"));
        fs::create_dir(&mounted.0).expect("a directory");
        run("mount", &[node.to_str().expect("text"), mounted.0.to_str().expect("text")]);
        let file = mounted.0.join("big");
        let mut dd = Command::new("timeout");
        dd.args(["120", "dd", "if=/dev/zero", "bs=1M", "conv=fsync", "status=none"]);
        dd.arg(format!("count={WRITTEN_MIB}")).arg(format!("of={}", file.display()));
        let status = cgroup.command(&dd).status().expect("sh is there");
        if !status.success() {
            // The way out: what waits for the daemon fails.
            let _ = Command::new("umount").arg("-f").arg(node.with_file_name("")).output();
        }
        assert!(status.success(), "the daemon waits for what it has to write itself: {status}");
        assert_eq!(fs::metadata(&file).expect("it was written").len(), WRITTEN_MIB << 20);
        drop(mounted);
        wait_until("the volume can be removed", || udm.run(&["remove", "vol"]).code == 0);
    } else {
        println!("SKIP {}", made.stderr.trim());
    }
    udm.ok(&["daemon", "--stop"]);
    daemon.wait().expect("a child");
}
