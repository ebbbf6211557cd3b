//! The mount namespace that programs run in: a `/dev` of its own, what `/proc` says of device mapper, and directories
//! that are not shared with the host.
//!
//! - `/dev` is a tmpfs. It has the host's character devices and terminals, `/dev/mapper/control`, and of block devices
//!   only those of udm, loop devices that programs within have asked for, and those that the user named: LVM would find
//!   the host's volume groups "inactive", and write to their metadata.
//! - `/proc/devices` says that loop devices, which nodes of udm are, are device mapper's; `/proc/misc` has its control
//!   node.
//! - What programs of device mapper keep for themselves (archives of metadata, locks, sockets of daemons, udev's
//!   database) is the namespace's own. Without udev's directory nobody waits for udev.
//!
//! Mounts of the host come in, mounts within do not go out.

use crate::caller::CONTROL_NUMBER;
use crate::sys;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use tracing::{debug, warn};

/// The major number of loop devices (`include/uapi/linux/major.h`).
pub const LOOP_MAJOR: u32 = 7;
/// `LOOP_CTL_GET_FREE` (`include/uapi/linux/loop.h`).
const LOOP_CONTROL: &str = "/dev/loop-control";
/// What `/dev` has besides devices: mounts that are shared with the host.
const SHARED: &[&str] = &["pts", "shm", "mqueue", "hugepages"];
/// Directories of the programs' own, in the namespace's place of the daemon's directory. One that does not exist is
/// made where the program would make it.
const PRIVATE: &[&str] = &["/etc/lvm/archive", "/etc/lvm/backup", "/etc/lvm/cache", "/etc/lvm/devices"];
/// Where programs keep what lives as long as the system: locks, sockets, pipes. It is the namespace's own, and what the
/// host has there is shown in it.
const RUN: &str = "/run";
/// What of it is not the host's business: of LVM, dmeventd, cryptsetup and udev, by the beginning of its name.
const RUN_PRIVATE: &[&str] = &["lvm", "dmeventd", "cryptsetup", "udev", "blkid"];
/// The same within `/run/lock`.
const LOCK_PRIVATE: &[&str] = &["lvm", "dmeventd"];

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A directory for what is private, which exists.
    pub dir: PathBuf,
    /// Block devices of the host that are there too.
    pub devices: Vec<PathBuf>,
}

fn said(error: impl Into<io::Error>, what: impl std::fmt::Display) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Makes the calling thread's own mount namespace, and furnishes it. Other threads of the process stay where they are,
/// so there should be none.
///
/// # Errors
/// What the system says, and to which step: CAP_SYS_ADMIN is needed, and CAP_MKNOD.
pub fn build(plan: &Plan) -> io::Result<()> {
    sys::unshare(UnshareFlags::NEWNS)
        .map_err(|e| said(e, "a mount namespace cannot be made (that takes root, or CAP_SYS_ADMIN in a container)"))?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|e| said(e, "the mounts of / cannot be kept apart from the host's"))?;
    let dev = plan.dir.join("dev");
    furnish(&dev).map_err(|e| said(e, format!("{} cannot be furnished", dev.display())))?;
    plan.devices.iter().try_for_each(|device| admit_into(&dev, device))?;
    mount_bind_recursive(&dev, "/dev").map_err(|e| said(e, "/dev cannot be covered"))?;
    cover("/proc/devices", &plan.dir, with_block_major(&fs::read_to_string("/proc/devices")?))?;
    cover("/proc/misc", &plan.dir, with_control(&fs::read_to_string("/proc/misc")?))?;
    if let Err(error) = cover_run(&plan.dir) {
        warn!("{RUN} is shared with the host: {error}");
    }
    for private in PRIVATE {
        if let Err(error) = make_private(Path::new(private), &plan.dir) {
            warn!("{private} is shared with the host: {error}");
        }
    }
    Ok(())
}

/// Fills a new `/dev`.
fn furnish(dev: &Path) -> io::Result<()> {
    fs::create_dir_all(dev)?;
    mount("udm-exec", dev, "tmpfs", MountFlags::NOSUID, Some(c"mode=755,size=8m"))?;
    fs::create_dir(dev.join("mapper"))?;
    node(&dev.join("mapper/control"), FileType::CharacterDevice, 0o600, CONTROL_NUMBER)?;
    for entry in fs::read_dir("/dev")? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let to = dev.join(&name);
        if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &to)?;
        } else if kind.is_char_device() {
            copy_node(&entry.path(), &to)?;
        } else if kind.is_dir() && SHARED.iter().any(|shared| name == *shared) {
            fs::create_dir(&to)?;
            mount_bind_recursive(entry.path(), &to)?;
        } else if kind.is_dir() && name == "net" {
            fs::create_dir(&to)?;
            let _ = copy_node(Path::new("/dev/net/tun"), &to.join("tun"));
        }
    }
    Ok(())
}

/// As the host's: a device node of its own, or, where none may be made, the host's shown here.
fn copy_node(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    match node(to, FileType::CharacterDevice, meta.mode() & 0o7777, number) {
        Err(Errno::PERM) => {
            fs::File::create(to)?;
            mount_bind(from, to)?;
        }
        other => {
            other?;
            std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()))?;
        }
    }
    Ok(())
}

