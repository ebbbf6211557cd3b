//! The daemon: the devices of one user, and the sockets that they are reached by.
//!
//! # How it starts
//! It takes the lock of its directory, so that it is the only one there; sockets that it finds are then left from one
//! that was killed. `control.sock` comes last: who reaches it reaches all.
//!
//! # How it ends
//! On SIGTERM, SIGINT, SIGHUP, a client's request, or when its directory has been deleted: it takes no more requests, lets those
//! under way finish, flushes the devices, and removes its sockets. Nothing else on disk goes.

mod control;
mod flush;
mod lock;
mod log;
mod second;
mod socket;
mod state;
mod stop;
mod tcp;

pub(crate) use flush::flush_all;
pub(crate) use lock::Lock;
pub(crate) use log::{open as open_log, tail as log_tail};
pub(crate) use stop::Stop;
pub(crate) use tcp::{parse_address, tcp_uri};

use crate::exports::MappedExports;
use crate::places::Places;
use lock::LockError;
use rustix::process::{Resource, getrlimit, setrlimit, setsid};
use socket::{Connections, Listener, Peer};
use state::{State, StateFile};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tcp::TcpExports;
use tracing::{error, info, warn};
use udm_control::second::UnderwayList;
use udm_core::Registry;
use udm_export::nbd::{Listen, Server};
use udm_io::{Domain, PollPolicy};

/// The exit code of a daemon that found another in its directory.
pub(crate) const EXIT_HELD: u8 = 3;
/// How long requests under way and clients of exports may take when the daemon ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks whether its directory is still there.
const LOOK: Duration = Duration::from_secs(1);

/// What the daemon's threads share.
pub(crate) struct Daemon {
    places: Places,
    registry: Registry,
    nbd: Server,
    tcp: TcpExports,
    underway: UnderwayList,
    state: StateFile,
    stop: Stop,
}

/// Why there is no daemon.
pub(crate) struct StartError {
    /// For people.
    pub(crate) message: String,
    /// Another daemon is in the directory.
    pub(crate) held: bool,
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self { message, held: false }
    }
}

/// Runs the daemon until it ends. `detached`: a client has started it, with the log as standard output. `poll_budget`: how
/// long its threads poll before they sleep, in microseconds, if that was said.
pub(crate) fn run(places: Places, detached: bool, poll_budget: Option<u32>) -> Result<(), StartError> {
    places.make()?;
    if detached {
        // Fails only for the leader of a group, which a child that was just started is not.
        let _ = setsid();
        let _ = std::env::set_current_dir("/");
    }
    let lock = Lock::take(&places).map_err(|e| refused(&places, e))?;
    log::start(&places, !detached).map_err(|e| format!("{}: {e}", places.log().display()))?;
    raise_descriptor_limit();
    put_last_state_aside(&places);

    let bind = |path: &std::path::Path| {
        Listener::bind(path).map_err(|e| StartError::from(format!("cannot listen on {}: {e}", path.display())))
    };
    let domain = Domain::default();
    if let Some(us) = poll_budget {
        domain.poll_as(PollPolicy { budget: Duration::from_micros(us.into()), ..PollPolicy::default() });
    }
    let registry = udm_stack::registry(domain);
    let exports = Arc::new(MappedExports::all(&registry));
    let nbd = Server::builder().listen(Listen::Unix(places.nbd())).start(registry.domain(), exports);
    let nbd = nbd.map_err(|e| e.to_string())?;
    let stop = Stop::new().and_then(|stop| stop.on_signals().map(|()| stop));
    let stop = stop.map_err(|e| format!("cannot wait for signals: {e}"))?;
    let second = bind(&places.second())?;
    let control = bind(&places.control())?;
    let underway = UnderwayList::new(registry.domain().clock().clone());
    let (tcp, state) = (TcpExports::default(), StateFile::default());
    let daemon = Arc::new(Daemon { places, registry, nbd, tcp, underway, state, stop });
    daemon.save_state();
    let connections = Arc::new(Connections::default());
    let accepting = [
        daemon.clone().accept("udm-control", control, &connections, control::serve)?,
        daemon.clone().accept("udm-second", second, &connections, second::serve)?,
    ];
    info!(
        "udm {} serves {} as process {}",
        env!("CARGO_PKG_VERSION"),
        daemon.places.dir().display(),
        std::process::id()
    );

    daemon.wait_for_end(&lock);
    daemon.stop.set();
    accepting.into_iter().for_each(udm_io::Joiner::join);
    daemon.end(&connections);
    Ok(())
}

