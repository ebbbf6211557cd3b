//! The server of one device: its socket, its thread, and the front ends that come and go.

use super::Mode;
use super::ring::MAX_SIZE;
use super::session::{Lingering, Session, Surroundings};
use super::wire::WireError;
use super::worker::Bell;
use crate::nbd::listener::{Listen, Listener};
use crate::nbd::{Client, Exports, OpenError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Domain, Joiner, Nanos};

/// How often the size of the device is looked at while a front end is connected.
const LOOK: Duration = Duration::from_millis(500);
/// How long accepting pauses when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How long [`Server::reap_hangups`] waits for a device that still works for a front end that has gone.
const REAP: Duration = Duration::from_secs(1);
/// Queues at most: the protocol names them by a byte.
pub const MAX_QUEUES: u16 = 256;

/// What a server is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) queues: u16,
    pub(super) queue_size: u16,
    pub(super) threads: usize,
    pub(super) mode: Mode,
}

/// Chooses how a server is to run.
pub struct ServerBuilder {
    path: PathBuf,
    options: Options,
}

impl ServerBuilder {
    /// Queues that a front end may use; the number of CPUs, but at most 8, unless set. Each has a thread of its own as long as there
    /// are CPUs.
    #[must_use]
    pub fn queues(mut self, queues: u16) -> Self {
        self.options.queues = queues;
        self
    }

    /// Entries that a ring may have at most, a power of two; 1024 unless set.
    #[must_use]
    pub fn queue_size(mut self, entries: u16) -> Self {
        self.options.queue_size = entries;
        self
    }

    /// How it waits for requests.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.options.mode = mode;
        self
    }

    /// Binds, starts the thread, and serves the export of that name until the server is dropped. The export is opened when a front
    /// end connects. Fails for numbers that cannot be, and when the address cannot be had.
    pub fn start(self, domain: &Domain, exports: Arc<dyn Exports>, name: &str) -> io::Result<Server> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let Options { queues, queue_size, .. } = self.options;
        if queues == 0 || queues > MAX_QUEUES {
            return refuse(format!("--queues={queues}: expected 1 to {MAX_QUEUES}"));
        }
        if !queue_size.is_power_of_two() || !(4..=MAX_SIZE).contains(&queue_size) {
            return refuse(format!("--queue-size={queue_size}: expected a power of two from 4 to {MAX_SIZE}"));
        }
        let listener = Listener::bind(&Listen::Unix(self.path.clone()))?;
        let bell = Arc::new(Bell::new()?);
        let around = Surroundings { domain: domain.clone(), options: self.options, bell, stop: AtomicBool::new(false) };
        let shared = Arc::new(Shared { around: Arc::new(around), asked: Mutex::default() });
        let control = Control {
            shared: shared.clone(),
            listener,
            exports,
            name: name.to_owned(),
            session: None,
            lingering: Vec::new(),
            accept_at: Nanos::default(),
        };
        let joiner = domain.executor().spawn("udm-vhost", Box::new(move || control.run()))?;
        Ok(Server { path: self.path, shared, joiner: Mutex::new(Some(joiner)) })
    }
}

/// What the server's thread and its owner share.
struct Shared {
    around: Arc<Surroundings>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// Who waits for hang-ups to be handled.
    reaps: Vec<mpsc::Sender<()>>,
    /// When to give up on requests that are out, at the end.
    deadline: Nanos,
    connected: bool,
}

impl Shared {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server. Dropping it shuts it down without patience.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    joiner: Mutex<Option<Joiner>>,
}

impl Server {
    /// Begins to choose how a server on a unix socket at `path` is to run.
    pub fn builder(path: &Path) -> ServerBuilder {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let queues = cpus.clamp(1, 8) as u16;
        let options = Options { queues, queue_size: 1024, threads: cpus, mode: Mode::default() };
        ServerBuilder { path: path.to_owned(), options }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many queues a front end may use.
    pub fn queues(&self) -> u16 {
        self.shared.around.options.queues
    }

    /// Entries that a ring may have.
    pub fn queue_size(&self) -> u16 {
        self.shared.around.options.queue_size
    }

    /// How it waits.
    pub fn mode(&self) -> Mode {
        self.shared.around.options.mode
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.asked().connected
    }

    /// Handles the hang-up of a front end that has closed before the call, so that its export no longer counts as open. Blocks
    /// until that is done, at most a second. Must not be called under a lock that closing an export takes. Returns whether it is done.
    pub fn reap_hangups(&self) -> bool {
        let (answer, done) = mpsc::channel();
        self.shared.asked().reaps.push(answer);
        self.shared.around.bell.ring();
        // A thread that has ended has nothing to reap.
        done.recv_timeout(REAP) != Err(mpsc::RecvTimeoutError::Timeout)
    }

    /// Hangs up on the front end, and ends. What it has under way is finished, though not shown to it: it finds it in flight when it
    /// connects to a server after this one. Blocks at most `patience`. Further calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        let Some(joiner) = self.joiner.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.shared.asked().deadline = self.shared.around.domain.clock().now().after(patience);
        self.shared.around.stop.store(true, Ordering::Release);
        self.shared.around.bell.ring();
        joiner.join();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}

/// The server's thread.
struct Control {
    shared: Arc<Shared>,
    listener: Listener,
    exports: Arc<dyn Exports>,
    name: String,
    session: Option<Session>,
    /// Sessions whose requests are still out.
    lingering: Vec<Lingering>,
    /// When accepting goes on after it failed.
    accept_at: Nanos,
}

impl Control {
    fn run(mut self) {
        let around = self.shared.around.clone();
        while !around.stop.load(Ordering::Acquire) {
            self.answer_reaps();
            if let Err(error) = self.turn() {
                tracing::error!("{}: cannot wait for a front end: {error}", self.name);
                break;
            }
        }
        self.hang_up();
        let deadline = self.shared.asked().deadline;
        while !self.finish_lingering() && around.domain.clock().now() < deadline {
            let _ = self.wait(false, Some(LOOK));
        }
        if !self.lingering.is_empty() {
            // The device still works for it: its export stays open, as its bios are.
            tracing::warn!("{}: requests of a front end are left behind", self.name);
            std::mem::forget(std::mem::take(&mut self.lingering));
        }
        self.shared.asked().reaps.clear();
    }

