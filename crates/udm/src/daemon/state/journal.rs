//! Where the state lies: `state.json`, a checkpoint, and `state.log`, what has changed since.
//!
//! # The log
//! Lines of text. The first is `udm-state-log 1 LENGTH CRC`: it belongs to the checkpoint of so many bytes with that
//! CRC-32C, and to no other. Each that follows is `CRC RECORD`, where the CRC goes on from that of the line before; so
//! a line is good only when all before it are. Numbers of a CRC have eight hexadecimal digits.
//!
//! # What is on disk, and when
//! - A record is in the log, and fdatasync(2) has returned, before [`Journal::append`] is `Ok`.
//! - A checkpoint is written beside `state.json`, synced, and renamed over it, and the directory synced; then a new log
//!   is made in the same way. A power cut between the two leaves the log of the checkpoint before. It is known by its
//!   first line, and all that it says is in the new checkpoint.
//! - What a power cut or a full disk leaves of a last line is not good, and was acknowledged to nobody: it is left out.
//!   After a failed write the line is cut off again, before another follows. After a failed sync nobody knows what is
//!   on disk: nothing is appended any more, only another checkpoint helps.
//!
//! # Cost
//! A record costs what it holds. A checkpoint costs what there is, and is due when the log has become longer than the
//! checkpoint: so each record pays for it but once.

use std::io;

/// The checkpoint.
pub(crate) const STATE: &str = "state.json";
/// What has changed since.
pub(crate) const LOG: &str = "state.log";
/// The ending of a file that is being written.
const NEW: &str = ".new";
/// What a log begins with.
const MAGIC: &str = "udm-state-log 1";
/// A file that is longer is none of ours: a device takes some hundred bytes, a line of a table as much.
pub(super) const MAX_FILE: u64 = 256 << 20;
/// A log that is shorter is no reason for a checkpoint.
const SHORT: u64 = 64 << 10;
/// So much room is asked for at a time.
const ROOM: u64 = 64 << 10;

/// What it takes of a file system: the files of one directory.
pub(crate) trait Disk {
    type File;

    /// All of a file, at most [`MAX_FILE`] bytes and one; `None` when there is none.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// An empty file of that name, in the place of what was there.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// Writes all of it there.
    fn write(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Sees to it that writes there need no more room. `Ok` where a file system cannot.
    fn reserve(&self, file: &Self::File, at: u64, len: u64) -> io::Result<()>;
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// No error when there is none.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes the names durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// What could not be done, and to which file.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) file: &'static str,
    pub(crate) error: io::Error,
}

/// What lies there.
#[derive(Default)]
pub(crate) struct Found {
    /// The checkpoint; `None` when there is none, and so nothing at all.
    pub(crate) checkpoint: Option<Vec<u8>>,
    /// What has changed since, in order.
    pub(crate) records: Vec<String>,
    /// What of the log was left out, for people.
    pub(crate) left_out: Option<String>,
}

/// Reads the two files.
pub(crate) fn read<D: Disk>(disk: &D) -> Result<Found, Failed> {
    let whole = |file: &'static str| {
        let bytes = disk.read(file).map_err(|error| Failed { file, error })?;
        match bytes {
            Some(bytes) if bytes.len() as u64 > MAX_FILE => {
                let error = io::Error::other(format!("it is longer than {MAX_FILE} bytes"));
                Err(Failed { file, error })
            }
            other => Ok(other),
        }
    };
    let Some(checkpoint) = whole(STATE)? else { return Ok(Found::default()) };
    let (records, left_out) = match whole(LOG)? {
        Some(log) => records(&log, &checkpoint),
        None => (Vec::new(), None),
    };
    Ok(Found { checkpoint: Some(checkpoint), records, left_out })
}

/// The good records of a log, and what is wrong with the rest.
fn records(log: &[u8], checkpoint: &[u8]) -> (Vec<String>, Option<String>) {
    let head = head(checkpoint);
    let Some(rest) = log.strip_prefix(head.as_bytes()) else {
        return (Vec::new(), Some("it belongs to another state.json than the one that is there".into()));
    };
    let mut crc = crc32c::crc32c(head.as_bytes());
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(end) = rest[at..].iter().position(|byte| *byte == b'\n') {
        let Some((next, record)) = good(&rest[at..at + end], crc) else { break };
        records.push(record.to_owned());
        (crc, at) = (next, at + end + 1);
    }
    let left = rest.len() - at;
    let why = (left > 0).then(|| format!("its last {left} bytes, after {} good records, are no record", records.len()));
    (records, why)
}

/// The record of a line, and the CRC that the next one goes on from.
fn good(line: &[u8], before: u32) -> Option<(u32, &str)> {
    let (crc, record) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let next = crc32c::crc32c_append(before, record.as_bytes());
    (crc == format!("{next:08x}")).then_some((next, record))
}

/// The first line of the log that belongs to a checkpoint.
fn head(checkpoint: &[u8]) -> String {
    format!("{MAGIC} {} {:08x}\n", checkpoint.len(), crc32c::crc32c(checkpoint))
}

