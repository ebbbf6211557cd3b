//! The world as a command sees it.

use super::DmTransport;
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Everything outside that a command reads, writes or waits for. Nothing else in this module
/// reads the environment, the clock or the process's arguments, so that a test can be all of it.
pub struct Env<'e> {
    /// Standard input: tables, concise specifications, answers to questions.
    pub stdin: &'e mut dyn BufRead,
    /// Standard output: the same bytes as dmsetup's.
    pub stdout: &'e mut dyn Write,
    /// Standard error: our own words.
    pub stderr: &'e mut dyn Write,
    /// The way to the daemon.
    pub transport: &'e mut dyn DmTransport,
    /// What `--interval` and `--retry` wait by.
    pub clock: &'e mut dyn Clock,
    /// Runs the program of `--exec` with its arguments and waits for it; its exit code is ignored.
    pub exec: &'e mut dyn FnMut(&[String]) -> io::Result<()>,
    /// The environment variables. Used: `DM_DEFAULT_NAME_MANGLING_MODE`, `DM_UDEV_COOKIE`,
    /// `LC_ALL`, `LC_CTYPE`, `LANG`, `POSIXLY_CORRECT`.
    pub vars: HashMap<String, String>,
    /// What the paths of table files are relative to.
    pub cwd: PathBuf,
    /// Where `--exec` finds the devices' nodes; `/dev/mapper` means the same in arguments.
    pub node_dir: PathBuf,
    /// Where the kernel tells the names of block devices; usually `/sys`.
    pub sysfs: PathBuf,
    /// The width of the terminal on standard output; `None` when it is not one.
    pub columns: Option<u16>,
}

/// Time, as a command needs it.
pub trait Clock {
    /// Time passed since some fixed point.
    fn now(&mut self) -> Duration;
    /// Wait. Blocks for as long as told.
    fn sleep(&mut self, time: Duration);
}
