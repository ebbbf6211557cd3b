//! A daemon's directory of a test's own, and the program in it.

#![allow(dead_code, reason = "each test takes the part that it needs")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program under test.
pub(crate) const UDM: &str = env!("CARGO_BIN_EXE_udm");

/// A directory for a daemon; the daemon ends, and the directory goes, when it is dropped.
pub(crate) struct Place {
    root: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("udm-test-").tempdir().unwrap();
        std::fs::create_dir(root.path().join("bin")).unwrap();
        for name in ["dmsetup", "devmap_name"] {
            std::os::unix::fs::symlink(UDM, root.path().join("bin").join(name)).unwrap();
        }
        Self { root }
    }

    /// A place for the test's own files.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A file of that many bytes, full of zeroes.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.root().join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).unwrap();
        path
    }

    /// `udm create WORDS --table TABLE`.
    #[track_caller]
    pub(crate) fn create(&self, words: &[&str], table: &str) {
        let output = self.udm(["create"].iter().chain(words).copied().chain(["--table", table]));
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }

    /// The daemon's directory; made by the first who needs it.
    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("d")
    }

    /// `udm`, `dmsetup` or `devmap_name`, with this daemon.
    pub(crate) fn command(&self, program: &str) -> Command {
        let path = if program == "udm" { PathBuf::from(UDM) } else { self.root.path().join("bin").join(program) };
        let mut command = Command::new(path);
        command.env_clear().env("UDM_DIR", self.dir()).env("LC_ALL", "C").env("TERM", "dumb");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir(self.root.path()).stdin(Stdio::null());
        command
    }

    /// Runs `udm` with words.
    pub(crate) fn udm<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Output {
        self.command("udm").args(words).output().unwrap()
    }

    /// The process that has the directory's lock.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.dir().join("lock")).ok()?.trim().parse().ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.udm(["daemon", "--stop"]);
    }
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An NBD connection that has an export open, and so its device: enough of a client to hold one and to use it, one
/// request at a time (the NBD project's `doc/proto.md`, fixed newstyle, `NBD_OPT_GO`, simple replies).
pub(crate) struct NbdHold {
    stream: UnixStream,
}

/// What an NBD request asks for.
pub(crate) enum Nbd<'a> {
    Read(u32),
    Write(&'a [u8]),
    Trim(u32),
    Flush,
}

impl NbdHold {
    pub(crate) fn open(socket: &Path, name: &str) -> Result<Self, String> {
        const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
        let mut stream = UnixStream::connect(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).map_err(|e| e.to_string())?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut request = 3u32.to_be_bytes().to_vec();
        request.extend(OPTION_MAGIC);
        request.extend(7u32.to_be_bytes());
        request.extend((name.len() as u32 + 6).to_be_bytes());
        request.extend((name.len() as u32).to_be_bytes());
        request.extend(name.as_bytes());
        request.extend([0; 2]);
        stream.write_all(&request).map_err(|e| e.to_string())?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).map_err(|e| e.to_string())?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(16) as usize];
            stream.read_exact(&mut data).map_err(|e| e.to_string())?;
            match word(12) {
                1 => return Ok(Self { stream }),
                error if error & 0x8000_0000 != 0 => return Err(String::from_utf8_lossy(&data).into_owned()),
                _ => {}
            }
        }
    }

    /// What was read, or the server's error number.
    ///
    /// # Panics
    /// When the server hangs up.
    pub(crate) fn request(&mut self, offset: u64, what: &Nbd) -> Result<Vec<u8>, u32> {
        self.ask(offset, what).expect("the server answers")
    }

    /// The same of a server that may end meanwhile.
    pub(crate) fn ask(&mut self, offset: u64, what: &Nbd) -> std::io::Result<Result<Vec<u8>, u32>> {
        let (command, length, payload) = match what {
            Nbd::Read(length) => (0u16, *length, [].as_slice()),
            Nbd::Write(data) => (1, data.len() as u32, *data),
            Nbd::Flush => (3, 0, [].as_slice()),
            Nbd::Trim(length) => (4, *length, [].as_slice()),
        };
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(command.to_be_bytes());
        request.extend([0; 8]);
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes(), "a simple reply");
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => {}
            errno => return Ok(Err(errno)),
        }
        let mut data = vec![0; if let Nbd::Read(length) = what { *length as usize } else { 0 }];
        self.stream.read_exact(&mut data)?;
        Ok(Ok(data))
    }
}

pub(crate) use udm_testing::until;

impl Place {
    /// Whether a daemon has the directory: the lock is taken. A directory that is gone has none.
    pub(crate) fn is_served(&self) -> bool {
        use rustix::fs::{FlockOperation, flock};
        let Ok(file) = std::fs::File::open(self.dir().join("lock")) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// The daemon's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Runs `udm` with the words of a line, and expects success.
    pub(crate) fn ok(&self, line: &str) -> String {
        let output = self.udm(line.split(' '));
        assert!(output.status.success(), "udm {line}: {}", stderr(&output));
        stdout(&output)
    }

    /// Makes a device of zeroes.
    pub(crate) fn zero(&self, name: &str) {
        let output = self.udm(["create", name, "--table", "0 2048 zero"]);
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// Sends the daemon a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.daemon_pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}