fn node(path: &Path, kind: FileType, mode: u32, (major, minor): (u32, u32)) -> Result<(), Errno> {
    mknodat(CWD, path, kind, Mode::empty(), makedev(major, minor))?;
    // Apart from the umask.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Shows a block device of the host in the namespace that the calling thread is in.
///
/// # Errors
/// It is no block device; what the system says.
pub fn admit(device: &Path) -> io::Result<()> {
    admit_into(Path::new("/dev"), device)
}

fn admit_into(dev: &Path, device: &Path) -> io::Result<()> {
    let shown = device.display();
    let meta = fs::metadata(device).map_err(|e| said(e, device.display()))?;
    if !meta.file_type().is_block_device() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{shown} is no block device: --device takes one"),
        ));
    }
    let name = device.strip_prefix("/dev").unwrap_or_else(|_| Path::new(device.file_name().unwrap_or_default()));
    let to = dev.join(name);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    match node(&to, FileType::BlockDevice, meta.mode() & 0o7777, number) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(said(error, to.display())),
    }
}

/// Covers a file with a text.
fn cover(path: &str, dir: &Path, text: String) -> io::Result<()> {
    let name = Path::new(path).file_name().unwrap_or(OsStr::new("file"));
    let file = dir.join(name);
    fs::write(&file, text).map_err(|e| said(e, file.display()))?;
    mount_bind(&file, path).map_err(|e| said(e, format!("{path} cannot be covered")))
}

/// The text of `/proc/devices` with loop devices as device mapper's too.
fn with_block_major(text: &str) -> String {
    let line = format!("{LOOP_MAJOR:3} device-mapper\n");
    match text.split_once("Block devices:\n") {
        Some((before, after)) => format!("{before}Block devices:\n{line}{after}"),
        None => format!("{text}Block devices:\n{line}"),
    }
}

/// The text of `/proc/misc` with the control node.
fn with_control(text: &str) -> String {
    let kept = text.lines().filter(|line| !line.ends_with("device-mapper")).map(|line| format!("{line}\n"));
    format!("{:3} device-mapper\n{}", CONTROL_NUMBER.1, kept.collect::<String>())
}

/// Covers `/run` with a directory in which everything of the host's is shown that is not private.
fn cover_run(dir: &Path) -> io::Result<()> {
    let own = dir.join("run");
    fs::create_dir_all(&own)?;
    mount("udm-exec", &own, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755"))?;
    show_all(Path::new(RUN), &own, RUN_PRIVATE)?;
    if Path::new("/run/lock").is_dir() && fs::symlink_metadata("/run/lock")?.is_dir() {
        mount("udm-exec", own.join("lock"), "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777"))?;
        show_all(Path::new("/run/lock"), &own.join("lock"), LOCK_PRIVATE)?;
    }
    mount_bind_recursive(&own, RUN)?;
    Ok(())
}

/// Shows what is in a directory in another, but for what begins so.
fn show_all(from: &Path, to: &Path, but: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind, from) = (entry.file_name(), entry.file_type()?, entry.path());
        let to = to.join(&name);
        if but.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes())) {
            continue;
        }
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?
        } else {
            drop(fs::File::create(&to)?)
        }
        if let Err(error) = mount_bind_recursive(&from, &to) {
            debug!("{} is not shown: {error}", from.display());
        }
    }
    Ok(())
}

/// Puts a directory of the namespace's own in the place of the host's.
fn make_private(path: &Path, dir: &Path) -> io::Result<()> {
    // Where a program would make it, there is nothing to hide.
    if !path.exists() {
        return Ok(());
    }
    let name = path.display().to_string().trim_start_matches('/').replace('/', "-");
    let own = dir.join(name);
    fs::create_dir_all(&own)?;
    mount_bind(&own, path)?;
    Ok(())
}

/// Puts a loop device's node into `/dev`.
pub(crate) fn show_loop(number: u32) {
    let path = format!("/dev/loop{number}");
    match node(Path::new(&path), FileType::BlockDevice, 0o660, (LOOP_MAJOR, number)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => debug!("{path}: {error}"),
    }
}

/// Takes it out again.
pub(crate) fn forget_loop(number: u32) {
    let _ = fs::remove_file(format!("/dev/loop{number}"));
}

/// Does an ioctl of the host's loop control: the number that it answers with.
pub(crate) fn loop_control(command: u32, argument: u64) -> Result<i64, Errno> {
    let control = rustix::fs::open(LOOP_CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    sys::loop_control(&control, command, argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says() {
        let check = |text: &str, expect: &str| assert_eq!(with_block_major(text), expect);
        check(
            "Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n259 blkext\n",
            "Character devices:\n  1 mem\n\nBlock devices:\n  7 device-mapper\n  7 loop\n259 blkext\n",
        );
        check("Character devices:\n  1 mem\n", "Character devices:\n  1 mem\nBlock devices:\n  7 device-mapper\n");
        assert_eq!(with_control("237 loop-control\n"), "236 device-mapper\n237 loop-control\n");
        assert_eq!(with_control("236 device-mapper\n229 fuse\n"), "236 device-mapper\n229 fuse\n", "the host has it");
    }
}
