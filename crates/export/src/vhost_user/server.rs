//! The server of one device: its socket, its thread, and the front ends that come and go.

use super::Mode;
use super::handover::{Handed, Prepared};
use super::ring::MAX_SIZE;
use super::session::{Lingering, Session, Surroundings};
use super::wire::WireError;
use crate::exports::{Client, Exports, OpenError};
use crate::listener::{Listen, Listener};
use crate::worker::deadline::{Answers, Deadline, Due, REAP};
use crate::worker::mailbox::{Mailbox, Notifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Clock, Domain, Joiner, Nanos};

/// How often the size of the device is looked at while a front end is connected.
const LOOK: Duration = Duration::from_millis(500);
/// How long accepting pauses when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
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
    adopted: Option<OwnedFd>,
    prepared: Option<Prepared>,
}

impl ServerBuilder {
    /// Queues that a front end may use; the number of CPUs, but at most 8, unless set. Each has a thread of its own as
    /// long as there are CPUs.
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

    /// Listens on a socket that another process has listened on at the same path.
    #[must_use]
    pub fn adopt(mut self, listener: OwnedFd) -> Self {
        self.adopted = Some(listener);
        self
    }

    /// Goes on with a front end of another server, with the number and size of the queues that it was told of there.
    #[must_use]
    pub fn go_on(mut self, prepared: Prepared) -> Self {
        (self.options.queues, self.options.queue_size) = prepared.shape();
        self.prepared = Some(prepared);
        self
    }

    /// Binds, starts the thread, and serves the export of that name until the server is dropped. The export is opened
    /// when a front end connects. Fails for numbers that cannot be, and when the address cannot be had.
    pub fn start(self, domain: &Domain, exports: Arc<dyn Exports>, name: &str) -> io::Result<Server> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let Options { queues, queue_size, .. } = self.options;
        if queues == 0 || queues > MAX_QUEUES {
            return refuse(format!("--queues={queues}: expected 1 to {MAX_QUEUES}"));
        }
        if !queue_size.is_power_of_two() || !(4..=MAX_SIZE).contains(&queue_size) {
            return refuse(format!("--queue-size={queue_size}: expected a power of two from 4 to {MAX_SIZE}"));
        }
        let at = Listen::Unix(self.path.clone());
        let listener = match self.adopted {
            Some(socket) => Listener::adopt(at, socket)?,
            None => Listener::bind(&at)?,
        };
        let notifier = Arc::new(Notifier::new()?);
        let mailbox = Mailbox::new(notifier.clone());
        let around = Surroundings { domain: domain.clone(), options: self.options, notifier, stop: OnceLock::new() };
        let connected = AtomicBool::new(self.prepared.is_some());
        let shared = Arc::new(Shared { around: Arc::new(around), mailbox, connected });
        let session = self.prepared.map(|prepared| Session::go_on(shared.around.clone(), prepared));
        let control = Control {
            shared: shared.clone(),
            listener,
            exports,
            name: name.to_owned(),
            session,
            lingering: Vec::new(),
            accept_at: Nanos::default(),
            paused: false,
            reaps: Due::default(),
        };
        let joiner = domain.executor().spawn("udm-vhost", Box::new(move || control.run()))?;
        Ok(Server { path: self.path, shared, joiner: Mutex::new(Some(joiner)) })
    }
}

/// What the server's thread and its owner share.
struct Shared {
    around: Arc<Surroundings>,
    mailbox: Mailbox<Wish, Arc<Notifier>>,
    connected: AtomicBool,
}

/// What its owner wants of the server's thread.
enum Wish {
    /// Handle hang-ups.
    Reap(mpsc::Sender<()>),
    /// Pause; whether nothing is under way by then.
    Pause(Deadline, mpsc::Sender<bool>),
    /// Go on after a pause.
    Resume,
    /// Give everything away, and end.
    HandOver(mpsc::Sender<Handed>),
}

impl Shared {
    fn clock(&self) -> &Arc<dyn Clock> {
        self.around.domain.clock()
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
        ServerBuilder { path: path.to_owned(), options, adopted: None, prepared: None }
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
        self.shared.connected.load(Ordering::Acquire)
    }

