//! A device and its threads.

use super::control::{Control, Which, character_device};
use super::params;
use super::port::UringPort;
use super::uapi::{ANY_DEVICE, CONTROL, DeviceInfo, Params, feature, state};
use super::worker::{Shape, Worker};
use crate::exports::Export;
use crate::worker::deadline::Answers;
use crate::worker::group::Workers;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::any::Any;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use udm_base::{AlignedBuf, Sectors};
use udm_io::{BlockDevice, Domain};

/// Where the driver's devices are.
const DEVICES: &str = "/dev";
/// Requests of a queue. Memory for them is taken when they come, and given back when they stay away.
const DEPTH: u16 = 128;
/// Bytes of a request at most.
const BUFFER: usize = 512 << 10;
/// Queues at most; a thread each.
const QUEUES: usize = 4;
/// How long a device may take to begin or to end: it may wait for requests.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long requests may take of a device that is dropped.
const PARTING: Duration = Duration::from_secs(5);

/// Whose a device is: kept by the driver, for the server only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(u64);

impl Mark {
    const MAGIC: u64 = 0x75;
    const MINOR_BITS: u32 = 20;

    /// Of the device with that minor number, of the daemon whose directory is `place`.
    pub fn new(place: &Path, minor: u32) -> Self {
        // FNV-1a: any hash that stays the same from version to version.
        let hash = place
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let hash = (hash ^ hash >> 36) & ((1 << 36) - 1);
        Self(Self::MAGIC << 56 | hash << Self::MINOR_BITS | u64::from(minor) & ((1 << Self::MINOR_BITS) - 1))
    }

    /// Whether it is that of a device of the daemon there.
    pub fn is_of(self, place: &Path) -> bool {
        self.0 >> Self::MINOR_BITS == Self::new(place, 0).0 >> Self::MINOR_BITS
    }
}

/// A device of the driver that is there, served or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Its number.
    pub number: u32,
    /// Whose it is.
    pub mark: Mark,
    /// Whether another server can go on with it; else it can only be deleted.
    pub recoverable: bool,
}

/// What came of a removal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Removed {
    /// It is gone.
    Yes,
    /// Somebody uses it; who, for people.
    InUse(String),
}

/// What came of another size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resized {
    /// It has it.
    Yes,
    /// This kernel's devices keep the size that they were made with (before 6.16).
    Never,
}

/// Whether there is ublk, for this user.
///
/// # Errors
/// Why not, and what to do.
pub fn available() -> io::Result<()> {
    Control::open()?.features().map(drop)
}

/// Whether the kernel has the driver, as far as can be told without asking it.
pub fn is_there() -> bool {
    Path::new(CONTROL).exists()
}

/// The devices that this user may know of. Blocks briefly.
pub fn left() -> Vec<Left> {
    let Ok(control) = Control::open() else { return Vec::new() };
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok());
    numbers.filter_map(|number| control.info(number).ok()).map(|info| Left::of(&info)).collect()
}

/// Whose the device with that number is; `None` where none is, or this user may not know. Blocks briefly.
pub fn mark_of(number: u32) -> Option<Mark> {
    Control::open().and_then(|control| control.info(number)).ok().map(|info| Mark(info.ublksrv_flags))
}

impl Left {
    fn of(info: &DeviceInfo) -> Self {
        let recoverable =
            info.flags & feature::USER_RECOVERY != 0 && matches!(info.state, state::LIVE | state::QUIESCED);
        Self { number: info.dev_id, mark: Mark(info.ublksrv_flags), recoverable }
    }
}

/// Deletes a device that nobody serves. Who has it open gets errors. Blocks.
pub fn delete(number: u32) -> io::Result<()> {
    let control = Control::open()?;
    let info = control.info(number)?;
    control.delete(info.which(), PATIENCE)
}

/// The threads of a device, and what the driver writes to until they have ended. Dropped before that, the memory stays
/// for good.
struct Queues {
    workers: Workers<Infallible>,
    memory: Mutex<Vec<Arc<AlignedBuf>>>,
}

impl Queues {
    fn memory(&self) -> MutexGuard<'_, Vec<Arc<AlignedBuf>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether they have been waited for.
    fn are_over(&self) -> bool {
        self.memory().is_empty()
    }

    /// Blocks until they have ended.
    fn join(&self) {
        self.workers.join();
        self.memory().clear();
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut *self.memory()));
    }
}

/// A device that this process serves. Dropped, it leaves: see [`leave`](Self::leave).
pub struct Ublk {
    control: Control,
    which: Which,
    flags: u64,
    device: Arc<dyn BlockDevice>,
    queues: Queues,
    through: Arc<AtomicBool>,
    /// Counts the device as open.
    _open: Box<dyn Any + Send>,
}

