//! A thread whose system call waits for an answer: its memory, its rights, and what paths mean to it.
//!
//! A thread's number may be somebody else's by the time that it is used. So everything is *opened* by the number first;
//! then the listener is asked whether the call still waits ([`sys::is_waiting`]), which says that what was opened is
//! the caller's; and only then it is used.

use crate::sys::{self, Notification};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use udm_base::DevT;

/// The longest path (`PATH_MAX`).
const PATH_MAX: usize = 4096;
const PAGE: u64 = 4096;
/// `CAP_SYS_ADMIN`, `CAP_DAC_OVERRIDE` (`include/uapi/linux/capability.h`).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_DAC_OVERRIDE: u32 = 1;

/// A caller that is known to wait.
pub(crate) struct Caller<'a> {
    listener: BorrowedFd<'a>,
    pub(crate) call: Notification,
    /// Its directory in `/proc`.
    process: OwnedFd,
    memory: OwnedFd,
}

fn opened(at: impl AsFd, path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path.as_ref(), flags | OFlags::CLOEXEC, Mode::empty())
}

impl<'a> Caller<'a> {
    /// Opens what belongs to the caller.
    ///
    /// # Errors
    /// ESRCH: it has gone. EPERM, EACCES: this process may not look into it.
    pub(crate) fn new(listener: BorrowedFd<'a>, call: Notification) -> Result<Self, Errno> {
        if call.tid == 0 {
            return Err(Errno::SRCH);
        }
        let gone = |error: Errno| if error == Errno::NOENT { Errno::SRCH } else { error };
        let path = format!("/proc/{}", call.tid);
        let process = opened(rustix::fs::CWD, &path, OFlags::DIRECTORY | OFlags::PATH).map_err(gone)?;
        let memory = opened(&process, "mem", OFlags::RDWR).map_err(gone)?;
        let caller = Self { listener, call, process, memory };
        if caller.is_waiting() { Ok(caller) } else { Err(Errno::SRCH) }
    }

    /// Whether its call still waits.
    pub(crate) fn is_waiting(&self) -> bool {
        sys::is_waiting(self.listener, self.call.id)
    }

    /// Reads its memory. EFAULT where there is none.
    pub(crate) fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < buf.len() {
            let at = address.checked_add(done as u64).ok_or(Errno::FAULT)?;
            match rustix::io::pread(&self.memory, &mut buf[done..], at) {
                // Past the end of what an address can be, the file says EINVAL.
                Ok(0) | Err(Errno::IO | Errno::INVAL) => return Err(Errno::FAULT),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes its memory. EFAULT where there is none. Unlike the kernel's copies, this reaches memory that the caller
    /// has protected from itself.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.checked_add(done as u64).ok_or(Errno::FAULT)?;
            match rustix::io::pwrite(&self.memory, &bytes[done..], at) {
                Ok(0) | Err(Errno::IO | Errno::INVAL) => return Err(Errno::FAULT),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A text of its memory up to its zero.
    pub(crate) fn text(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        while text.len() < PATH_MAX {
            let at = address.checked_add(text.len() as u64).ok_or(Errno::FAULT)?;
            let mut piece = [0; PAGE as usize];
            // Up to the end of a page: what follows may not be there.
            let piece = &mut piece[..(PAGE - at % PAGE) as usize];
            self.read(at, piece)?;
            if let Some(end) = piece.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return Ok(text);
            }
            text.extend_from_slice(piece);
        }
        Err(Errno::NAMETOOLONG)
    }

    /// A line of its `status`, after the colon.
    fn status(&self, key: &str) -> Option<String> {
        let file = opened(&self.process, "status", OFlags::RDONLY).ok()?;
        let mut text = Vec::new();
        let mut piece = [0; PAGE as usize];
        while let Ok(count @ 1..) = rustix::io::read(&file, &mut piece) {
            text.extend_from_slice(&piece[..count]);
        }
        let text = String::from_utf8_lossy(&text);
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
    }

    fn has_capability(&self, number: u32) -> bool {
        let effective = self.status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        effective.is_some_and(|set| set >> number & 1 != 0) && self.is_of_our_users()
    }

    /// Whether it is of this process's user namespace: in another, rights are rights over that only.
    fn is_of_our_users(&self) -> bool {
        let link = |at: &OwnedFd, path: &str| rustix::fs::readlinkat(at, path, Vec::new()).ok();
        let ours = rustix::fs::readlink("/proc/self/ns/user", Vec::new()).ok();
        ours.is_some() && link(&self.process, "ns/user") == ours
    }

    /// Whether the kernel would let it use device mapper: `ctl_ioctl` (`drivers/md/dm-ioctl.c`, 6.12) asks for
    /// CAP_SYS_ADMIN.
    pub(crate) fn may_administrate(&self) -> bool {
        self.has_capability(CAP_SYS_ADMIN)
    }

    /// Whether it may open a node that is root's alone.
    pub(crate) fn may_open_of_root(&self) -> bool {
        // Real, effective, saved, file system.
        let is_root = self.status("Uid").is_some_and(|ids| ids.split_whitespace().nth(3) == Some("0"));
        is_root && self.is_of_our_users() || self.has_capability(CAP_DAC_OVERRIDE)
    }

    /// Whether a signal waits for it that it would take.
    pub(crate) fn has_signal(&self) -> bool {
        let set = |key| self.status(key).and_then(|hex| u64::from_str_radix(&hex, 16).ok()).unwrap_or_default();
        (set("SigPnd") | set("ShdPnd")) & !set("SigBlk") & !set("SigIgn") != 0
    }

    /// The number of the block device that a path leads to, as the caller sees it. `None`: it is something else, or
    /// cannot be found. Links are followed within the caller's root; nothing is opened but the path.
    pub(crate) fn block_device(&self, path: &[u8]) -> Option<DevT> {
        let stat = self.stat(path)?;
        let is_block = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
        is_block.then(|| DevT::new(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
    }

    /// What is at a path, as the caller sees it.
    fn stat(&self, path: &[u8]) -> Option<rustix::fs::Stat> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let base = if path.is_absolute() { "root" } else { "cwd" };
        let base = opened(&self.process, base, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        // A relative path's `..` and links within may lead anywhere in the caller's root: they are looked up as they
        // are.
        let resolve = if path.is_absolute() { ResolveFlags::IN_ROOT } else { ResolveFlags::NO_MAGICLINKS };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(base, path, flags, Mode::empty(), resolve).ok()?;
        if !self.is_waiting() {
            return None;
        }
        rustix::fs::fstat(file).ok()
    }

    /// What a descriptor of the caller's is, as `/proc` names it.
    pub(crate) fn descriptor(&self, number: u64) -> Result<Vec<u8>, Errno> {
        let name = rustix::fs::readlinkat(&self.process, format!("fd/{}", number as u32 as i32), Vec::new());
        name.map(|name| name.into_bytes()).map_err(|error| if error == Errno::NOENT { Errno::BADF } else { error })
    }
}

/// `/dev/mapper/control` (`MISC_MAJOR`, `MAPPER_CTRL_MINOR`, `include/linux/miscdevice.h`, 6.12).
pub(crate) const CONTROL_NUMBER: (u32, u32) = (10, 236);

impl Caller<'_> {
    /// Whether a path is the control node's, as the caller sees it.
    pub(crate) fn is_control(&self, path: &[u8]) -> bool {
        self.stat(path).is_some_and(|stat| {
            let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
            is_device && number == CONTROL_NUMBER
        })
    }
}
