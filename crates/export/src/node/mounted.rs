//! File systems that are mounted on a block device, in whatever mount namespace: found, frozen and thawed.
//!
//! The kernel tells of mounts by process (`/proc/PID/mountinfo`), and a directory of another namespace is reached by
//! `/proc/PID/root`. All that touches one may wait for the device beneath, which may be this process's: so it is done
//! [apart](super::apart).

use super::apart::apart;
use super::sys;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use udm_base::DevT;
use udm_files::mounts_of;
use udm_io::Domain;

/// Where a file system can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The process whose namespace it is in.
    process: u32,
    /// As that process sees it.
    point: PathBuf,
}

impl MountPoint {
    /// For people.
    pub fn display(&self) -> impl std::fmt::Display + '_ {
        let own = self.process == std::process::id();
        let whose = if own { String::new() } else { format!(" (as process {} sees it)", self.process) };
        format!("{}{whose}", self.point.display())
    }

    fn open(&self) -> io::Result<rustix::fd::OwnedFd> {
        let below = self.point.strip_prefix("/").unwrap_or(&self.point);
        let path = Path::new("/proc").join(self.process.to_string()).join("root").join(below);
        Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?)
    }
}

/// Where the file system on a block device is mounted, one place for each mount namespace that has it. Looks through
/// `/proc`: one file for each namespace is read, one name for each process looked at.
pub fn mount_points(device: DevT) -> Vec<MountPoint> {
    let own = std::process::id();
    let others = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = others.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != own);
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for process in std::iter::once(own).chain(others) {
        let dir = Path::new("/proc").join(process.to_string());
        let Ok(namespace) = fs::read_link(dir.join("ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let mounts = mounts_of(&dir.join("mountinfo")).unwrap_or_default();
        found.extend(
            mounts.into_iter().find(|mount| mount.dev == device).map(|m| MountPoint { process, point: m.point }),
        );
    }
    found
}

/// What became of an attempt to freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// It is frozen now, by us.
    Now,
    /// Somebody else had frozen it: they thaw it.
    Before,
    /// There is none, or it is of a kind that cannot be frozen.
    No,
}

/// Freezes the file system on a block device. Blocks until it has written what it keeps.
///
/// # Errors
/// What it says when it cannot write.
pub fn freeze(domain: &Domain, device: DevT) -> io::Result<Frozen> {
    apart(domain, move || {
        for at in mount_points(device) {
            // Gone meanwhile; another namespace may still have it.
            let Ok(dir) = at.open() else { continue };
            return match sys::freeze(dir) {
                Ok(()) => Ok(Frozen::Now),
                Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(Frozen::Before),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Frozen::No),
                Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", at.display()))),
            };
        }
        Ok(Frozen::No)
    })
}

/// Thaws it again. One that is not frozen any more, or not mounted, is none to thaw.
///
/// # Errors
/// What it says.
pub fn thaw(domain: &Domain, device: DevT) -> io::Result<()> {
    apart(domain, move || {
        for at in mount_points(device) {
            let Ok(dir) = at.open() else { continue };
            return match sys::thaw(dir) {
                Err(error) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
                    Err(io::Error::new(error.kind(), format!("{}: {error}", at.display())))
                }
                _ => Ok(()),
            };
        }
        Ok(())
    })
}