impl Ublk {
    /// Makes a device of the kernel. It is at [`path`](Self::path) when this returns. Blocks.
    ///
    /// # Errors
    /// Why there is none, and what to do. Nothing is left of it then.
    pub fn add(domain: &Domain, node: &dyn Export, mark: Mark) -> io::Result<Self> {
        let control = Control::open()?;
        let device = node.device();
        let wanted = params::params(device.sectors(), &device.limits(), node.read_only(), BUFFER)?;
        let queues = std::thread::available_parallelism().map_or(1, usize::from).min(QUEUES);
        let features = control.features()?;
        let mut info = DeviceInfo {
            nr_hw_queues: queues as u16,
            queue_depth: DEPTH,
            max_io_buf_bytes: BUFFER as u32,
            dev_id: ANY_DEVICE,
            // For root the driver takes the unprivileged off, and for others the recovery.
            flags: feature::USER_RECOVERY
                | feature::USER_RECOVERY_REISSUE
                | feature::UNPRIVILEGED_DEV
                | feature::CMD_IOCTL_ENCODE
                | features & feature::UPDATE_SIZE,
            ublksrv_flags: mark.0,
            ..DeviceInfo::default()
        };
        let which = control.add(&mut info)?;
        let through = Arc::new(AtomicBool::new(node.write_through()));
        let made = Self::begin(domain, node, device, &info, &through).and_then(|(queues, open)| {
            let started = control.set_params(which, &wanted).and_then(|()| control.start(which, PATIENCE));
            started.map(|()| (queues, open))
        });
        match made {
            Ok((queues, open)) => Ok(Self::new(control, &info, node, (queues, through), open)),
            Err(error) => {
                // The threads end with it.
                let _ = control.delete(which, PATIENCE);
                Err(error)
            }
        }
    }

    /// Goes on with a device that another server has left, dead or by its will: what waits there comes now, first what
    /// that one had not answered. Blocks.
    ///
    /// # Errors
    /// `ResourceBusy` while the driver still sees the other; try again. Anything else is final, and the device is as
    /// before.
    pub fn recover(domain: &Domain, node: &dyn Export, number: u32) -> io::Result<Self> {
        let control = Control::open()?;
        let info = control.info(number)?;
        control.start_recovery(info.which())?;
        let through = Arc::new(AtomicBool::new(node.write_through()));
        let (queues, open) = Self::begin(domain, node, node.device(), &info, &through)?;
        // From here on its end is that of its threads, so that somebody else can try.
        let this = Self::new(control, &info, node, (queues, through), open);
        this.control.end_recovery(info.which(), PATIENCE)?;
        Ok(this)
    }

    fn new(
        control: Control,
        info: &DeviceInfo,
        node: &dyn Export,
        (queues, through): (Queues, Arc<AtomicBool>),
        open: Box<dyn Any + Send>,
    ) -> Self {
        let (which, flags, device) = (info.which(), info.flags, node.device());
        Self { control, which, flags, device, queues, through, _open: open }
    }

    /// Starts the threads; they fetch when this returns.
    fn begin(
        domain: &Domain,
        node: &dyn Export,
        device: Arc<dyn BlockDevice>,
        info: &DeviceInfo,
        through: &Arc<AtomicBool>,
    ) -> io::Result<(Queues, Box<dyn Any + Send>)> {
        let open = node.open().map_err(|refused| io::Error::from_raw_os_error(refused.errno.get()))?;
        let path = character_device(info.dev_id);
        let file = rustix::fs::open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let file: Arc<OwnedFd> = Arc::new(file.map_err(|error| {
            let error = io::Error::from(error);
            let hint = match error.kind() {
                io::ErrorKind::NotFound => "; a container has to be given the nodes of /dev/ublk*",
                io::ErrorKind::PermissionDenied => "; without root, a udev rule has to give it to this user",
                _ => "",
            };
            io::Error::new(error.kind(), format!("{path}: {error}{hint}"))
        })?);
        let shape = Shape { depth: info.queue_depth, buffer: info.max_io_buf_bytes as usize };
        let memory: Vec<_> = (0..info.nr_hw_queues).map(|_| Arc::new(AlignedBuf::zeroed(shape.bytes()))).collect();
        let makers = memory.clone().into_iter().zip(0..).map(|(memory, queue)| {
            let (domain, device, file, through) = (domain.clone(), device.clone(), file.clone(), through.clone());
            move || {
                let port = UringPort::new(file, queue, shape.depth)?;
                Worker::new(&domain, device, port, shape, memory, through)
            }
        });
        let queues = Queues { workers: Workers::new(domain), memory: Mutex::new(memory) };
        queues.workers.start(|queue| format!("udm-ublk-{}.{queue}", info.dev_id), makers)?;
        Ok((queues, open))
    }

    /// Whether every write is durable when it is answered: what the next server has to know must not be in this
    /// process's memory only. From the next request on.
    pub fn set_write_through(&self, on: bool) {
        self.through.store(on, Ordering::Relaxed);
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.which.number
    }

