//! Mounting, unmounting, and what a dead daemon has left mounted.
//!
//! Who may mount does so directly; anybody else through fusermount3, which is set-user-id root and sends the
//! descriptor over a socket (`_FUSE_COMMFD`, as libfuse's `util/fusermount.c` describes).

use super::tree::FILES;
use crate::node::apart::{Errand, apart};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use udm_base::DevT;
use udm_files::{Mount, mounts};
use udm_io::Domain;

/// The type that our mounts have in /proc/self/mountinfo.
const TYPE: &str = "fuse.udm";
const HELPER: &str = "fusermount3";
/// What the root of a mount is (`rootmode`, in octal).
const DIRECTORY: &str = "40000";
const FILE: &str = "100000";

/// A mount of this process.
#[derive(Debug)]
pub(super) struct Mounted {
    path: PathBuf,
    helper: bool,
}

/// Mounts on `dir`, which is made if it is not there. What a dead daemon has left there goes before. Blocks.
///
/// # Errors
/// With what to do, as the text.
pub(super) fn mount(dir: &Path) -> io::Result<(OwnedFd, Mounted)> {
    let dir = real_path(dir)?;
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
    clear(&dir).map_err(at)?;
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(error)),
        _ => {}
    }
    match directly(&dir, DIRECTORY) {
        Ok(fd) => Ok((fd, Mounted { path: dir, helper: false })),
        Err(Errno::PERM | Errno::ACCESS) => {
            let fd = by_helper(&dir).map_err(at)?;
            Ok((fd, Mounted { path: dir, helper: true }))
        }
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
            let message = "this system has no FUSE: load the kernel's module with `modprobe fuse`";
            Err(at(io::Error::new(io::ErrorKind::Unsupported, message)))
        }
        Err(errno) => Err(at(errno.into())),
    }
}

/// Mounts on a file of such a mount, on top of it; `helper` as for that. Blocks, and asks the mount's server for the
/// file.
///
/// # Errors
/// What the system says.
pub(super) fn mount_file(domain: &Domain, path: &Path, helper: bool) -> io::Result<(OwnedFd, Mounted)> {
    let given = path.to_owned();
    let path = apart(domain, move || real_path(&given))?;
    if helper {
        // Another process looks the names up.
        return Ok((by_helper(&path)?, Mounted { path, helper }));
    }
    let file = path.clone();
    let open = move || Ok(rustix::fs::open(&file, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?);
    let found = Errand::begin(domain, open, |file: OwnedFd| {
        drop(file);
        Ok(())
    })?;
    let fd = directly(Path::new(found.path()), FILE)?;
    found.finish()?;
    Ok((fd, Mounted { path, helper }))
}

/// The path as the kernel shows it. The last component is not looked at: what is mounted there may be dead.
fn real_path(dir: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a directory below another"));
    };
    Ok(fs::canonicalize(parent)?.join(name))
}

fn open_fuse() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

fn directly(path: &Path, kind: &str) -> rustix::io::Result<OwnedFd> {
    use rustix::fd::AsRawFd;
    let fd = open_fuse()?;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let fd_number = fd.as_raw_fd();
    let options = format!("fd={fd_number},rootmode={kind},user_id={uid},group_id={gid},default_permissions");
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount("udm", path, TYPE, MountFlags::NOSUID | MountFlags::NODEV, &*options)?;
    Ok(fd)
}

fn by_helper(path: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let child = Command::new(HELPER)
        .args(["-o", "rw,nosuid,nodev,fsname=udm,subtype=udm,default_permissions", "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.map_err(|error| match error.kind() {
        // Or a directory of PATH cannot be looked into.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            let message = "mounting needs root, or the program fusermount3 (Debian: package fuse3)";
            io::Error::new(io::ErrorKind::PermissionDenied, message)
        }
        _ => error,
    })?;
    // It ends when the descriptor is sent, and its end of the socket with it.
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("fusermount3 cannot mount: {}", text.trim())));
    }
    let fd = receive_descriptor(&ours)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}

fn receive_descriptor(socket: &std::os::unix::net::UnixStream) -> io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 8];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other("fusermount3 mounted, and sent no descriptor"))
}

/// What is mounted on `dir`, the topmost last. Dead mounts are found as well.
///
/// # Errors
/// Of reading /proc/self/mountinfo, and of the directory above.
pub(crate) fn find(dir: &Path) -> io::Result<Vec<Mount>> {
    let dir = match real_path(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    Ok(mounts()?.into_iter().filter(|mount| mount.point == dir).collect())
}

/// The numbers of the file systems of ours on `dir` and in it, as `st_dev` has them. They are not touched: their server
/// may be about to change.
pub fn mounted(mounts: &[Mount], dir: &Path) -> Vec<DevT> {
    let Ok(dir) = real_path(dir) else { return Vec::new() };
    let ours = mounts.iter().filter(|mount| mount.kind == TYPE && mount.point.starts_with(&dir));
    ours.map(|mount| mount.dev).collect()
}

/// Unmounts what daemons before have left on `dir`. To be called by who knows that none runs there.
///
/// # Errors
/// When something else is mounted there, or it cannot be unmounted.
pub fn clear(dir: &Path) -> io::Result<()> {
    // Each may lie on another.
    for _ in 0..16 {
        match find(dir)?.last() {
            None => return Ok(()),
            Some(found) if found.kind != TYPE => {
                let message = format!("a file system of type {} is mounted there: unmount it first", found.kind);
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
            }
            Some(_) => {
                tracing::info!("unmounting what a daemon before has left on {}", dir.display());
                unmount(&real_path(dir)?)?;
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "what is mounted there cannot be unmounted"))
}

/// Takes the mount out of sight; it ends when its last file is closed, or its last server.
fn unmount(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(dir),
        Err(errno) => Err(errno.into()),
    }
}

fn unmount_by_helper(dir: &Path) -> io::Result<()> {
    let output = Command::new(HELPER).args(["-u", "-z", "-q", "--"]).arg(dir).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "fusermount3 cannot unmount: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

impl Mounted {
    /// A mount of a server before, which had it by the helper or without.
    pub(super) fn adopt(path: &Path, helper: bool) -> io::Result<Self> {
        Ok(Self { path: real_path(path)?, helper })
    }

    /// The mount on a file of the directory's, this.
    pub(super) fn file(&self, name: &str) -> Self {
        Self { path: self.path.join(FILES).join(name), helper: self.helper }
    }

    /// Whether it is the helper's.
    pub(super) fn by_helper(&self) -> bool {
        self.helper
    }

    /// Takes the mount of a file out of sight. Blocks, and asks the server of the directory for the file.
    pub(super) fn unmount(self, domain: &Domain) {
        let unmount = move || {
            drop(self);
            Ok(())
        };
        if let Err(error) = apart(domain, unmount) {
            tracing::warn!("the mount of a node's file stays: {error}");
        }
    }

    /// Leaves it mounted.
    pub(super) fn leave(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let result = if self.helper { unmount_by_helper(&self.path) } else { unmount(&self.path) };
        if let Err(error) = result
            // Somebody else has unmounted it.
            && error.raw_os_error() != Some(Errno::INVAL.raw_os_error())
        {
            tracing::warn!("{} stays mounted: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_has_no_mounts() {
        assert_eq!(find(Path::new("/nonexistent/dev")).unwrap(), []);
        assert!(find(Path::new("/")).is_err());
    }
}
