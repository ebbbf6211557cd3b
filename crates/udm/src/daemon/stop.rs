//! How the daemon is told to end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const SIGNALS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// A flag that the same signals set, for good.
pub(crate) fn ended_by_signal() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// A flag that can be waited for together with sockets: a byte in a pipe that nobody takes out.
pub(crate) struct Stop {
    read: UnixStream,
    write: UnixStream,
}

impl Stop {
    /// Not set.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // A full pipe is set as well as can be.
        write.set_nonblocking(true)?;
        Ok(Self { read, write })
    }

    /// Lets SIGTERM, SIGINT and SIGHUP (the terminal has gone) set it.
    pub(crate) fn on_signals(&self) -> io::Result<()> {
        for signal in SIGNALS {
            pipe::register(signal, self.write.try_clone()?)?;
        }
        Ok(())
    }

    pub(crate) fn set(&self) {
        let _ = (&self.write).write(&[0]);
    }

    /// Not set any more.
    pub(crate) fn clear(&self) {
        while self.is_set() && (&self.read).read(&mut [0; 64]).is_ok() {}
    }

    pub(crate) fn is_set(&self) -> bool {
        self.wait(Some(Duration::ZERO))
    }

    /// Blocks until it is set, at most so long; whether it is.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        ready(&mut [PollFd::new(&self.read, PollFlags::IN)], timeout)
    }

    /// What is readable once it is set.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// Whether the peer of a socket has closed it, both ways.
pub(crate) fn hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    ready(&mut fds, Some(Duration::ZERO)) && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn ready(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> bool {
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    loop {
        match poll(fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(n) => return n > 0,
            // Only our own mistake: then say that nothing is ready rather than end all.
            Err(_) => return false,
        }
    }
}
