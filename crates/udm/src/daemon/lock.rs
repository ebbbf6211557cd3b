//! One daemon a directory.

use crate::places::Places;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// The directory is ours as long as this lives. The kernel lets go of it when the process ends, however it does.
pub(crate) struct Lock {
    _file: File,
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
    /// Takes the directory. Does not wait.
    pub(crate) fn take(places: &Places) -> Result<Self, LockError> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(places.lock());
        let mut file = file.map_err(LockError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = file.take(32).read_to_string(&mut text);
                return Err(LockError::Held { pid: read.ok().and_then(|_| text.trim().parse().ok()) });
            }
            Err(errno) => return Err(LockError::Io(errno.into())),
        }
        file.set_len(0).map_err(LockError::Io)?;
        writeln!(file, "{}", std::process::id()).map_err(LockError::Io)?;
        Ok(Self { _file: file })
    }

    /// The daemon that has the directory, if one does.
    pub(crate) fn holder(places: &Places) -> Option<Option<u32>> {
        if !places.lock().exists() {
            return None;
        }
        match Self::take(places) {
            Err(LockError::Held { pid }) => Some(pid),
            _ => None,
        }
    }
}