    /// Handles the hang-up of a front end that has closed before the call, so that its export no longer counts as open.
    /// Blocks until that is done, at most a second. Must not be called under a lock that closing an export takes.
    /// Returns whether it is done.
    pub fn reap_hangups(&self) -> bool {
        Self::reap_all([self]).wait()
    }

    /// The same for several: the wait for them is a second at most in all.
    #[must_use]
    pub fn reap_all<'a>(servers: impl IntoIterator<Item = &'a Self>) -> Reaping {
        let (answer, answers) = mpsc::channel();
        let mut reaping = Reaping { until: None, answers, count: 0 };
        for Self { shared, .. } in servers {
            shared.mailbox.send(Wish::Reap(answer.clone()));
            reaping.until.get_or_insert_with(|| Deadline::after(shared.clock(), REAP));
            reaping.count += 1;
        }
        reaping
    }

    /// Takes nothing new from the front end, and waits until nothing is under way, at most so long. Whether that is so;
    /// if not, it goes on as before. A device that is suspended may keep requests for ever.
    pub fn pause(&self, patience: Duration) -> bool {
        Self::pause_all([self], patience).is_ok()
    }

    /// The same for several, which all wait at once. `Err`: the first that could not be paused; all go on as before
    /// then.
    pub fn pause_all<'a>(servers: impl IntoIterator<Item = &'a Self>, patience: Duration) -> Result<(), &'a Self> {
        let ask = |server: &'a Self| {
            let (answer, quiet) = mpsc::channel();
            let (clock, deadline) = (server.shared.clock(), Deadline::after(server.shared.clock(), patience));
            // It may itself be waiting for requests.
            let until = Deadline::at(clock, deadline.time().after(REAP.as_nanos() as u64));
            server.shared.mailbox.send(Wish::Pause(deadline, answer));
            (server, quiet, until)
        };
        let asked: Vec<_> = servers.into_iter().map(ask).collect();
        let loud = asked.iter().find(|(_, quiet, until)| until.receive(quiet) != Ok(true));
        let Some((loud, ..)) = loud else { return Ok(()) };
        asked.iter().for_each(|(server, ..)| server.resume());
        Err(*loud)
    }

    /// Goes on after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.shared.mailbox.send(Wish::Resume);
    }

    /// After a [`pause`](Self::pause): gives away the socket that it listens on, whose file stays, and the front end.
    /// The server has ended then, and has no device open. `None` when it had ended before.
    pub fn hand_over(&self) -> Option<Handed> {
        let joiner = self.joiner.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let (answer, handed) = mpsc::channel();
        self.shared.mailbox.send(Wish::HandOver(answer));
        joiner.join();
        handed.recv().ok()
    }

    /// Hangs up on the front end, and ends. What it has under way is finished, though not shown to it: it finds it in
    /// flight when it connects to a server after this one. Blocks at most `patience`. Further calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        Self::shut_down_all([self], patience);
    }

    /// The same for several, which end at once: the wait for them is `patience` in all.
    pub fn shut_down_all<'a>(servers: impl IntoIterator<Item = &'a Self>, patience: Duration) {
        let tell = |server: &Self| {
            let joiner = server.joiner.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            let Shared { around, mailbox, .. } = &*server.shared;
            let _ = around.stop.set(Deadline::after(server.shared.clock(), patience).time());
            mailbox.wake();
            Some(joiner)
        };
        // All are told before one is waited for.
        let joiners: Vec<Joiner> = servers.into_iter().filter_map(tell).collect();
        joiners.into_iter().for_each(Joiner::join);
    }
}

/// Servers that handle hang-ups.
pub struct Reaping {
    until: Option<Deadline>,
    answers: mpsc::Receiver<()>,
    count: usize,
}

impl Reaping {
    /// Blocks until they have, at most a second since they were asked. Whether they have; one that has ended has
    /// nothing to handle.
    pub fn wait(self) -> bool {
        self.until.is_none_or(|until| until.answers(&self.answers, self.count) != Answers::Late)
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
    paused: bool,
    /// Who waits for hang-ups to be handled.
    reaps: Due<()>,
}

impl Control {
    fn run(self) {
        let shared = self.shared.clone();
        self.serve();
        shared.mailbox.close();
    }

