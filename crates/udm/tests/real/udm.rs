//! A udm of one test's own: its directory, its daemon, and its commands.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to go, before the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory for a daemon, which the first command starts. Ends with the value.
pub(crate) struct Udm {
    dir: tempfile::TempDir,
}

/// What a command printed, and its exit code.
pub(crate) struct Printed {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Udm {
    /// An empty directory, with a path short enough for the name of a socket.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("udm-real.").tempdir_in("/tmp").expect("a directory in /tmp");
        Self { dir }
    }

    /// The program with its directory set, and nothing of the caller's settings.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_udm"));
        command.env("UDM_DIR", self.dir.path()).env_remove("DM_DEFAULT_NAME_MANGLING_MODE");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end, whatever that is.
    pub(crate) fn run(&self, args: &[&str]) -> Printed {
        let Output { status, stdout, stderr } = self.command().args(args).output().expect("udm can be run");
        let text = |bytes| String::from_utf8(bytes).expect("udm prints text");
        Printed { code: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Runs a command that must succeed without complaint. What it printed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let Printed { code, stdout, stderr } = self.run(args);
        assert!(code == 0 && stderr.is_empty(), "udm {args:?} ends with {code}\n{stdout}{stderr}");
        stdout
    }

    /// Makes a device.
    #[track_caller]
    pub(crate) fn create(&self, name: &str, table: &str) {
        self.ok(&["create", name, "--table", table]);
    }

    /// How NBD clients name a device.
    pub(crate) fn uri(&self, device: &str) -> String {
        format!("nbd+unix:///{device}?socket={}", self.nbd_socket().display())
    }

    /// The socket of the exports.
    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    /// A number that `info --json` has for a device.
    #[track_caller]
    pub(crate) fn number(&self, device: &str, key: &str) -> u64 {
        let text = self.ok(&["info", "--json", device]);
        let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        info["devices"][0][key].as_u64().unwrap_or_else(|| panic!("no number {key} in {text}"))
    }

    /// The process of the daemon, which must have been started.
    #[track_caller]
    pub(crate) fn daemon(&self) -> Pid {
        let held = std::fs::read_to_string(self.dir.path().join("lock")).expect("a daemon has been started");
        Pid::from_raw(held.trim().parse().expect("the lock holds a process id")).expect("a process id")
    }

    /// Ends the daemon as a power cut would.
    pub(crate) fn kill(&self) {
        let pid = self.daemon();
        kill_process(pid, Signal::KILL).expect("the daemon lives");
        wait_until("the daemon is gone", || test_kill_process(pid).is_err());
    }
}

impl Drop for Udm {
    fn drop(&mut self) {
        let _ = self.run(&["daemon", "--stop"]);
    }
}

/// Looks again and again; fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not so after {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