    /// The block device.
    pub fn path(&self) -> PathBuf {
        path_of(self.which.number)
    }

    /// Whether another server can go on with it.
    pub fn is_recoverable(&self) -> bool {
        self.flags & feature::USER_RECOVERY != 0
    }

    /// Gives it the size that its device has now. Requests beyond the device's end fail, whatever size it shows.
    pub fn resize(&self) -> io::Result<Resized> {
        if self.flags & feature::UPDATE_SIZE == 0 {
            return Ok(Resized::Never);
        }
        self.control.update_size(self.which, self.device.sectors().get())?;
        Ok(Resized::Yes)
    }

    /// The size that it shows.
    pub fn sectors(&self) -> io::Result<Sectors> {
        let Params { dev_sectors, .. } = self.control.params(self.which)?;
        Ok(Sectors::new(dev_sectors))
    }

    /// Refuses writes from now on, or not. Takes root.
    pub fn set_read_only(&self, on: bool) -> io::Result<()> {
        let fd = rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        crate::node::set_read_only(fd, on)
    }

    /// Has the kernel write what it keeps of it. Blocks.
    pub fn flush(&self) -> io::Result<()> {
        let fd = rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::fs::fsync(fd)?)
    }

    /// Removes it, unless somebody uses it: as a mounted file system, beneath another device, or by an open file of a
    /// process that this one may look at. Blocks until the kernel has written what it keeps of it.
    pub fn remove(&self) -> io::Result<Removed> {
        let path = self.path();
        // Exclusively, so that nobody mounts it meanwhile.
        let alone = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Some(fd),
            Err(rustix::io::Errno::BUSY) => {
                return Ok(Removed::InUse(format!("{} is mounted, or beneath another device", path.display())));
            }
            // Not there any more, or nobody's to open.
            Err(_) => None,
        };
        if let Some(pid) = user_of(&path) {
            return Ok(Removed::InUse(format!("{} is open in process {pid}", path.display())));
        }
        if let Some(fd) = &alone {
            rustix::fs::fsync(fd)?;
        }
        self.end()?;
        Ok(Removed::Yes)
    }

    /// Removes it, whoever uses it: their requests fail. Blocks.
    pub fn end(&self) -> io::Result<()> {
        self.control.stop(self.which, PATIENCE)?;
        self.control.delete(self.which, PATIENCE)?;
        self.queues.join();
        Ok(())
    }

    /// Ends its threads and keeps the kernel's device: I/O waits there, until another server goes on with it
    /// ([`recover`](Self::recover)). Blocks, at most `patience` for what is under way. One that cannot be recovered
    /// ends instead.
    ///
    /// # Errors
    /// What is still under way, for people; then it goes on as before.
    pub fn leave(&self, patience: Duration) -> Result<(), String> {
        if !self.is_recoverable() {
            return self.end().map_err(|e| e.to_string());
        }
        // A queue whose thread has ended, since somebody has stopped the device, has nothing under way.
        if self.queues.workers.pause(patience) == Answers::Late {
            return Err(format!(
                "{} has requests that are not done after {} s",
                self.path().display(),
                patience.as_secs()
            ));
        }
        Workers::shut_down([&self.queues.workers], Duration::ZERO);
        self.queues.join();
        Ok(())
    }
}

impl Drop for Ublk {
    fn drop(&mut self) {
        if self.queues.are_over() {
            return;
        }
        if let Err(why) = self.leave(PARTING) {
            // Its threads go on for as long as the process lives.
            tracing::warn!("{why}");
        }
    }
}

fn path_of(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Another process that has the file open, among those that this one may look at. Reads links only, which never wait
/// for what is behind them.
fn user_of(path: &Path) -> Option<u32> {
    let own = std::process::id();
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).find(|pid| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.map(|fd| fs::read_link(fd.path())).any(|to| to.is_ok_and(|to| to == path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let (one, other) = (Path::new("/run/user/1/udm"), Path::new("/run/user/2/udm"));
        let mark = Mark::new(one, 7);
        assert_eq!(mark, Mark::new(one, 7));
        assert!(mark != Mark::new(one, 8) && mark != Mark::new(other, 7));
        assert!(mark.is_of(one) && Mark::new(one, 0xf_ffff).is_of(one) && !mark.is_of(other));
        // A server that does not use the field leaves 0 there.
        assert!(!Mark(0).is_of(one));
    }

    #[test]
    fn what_can_be_gone_on_with() {
        let check = |flags, state, expect| {
            let info = DeviceInfo { flags, state, dev_id: 3, ..DeviceInfo::default() };
            assert_eq!(Left::of(&info).recoverable, expect, "flags {flags:#x}, state {state}");
        };
        check(feature::USER_RECOVERY, state::QUIESCED, true);
        check(feature::USER_RECOVERY, state::LIVE, true);
        check(feature::USER_RECOVERY, state::DEAD, false);
        check(0, state::LIVE, false);
    }
}
