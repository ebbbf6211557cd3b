//! The server: its threads, and how it starts and stops.

use super::handover::{Handed, Prepared};
use super::shared::Shared;
use super::worker::{Command, Worker};
use crate::exports::Exports;
use crate::listener::{Listen, Listener};
use crate::worker::deadline::Answers;
use crate::worker::group::Workers;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use udm_io::Domain;

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

    /// Clients that may be connected at a time; 4096 unless set. Further ones are told so, and hung up on. Where the
    /// server listens on a unix socket too, a sixteenth of them are kept from clients over TCP.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Bytes of buffers that the connections of one thread may hold together; 512 MiB unless set. When they are held,
    /// requests of more than 64 KiB go through in pieces of that size. Reads that must be answered as a whole wait
    /// instead; a client that stops in the middle of a request for 30 s while others wait for its memory is hung up on.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Starts as after a [`pause`](Server::pause): it serves nobody before it is [resumed](Server::resume), and may
    /// hand over what it has not touched.
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
        let workers = Workers::new(domain);
        let shared = Arc::new(Shared { exports, max_connections, reserved, memory, paused, workers });
        // The first worker accepts for all.
        let mut listeners = Some(listeners);
        let makers = (0..self.threads).map(|_| {
            let (domain, shared, listeners) = (domain.clone(), shared.clone(), listeners.take().unwrap_or_default());
            move || Worker::new(&domain, shared, listeners)
        });
        let started = shared.workers.start(|number| format!("udm-nbd-{number}"), makers);
        // Dropped, it waits for those that end.
        let server = Server { shared, bound };
        started.map(|()| server)
    }
}

fn bound_locally(listeners: &[Listener]) -> bool {
    listeners.iter().any(|listener| matches!(listener.bound(), Listen::Unix(_)))
}

/// A running server. Dropping it shuts it down without patience.
pub struct Server {
    shared: Arc<Shared>,
    bound: Vec<Listen>,
}

impl Server {
    /// Begins to choose how a server is to run.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens, with the ports that were chosen.
    pub fn bound(&self) -> &[Listen] {
        &self.bound
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Handles the hang-ups of clients that have closed before the call, so that their exports no longer count as open.
    /// Must not be called under a lock that closing an export takes. Blocks until that is done, at most a second: a
    /// device that is suspended may keep requests longer. Returns whether it is done.
    pub fn reap_hangups(&self) -> bool {
        self.shared.workers.reap(Command::Reap)
    }

    /// Hangs up on the clients of an export, by its canonical name. What they have under way is finished and
    /// answered. Returns how many there were; blocks until every thread knows, not until they have gone. Must not be
    /// called under a lock that opening or closing an export takes.
    pub fn disconnect(&self, export: &str) -> usize {
        self.shared.workers.ask(|answer| Command::Disconnect(export.to_owned(), answer)).iter().sum()
    }

    /// Takes nothing new, and waits until nothing is under way, at most so long. Whether that is so; if not, it goes on
    /// as before. A device that is suspended may keep requests for ever.
    pub fn pause(&self, patience: Duration) -> bool {
        let quiet = self.shared.workers.pause(patience) == Answers::All;
        if !quiet {
            // One that has ended may have left requests behind.
            self.resume();
        }
        quiet
    }

    /// The names of the exports that clients have open, each as often as it is. Blocks until every thread has answered.
    pub fn open_exports(&self) -> Vec<String> {
        self.shared.workers.ask(Command::Exports).iter().flatten().collect()
    }

    /// Goes on after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.shared.workers.resume();
    }

    /// After a [`pause`](Self::pause): gives away the sockets that it listens on, whose files stay, and its clients.
    /// The server has ended then, and has no device open.
    pub fn hand_over(&self) -> Handed {
        let mut all = Handed::default();
        for handed in self.shared.workers.ask(Command::HandOver) {
            all.listeners.extend(handed.listeners);
            all.connections.extend(handed.connections);
        }
        self.shared.workers.join();
        all
    }

    /// Goes on with a connection of another server.
    pub fn take(&self, prepared: Prepared) {
        self.shared.spread(Command::Take(Box::new(prepared)));
    }

    /// Stops accepting, answers what is under way, refuses the rest with ESHUTDOWN, hangs up and ends the threads.
    /// Blocks at most `patience`, for clients that do not take their replies and devices that do not finish. Further
    /// calls do nothing.
    pub fn shut_down(&self, patience: Duration) {
        Self::shut_down_all([self], patience);
    }

    /// The same for several, which end at once: the wait for them is `patience` in all.
    pub fn shut_down_all<'a>(servers: impl IntoIterator<Item = &'a Self>, patience: Duration) {
        Workers::shut_down(servers.into_iter().map(|server| &server.shared.workers), patience);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}
