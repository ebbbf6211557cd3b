//! One daemon a directory.
//!
//! There are two locks. That of the file `lock` says that a directory has a daemon: it passes from one to the next, who
//! have it both for a while. That of the directory itself is the *right to serve*: each has it by a descriptor of its
//! own that it passes to nobody. The kernel takes it from a process that ends, and nobody else does. So who has got it
//! knows that the daemon before has ended or has given it up, which the end of a connection does not tell.

use crate::places::Places;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

/// How long one who only asks may keep the lock from one who takes it.
const PROBE: Duration = Duration::from_millis(10);

/// How long a process may take to end that has let go of the directory already.
const ENDING: Duration = Duration::from_secs(10);

/// A link in a directory that is another user's may lead to a file that root alone can open.
const NO_LINK: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// The directory is ours as long as this lives. The kernel lets go of it when the process ends, however it does.
pub(crate) struct Lock {
    file: File,
    /// The directory, opened here.
    right: File,
}

/// Why there is no lock.
pub(crate) enum LockError {
    /// Another daemon has it.
    Held {
        /// Its process; `None` when it has not written it yet.
        pid: Option<u32>,
    },
    /// The file cannot be had.
    Io(io::Error),
}

impl Lock {
    /// Takes the directory. Waits only as long as one who asks for the [`holder`](Self::holder) may take.
    pub(crate) fn take(places: &Places) -> Result<Self, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
        let file = options.open(places.lock());
        let mut file = file.map_err(LockError::Io)?;
        let right = File::open(places.dir()).map_err(LockError::Io)?;
        for last in [false, false, false, false, true] {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if !last => std::thread::sleep(PROBE),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Held { pid: pid_in(file) }),
                Err(errno) => return Err(LockError::Io(errno.into())),
            }
        }
        file.set_len(0).map_err(LockError::Io)?;
        writeln!(file, "{}", std::process::id()).map_err(LockError::Io)?;
        let this = Self { file, right };
        this.claim(ENDING).map_err(LockError::Io)?;
        Ok(this)
    }

    /// A lock that another process has taken and passes on, or has ended with. Without the right to serve.
    pub(crate) fn adopt(file: OwnedFd, places: &Places) -> io::Result<Self> {
        Ok(Self { file: file.into(), right: File::open(places.dir())? })
    }

    /// Takes the right to serve; waits at most so long for a process that has it.
    ///
    /// # Errors
    /// `WouldBlock`: another process still has it, and so it lives.
    pub(crate) fn claim(&self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            match flock(&self.right, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PROBE),
                Err(rustix::io::Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Gives the right to serve up.
    pub(crate) fn yield_right(&self) -> io::Result<()> {
        Ok(flock(&self.right, FlockOperation::Unlock)?)
    }

    /// The lock once more: it is let go of when all of them are.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Says that this process has it.
    pub(crate) fn sign(&self) -> io::Result<()> {
        // One write over what is there: who asks in between finds the one or the other. The spaces go with the trim.
        self.file.write_all_at(format!("{:<16}\n", std::process::id()).as_bytes(), 0)
    }

    /// Whether the lock still keeps others out: its file is in the directory.
    pub(crate) fn is_in_place(&self, places: &Places) -> bool {
        let identity = |meta: Metadata| (meta.dev(), meta.ino());
        let ours = self.file.metadata().map(identity).ok();
        ours.is_some() && std::fs::metadata(places.lock()).map(identity).ok() == ours
    }

    /// The daemon that has the directory, if one does.
    pub(crate) fn holder(places: &Places) -> Option<Option<u32>> {
        let file = OpenOptions::new().read(true).custom_flags(NO_LINK).open(places.lock()).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => Some(pid_in(file)),
            _ => None,
        }
    }
}

fn pid_in(file: File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
