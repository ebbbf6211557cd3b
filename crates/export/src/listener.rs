//! Sockets on which clients connect.

use crate::exports::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Connections that the kernel keeps for a busy server.
const BACKLOG: i32 = 1024;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket at this path, for its owner alone (0600). A socket that nobody listens on is replaced.
    Unix(PathBuf),
    /// A TCP address. NBD knows no passwords: whoever reaches the port has the data. Port 0 takes any free one.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(addr) => write!(f, "{addr}"),
        }
    }
}

/// Which of these have hung up, at least one way.
pub(crate) fn hung_up<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Vec<bool> {
    let mut polled: Vec<_> = sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)).collect();
    let looked = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.iter().map(|polled| looked.is_ok() && !polled.revents().is_empty()).collect()
}

/// A socket that listens. A unix socket's file goes when it is dropped.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The path, device and inode of the socket's file.
    file: Option<(PathBuf, u64, u64)>,
    bound: Listen,
}

impl Listener {
    /// Binds. Errors name the address.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Self> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}"));
        match listen {
            Listen::Unix(path) => Self::bind_unix(path).map_err(at),
            Listen::Tcp(addr) => Self::bind_tcp(*addr).map_err(at),
        }
    }

    fn bind_unix(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path of a unix socket has at most 107 bytes and no NUL")
        })?;
        remove_stale(path, &address)?;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        // The mode that the file is made with; chmod afterwards would leave a moment for others.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        net::bind(&socket, &address)?;
        let meta = std::fs::symlink_metadata(path)?;
        let file = Some((path.to_owned(), meta.dev(), meta.ino()));
        let this = Self { socket, file, bound: Listen::Unix(path.to_owned()) };
        net::listen(&this.socket, BACKLOG)?;
        Ok(this)
    }

    fn bind_tcp(addr: SocketAddr) -> io::Result<Self> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &addr)?;
        net::listen(&socket, BACKLOG)?;
        let bound = SocketAddr::try_from(net::getsockname(&socket)?)?;
        Ok(Self { socket, file: None, bound: Listen::Tcp(bound) })
    }

    /// A socket that another process has listened on; its file is ours from now on.
    pub(crate) fn adopt(listen: Listen, socket: OwnedFd) -> io::Result<Self> {
        let file = match &listen {
            Listen::Unix(path) => {
                let meta = std::fs::symlink_metadata(path)?;
                Some((path.clone(), meta.dev(), meta.ino()))
            }
            Listen::Tcp(_) => None,
        };
        Ok(Self { socket, file, bound: listen })
    }

    /// The socket, for another process. Its file stays.
    pub(crate) fn hand_over(mut self) -> io::Result<(Listen, OwnedFd)> {
        let socket = self.socket.try_clone()?;
        self.file = None;
        Ok((self.bound.clone(), socket))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Where it listens, with the port that was chosen.
    pub(crate) fn bound(&self) -> &Listen {
        &self.bound
    }

    /// The next connection, without blocking; `None` when there is none.
    pub(crate) fn accept(&self) -> io::Result<Option<(OwnedFd, Client)>> {
        let socket = loop {
            match net::accept_with(&self.socket, FLAGS) {
                Ok(socket) => break socket,
                // One that was gone before it was taken; more may follow.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        let client = match &self.bound {
            Listen::Unix(_) => Client::of_unix(&socket)?,
            Listen::Tcp(_) => {
                // Replies are gathered here: the kernel need not wait for more.
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                let peer = net::getpeername(&socket).ok().flatten();
                match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                    Some(addr) => Client::Tcp(addr),
                    // It has gone already.
                    None => return self.accept(),
                }
            }
        };
        Ok(Some((socket, client)))
    }
}

/// Removes the file of a socket that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is there and no socket; remove it first"));
    }
    let probe = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, dev, ino)) = &self.file {
            // Another server may have taken the path meanwhile.
            let same = std::fs::symlink_metadata(path).is_ok_and(|m| m.dev() == *dev && m.ino() == *ino);
            if same {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}
