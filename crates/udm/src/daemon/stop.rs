//! The request to end the daemon.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIGNALS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// A flag that can be waited for together with sockets: a byte in a pipe that is never read.
pub(crate) struct Stop {
    read: UnixStream,
    write: UnixStream,
}

impl Stop {
    /// Not set.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        // A full pipe counts as set.
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

    /// Blocks until it is set, for a limited time; returns whether it is.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        ready(&mut [PollFd::new(&self.read, PollFlags::IN)], timeout)
    }

    /// The descriptor that is readable once it is set.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// Whether the daemon is to end, and what wakes whoever waits for something meanwhile.
pub(crate) struct Ending {
    /// The end was asked for, by a signal or a client.
    asked: Arc<AtomicBool>,
    /// Waiting threads wake up and check the reason.
    stop: Stop,
    /// The devices are not to be made again.
    forget: AtomicBool,
}

impl Ending {
    /// From now on the signals ask for the end.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in SIGNALS {
            signal_hook::flag::register(signal, asked.clone())?;
        }
        let stop = Stop::new()?;
        stop.on_signals()?;
        Ok(Self { asked, stop, forget: AtomicBool::new(false) })
    }

    /// A client asks for the end. `forget`: and that the devices are not made again.
    pub(crate) fn ask(&self, forget: bool) {
        self.forget.store(forget, Ordering::Release);
        self.asked.store(true, Ordering::Release);
        self.stop.set();
    }

    /// Whether the end was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Whether the devices are not to be made again.
    pub(crate) fn forgets(&self) -> bool {
        self.forget.load(Ordering::Acquire)
    }

    /// What is set when commands and clients are to leave off: at the end, and when another daemon goes on.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
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
            // Only a bug here: then report that nothing is ready instead of ending the daemon.
            Err(_) => return false,
        }
    }
}