impl Daemon {
    /// Accepts on a thread of its own, until the end. The socket's file goes with the thread.
    fn accept(
        self: Arc<Self>,
        thread: &str,
        listener: Listener,
        connections: &Arc<Connections>,
        serve: fn(&Daemon, &UnixStream, Peer),
    ) -> Result<udm_io::Joiner, String> {
        let connections = connections.clone();
        let executor = self.registry.domain().executor().clone();
        let spawner = executor.clone();
        let work = move || {
            let daemon = self.clone();
            let serve = Arc::new(move |stream: &UnixStream, peer| serve(&daemon, stream, peer));
            listener.accept(&self.stop, &*executor, &connections, serve);
        };
        spawner.spawn(thread, Box::new(work)).map_err(|e| format!("cannot start a thread: {e}"))
    }

    /// Blocks until the daemon is to end. Devices whose removal was deferred go without a request, so the state is
    /// looked at now and then.
    fn wait_for_end(&self, lock: &Lock) {
        loop {
            if self.stop.wait(Some(LOOK)) {
                info!("ending");
                return;
            }
            if !lock.is_in_place(&self.places) {
                warn!("{} is gone: ending", self.places.dir().display());
                return;
            }
            self.save_state();
        }
    }

    fn end(&self, connections: &Connections) {
        self.save_state();
        self.tcp.shut_down(PATIENCE);
        self.nbd.shut_down(PATIENCE);
        let left = connections.end(PATIENCE);
        if left > 0 {
            warn!("{left} requests are still under way; not waiting for them");
        }
        flush_all(&self.registry, PATIENCE);
        info!("ended");
    }

    /// Lets exports close the devices of clients that have hung up.
    fn reap_hangups(&self) {
        self.nbd.reap_hangups();
        self.tcp.reap_hangups();
    }

    fn save_state(&self) {
        if let Err(error) = self.state.save(self)
            && self.places.dir().exists()
        {
            error!("{} cannot be written: {error}", self.places.state().display());
        }
    }
}

fn refused(places: &Places, error: LockError) -> StartError {
    let dir = places.dir().display();
    match error {
        LockError::Held { pid } => {
            let who =
                pid.map_or_else(|| "another daemon".to_owned(), |pid| format!("the daemon with process id {pid}"));
            let message =
                format!("{who} already serves {dir}; end it with `udm daemon --stop`, or choose another --dir");
            StartError { message, held: true }
        }
        LockError::Io(error) => StartError::from(format!("{}: {error}", places.lock().display())),
    }
}

/// A daemon that was killed, or ended with devices, leaves a state that this one does not restore. It is kept for people.
fn put_last_state_aside(places: &Places) {
    let Some(last) = State::read(places).filter(|state| !state.devices.is_empty()) else { return };
    let names: Vec<_> = last.devices.iter().map(|device| device.name.as_str()).collect();
    let kept = places.last_state();
    match std::fs::rename(places.state(), &kept) {
        Ok(()) => warn!(
            "the devices of the daemon before are not restored: {}; their tables are in {}",
            names.join(", "),
            kept.display()
        ),
        Err(error) => warn!("the devices of the daemon before are not restored: {}; {error}", names.join(", ")),
    }
}

/// A client is a descriptor, a file beneath is one or two: the soft limit of 1024 is for programs that use select(2).
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!("the limit of descriptors stays: {error}");
    }
}
