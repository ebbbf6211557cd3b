//! Loop devices of the kernel on top of nodes' files: block devices for those who need one, to mount or to boot from.
//!
//! I/O goes to the file directly, past the kernel's page cache of it; discards become holes that are punched. The loop
//! device holds its file open, and so its device, until it is detached.
//!
//! # Who a loop device belongs to
//! Numbers are given out anew, so a number proves nothing. Before one is changed, its `backing_file` in sysfs must be
//! the file that it was made for.
//!
//! # Who waits for whom
//! To attach, to detach, even to close a loop device may write and flush its file, which is served by this process. So
//! what touches one does it [apart](super::apart).

use super::apart::{Errand, apart};
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
/// How often a free device is asked for, when others are as quick to take it.
const TRIES: usize = 32;
/// What it shows of the file of a mount that was taken out of sight.
const DETACHED: &str = "/";
/// What sysfs adds to a name that is gone.
const DELETED: &[u8] = b" (deleted)";

/// A loop device that this process has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopDevice {
    number: u32,
    file: PathBuf,
}

/// What became of an attempt to detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// It is free again.
    Yes,
    /// Somebody has it open: it stays.
    InUse,
}

fn said(error: io::Error, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether loop devices can be asked for here.
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
pub fn attach(domain: &Domain, file: &Path, read_only: bool, block_size: u32) -> io::Result<LoopDevice> {
    let file = file.to_owned();
    apart(domain, move || attach_here(&file, read_only, block_size))
}

fn attach_here(file: &Path, read_only: bool, block_size: u32) -> io::Result<LoopDevice> {
    let control = control()?;
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let backing = open(file, access | OFlags::DIRECT).map_err(|e| said(e, file.display()))?;
    // The kernel has the file flushed while it keeps the number from everybody, `losetup --find` as well, which is told
    // of no other. So what there is to wait for is waited for here; like there it may fail.
    let _ = rustix::fs::fsync(&backing);
    // As the kernel will show it.
    let file = fs::canonicalize(file).map_err(|e| said(e, file.display()))?;
    // Who is killed before all is done takes the device along.
    let flags = sys::LO_FLAGS_DIRECT_IO | sys::LO_FLAGS_AUTOCLEAR | if read_only { sys::LO_FLAGS_READ_ONLY } else { 0 };
    for _ in 0..TRIES {
        let number = sys::loop_get_free(&control).map_err(|e| said(e, "no loop device is left"))?;
        let loopdev = LoopDevice { number, file: file.clone() };
        let device = open(&loopdev.path(), access).map_err(|error| match error.kind() {
            // Nobody makes nodes for new numbers in most containers.
            io::ErrorKind::NotFound => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("no loop device is left that has a node: make one with `mknod {NODE}{number} b 7 {number}`"),
            ),
            _ => said(error, loopdev.path().display()),
        })?;
        match sys::loop_configure(&device, &backing, block_size, flags, file.as_os_str().as_bytes()) {
            Ok(()) => {
                // The mark of who had the number before stays on it (BLKROSET is the block device's, not the loop
                // driver's).
                let ready = sys::set_read_only(&device, read_only).and_then(|()| keep(&device));
                return ready.map(|()| loopdev.clone()).map_err(|e| said(e, loopdev.path().display()));
            }
            // Somebody else has taken it.
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

/// Has the device stay attached when it is closed.
fn keep(device: &OwnedFd) -> io::Result<()> {
    let mut info = sys::loop_status(device)?;
    info.flags &= !sys::LO_FLAGS_AUTOCLEAR;
    sys::loop_set_status(device, &info)
}

/// Detaches the loop devices on files of a dead server that was mounted on `dir`; before that mount is ended, since
/// they are known by its path. Those that are in use are detached when they are closed. Returns how many there were.
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

/// A name as far as a loop device keeps it.
fn cut(name: &[u8]) -> &[u8] {
    &name[..name.len().min(sys::LO_NAME_SIZE - 1)]
}

/// The name that a loop device was told when it was attached, cut off where it is long.
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

/// The number of the file system that the file beneath a loop device is on, as the driver knows it, whatever has become
/// of its path. `None` for a free one, and where this user may not ask.
pub fn file_system(domain: &Domain, number: u32) -> Option<DevT> {
    let status = move || sys::loop_status(open(Path::new(&format!("{NODE}{number}")), OFlags::RDONLY)?);
    let info = apart(domain, status).ok()?;
    Some(DevT::new(rustix::fs::major(info.device), rustix::fs::minor(info.device)))
}

/// A loop device that is known to be ours, and open.
pub struct HeldLoop(Errand<()>);

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

    fn apart<T: Send + 'static>(
        &self,
        domain: &Domain,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let device = self.clone();
        apart(domain, move || work(&device))
    }

    /// Does something with the device, if it is still ours.
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

    /// Whether it is still what it was made to be: somebody may have detached it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn is_attached(&self, domain: &Domain) -> io::Result<bool> {
        self.apart(domain, |device| Ok(device.is_ours()))
    }

    /// Detaches it, unless somebody has it open. Blocks until what the kernel still had to write is written.
    ///
    /// # Errors
    /// What the system says.
    pub fn detach(&self, domain: &Domain) -> io::Result<Detached> {
        self.apart(domain, Self::detach_here)
    }

    /// Detaches it now, or when the last who has it open closes it. Blocks as [`detach`](Self::detach).
    ///
    /// # Errors
    /// What the system says.
    pub fn detach_when_closed(&self, domain: &Domain) -> io::Result<()> {
        self.apart(domain, |device| device.clear(device.open()?))
    }

    /// Holds the device, if it is still ours. Once the server of its file has gone the driver does not tell any more
    /// what a device was made to be (LOOP_GET_STATUS64 asks the file, `drivers/block/loop.c`, 6.12); who held it before
    /// can still detach it. To let go of it may block as to [`detach`](Self::detach), and keeps nobody waiting.
    ///
    /// # Errors
    /// What the system says.
    pub fn hold(&self, domain: &Domain) -> io::Result<HeldLoop> {
        let device = self.clone();
        let clear = self.clone();
        Errand::begin(domain, move || device.open(), move |open| clear.clear(open)).map(HeldLoop)
    }

    /// Takes over the file's size.
    ///
    /// # Errors
    /// What the system says.
    pub fn resize(&self, domain: &Domain) -> io::Result<()> {
        self.with_open(domain, sys::loop_set_capacity)
    }

    /// Refuses writes, or no longer.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_read_only(&self, domain: &Domain, on: bool) -> io::Result<()> {
        self.with_open(domain, move |open| sys::set_read_only(open, on))
    }

    /// Has the kernel write what it keeps of the device. Blocks.
    ///
    /// # Errors
    /// Of writing.
    pub fn flush(&self, domain: &Domain) -> io::Result<()> {
        self.apart(domain, |device| device.open()?.map_or(Ok(()), |open| Ok(rustix::fs::fsync(open)?)))
    }
}

/// What is done apart.
impl LoopDevice {
    fn is_ours(&self) -> bool {
        // Of a mount that has gone from its place the kernel shows paths from its root on; of a file's own that is the
        // root itself. So it is after the node was renamed or removed, and when the daemon is dead.
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

    /// Detaches what is open here, now or when the others who have it open have closed it.
    fn clear(&self, device: Option<OwnedFd>) -> io::Result<()> {
        let Some(device) = device else { return Ok(()) };
        if self.is_read_only() {
            // Or the next with this number, whoever that is, cannot write.
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
        // It is in use, and would go when it is closed: that is taken back.
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
