//! The file or block device beneath a [`FileDevice`](super::FileDevice): its descriptor, and what the system tells
//! of it.

use crate::claims::{Claim, Claims};
use crate::error::{OpenError, OpenErrorKind};
use crate::{hold, holder};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{FileType, OFlags, Stat};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{DevT, Sectors};
use udm_io::DeviceId;

/// Which of the two kinds of file that can be a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Regular,
    Block,
}

/// An open file. Dropping it gives up the lock or the claim that came with it.
pub(crate) struct Backing {
    fd: OwnedFd,
    /// Given up after the descriptor is closed, which may write what the kernel still holds.
    claim: Option<Claim>,
    pub(crate) kind: Kind,
    pub(crate) id: DeviceId,
    pub(crate) read_only: bool,
    /// The size in bytes when it was last asked for.
    bytes: AtomicU64,
    /// When a writer last asked for the size: its mark of a batch of submissions.
    checked: AtomicU64,
}

/// How a file is opened.
#[derive(Clone, Copy, Default)]
pub(crate) struct Access<'a> {
    pub(crate) read_only: bool,
    pub(crate) exclusive: bool,
    /// What a block device is claimed for; `exclusive` opens are then kept apart by who has the claims.
    pub(crate) claims: Option<&'a Claims>,
}

impl Backing {
    /// Opens `path`. `spec` is how errors name it.
    pub(crate) fn open(path: &Path, spec: &str, access: Access<'_>) -> Result<Self, OpenError> {
        let fail = |kind, detail: &str, e: rustix::io::Errno| OpenError::new(kind, spec, detail).because(e.into());
        // The kind is asked first: to open a tape rewinds it, and to open a FIFO waits.
        let stat = rustix::fs::stat(path).map_err(|e| fail(OpenErrorKind::of(e), "cannot be found", e))?;
        let kind = device_kind(FileType::from_raw_mode(stat.st_mode), spec)?;
        let number = |stat: &Stat| DevT::new(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        // Before it is opened to write: who closes it afterwards has it looked at anew by udev.
        let claim = access.claims.filter(|_| kind == Kind::Block);
        let claim = claim.map(|claims| claims.take(path, number(&stat), spec)).transpose()?;
        let exclusive = access.exclusive && kind == Kind::Block && claim.is_none();
        let claimed = number(&stat);
        let (fd, read_only) = if exclusive {
            holder::open_unclaimed(claimed, spec, || holder::open_fd(path, access.read_only, true))?
        } else {
            holder::open_fd(path, access.read_only, false).map_err(|e| OpenError::of_open(spec, e))?
        };
        let system = |e| fail(OpenErrorKind::System, "cannot be examined", e);
        let stat = rustix::fs::fstat(&fd).map_err(system)?;
        let replaced = claim.is_some() && number(&stat) != claimed;
        if replaced || device_kind(FileType::from_raw_mode(stat.st_mode), spec)? != kind {
            return Err(OpenError::new(OpenErrorKind::WrongKind, spec, "was replaced while it was opened; try again"));
        }
        // O_NONBLOCK was for a FIFO that might have taken the file's place; io_uring would give EAGAIN for it.
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(system)?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(system)?;
        let id = match kind {
            Kind::Regular => DeviceId::File(stat.st_dev, stat.st_ino),
            Kind::Block => DeviceId::Number(number(&stat)),
        };
        if access.exclusive && kind == Kind::Regular {
            hold::lock(fd.as_fd(), &stat, read_only, spec)?;
        }
        let (bytes, checked) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let backing = Self { fd, claim, kind, id, read_only, bytes, checked };
        backing.ask_size().map_err(system)?;
        Ok(backing)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The one for discards and zeroes.
    pub(crate) fn ranges_fd(&self) -> BorrowedFd<'_> {
        self.claim.as_ref().map_or_else(|| self.fd.as_fd(), AsFd::as_fd)
    }

    fn ask_size(&self) -> rustix::io::Result<u64> {
        let bytes = match self.kind {
            Kind::Regular => rustix::fs::fstat(&self.fd)?.st_size as u64,
            // The descriptor's position is used for nothing else.
            Kind::Block => rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::End(0))?,
        };
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// The size in bytes now; where it cannot be had, as it was when last asked.
    pub(crate) fn bytes(&self) -> u64 {
        self.ask_size().unwrap_or_else(|_| self.bytes.load(Ordering::Relaxed))
    }

    /// The size now. A regular file may end within a sector, which then cannot be addressed.
    pub(crate) fn sectors(&self) -> Sectors {
        Sectors::in_bytes(self.bytes())
    }

    /// Whether a write that ends at byte `end` stays within the file: written beyond its end, a file that was cut
    /// off below would grow again, in pieces. A block device refuses by itself.
    pub(crate) fn holds(&self, end: u64) -> bool {
        self.kind == Kind::Block || end <= self.bytes()
    }

    /// As [`holds`](Self::holds), asking the system once for each `batch` of a submitter.
    #[inline]
    pub(crate) fn holds_in_batch(&self, end: u64, batch: u64) -> bool {
        if self.kind == Kind::Block {
            return true;
        }
        if self.checked.load(Ordering::Relaxed) != batch {
            self.checked.store(batch, Ordering::Relaxed);
            return self.holds(end);
        }
        end <= self.bytes.load(Ordering::Relaxed)
    }

    /// Turns O_DIRECT on. False where the file system refuses it.
    pub(crate) fn go_direct(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.fd).and_then(|flags| rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT))
            == Ok(())
    }

    /// Turns O_DIRECT off.
    pub(crate) fn go_buffered(&self) {
        // It was turned on by the same call, so that it can be turned off.
        let flags = rustix::fs::fcntl_getfl(&self.fd);
        let _ = flags.and_then(|flags| rustix::fs::fcntl_setfl(&self.fd, flags - OFlags::DIRECT));
    }

    /// Whether the file lives in memory: on tmpfs, or on ramfs, which is it without swap, limits and holes.
    pub(crate) fn in_memory(&self) -> bool {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        const RAMFS_MAGIC: u64 = 0x8584_58f6;
        let magic = rustix::fs::fstatfs(&self.fd).map_or(0, |s| s.f_type as u64 & 0xffff_ffff);
        self.kind == Kind::Regular && matches!(magic, TMPFS_MAGIC | RAMFS_MAGIC)
    }
}

/// The kind of a file of `ty`, or an error that names what it is.
fn device_kind(ty: FileType, spec: &str) -> Result<Kind, OpenError> {
    let what = match ty {
        FileType::RegularFile => return Ok(Kind::Regular),
        FileType::BlockDevice => return Ok(Kind::Block),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        _ => "of an unknown kind",
    };
    Err(OpenError::new(OpenErrorKind::WrongKind, spec, format!("is {what}; expected a regular file or a block device")))
}
