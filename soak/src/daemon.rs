//! The daemon under test, from outside: its directory, its process, and its commands.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A daemon's directory, and the program that is used with it.
pub struct Daemon {
    udm: PathBuf,
    dir: PathBuf,
    kills: AtomicU64,
}

/// What a command said.
#[derive(Clone, Debug)]
pub struct Said {
    /// Whether it succeeded.
    pub ok: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// The error's name, as the system has it: the end of the first line of standard error.
    pub fn error(&self) -> &str {
        self.err.lines().next().unwrap_or_default().rsplit(": ").next().unwrap_or_default()
    }
}

impl Daemon {
    /// The daemon of `dir`, by this program.
    pub fn new(udm: PathBuf, dir: PathBuf) -> Self {
        Self { udm, dir, kills: AtomicU64::new(0) }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket of the exports.
    pub fn nbd(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// The socket of the kernel's commands.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The socket of the other commands.
    pub fn second(&self) -> PathBuf {
        self.dir.join("udm.sock")
    }

    /// A command with this daemon, not yet started.
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.udm);
        command.env("UDM_DIR", &self.dir).env("LC_ALL", "C").env_remove("DM_DEFAULT_NAME_MANGLING_MODE");
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end, however long it takes.
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> io::Result<Said> {
        let output = self.command(words).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) })
    }

    /// The process that has the directory, if one says so.
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(std::fs::read_to_string(self.dir.join("lock")).ok()?.trim().parse().ok()?)
    }

    /// Changes when it is about to be killed, and when it has been: odd in between.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::SeqCst)
    }

    /// Ends it as a power cut would end everything; returns when it has gone.
    pub fn kill(&self) {
        self.kills.fetch_add(1, Ordering::SeqCst);
        if let Some(pid) = self.pid()
            && kill_process(pid, Signal::KILL).is_ok()
        {
            while test_kill_process(pid).is_ok() && !is_zombie(pid) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        self.kills.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of its log.
    pub fn log(&self, lines: usize) -> String {
        let text = std::fs::read(self.dir.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// Nobody may wait for it where the harness runs as the first process of a container.
fn is_zombie(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
