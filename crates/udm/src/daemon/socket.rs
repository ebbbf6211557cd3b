//! The daemon's unix sockets, and the connections on them.

use super::stop::Stop;
use crate::exports::may_connect;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;
use udm_io::Executor;

/// Clients at a time on all sockets together: each has a thread.
const MAX_CONNECTIONS: usize = 2048;
/// How long a client may leave an answer untaken.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections that the kernel keeps for a busy daemon.
const BACKLOG: i32 = 1024;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let cred = sockopt::socket_peercred(stream)?;
        Ok(Self { pid: cred.pid.as_raw_pid(), uid: cred.uid.as_raw() })
    }

    pub(crate) fn is_allowed(self) -> bool {
        may_connect(self.uid)
    }
}

/// Serves one client until it hangs up.
pub(crate) type Serve = dyn Fn(&UnixStream, Peer) + Send + Sync;

/// A socket that listens. Its file goes when it is dropped.
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

    /// Accepts until `stop` is set, and runs `serve` for each client on a thread of its own.
    pub(crate) fn accept(
        &self,
        stop: &Stop,
        executor: &dyn Executor,
        connections: &Arc<Connections>,
        serve: Arc<Serve>,
    ) {
        while stop.wait_for(self.socket.as_fd()) {
            let accepted = self.socket.accept().and_then(|(stream, _)| Ok((Peer::of(&stream)?, stream)));
            let (peer, stream) = match accepted {
                Ok(both) => both,
                Err(error) => {
                    warn!("a connection on {} is lost: {error}", self.path.display());
                    // Out of descriptors: others have to go first.
                    stop.wait(Some(Duration::from_millis(20)));
                    continue;
                }
            };
            if !connections.serve_peer(stream, peer, executor, serve.clone()) {
                warn!("process {} finds {MAX_CONNECTIONS} clients on {}: hung up on", peer.pid, self.path.display());
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file);
        if ours && !self.kept.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The connections of all sockets.
#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<Open>,
    closed: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    streams: HashMap<u64, Arc<UnixStream>>,
}

/// One of them, as long as it lives.
pub(crate) struct Connection {
    all: Arc<Connections>,
    id: u64,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, stream: &Arc<UnixStream>) -> Option<Connection> {
        let mut open = self.lock();
        if open.streams.len() >= MAX_CONNECTIONS {
            return None;
        }
        let id = open.next;
        open.next += 1;
        open.streams.insert(id, stream.clone());
        Some(Connection { all: self.clone(), id })
    }

    /// Runs `serve` for a client of another daemon, on a thread of its own.
    pub(crate) fn serve(self: &Arc<Self>, stream: UnixStream, executor: &dyn Executor, serve: Arc<Serve>) {
        match Peer::of(&stream) {
            Ok(peer) if self.serve_peer(stream, peer, executor, serve) => {}
            Ok(peer) => warn!("process {} finds {MAX_CONNECTIONS} clients: hung up on", peer.pid),
            Err(error) => warn!("a client is hung up on: {error}"),
        }
    }

    /// The same with a peer that is known. Whether there was room.
    fn serve_peer(
        self: &Arc<Self>,
        stream: UnixStream,
        peer: Peer,
        executor: &dyn Executor,
        serve: Arc<Serve>,
    ) -> bool {
        let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let stream = Arc::new(stream);
        let Some(connection) = self.add(&stream) else { return false };
        let work = move || {
            let _connection = connection;
            serve(&stream, peer);
        };
        if let Err(error) = executor.spawn("udm-client", Box::new(work)) {
            warn!("no thread for process {}: {error}", peer.pid);
        }
        true
    }

    /// Waits until every client's thread has ended, at most so long. Returns how many are left.
    pub(crate) fn wait(&self, patience: Duration) -> usize {
        self.wait_until(Instant::now() + patience, self.lock())
    }

    /// Takes no further request of any client, and waits until those under way are answered, at most so long. Returns
    /// how many are left.
    pub(crate) fn end(&self, patience: Duration) -> usize {
        let deadline = Instant::now() + patience;
        let open = self.lock();
        for stream in open.streams.values() {
            let _ = stream.shutdown(Shutdown::Read);
        }
        self.wait_until(deadline, open)
    }

    fn wait_until(&self, deadline: Instant, mut open: MutexGuard<'_, Open>) -> usize {
        while !open.streams.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            open = self.closed.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        open.streams.len()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().streams.remove(&self.id);
        self.all.closed.notify_all();
    }
}
