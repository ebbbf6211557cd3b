//! The daemon's log: a file, and standard error when it runs in the foreground. It takes some MiB, however long the
//! daemon lives: the directory's file system is often one in memory, and has to have room for the state.

use crate::places::Places;
use rustix::fd::BorrowedFd;
use rustix::fs::fstat;
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

/// A log that is longer than this is put aside, as `log.old`.
const MAX_LOG: u64 = 4 << 20;
/// As much of the log's end as [`tail`] looks at.
const TAIL: u64 = 256 << 10;

/// Opens the log for appending.
pub(crate) fn open(places: &Places) -> io::Result<File> {
    let path = places.log();
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > MAX_LOG) {
        fs::rename(&path, path.with_extension("old"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The log as long as a daemon writes it.
struct Log {
    places: Places,
    file: File,
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // While the next one cannot be had, this one goes on.
        if self.file.metadata().is_ok_and(|meta| meta.len() > MAX_LOG)
            && let Ok(next) = open(&self.places)
        {
            // What panics says goes where it went before.
            let is_log = |fd: BorrowedFd<'_>| {
                let (fd, log) = (fstat(fd).ok(), fstat(&self.file).ok());
                fd.zip(log).is_some_and(|(fd, log)| (fd.st_dev, fd.st_ino) == (log.st_dev, log.st_ino))
            };
            if is_log(stdout()) {
                let _ = dup2_stdout(&next);
            }
            if is_log(stderr()) {
                let _ = dup2_stderr(&next);
            }
            self.file = next;
        }
        self.file.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file for people, readable for its owner alone.
pub(crate) fn keep(path: &Path, text: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file?.write_all(text.as_bytes())
}

/// Sends what is traced there. `UDM_LOG` chooses what, as `debug` or `udm_io=trace`; `info` unless set.
pub(crate) fn start(places: &Places, foreground: bool) -> io::Result<()> {
    let file =
        fmt::layer().with_ansi(false).with_writer(Mutex::new(Log { places: places.clone(), file: open(places)? }));
    let stderr = foreground.then(|| fmt::layer().with_writer(io::stderr));
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).with_env_var("UDM_LOG");
    tracing_subscriber::registry().with(filter.from_env_lossy()).with(file).with(stderr).init();
    Ok(())
}

/// The last lines of the log; what cannot be read is left out.
pub(crate) fn tail(places: &Places, lines: usize) -> Vec<String> {
    let mut text = Vec::new();
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(places.log());
    let read = opened.and_then(|mut file| {
        let from = file.metadata()?.len().saturating_sub(TAIL);
        file.seek(SeekFrom::Start(from))?;
        file.take(TAIL).read_to_end(&mut text)
    });
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| (*line).to_owned()).collect()
}