    /// Waits for something, and handles it.
    fn turn(&mut self) -> io::Result<()> {
        let now = self.shared.around.domain.clock().now();
        // A front end waits in the socket while requests of the one before are out.
        let accepts = self.lingering.is_empty() && now >= self.accept_at;
        let timeout = match (&self.session, now < self.accept_at) {
            (Some(_), _) => Some(LOOK),
            (None, true) => Some(PAUSE),
            (None, false) => None,
        };
        let (knocked, spoke) = self.wait(accepts, timeout)?;
        self.finish_lingering();
        if let Some(session) = &mut self.session {
            let mut result = if spoke { session.receive() } else { Ok(()) };
            if result.is_ok()
                && let Some(reason) = session.broken()
            {
                result = Err(WireError::Broken(reason));
            }
            match result {
                Ok(()) => session.look_at_size(),
                Err(error) => {
                    match &error {
                        WireError::Closed => tracing::debug!("{}: the front end has hung up", self.name),
                        error => tracing::warn!("{}: the front end is hung up on: {error}", self.name),
                    }
                    self.hang_up();
                }
            }
        }
        // The one before may have gone just now, with requests out.
        if knocked && self.lingering.is_empty() {
            self.accept();
        }
        Ok(())
    }

    /// Waits for who knocks, speaks or rings. Which of the first two did.
    fn wait(&self, accepts: bool, timeout: Option<Duration>) -> io::Result<(bool, bool)> {
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let bell = &self.shared.around.bell;
        let socket = self.session.as_ref().map(Session::socket);
        let mut polled = vec![PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        if accepts {
            polled.push(PollFd::from_borrowed_fd(self.listener.socket(), PollFlags::IN));
        }
        if let Some(socket) = socket {
            polled.push(PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP));
        }
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is = |at: usize| polled.get(at).is_some_and(|p| !p.revents().is_empty());
        let (knocked, spoke) = (accepts && is(1), socket.is_some() && is(1 + usize::from(accepts)));
        if is(0) {
            bell.silence();
        }
        Ok((knocked, spoke))
    }

    fn accept(&mut self) {
        let (socket, client) = match self.listener.accept() {
            Ok(Some(accepted)) => accepted,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!("{}: cannot accept a front end: {error}", self.name);
                self.accept_at = self.shared.around.domain.clock().now().after(PAUSE.as_nanos() as u64);
                return;
            }
        };
        if self.session.is_some() {
            tracing::warn!("{}: {client} is refused: another front end has the disk", self.name);
            return;
        }
        match self.open(socket, &client) {
            Ok(session) => {
                tracing::info!("{}: {client} has the disk", self.name);
                self.session = Some(session);
                self.shared.asked().connected = true;
            }
            Err(error) => tracing::warn!("{}: {client} is refused: {error}", self.name),
        }
    }

    fn open(&self, socket: OwnedFd, client: &Client) -> Result<Session, OpenError> {
        let export = self.exports.open(&self.name, client)?;
        Ok(Session::new(self.shared.around.clone(), socket, export))
    }

    fn hang_up(&mut self) {
        if let Some(session) = self.session.take() {
            self.lingering.push(session.end());
            self.shared.asked().connected = false;
        }
        self.finish_lingering();
    }

    /// Frees what is left of sessions that are over. Whether all are.
    fn finish_lingering(&mut self) -> bool {
        self.lingering.extract_if(.., |l| l.is_over()).for_each(Lingering::finish);
        self.lingering.is_empty()
    }

    /// Answers who waits for hang-ups to be handled.
    fn answer_reaps(&mut self) {
        if self.shared.asked().reaps.is_empty() {
            return;
        }
        let gone = self.session.as_ref().is_some_and(|session| {
            let mut polled = [PollFd::new(session.socket(), PollFlags::RDHUP)];
            poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
        });
        if gone {
            self.hang_up();
        }
        if self.lingering.is_empty() {
            // Who asked may have stopped waiting.
            self.shared.asked().reaps.drain(..).for_each(|answer| {
                let _ = answer.send(());
            });
        }
    }
}
