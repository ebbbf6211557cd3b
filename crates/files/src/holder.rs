//! Who keeps a block device from being claimed, for people.
//!
//! The kernel does not say. What it shows is looked at in turn: mounts, swap areas, devices that are made of it, and
//! last the processes that have it open. A disk cannot be claimed either when one of its partitions is, nor a partition
//! when its disk is.

use crate::error::{OpenError, OpenErrorKind};
use crate::mounts::{Mount, block_device, mounts, unescape};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use udm_base::DevT;

/// So many processes are named.
const NAMED: usize = 3;
/// How often a device is asked for that nobody seems to have.
const TRIES: u32 = 4;

/// Opens the block device `dev` exclusively. The error names the holder. Where that is no user in the kernel, it is
/// tried again: a process that is just ending, or that another has just forked, holds it for a moment more.
pub(crate) fn open_unclaimed<T>(
    dev: DevT,
    spec: &str,
    open: impl Fn() -> rustix::io::Result<T>,
) -> Result<T, OpenError> {
    let mut openers = Vec::new();
    for _ in 0..TRIES {
        match open() {
            Err(Errno::BUSY) => {}
            other => return other.map_err(|e| OpenError::of_open(spec, e)),
        }
        if let Some(holder) = World::now().holder(dev) {
            return Err(busy(spec, &holder));
        }
        // This takes a while.
        openers = processes_with(dev);
    }
    match &*openers {
        [] => Err(busy(spec, "somebody who is not seen from here: another user's program, or a mount elsewhere")),
        names => Err(busy(spec, &format!("a program that has it open exclusively: {}", names.join(", ")))),
    }
}

fn busy(spec: &str, holder: &str) -> OpenError {
    OpenError::new(OpenErrorKind::Busy, spec, format!("is in use by {holder}")).because(Errno::BUSY.into())
}

/// What the kernel shows.
struct World<'a> {
    mounts: Vec<Mount>,
    swaps: String,
    sysfs: PathBuf,
    number: &'a dyn Fn(&Path) -> Option<DevT>,
}

impl World<'_> {
    fn now() -> Self {
        Self {
            mounts: mounts().unwrap_or_default(),
            swaps: fs::read_to_string("/proc/swaps").unwrap_or_default(),
            sysfs: PathBuf::from("/sys/dev/block"),
            number: &block_device,
        }
    }

    fn holder(&self, dev: DevT) -> Option<String> {
        self.of_device(dev).or_else(|| {
            let mut relatives = self.relatives(dev).into_iter();
            relatives.find_map(|(name, dev)| Some(format!("{}, on {name}", self.of_device(dev)?)))
        })
    }

    fn of_device(&self, dev: DevT) -> Option<String> {
        // File systems of many devices have a number of their own, and one of the devices as their source. Other paths
        // are not looked at, they may lie on a server that does not answer.
        let is_source = |path: &Path| path.starts_with("/dev") && (self.number)(path) == Some(dev);
        if let Some(mount) = self.mounts.iter().find(|mount| mount.dev == dev || is_source(&mount.source)) {
            return Some(format!("the file system mounted at {}", mount.point.display()));
        }
        // A file has its path there as well, so that the path alone does not tell.
        let mut areas = self.swaps.lines().filter_map(|line| line.split_whitespace().next());
        if areas.any(|path| (self.number)(Path::new(&unescape(path.as_bytes()))) == Some(dev)) {
            return Some("the system, as swap".into());
        }
        let names = names_in(&self.sysfs.join(dev.to_string()).join("holders"));
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Its partitions, or the disk that it is a part of.
    fn relatives(&self, dev: DevT) -> Vec<(String, DevT)> {
        let Ok(dir) = fs::canonicalize(self.sysfs.join(dev.to_string())) else { return Vec::new() };
        let named = |dir: &Path| {
            let number = fs::read_to_string(dir.join("dev")).ok()?.trim().parse().ok()?;
            Some((dir.file_name()?.to_string_lossy().into_owned(), number))
        };
        if dir.join("partition").exists() {
            return dir.parent().and_then(named).into_iter().collect();
        }
        let inside = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
        inside.filter(|dir| dir.join("partition").exists()).filter_map(|dir| named(&dir)).collect()
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Processes that have the device open, in whichever way: the kernel does not show which of them has it exclusively.
fn processes_with(dev: DevT) -> Vec<String> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.map(|e| e.path()).any(|fd| is_in_dev(&fd) && block_device(&fd) == Some(dev))
    };
    pids.filter(has).take(NAMED).map(process).collect()
}

