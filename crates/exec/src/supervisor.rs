//! The supervisor of a daemon's namespace: a process that lives in it, and answers the calls of all programs there.
//!
//! There is one for each daemon. It stays as long as there are such programs, and as long as the daemon is there, so
//! that what one command has mounted is there for the next.

use crate::calls::{Answers, DeviceMapper};
use crate::daemon::Daemon;
use crate::meeting::{ENTER, GO, LISTENER, Meeting};
use crate::notify;
use crate::world::{self, Plan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tracing::{info, warn};
use udm_io::Executor;

/// How often it is looked whether there is still something to stay for.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks at a daemon that is not there, and nobody needs the namespace.
const LOOKS: u32 = 5;

/// What a supervisor is told.
pub struct Settings {
    /// The socket by which commands come.
    pub socket: PathBuf,
    /// A directory of its own, which exists.
    pub dir: PathBuf,
    /// Opens `control.sock`, and starts a daemon if there is none.
    pub connect: Box<dyn Fn() -> io::Result<UnixStream> + Send + Sync>,
    /// Whether a daemon is there.
    pub has_daemon: Box<dyn Fn() -> bool>,
    /// Where its threads come from.
    pub executor: Arc<dyn Executor>,
}

struct Supervisor {
    answers: Arc<Answers>,
    executor: Arc<dyn Executor>,
    /// The namespace, as commands enter it.
    namespace: OwnedFd,
    /// Filters with somebody behind them.
    filters: Arc<AtomicUsize>,
    user: u32,
}

/// Makes the namespace, calls `ready`, and answers calls until nobody needs it. The process must have no other threads.
///
/// # Errors
/// What stands in the way of the namespace or of the socket.
pub fn supervise(settings: Settings, ready: impl FnOnce()) -> io::Result<()> {
    let Settings { socket, dir, connect, has_daemon, executor } = settings;
    world::build(&Plan { dir, devices: Vec::new() })?;
    let namespace = rustix::fs::open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let _ = std::fs::remove_file(&socket);
    let listener = Meeting::listen(&socket)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot listen on {}: {e}", socket.display())))?;
    let supervisor = Arc::new(Supervisor {
        answers: Arc::new(Answers::new(DeviceMapper::new(Daemon::new(connect), executor.clone()))),
        executor,
        namespace,
        filters: Arc::default(),
        user: rustix::process::geteuid().as_raw(),
    });
    ready();
    info!("supervises programs as process {}", std::process::id());
    supervisor.accept(&listener, &*has_daemon);
    // A command that comes now finds no supervisor, and starts another.
    let _ = std::fs::remove_file(&socket);
    info!("nobody needs the namespace any more");
    Ok(())
}

impl Supervisor {
    fn accept(self: &Arc<Self>, listener: &OwnedFd, has_daemon: &dyn Fn() -> bool) {
        let pause = Timespec { tv_sec: LOOK.as_secs() as i64, tv_nsec: 0 };
        let mut missed = 0;
        while missed < LOOKS {
            let mut ready = [PollFd::new(listener, PollFlags::IN)];
            if !matches!(poll(&mut ready, Some(&pause)), Ok(1..)) {
                let needed = self.filters.load(Ordering::Acquire) > 0 || has_daemon();
                missed = if needed { 0 } else { missed + 1 };
                continue;
            }
            missed = 0;
            let meeting = match Meeting::accept(listener) {
                Ok(meeting) => meeting,
                Err(error) => {
                    warn!("a command cannot be let in: {error}");
                    std::thread::sleep(LOOK);
                    continue;
                }
            };
            let this = self.clone();
            let meet = move || {
                if let Err(error) = this.meet(&meeting) {
                    // It has gone, or was told.
                    info!("a command does not enter: {error}");
                    let _ = meeting.refuse(&error.to_string());
                }
            };
            if let Err(error) = self.executor.spawn("udm-exec-meet", Box::new(meet)) {
                warn!("a command cannot be let in: {error}");
            }
        }
    }

    fn meet(&self, meeting: &Meeting) -> io::Result<()> {
        let peer = meeting.peer()?;
        if peer != self.user && peer != 0 {
            return Err(io::Error::other(format!("this namespace is user {}'s, not user {peer}'s", self.user)));
        }
        let (text, _) = meeting.hear()?;
        let mut lines = text.lines();
        if lines.next() != Some(ENTER) {
            return Err(io::Error::other(format!("expected {ENTER:?}, found {text:?}")));
        }
        lines.try_for_each(|device| world::admit(Path::new(device)))?;
        self.answers.refresh();
        meeting.say(GO, Some(self.namespace.as_fd()))?;
        let (text, listener) = meeting.hear()?;
        let listener =
            listener.ok_or_else(|| io::Error::other(format!("expected {LISTENER:?} with one, found {text:?}")))?;
        self.filters.fetch_add(1, Ordering::AcqRel);
        let filters = self.filters.clone();
        let ended = move || _ = filters.fetch_sub(1, Ordering::AcqRel);
        notify::serve(listener, self.answers.clone(), self.executor.clone(), ended).inspect_err(|_| {
            self.filters.fetch_sub(1, Ordering::AcqRel);
        })?;
        meeting.say(GO, None)
    }
}
