//! Loop devices of the kernel on top of nodes' files: block devices, to mount or to boot from.
//!
//! I/O goes to the file directly, past the kernel's page cache of it; discards become holes that are punched. The loop
//! device holds its file open, and so its device, until it is detached.
//!
//! # Ownership
//! Numbers are reused, so a number proves nothing. Before a loop device is changed, its `backing_file` in sysfs must be
//! the file that it was made for.
//!
//! # Blocking
//! Attaching, detaching, even closing a loop device may write and flush its file, which this process serves. So every
//! such call is made [apart](super::apart).

use super::apart::{StagedCall, apart};
use super::fuse::{FILES, mount};
use super::sys;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use udm_base::DevT;
use udm_io::Domain;

/// A device's node, before its number.
const NODE: &str = "/dev/loop";
const CONTROL: &str = "/dev/loop-control";
/// The major number of loop devices (`include/uapi/linux/major.h`, 6.12), and how many minor numbers there are.
pub const MAJOR: u32 = 7;
const NUMBERS: u32 = 1 << 20;
/// How often a free device is asked for, when others are as quick to take it.
const TRIES: usize = 32;
/// The path that it shows for the file of a detached mount.
const DETACHED: &str = "/";
/// The suffix in sysfs for a removed name.
const DELETED: &[u8] = b" (deleted)";

/// A loop device that this process has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopDevice {
    number: u32,
    file: PathBuf,
}

/// Which loop device to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any that is free.
    Free,
    /// The one of this number, which is made if there is none.
    Exactly(u32),
    /// A new one, of this number or the next higher that there is none of. Numbers that are free are given to whoever
    /// asks next; so one that was in use a moment ago may still be in somebody's mind.
    New(u32),
}

/// What became of an attempt to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// It is free again.
    Yes,
    /// It is open elsewhere, and stays.
    InUse,
}

fn said(error: io::Error, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether loop devices are available here.
///
/// # Errors
/// Why not, and what to do.
pub fn available() -> io::Result<()> {
    control().map(drop)
}

fn control() -> io::Result<OwnedFd> {
    open(Path::new(CONTROL), OFlags::RDWR).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::Unsupported,
            "there are no loop devices here (no /dev/loop-control): load the kernel's module with `modprobe loop`",
        ),
        io::ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), "a loop device needs root: without it a node is a file")
        }
        _ => said(error, CONTROL),
    })
}

/// Attaches a free loop device to a node's file. Blocks until the device beneath has flushed; the file's server must be
/// another thread. When this process is killed meanwhile, nothing stays attached.
///
/// # Errors
/// No right to, no loop device left, or a block size that the kernel does not take. Nothing is attached then.
pub fn attach(
    domain: &Domain,
    file: &Path,
    read_only: bool,
    block_size: u32,
    choice: Choice,
) -> io::Result<LoopDevice> {
    let file = file.to_owned();
    apart(domain, move || attach_here(&file, read_only, block_size, choice))
}

/// The number to try next, which `tried` came to nothing.
fn choose(control: &OwnedFd, choice: Choice, tried: Option<u32>) -> io::Result<u32> {
    match choice {
        Choice::Free => sys::loop_get_free(control).map_err(|e| said(e, "no loop device is left")),
        Choice::Exactly(number) if tried.is_some() => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{NODE}{number} is somebody else's")))
        }
        Choice::Exactly(number) => match sys::loop_add(control, number) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(said(error, format!("{NODE}{number}"))),
            _ => Ok(number),
        },
        Choice::New(first) => {
            for number in tried.map_or(first, |tried| tried + 1)..NUMBERS {
                match sys::loop_add(control, number) {
                    Ok(()) => return Ok(number),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(said(error, format!("{NODE}{number}"))),
                }
            }
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "no loop device is left"))
        }
    }
}

/// The device's node, which nobody makes for new numbers in most containers.
fn node_of(number: u32) -> io::Result<PathBuf> {
    use rustix::fs::{CWD, FileType, makedev, mknodat};
    let path = PathBuf::from(format!("{NODE}{number}"));
    if !path.exists() {
        let made = mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(MAJOR, number));
        if let Err(error) = made
            && error != Errno::EXIST
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "no loop device is left that has a node: make one with `mknod {NODE}{number} b {MAJOR} {number}`"
                ),
            ));
        }
    }
    Ok(path)
}

