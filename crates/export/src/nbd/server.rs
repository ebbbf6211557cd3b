//! The server: its threads, and how it starts and stops.

use super::crew::{Command, Handle, Shared};
use super::exports::Exports;
use super::handover::{Handed, Prepared};
use super::listener::{Listen, Listener};
use super::worker::Worker;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Domain, Joiner};

/// How long [`Server::reap_hangups`] waits for devices that still work for a client that has gone.
const REAP: Duration = Duration::from_secs(1);

/// Chooses how a server is to run.
pub struct ServerBuilder {
    listen: Vec<Listen>,
    adopted: Vec<(Listen, OwnedFd)>,
    threads: usize,
    max_connections: usize,
    memory: usize,
    paused: bool,
}

impl Default for ServerBuilder {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            listen: Vec::new(),
            adopted: Vec::new(),
            threads: cpus.min(4),
            max_connections: 4096,
            memory: 512 << 20,
            paused: false,
        }
    }
}

impl ServerBuilder {
    /// Listens here, too.
    #[must_use]
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen.push(listen);
        self
    }

    /// Listens on a socket that another process has listened on there. Its file goes with the server.
    #[must_use]
    pub fn adopt(mut self, listen: Listen, socket: OwnedFd) -> Self {
        self.adopted.push((listen, socket));
        self
    }

    /// Threads that serve connections, each with a channel of its own: at least 1; the number of CPUs but at most 4
    /// unless set.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Clients that may be connected at a time; 4096 unless set. Further ones are told so, and hung up on. Where the server
    /// listens on a unix socket too, a sixteenth of them are kept from clients over TCP.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Bytes of buffers that the connections of one thread may hold together; 512 MiB unless set. When they are held, requests
    /// of more than 64 KiB go through in pieces of that size. Reads that must be answered as a whole wait instead; a client that
    /// stops in the middle of a request for 30 s while others wait for its memory is hung up on.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Starts as after a [`pause`](Server::pause): it serves nobody before it is [resumed](Server::resume), and may hand over what
    /// it has not touched.
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.paused = true;
        self
    }

    /// Binds, starts the threads, and serves until the server is dropped. Fails when an address cannot be had or a
    /// thread cannot be started; then nothing is left running.
    pub fn start(self, domain: &Domain, exports: Arc<dyn Exports>) -> io::Result<Server> {
        let mut listeners = self.listen.iter().map(Listener::bind).collect::<io::Result<Vec<_>>>()?;
        for (listen, socket) in self.adopted {
            listeners.push(Listener::adopt(listen, socket)?);
        }
        let bound = listeners.iter().map(|l| l.bound().clone()).collect();
        let Self { max_connections, memory, paused, .. } = self;
        // Clients over TCP leave some for those on this machine.
        let local = bound_locally(&listeners);
        let reserved = if local { max_connections / 16 } else { 0 };
        let shared = Arc::new(Shared { exports, max_connections, reserved, memory, paused, handles: OnceLock::new() });
        let mut server = Server { domain: domain.clone(), handles: Vec::new(), joiners: Mutex::default(), bound };
        let mut listeners = Some(listeners);
        // The first worker accepts for all; it is started last, when the others can take connections.
        for index in (0..self.threads).rev() {
            let listeners = if index == 0 { listeners.take() } else { None };
            server.spawn(index, shared.clone(), listeners.unwrap_or_default())?;
        }
        Ok(server)
    }
}

fn bound_locally(listeners: &[Listener]) -> bool {
    listeners.iter().any(|listener| matches!(listener.bound(), Listen::Unix(_)))
}

/// A running server. Dropping it shuts it down without patience.
pub struct Server {
    domain: Domain,
    handles: Vec<Arc<Handle>>,
    joiners: Mutex<Vec<Joiner>>,
    bound: Vec<Listen>,
}

