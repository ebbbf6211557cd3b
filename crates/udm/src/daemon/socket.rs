//! The daemon's unix sockets, and who connects to them.

use crate::exports::may_connect;
use rustix::fs::Mode;
use rustix::io::ioctl_fionbio;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections that the kernel keeps for a busy daemon.
const BACKLOG: i32 = 1024;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        let cred = sockopt::socket_peercred(stream)?;
        Ok(Self { pid: cred.pid.as_raw_pid(), uid: cred.uid.as_raw() })
    }

    pub(crate) fn is_allowed(self) -> bool {
        may_connect(self.uid)
    }
}

/// A socket that listens, without blocking. Its file goes when it is dropped.
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
    file: (u64, u64),
    kept: AtomicBool,
}

impl Listener {
    /// Binds to `path`, for its owner alone (0600). The caller has the directory's lock: a socket that is there is
    /// left from a daemon that was killed.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The file is made with the socket's mode; chmod afterwards would leave a moment for others.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        ioctl_fionbio(&socket, true)?;
        let meta = std::fs::symlink_metadata(path)?;
        Ok(Self {
            socket: socket.into(),
            path: path.to_owned(),
            file: (meta.dev(), meta.ino()),
            kept: AtomicBool::new(false),
        })
    }

    /// A socket that another process has listened on. Its file is ours from now on.
    pub(crate) fn adopt(path: &Path, socket: OwnedFd) -> io::Result<Self> {
        // So that who asks the kernel for the process behind the socket is told this one.
        listen(&socket, BACKLOG)?;
        ioctl_fionbio(&socket, true)?;
        let meta = std::fs::symlink_metadata(path)?;
        let kept = AtomicBool::new(false);
        Ok(Self { socket: socket.into(), path: path.to_owned(), file: (meta.dev(), meta.ino()), kept })
    }

    /// The socket once more, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Leaves the file when it is dropped: another process listens there.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Takes the file away, so that nobody connects any more.
    pub(crate) fn unlink(&self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file);
        if ours && !self.kept.swap(true, Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.unlink();
    }
}