/// By the link alone: to look behind it may wait for a server.
fn is_in_dev(fd: &Path) -> bool {
    fs::read_link(fd).is_ok_and(|to| to.starts_with("/dev"))
}

/// The descriptor, and whether it can only be read: on request, or because the file can only be read.
pub(crate) fn open_fd(path: &Path, read_only: bool, exclusive: bool) -> rustix::io::Result<(OwnedFd, bool)> {
    use rustix::io::Errno as E;
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    if exclusive {
        flags |= OFlags::EXCL;
    }
    let open = |mode| rustix::fs::open(path, flags | mode, Mode::empty());
    if !read_only {
        match open(OFlags::RDWR) {
            Err(E::ACCESS | E::PERM | E::ROFS) => {}
            other => return other.map(|fd| (fd, false)),
        }
    }
    open(OFlags::RDONLY).map(|fd| (fd, true))
}

/// A process as `NAME (pid N)`.
pub(crate) fn process(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let here = if pid == std::process::id() { ", this process" } else { "" };
    match name.trim() {
        "" => format!("the process with pid {pid}{here}"),
        name => format!("{name} (pid {pid}{here})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::parse;

    #[test]
    fn holders_that_the_kernel_shows() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("devices/sda");
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(&disk.join("dev"), "8:0\n");
        for (name, number) in [("sda1", "8:1"), ("sda2", "8:2"), ("sda3", "8:3")] {
            write(&disk.join(name).join("dev"), &format!("{number}\n"));
            write(&disk.join(name).join("partition"), &number[2..]);
        }
        write(&disk.join("sda2/holders/md0/dev"), "");
        write(&disk.join("sda2/holders/dm-3/dev"), "");
        let sysfs = dir.path().join("block");
        fs::create_dir(&sysfs).unwrap();
        for (number, to) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2"), ("8:3", "sda/sda3")] {
            std::os::unix::fs::symlink(dir.path().join("devices").join(to), sysfs.join(number)).unwrap();
        }
        let number = |path: &Path| match path.to_str()? {
            "/dev/sdb" => Some(DevT::new(8, 16)),
            "/dev/sdc" => Some(DevT::new(8, 32)),
            "/dev/s d" => Some(DevT::new(8, 48)),
            _ => None,
        };
        let world = World {
            mounts: parse(
                b"21 1 8:1 / /mnt/a\\040b rw,relatime shared:1 - ext4 /dev/root rw\n\
                     22 1 0:31 /sub /btrfs rw - btrfs /dev/sdb rw,space_cache=v2\n\
                     23 1 0:32 / /proc rw - proc proc rw\n",
            ),
            swaps: "Filename Type Size Used Priority\n/dev/sdc partition 1 0 -2\n/dev/s\\040d partition 1 0 -3\n/swap file 1 0 -4\n"
                .into(),
            sysfs,
            number: &number,
        };
        for (dev, expect) in [
            ((8, 1), Some("the file system mounted at /mnt/a b")),
            ((8, 0), Some("dm-3, md0, on sda2")),
            ((8, 2), Some("dm-3, md0")),
            ((8, 3), None),
            ((8, 16), Some("the file system mounted at /btrfs")),
            ((8, 32), Some("the system, as swap")),
            ((8, 48), Some("the system, as swap")),
            ((9, 9), None),
        ] {
            let found = world.holder(DevT::new(dev.0, dev.1));
            if dev == (8, 0) {
                // Whichever of its partitions is looked at first.
                assert!(found.is_some_and(|text| text.ends_with(", on sda1") || text.ends_with(", on sda2")));
            } else {
                assert_eq!(found.as_deref(), expect, "{dev:?}");
            }
        }
    }
}