    fn serve(mut self) {
        let around = self.shared.around.clone();
        self.resume();
        while around.stop.get().is_none() {
            if let Some(answer) = self.grant() {
                return self.hand_over(&answer);
            }
            self.answer_reaps();
            if let Err(error) = self.turn() {
                tracing::error!("{}: cannot wait for a front end: {error}", self.name);
                break;
            }
        }
        self.hang_up();
        let deadline = around.stop.get().copied().unwrap_or_default();
        while !self.finish_lingering() && around.domain.clock().now() < deadline {
            let _ = self.wait(false, true, Some(LOOK));
        }
        if !self.lingering.is_empty() {
            // The device still works for it: its export stays open, as its bios are.
            tracing::warn!("{}: requests of a front end are left behind", self.name);
            std::mem::forget(std::mem::take(&mut self.lingering));
        }
    }

    /// Does what its owner wants; gives who waits for everything to be given away.
    fn grant(&mut self) -> Option<mpsc::Sender<Handed>> {
        for wish in self.shared.mailbox.take() {
            match wish {
                Wish::Reap(answer) => self.reaps.push((), answer),
                Wish::Pause(deadline, answer) => {
                    self.paused = self.pause(&deadline);
                    // Who has stopped waiting has asked to go on.
                    let _ = answer.send(self.paused);
                }
                Wish::Resume => {
                    self.paused = false;
                    self.resume();
                }
                Wish::HandOver(answer) => return Some(answer),
            }
        }
        None
    }

    fn pause(&mut self, deadline: &Deadline) -> bool {
        if self.session.as_ref().is_some_and(|session| session.broken().is_some()) {
            self.hang_up();
        }
        while !self.finish_lingering() {
            if deadline.is_over() || self.wait(false, false, Some(LOOK)).is_err() {
                return false;
            }
        }
        self.session.as_mut().is_none_or(|session| session.pause(deadline))
    }

    /// Goes on with the queues that ran.
    fn resume(&mut self) {
        if let Some(session) = &mut self.session
            && let Err(why) = session.resume()
        {
            tracing::warn!("{}: the front end is hung up on: {why}", self.name);
            self.hang_up();
        }
    }

    /// Gives everything away.
    fn hand_over(mut self, answer: &mpsc::Sender<Handed>) {
        let session = self.session.take().and_then(|session| match session.hand_over() {
            Ok(handed) => Some(handed),
            Err(why) => {
                tracing::warn!("{}: the front end has to connect again: {why}", self.name);
                None
            }
        });
        match self.listener.hand_over() {
            // Who asked listens.
            Ok((_, listener)) => drop(answer.send(Handed { listener, session })),
            Err(error) => tracing::error!("{}: its socket cannot be passed on: {error}", self.name),
        }
    }

    /// Waits for something, and handles it.
    fn turn(&mut self) -> io::Result<()> {
        let now = self.shared.clock().now();
        if self.paused {
            self.wait(false, false, None)?;
            return Ok(());
        }
        // A front end waits in the socket while requests of the one before are out.
        let accepts = self.lingering.is_empty() && now >= self.accept_at;
        let timeout = match (&self.session, now < self.accept_at) {
            (Some(_), _) => Some(LOOK),
            (None, true) => Some(PAUSE),
            (None, false) => None,
        };
        let (knocked, spoke) = self.wait(accepts, true, timeout)?;
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

    /// Waits until a front end connects, sends something, or there is other news. Whether it was one of the first two.
    fn wait(&self, accepts: bool, listens: bool, timeout: Option<Duration>) -> io::Result<(bool, bool)> {
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let notifier = &self.shared.around.notifier;
        let socket = self.session.as_ref().filter(|_| listens).map(Session::socket);
        let mut polled = vec![PollFd::from_borrowed_fd(notifier.as_fd(), PollFlags::IN)];
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
            notifier.drain();
        }
        Ok((knocked, spoke))
    }

    fn accept(&mut self) {
        let (socket, client) = match self.listener.accept() {
            Ok(Some(accepted)) => accepted,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!("{}: cannot accept a front end: {error}", self.name);
                self.accept_at = self.shared.clock().now().after(PAUSE.as_nanos() as u64);
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
                self.shared.connected.store(true, Ordering::Release);
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
            self.shared.connected.store(false, Ordering::Release);
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
        if !self.reaps.is_empty() && self.session.as_ref().is_some_and(Session::has_hung_up) {
            self.hang_up();
        }
        self.reaps.answer(|()| self.lingering.is_empty());
    }
}
