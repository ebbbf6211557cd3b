//! The way to the daemon: requests of callers, over connections that are kept.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use udm_control::wire::{self, Hello, WireAnswer};

/// How often a caller that waits is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: Duration::from_millis(20).as_nanos() as i64 };
/// How often a request is sent that daemons went away from.
const TRIES: usize = 8;
/// Connections that are kept while nobody uses them.
const KEPT: usize = 16;

/// Opens a connection to `control.sock`, where a daemon is started if none runs.
pub(crate) type Connect = dyn Fn() -> io::Result<UnixStream> + Send + Sync;

/// The daemon, as the supervisor sees it.
pub(crate) struct Daemon {
    connect: Box<Connect>,
    kept: Mutex<Vec<UnixStream>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The caller does not wait any more, or a signal waits for it.
    GivenUp,
    /// There is no daemon, or it has gone with the request.
    Broken(io::Error),
}

impl Daemon {
    pub(crate) fn new(connect: Box<Connect>) -> Self {
        Self { connect, kept: Mutex::default() }
    }

    fn connected(&self) -> io::Result<UnixStream> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(
            || {
                let mut stream = (self.connect)()?;
                wire::write_hello(&mut stream, &Hello { cwd: b"/".to_vec(), kernel_view: true })?;
                Ok(stream)
            },
            Ok,
        )
    }

    /// Asks, and waits for the answer; `gives_up` is asked every 20 ms whether anybody wants it. Blocks.
    pub(crate) fn ask(&self, command: u32, buf: &[u8], gives_up: &dyn Fn() -> bool) -> Result<WireAnswer, Unanswered> {
        let mut last = None;
        for _ in 0..TRIES {
            let mut stream = match self.connected() {
                Ok(stream) => stream,
                // A daemon that was killed while it was greeted.
                Err(error) if is_gone(&error) => {
                    last = Some(error);
                    continue;
                }
                Err(error) => return Err(Unanswered::Broken(error)),
            };
            if let Err(error) = wire::write_request(&mut stream, command, buf) {
                if error.kind() == io::ErrorKind::InvalidInput {
                    return Err(Unanswered::Broken(error));
                }
                last = Some(error);
                continue;
            }
            if !wait(&stream, gives_up) {
                // To hang up tells the daemon.
                return Err(Unanswered::GivenUp);
            }
            match wire::read_answer(&mut stream) {
                Ok(answer) => {
                    let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() < KEPT {
                        kept.push(stream);
                    }
                    return Ok(answer);
                }
                // Nobody has begun with it.
                Err(error) if wire::is_unread(&error) => last = Some(error),
                Err(error) => return Err(Unanswered::Broken(error)),
            }
        }
        Err(Unanswered::Broken(last.unwrap_or_else(|| io::ErrorKind::NotConnected.into())))
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Waits until there is something to read; false when it is given up.
fn wait(stream: &UnixStream, gives_up: &dyn Fn() -> bool) -> bool {
    loop {
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&LOOK)) {
            Ok(0) if gives_up() => return false,
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}