fn attach_here(file: &Path, read_only: bool, block_size: u32, choice: Choice) -> io::Result<LoopDevice> {
    let control = control()?;
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let backing = open(file, access | OFlags::DIRECT).map_err(|e| said(e, file.display()))?;
    // The kernel flushes the file while it holds the number, and `losetup --find` would wait, since it is given the
    // same number. So the flush is done here first; like the kernel's, it may fail.
    let _ = rustix::fs::fsync(&backing);
    // As the kernel will show it.
    let file = fs::canonicalize(file).map_err(|e| said(e, file.display()))?;
    // If this process is killed before all is done, the device is detached.
    let flags = sys::LO_FLAGS_DIRECT_IO | sys::LO_FLAGS_AUTOCLEAR | if read_only { sys::LO_FLAGS_READ_ONLY } else { 0 };
    let mut tried = None;
    for _ in 0..TRIES {
        let number = choose(&control, choice, tried)?;
        tried = Some(number);
        let loopdev = LoopDevice { number, file: file.clone() };
        let device = open(&node_of(number)?, access).map_err(|error| said(error, loopdev.path().display()))?;
        match sys::loop_configure(&device, &backing, block_size, flags, file.as_os_str().as_bytes()) {
            Ok(()) => {
                // A previous owner's read-only mark stays on the number (BLKROSET is the block device's, not the loop
                // driver's).
                let ready = sys::set_read_only(&device, read_only).and_then(|()| keep(&device));
                return ready.map(|()| loopdev.clone()).map_err(|e| said(e, loopdev.path().display()));
            }
            // Another process has taken it.
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => {
                let what =
                    format!("{} cannot be attached, with blocks of {block_size} bytes", loopdev.path().display());
                return Err(said(error, what));
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "others take each free loop device first: try again"))
}

/// Makes the device stay attached when it is closed.
fn keep(device: &OwnedFd) -> io::Result<()> {
    let mut info = sys::loop_status(device)?;
    info.flags &= !sys::LO_FLAGS_AUTOCLEAR;
    sys::loop_set_status(device, &info)
}

/// Detaches the loop devices on files of a dead server that was mounted on `dir`; to be called before that mount is
/// ended, since they are recognised by its path. Devices in use are detached when they are closed. Returns how many
/// there were.
///
/// # Errors
/// Of looking for them.
pub fn detach_stale(domain: &Domain, dir: &Path) -> io::Result<usize> {
    if mount::find(dir)?.is_empty() {
        return Ok(0);
    }
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(0) };
    let files = fs::canonicalize(parent)?.join(name).join(FILES);
    let stale = apart(domain, move || devices_in(&files))?;
    for device in &stale {
        tracing::info!("detaching {}, which a daemon before has left", device.path().display());
        device.detach_when_closed(domain)?;
    }
    Ok(stale.len())
}

/// The loop devices on files of that directory.
fn devices_in(files: &Path) -> io::Result<Vec<LoopDevice>> {
    let entries = match fs::read_dir("/sys/block") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let device = |node: PathBuf| {
        let number = node.to_str().and_then(|node| node.strip_prefix(NODE)?.parse().ok())?;
        let mut file = backing_file(number)?;
        if file == Path::new(DETACHED) {
            file = PathBuf::from(std::ffi::OsString::from_vec(told_name(number)?));
        }
        (file.parent() == Some(files)).then_some(LoopDevice { number, file })
    };
    Ok(entries.flatten().filter_map(|entry| device(Path::new("/dev").join(entry.file_name()))).collect())
}

/// A name, cut to the length that a loop device keeps.
fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(sys::LO_NAME_SIZE - 1)]
}