impl Server {
    /// Begins to choose how a server is to run.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    fn spawn(&mut self, index: usize, shared: Arc<Shared>, listeners: Vec<Listener>) -> io::Result<()> {
        let (started, result) = mpsc::channel();
        let last = index == 0;
        let mut others = self.handles.clone();
        let domain = self.domain.clone();
        let work = move || {
            let worker = match Worker::new(&domain, shared.clone(), listeners) {
                Ok(worker) => worker,
                Err(error) => return drop(started.send(Err(error))),
            };
            others.push(worker.handle());
            if last {
                // Before the first accept: only the last worker accepts.
                let _ = shared.handles.set(others);
            }
            if started.send(Ok(worker.handle())).is_ok() {
                worker.run();
            }
        };
        let joiner = self.domain.executor().spawn(&format!("udm-nbd-{index}"), Box::new(work))?;
        self.joiners.lock().unwrap_or_else(PoisonError::into_inner).push(joiner);
        let handle = result.recv().map_err(|_| io::Error::other("a thread of the NBD server ended at its start"))??;
        self.handles.push(handle);
        Ok(())
    }

    /// Where it listens, with the ports that were chosen.
    pub fn bound(&self) -> &[Listen] {
        &self.bound
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.handles.iter().map(|h| h.connections.load(std::sync::atomic::Ordering::Relaxed)).sum()
    }

    /// Handles the hang-ups of clients that have closed before the call, so that their exports no longer count as
    /// open. Must not be called under a lock that closing an export takes. Blocks until that is done, at most a second: a device that is suspended may keep requests longer.
    /// Returns whether it is done.
    pub fn reap_hangups(&self) -> bool {
        let (answer, answers) = mpsc::channel();
        self.handles.iter().for_each(|handle| handle.tell(Command::Reap(answer.clone())));
        drop(answer);
        let clock = self.domain.clock();
        let until = clock.now().after(REAP.as_nanos() as u64);
        let left = || Duration::from_nanos(until.since(clock.now()));
        // A thread that has ended has nothing to reap.
        self.handles.iter().all(|_| answers.recv_timeout(left()) != Err(mpsc::RecvTimeoutError::Timeout))
    }

    /// Hangs up on the clients of an export, by its canonical name. What they have under way is finished and
    /// answered. Returns how many there were; blocks until every thread knows, not until they have gone. Must not be
    /// called under a lock that opening or closing an export takes.
    pub fn disconnect(&self, export: &str) -> usize {
        let (answer, answers) = mpsc::channel();
        self.handles.iter().for_each(|h| h.tell(Command::Disconnect(export.to_owned(), answer.clone())));
        drop(answer);
        answers.iter().sum()
    }

    /// Takes nothing new, and waits until nothing is under way, at most so long. Whether that is so; if not, it goes on as
    /// before. A device that is suspended may keep requests for ever.
    pub fn pause(&self, patience: Duration) -> bool {
        let (answer, answers) = mpsc::channel();
        self.handles.iter().for_each(|handle| handle.tell(Command::Pause(answer.clone())));
        drop(answer);
        let clock = self.domain.clock();
        let until = clock.now().after(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let left = || Duration::from_nanos(until.since(clock.now()));
        let quiet = self.handles.iter().all(|_| answers.recv_timeout(left()).is_ok());
        if !quiet {
            self.resume();
        }
        quiet
    }

    /// The names of the exports that clients have open, each as often as it is. Blocks until every thread has answered.
    pub fn open_exports(&self) -> Vec<String> {
        let (answer, answers) = mpsc::channel();
        self.handles.iter().for_each(|handle| handle.tell(Command::Exports(answer.clone())));
        drop(answer);
        answers.iter().flatten().collect()
    }

    /// Goes on after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.handles.iter().for_each(|handle| handle.tell(Command::Resume));
    }

    /// After a [`pause`](Self::pause): gives away the sockets that it listens on, whose files stay, and its clients. The
    /// server has ended then, and has no device open.
    pub fn hand_over(&self) -> Handed {
        let (answer, answers) = mpsc::channel();
        self.handles.iter().for_each(|handle| handle.tell(Command::HandOver(answer.clone())));
        drop(answer);
        let mut all = Handed::default();
        for handed in answers {
            all.listeners.extend(handed.listeners);
            all.connections.extend(handed.connections);
        }
        let joiners = std::mem::take(&mut *self.joiners.lock().unwrap_or_else(PoisonError::into_inner));
        joiners.into_iter().for_each(Joiner::join);
        all
    }

    /// Goes on with a connection of another server.
    pub fn take(&self, prepared: Prepared) {
        let fewest = self.handles.iter().min_by_key(|h| h.connections.load(std::sync::atomic::Ordering::Relaxed));
        if let Some(handle) = fewest {
            handle.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            handle.tell(Command::Take(Box::new(prepared)));
        }
    }

    /// Stops accepting, answers what is under way, refuses the rest with ESHUTDOWN, hangs up and ends the threads.
    /// Blocks at most `patience`, for clients that do not take their replies and devices that do not finish. Further
    /// calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        Self::shut_down_all([self], patience);
    }

    /// The same for several, which end at once: the wait for them is `patience` in all.
    pub fn shut_down_all<'a>(servers: impl IntoIterator<Item = &'a Self>, patience: Duration) {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let tell = |server: &Self| {
            let joiners = std::mem::take(&mut *server.joiners.lock().unwrap_or_else(PoisonError::into_inner));
            let deadline = server.domain.clock().now().after(patience);
            server.handles.iter().for_each(|handle| handle.tell(Command::ShutDown(deadline)));
            joiners
        };
        // All are told before one is waited for.
        let joiners: Vec<Joiner> = servers.into_iter().flat_map(tell).collect();
        joiners.into_iter().for_each(Joiner::join);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
