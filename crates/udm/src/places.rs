//! The daemon's directory and what lies in it (`docs/src/daemon.md`).

use crate::daemon::{LOG, STATE};
use rustix::process::geteuid;
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest path of a unix socket: `sun_path` less its zero (`include/uapi/linux/un.h`).
const SOCKET_PATH_MAX: usize = 107;

/// The user that is trusted by all.
const ROOT: u32 = 0;

/// Where a daemon and its clients meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    dir: PathBuf,
    /// It was typed, and did not come from the environment.
    typed: bool,
}

impl Places {
    /// The directory that was asked for, else `$UDM_DIR`, else `$XDG_RUNTIME_DIR/udm`, else `/run/udm` for root.
    pub(crate) fn find(asked: Option<&Path>) -> Result<Self, String> {
        let set = |key: &str| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = asked
            .map(Path::to_owned)
            .or_else(|| set("UDM_DIR"))
            .or_else(|| set("XDG_RUNTIME_DIR").map(|dir| dir.join("udm")))
            .or_else(|| geteuid().is_root().then(|| PathBuf::from("/run/udm")));
        let dir = dir.ok_or("no directory for the daemon: give --dir, or set UDM_DIR or XDG_RUNTIME_DIR")?;
        // Absolute, since the daemon's own directory is another.
        let dir = std::path::absolute(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let this = Self { dir, typed: asked.is_some() };
        let longest = this.control().as_os_str().len();
        if longest > SOCKET_PATH_MAX {
            let dir = this.dir.display();
            return Err(format!(
                "{dir}: too long a path for a socket in it: {longest} bytes, at most {SOCKET_PATH_MAX}; choose another --dir"
            ));
        }
        Ok(this)
    }

    /// Makes the directory, for its owner alone, or checks the one that is there.
    pub(crate) fn make(&self) -> Result<(), String> {
        let shown = self.dir.display();
        match DirBuilder::new().mode(0o700).recursive(true).create(&self.dir) {
            Ok(()) => {}
            Err(error) => {
                return Err(format!("{shown}: cannot be made: {error}; choose another --dir, or set UDM_DIR"));
            }
        }
        self.check_own()
    }

    /// Checks that a directory is there, is ours, and nobody else can write to it.
    pub(crate) fn check_own(&self) -> Result<(), String> {
        let owner = self.owner().map_err(|e| e.to_string())?;
        let me = geteuid().as_raw();
        if owner == me {
            return Ok(());
        }
        Err(format!("{} belongs to user {owner}, not to you ({me}); choose another --dir", self.dir.display()))
    }

    /// The user whose daemon may be talked to there: the directory's owner, who is this user or root. Root may talk to
    /// somebody else's when that is typed: what the environment says may have come from them.
    ///
    /// # Errors
    /// `NotFound`: there is no such directory. `PermissionDenied`: somebody else could answer there.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        let shown = self.dir.display();
        let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let me = geteuid().as_raw();
        let link = fs::symlink_metadata(&self.dir).map_err(|e| io::Error::new(e.kind(), format!("{shown}: {e}")))?;
        if link.is_symlink() && link.uid() != me && link.uid() != ROOT {
            return Err(refused(format!("{shown} is a link of user {}, who may lead it elsewhere", link.uid())));
        }
        let meta = fs::metadata(&self.dir).map_err(|e| io::Error::new(e.kind(), format!("{shown}: {e}")))?;
        let owner = meta.uid();
        if owner != me && owner != ROOT && !(me == ROOT && self.typed) {
            let advice = match me {
                ROOT => format!("; if you mean it, say --dir {shown}"),
                _ => "; choose another --dir, or set UDM_DIR".to_owned(),
            };
            return Err(refused(format!(
                "{shown} belongs to user {owner}, not to you ({me}), and so does what answers there{advice}"
            )));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(refused(format!(
                "others may write to {shown} (mode {:o}), and so could replace its sockets; chmod 700 it, or choose another --dir",
                meta.mode() & 0o7777
            )));
        }
        Ok(owner)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    pub(crate) fn second(&self) -> PathBuf {
        self.dir.join("udm.sock")
    }

    pub(crate) fn nbd(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    pub(crate) fn nodes(&self) -> PathBuf {
        self.dir.join("dev")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join(STATE)
    }

    /// What has changed since that was written.
    pub(crate) fn state_log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The state that a daemon left which did not end in order.
    pub(crate) fn last_state(&self) -> PathBuf {
        self.dir.join("state.json.last")
    }

    /// Its log, when not all of it could be used.
    pub(crate) fn last_log(&self) -> PathBuf {
        self.dir.join("state.log.last")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }
}