/// The name given to a loop device when it was attached, truncated if long.
fn told_name(number: u32) -> Option<Vec<u8>> {
    let device = open(&PathBuf::from(format!("{NODE}{number}")), OFlags::RDONLY).ok()?;
    let name = sys::loop_status(device).ok()?.file_name;
    Some(name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

/// The file beneath a loop device, as the kernel shows it; `None` for one that is free.
fn backing_file(number: u32) -> Option<PathBuf> {
    let mut text = fs::read(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    if text.ends_with(DELETED) {
        text.truncate(text.len() - DELETED.len());
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(text)))
}

/// The number of the file system that the file beneath a loop device is on, from the driver, whatever has happened to
/// its path. `None` for a free one, and if this user may not ask.
pub fn file_system(domain: &Domain, number: u32) -> Option<DevT> {
    let status = move || sys::loop_status(open(Path::new(&format!("{NODE}{number}")), OFlags::RDONLY)?);
    let info = apart(domain, status).ok()?;
    Some(DevT::new(rustix::fs::major(info.device), rustix::fs::minor(info.device)))
}

/// An open loop device that is known to be ours.
pub struct HeldLoop(StagedCall<()>);

impl HeldLoop {
    /// As [`LoopDevice::detach_when_closed`].
    ///
    /// # Errors
    /// What the system says.
    pub fn detach_when_closed(self) -> io::Result<()> {
        self.0.finish()
    }
}

impl LoopDevice {
    /// Its node in /dev.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("{NODE}{}", self.number))
    }

    /// Its number.
    pub fn number(&self) -> DevT {
        DevT::new(MAJOR, self.number)
    }

    /// Takes it away from the system when it is free, so that the next with this number is a new device. It stays when
    /// somebody has it open.
    pub fn discard(&self, domain: &Domain) {
        let _ = self.apart(domain, |device| sys::loop_remove(control()?, device.number));
    }

    /// Whether somebody has claimed it: a file system that is mounted, swap, an exclusive open.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_claimed(&self, domain: &Domain) -> io::Result<bool> {
        self.apart(domain, |device| match open(&device.path(), OFlags::RDONLY | OFlags::EXCL) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => Ok(true),
            Err(error) => Err(said(error, device.path().display())),
        })
    }

    fn apart<T: Send + 'static>(
        &self,
        domain: &Domain,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let device = self.clone();
        apart(domain, move || work(&device))
    }

    /// Calls a function with the device, if it is still ours.
    fn with_open(
        &self,
        domain: &Domain,
        work: impl FnOnce(OwnedFd) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        self.apart(domain, |device| match device.open()? {
            Some(open) => work(open).map_err(|e| said(e, device.path().display())),
            None => Ok(()),
        })
    }

    /// Whether it is still attached to its file: another process may have detached it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn is_attached(&self, domain: &Domain) -> io::Result<bool> {
        self.apart(domain, |device| Ok(device.is_ours()))
    }

    /// Detaches it, unless it is open elsewhere. Blocks until the kernel has written its pages.
    ///
    /// # Errors
    /// What the system says.
    pub fn detach(&self, domain: &Domain) -> io::Result<Detached> {
        self.apart(domain, Self::detach_here)
    }

    /// Detaches it now, or when its last user closes it. Blocks as [`detach`](Self::detach).
    ///
    /// # Errors
    /// What the system says.
    pub fn detach_when_closed(&self, domain: &Domain) -> io::Result<()> {
        self.apart(domain, |device| device.clear(device.open()?))
    }

    /// Holds the device, if it is still ours. Once the server of its file has gone, the driver no longer says which
    /// file a device has (LOOP_GET_STATUS64 asks the file, `drivers/block/loop.c`, 6.12); a process that has held it
    /// before can still detach it. Releasing it may block like [`detach`](Self::detach), but makes no other thread
    /// wait.
    ///
    /// # Errors
    /// What the system says.
    pub fn hold(&self, domain: &Domain) -> io::Result<HeldLoop> {
        let device = self.clone();
        let clear = self.clone();
        StagedCall::begin(domain, move || device.open(), move |open| clear.clear(open)).map(HeldLoop)
    }

    /// Takes over the file's size.
    ///
    /// # Errors
    /// What the system says.
    pub fn resize(&self, domain: &Domain) -> io::Result<()> {
        self.with_open(domain, sys::loop_set_capacity)
    }

    /// Takes another logical block size, in bytes. Blocks until what is in the page cache is written.
    ///
    /// # Errors
    /// What the system says: it is no power of two from 512 to a page, for one.
    pub fn set_block_size(&self, domain: &Domain, bytes: u32) -> io::Result<()> {
        self.with_open(domain, move |open| sys::loop_set_block_size(open, bytes))
    }

    /// Has the device offer no discards any more. The driver offers them for every file that holes can be punched in,
    /// also where a device beneath takes none.
    ///
    /// The limit is the number's and not the file's, and it cannot be taken back: without discards there is no
    /// granularity, and the kernel takes no limit that is no multiple of it (`queue_max_discard_sectors_store`, 6.12).
    /// So only for a number that is [discarded](Self::discard) with the device.
    ///
    /// # Errors
    /// What the system says: sysfs may be read-only.
    pub fn refuse_discards(&self, domain: &Domain) -> io::Result<()> {
        self.apart(domain, |device| fs::write(format!("/sys/block/loop{}/queue/discard_max_bytes", device.number), "0"))
    }

    /// Refuses writes, or no longer.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_read_only(&self, domain: &Domain, on: bool) -> io::Result<()> {
        self.with_open(domain, move |open| sys::set_read_only(open, on))
    }

    /// Makes the kernel write back its pages of the device. Blocks.
    ///
    /// # Errors
    /// Of writing.
    pub fn flush(&self, domain: &Domain) -> io::Result<()> {
        self.apart(domain, |device| device.open()?.map_or(Ok(()), |open| Ok(rustix::fs::fsync(open)?)))
    }
}