/// The two files, being written.
pub(crate) struct Journal<D: Disk> {
    disk: D,
    /// `None`: only a checkpoint helps.
    log: Option<Log<D::File>>,
    /// The log's length from which on a checkpoint is due.
    due: u64,
}

struct Log<F> {
    file: F,
    len: u64,
    crc: u32,
    /// So far there is room.
    room: u64,
}

impl<D: Disk> Journal<D> {
    /// One that has written nothing yet: it begins with a checkpoint.
    pub(crate) fn new(disk: D) -> Self {
        Self { disk, log: None, due: 0 }
    }

    /// Whether records can be appended.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Whether the log has become long.
    pub(crate) fn is_due(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.len > self.due)
    }

    /// There was no room for the checkpoint that is due: not again before the log is twice as long.
    pub(crate) fn put_off(&mut self) {
        self.due = self.log.as_ref().map_or(0, |log| log.len * 2);
    }

    /// Sees to it that there is room for records of so many bytes, as far as the file system lets it.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), Failed> {
        let Some(log) = &mut self.log else { return Ok(()) };
        if log.room < log.len + bytes {
            let len = bytes.max(ROOM);
            self.disk.reserve(&log.file, log.len, len).map_err(|error| Failed { file: LOG, error })?;
            log.room = log.len + len;
        }
        Ok(())
    }

    /// Appends records. `Ok`: they are on disk. Else none of them is, or only a checkpoint helps.
    pub(crate) fn append(&mut self, records: &[String]) -> Result<(), Failed> {
        let failed = |error| Failed { file: LOG, error };
        let Some(mut log) = self.log.take() else {
            return Err(failed(io::Error::other("it could not be written before")));
        };
        let (mut text, mut crc) = (String::new(), log.crc);
        for record in records {
            debug_assert!(!record.contains('\n'), "JSON of one line");
            crc = crc32c::crc32c_append(crc, record.as_bytes());
            text += &format!("{crc:08x} {record}\n");
        }
        if log.len + text.len() as u64 > MAX_FILE {
            self.log = Some(log);
            return Err(failed(io::Error::from(io::ErrorKind::FileTooLarge)));
        }
        if let Err(error) = self.disk.write(&log.file, log.len, text.as_bytes()) {
            // What of it is there must go before anything follows.
            if self.disk.truncate(&log.file, log.len).is_ok() {
                log.room = log.len;
                self.log = Some(log);
            }
            return Err(failed(error));
        }
        // Without the log from here on: what is on disk after a failed sync is not known.
        self.disk.sync(&log.file).map_err(failed)?;
        (log.len, log.crc) = (log.len + text.len() as u64, crc);
        self.log = Some(log);
        Ok(())
    }

    /// Writes a checkpoint, and begins a log. What was there holds until the new is on disk as a whole.
    pub(crate) fn checkpoint(&mut self, text: &[u8]) -> Result<(), Failed> {
        let new = format!("{STATE}{NEW}");
        let failed = |error| Failed { file: STATE, error };
        let written = self.disk.create(&new).and_then(|file| {
            self.disk.write(&file, 0, text)?;
            // Before the rename, or a power cut may leave the new name with nothing behind it.
            self.disk.sync(&file)
        });
        if let Err(error) = written {
            let _ = self.disk.remove(&new);
            return Err(failed(error));
        }
        // Which of the two is on disk is not known until the names are: nothing may be appended to the log of the old
        // one.
        self.log = None;
        self.disk.rename(&new, STATE).and_then(|()| self.disk.sync_names()).map_err(failed)?;
        self.begin_log(text).map_err(|error| Failed { file: LOG, error })
    }

    fn begin_log(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        let (new, head) = (format!("{LOG}{NEW}"), head(checkpoint));
        let file = self.disk.create(&new)?;
        let written = self.disk.write(&file, 0, head.as_bytes()).and_then(|()| self.disk.sync(&file));
        if let Err(error) = written.and_then(|()| self.disk.rename(&new, LOG)).and_then(|()| self.disk.sync_names()) {
            let _ = self.disk.remove(&new);
            return Err(error);
        }
        let len = head.len() as u64;
        self.log = Some(Log { file, len, crc: crc32c::crc32c(head.as_bytes()), room: len });
        self.due = SHORT.max(checkpoint.len() as u64);
        Ok(())
    }

    /// A last checkpoint, without a log.
    pub(crate) fn close(mut self, text: &[u8]) -> Result<(), Failed> {
        self.checkpoint(text)?;
        let gone = self.disk.remove(LOG).and_then(|()| self.disk.sync_names());
        gone.map_err(|error| Failed { file: LOG, error })
    }
}

/// Takes both files away. The checkpoint goes first: without it a log says nothing.
pub(crate) fn forget<D: Disk>(disk: &D) -> io::Result<()> {
    disk.remove(STATE)?;
    disk.sync_names()?;
    disk.remove(LOG)
}

#[cfg(test)]
mod tests;
