//! Getting to a server: everything up to the last byte of the handshake is done by one deadline, and given up at once
//! when nobody wants it any more. A server that sends a byte now and then gets no more time for it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;
use udm_io::{Clock, Executor, Nanos};

/// How often it is asked whether anybody still wants the connection.
const LOOK: Duration = Duration::from_millis(50);

/// Until when a connection has to be there.
pub(super) struct Deadline<'a> {
    clock: &'a dyn Clock,
    end: Nanos,
    timeout: Duration,
    cancel: &'a dyn Fn() -> bool,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(clock: &'a dyn Clock, timeout: Duration, cancel: &'a dyn Fn() -> bool) -> Self {
        let end = clock.now().after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        Self { clock, end, timeout, cancel }
    }

    /// The same for one of `parts` equal parts of what is left.
    fn part(&self, parts: usize) -> Self {
        let now = self.clock.now();
        let end = now.after(self.end.since(now) / parts.max(1) as u64);
        Self { clock: self.clock, end, timeout: self.timeout, cancel: self.cancel }
    }

    /// What is left, at most as long as one may look away.
    fn left(&self) -> io::Result<Duration> {
        if (self.cancel)() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up: who asked for it has gone"));
        }
        match self.end.since(self.clock.now()) {
            0 => {
                let message = format!("the server did not answer within {} s", self.timeout.as_secs_f32());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
            left => Ok(Duration::from_nanos(left).min(LOOK)),
        }
    }

    /// Waits until the socket is ready.
    fn wait(&self, socket: &OwnedFd, events: PollFlags) -> io::Result<()> {
        loop {
            let left = self.left()?;
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), events)], Some(&left)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Lets a moment pass.
    fn pause(&self) -> io::Result<()> {
        std::thread::sleep(self.left()?.min(Duration::from_millis(10)));
        Ok(())
    }
}

/// A socket that does not block, read and written by a deadline.
pub(super) struct Timed<'a> {
    pub(super) socket: &'a OwnedFd,
    pub(super) deadline: &'a Deadline<'a>,
}

impl Read for Timed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            // Also when there is something to read: who sends byte after byte must not win time.
            self.deadline.left()?;
            match rustix::net::recv(self.socket, &mut *buf, RecvFlags::empty()) {
                Ok((_, n)) => return Ok(n),
                Err(Errno::AGAIN) => self.deadline.wait(self.socket, PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        loop {
            self.deadline.left()?;
            match rustix::net::send(self.socket, buf, SendFlags::NOSIGNAL) {
                Ok(n) => return Ok(n),
                Err(Errno::AGAIN) => self.deadline.wait(self.socket, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Connects to a path, or to an abstract name if it starts with NUL.
pub(super) fn unix(path: &Path, deadline: &Deadline<'_>) -> io::Result<OwnedFd> {
    let bytes = path.as_os_str().as_bytes();
    let address = match bytes.split_first() {
        Some((0, name)) => SocketAddrUnix::new_abstract_name(name),
        _ => SocketAddrUnix::new(path),
    };
    let address = address.map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path of a unix socket has at most 107 bytes and no NUL")
    })?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SOCKET, None)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            // So many wait to be accepted already. Nothing tells when there is room.
            Err(Errno::AGAIN) => deadline.pause()?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Tries each address of a host in turn. One that does not answer leaves time for the others.
pub(super) fn tcp(host: &str, port: u16, deadline: &Deadline<'_>, executor: &dyn Executor) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let addresses = resolve(host, port, deadline, executor)?;
    for (i, address) in addresses.iter().enumerate() {
        match one(address, &deadline.part(addresses.len() - i)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn one(address: &SocketAddr, deadline: &Deadline<'_>) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SOCKET, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            deadline.wait(&socket, PollFlags::OUT)?;
            sockopt::socket_error(&socket)??;
        }
        Err(errno) => return Err(errno.into()),
    }
    // Requests are gathered here: the kernel need not wait for more.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(socket)
}

/// The addresses of a host. A name is looked up on a thread of its own, since nothing ends a look-up but its own
/// patience.
fn resolve(host: &str, port: u16, deadline: &Deadline<'_>, executor: &dyn Executor) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (answer, answers) = mpsc::channel();
    let name = host.to_owned();
    let work = move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // Who asked may have given up.
        let _ = answer.send(found);
    };
    // Not waited for.
    drop(executor.spawn("udm-resolve", Box::new(work))?);
    loop {
        match answers.recv_timeout(deadline.left()?) {
            Ok(found) => return found,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(io::Error::other("the look-up has failed")),
        }
    }
}