/// The operations that are done apart.
impl LoopDevice {
    fn is_ours(&self) -> bool {
        // For a detached mount the kernel shows paths from its root on; for a file's own mount that is the root itself.
        // This is so after the node was renamed or removed, and when the daemon is dead.
        let away = self.file.file_name().map(|name| Path::new("/").join(FILES).join(name));
        let is = |file: PathBuf| match file == Path::new(DETACHED) {
            true => told_name(self.number).is_some_and(|name| name == cut(self.file.as_os_str().as_bytes())),
            false => file == self.file || Some(file) == away,
        };
        backing_file(self.number).is_some_and(is)
    }

    /// The device, if it is still ours.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        if !self.is_ours() {
            return Ok(None);
        }
        match open(&self.path(), OFlags::RDONLY) {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(said(error, self.path().display())),
        }
    }

    /// Detaches the device that is open here, now or when its other users have closed it.
    fn clear(&self, device: Option<OwnedFd>) -> io::Result<()> {
        let Some(device) = device else { return Ok(()) };
        if self.is_read_only() {
            // Otherwise the next user of this number could not write.
            sys::set_read_only(&device, false).map_err(|e| said(e, self.path().display()))?;
        }
        match sys::loop_clear(&device) {
            Err(error) if !is_free(&error) => Err(said(error, self.path().display())),
            _ => Ok(()),
        }
    }

    fn detach_here(&self) -> io::Result<Detached> {
        let read_only = self.is_read_only();
        self.clear(self.open()?)?;
        let Some(device) = self.open()? else { return Ok(Detached::Yes) };
        if read_only {
            sys::set_read_only(&device, true).map_err(|e| said(e, self.path().display()))?;
        }
        // It is in use, and would be detached when it is closed: this is undone.
        match keep(&device) {
            Ok(()) => Ok(Detached::InUse),
            Err(error) if is_free(&error) => Ok(Detached::Yes),
            Err(error) => Err(said(error, self.path().display())),
        }
    }

    fn is_read_only(&self) -> bool {
        fs::read(format!("/sys/block/loop{}/ro", self.number)).is_ok_and(|text| text.starts_with(b"1"))
    }
}

fn is_free(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_free() {
        let domain = Domain::default();
        let gone = LoopDevice { number: 999_999, file: "/nonexistent".into() };
        assert!(!gone.is_attached(&domain).unwrap());
        assert_eq!(gone.detach(&domain).unwrap(), Detached::Yes);
        gone.hold(&domain).unwrap().detach_when_closed().unwrap();
        gone.resize(&domain).unwrap();
        gone.flush(&domain).unwrap();
        gone.set_read_only(&domain, true).unwrap();
    }

    #[test]
    fn nothing_is_stale_where_nothing_is_mounted() {
        let domain = Domain::default();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(detach_stale(&domain, &dir.path().join("dev")).unwrap(), 0);
        assert_eq!(detach_stale(&domain, Path::new("/nonexistent/dev")).unwrap(), 0);
    }
}
