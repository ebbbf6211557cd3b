//! The daemon: the devices of one user, and the sockets that they are reached by.
//!
//! # How it starts
//! It takes the lock of its directory, so that it is the only one there; sockets that it finds are then left from one
//! that was killed. It makes the devices of the one before again. `control.sock` comes last: who reaches it reaches all.
//!
//! # How it ends
//! On SIGTERM, SIGINT, SIGHUP, a client's request, or when its directory has been deleted: it takes no more requests, lets those
//! under way finish, flushes the devices, and removes its sockets. Nothing else on disk goes: the next one has the same devices.

mod control;
mod flush;
mod lock;
mod log;
mod lost;
mod nodes;
mod restore;
mod second;
mod socket;
mod state;
mod stop;
mod tcp;
mod vhost;

pub(crate) use flush::flush_all;
pub(crate) use lock::Lock;
pub(crate) use log::{open as open_log, tail as log_tail};
pub(crate) use stop::Stop;
pub(crate) use tcp::{parse_address, tcp_uri};

use crate::exports::MappedExports;
use crate::places::Places;
use lock::LockError;
use lost::LostDevices;
use nodes::Nodes;
use restore::FromDisk;
use rustix::process::{Resource, getrlimit, setrlimit, setsid};
use socket::{Connections, Listener, Peer};
use state::{State, StateFile};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tcp::TcpExports;
use tracing::{error, info, warn};
use udm_control::second::{NodeKind, UnderwayList};
use udm_core::Registry;
use udm_export::nbd::{Listen, Server};
use udm_io::{Domain, PollPolicy};
use vhost::VhostExports;

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
    vhost: VhostExports,
    nodes: Nodes,
    underway: UnderwayList,
    lost: LostDevices,
    state: StateFile,
    /// The devices are not to be made again.
    forget: AtomicBool,
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

/// How a daemon is to begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    /// A client has started it, with the log as standard output.
    pub(crate) detached: bool,
    /// Without the devices of the one before.
    pub(crate) fresh: bool,
    /// How long its threads poll before they sleep, in microseconds, if that was said.
    pub(crate) poll_budget: Option<u32>,
    /// What devices are in the file system unless they are told.
    pub(crate) node: NodeKind,
}

/// Runs the daemon until it ends.
pub(crate) fn run(places: Places, begin: Begin) -> Result<(), StartError> {
    let Begin { detached, fresh, poll_budget, node } = begin;
    places.make()?;
    if detached {
        // Fails only for the leader of a group, which a child that was just started is not.
        let _ = setsid();
        let _ = std::env::set_current_dir("/");
    }
    let lock = Lock::take(&places).map_err(|e| refused(&places, e))?;
    log::start(&places, !detached).map_err(|e| format!("{}: {e}", places.log().display()))?;
    raise_descriptor_limit();
    keep_clear_of_own_writes();

    let bind = |path: &std::path::Path| {
        Listener::bind(path).map_err(|e| StartError::from(format!("cannot listen on {}: {e}", path.display())))
    };
    let domain = Domain::default();
    if let Some(us) = poll_budget {
        domain.poll_as(PollPolicy { budget: Duration::from_micros(us.into()), ..PollPolicy::default() });
    }
    let registry = udm_stack::registry(domain);
    let (lost, tcp, vhost) = (LostDevices::default(), TcpExports::default(), VhostExports::default());
    // Before anything is restored: loop devices of the daemon before still hold what they had.
    let nodes = Nodes::new(&registry, &places, node);
    if fresh {
        put_last_state_aside(&places, "it was asked not to restore them");
    } else {
        restore_last(&places, &registry, &lost, &tcp, &vhost, &nodes);
    }
    let exports = Arc::new(MappedExports::all(&registry));
    let nbd = Server::builder().listen(Listen::Unix(places.nbd())).start(registry.domain(), exports);
    let nbd = nbd.map_err(|e| e.to_string())?;
    let stop = Stop::new().and_then(|stop| stop.on_signals().map(|()| stop));
    let stop = stop.map_err(|e| format!("cannot wait for signals: {e}"))?;
    let second = bind(&places.second())?;
    let control = bind(&places.control())?;
    let underway = UnderwayList::new(registry.domain().clock().clone());
    let (state, forget) = (StateFile::default(), AtomicBool::new(false));
    let daemon = Arc::new(Daemon { places, registry, nbd, tcp, vhost, nodes, underway, lost, state, forget, stop });
    daemon.changed();
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
            self.changed();
        }
    }

    fn end(&self, connections: &Connections) {
        self.save_state();
        self.nodes.end(PATIENCE);
        self.tcp.shut_down(PATIENCE);
        self.vhost.shut_down(PATIENCE);
        self.nbd.shut_down(PATIENCE);
        let left = connections.end(PATIENCE);
        if left > 0 {
            warn!("{left} requests are still under way; not waiting for them");
        }
        flush_all(&self.registry, PATIENCE);
        if self.forget.load(Ordering::Acquire) {
            match self.state.forget(&self.places.state()) {
                Ok(()) => info!("the devices are forgotten, as asked"),
                Err(error) => error!("{} cannot be removed: {error}", self.places.state().display()),
            }
        }
        info!("ended");
    }

    /// Lets exports close the devices of clients that have hung up.
    fn reap_hangups(&self) {
        self.nbd.reap_hangups();
        self.tcp.reap_hangups();
        self.vhost.reap_hangups();
    }

    /// Something may have changed: nodes follow, and the state is written.
    fn changed(&self) {
        self.nodes.sync();
        self.save_state();
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

/// Makes the devices of the daemon before again. What stands in the way of a device is told in the log, and its own table
/// kept; a state that is not understood is put aside as a whole.
fn restore_last(
    places: &Places,
    registry: &Registry,
    lost: &LostDevices,
    tcp: &TcpExports,
    vhost: &VhostExports,
    nodes: &Nodes,
) {
    let state = match State::read(&places.state()) {
        Ok(None) => return,
        Ok(Some(state)) => state,
        Err(why) => return put_last_state_aside(places, &format!("{}: {why}", places.state().display())),
    };
    let mut problems = restore::restore(registry, lost, &state, &FromDisk);
    for export in &state.exports {
        if let Err(e) = tcp.add(registry, &export.name, &export.tcp) {
            let problem = format!("{} is not exported at {} again: {}", export.name, export.tcp, e.message);
            error!("{problem}");
            problems.push(problem);
        }
    }
    for export in &state.vhost_user {
        if let Err(e) = vhost.add(registry, &export.name, &export.at) {
            let problem = format!("{} is not exported on {} again: {}", export.name, export.at.socket, e.message);
            error!("{problem}");
            problems.push(problem);
        }
    }
    for device in &state.devices {
        let Some(node) = device.node else { continue };
        if let Err(e) = nodes.add(&device.name, node.kind, node.mapper) {
            let problem = format!("{} has no node again: {}", device.name, e.message);
            error!("{problem}");
            problems.push(problem);
        }
    }
    if !problems.is_empty() {
        let kept = places.last_state();
        match std::fs::copy(places.state(), &kept) {
            Ok(_) => warn!("the state with all tables is kept in {}", kept.display()),
            Err(error) => warn!("{}: {error}", kept.display()),
        }
    }
}

/// Forgets the devices of a daemon that has ended.
pub(crate) fn forget(places: &Places) -> Result<(), String> {
    if !places.dir().exists() {
        return Ok(());
    }
    let _lock = Lock::take(places).map_err(|e| refused(places, e).message)?;
    StateFile::default().forget(&places.state()).map_err(|e| format!("{}: {e}", places.state().display()))
}

/// Keeps for people what is not restored.
fn put_last_state_aside(places: &Places, why: &str) {
    let kept = places.last_state();
    match std::fs::rename(places.state(), &kept) {
        Ok(()) => {
            error!("the devices of the daemon before are not restored, their tables are in {}: {why}", kept.display())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => error!("the devices of the daemon before are not restored: {why}; {}: {error}", kept.display()),
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

/// The kernel may have to write through a node to get memory, and the node is this process: it must not wait for that
/// itself. Its threads then allocate without writing anything back, and its program stays in memory. Takes rights that
/// only root has; nobody else has block devices that the kernel writes to.
fn keep_clear_of_own_writes() {
    use rustix::mm::{MlockAllFlags, mlockall};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Before any other thread: they inherit it.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        info!(
            "PR_SET_IO_FLUSHER is refused, so that a block device over a node can stall when memory is short: {error}"
        );
    }
    // What is mapped now, the program; not the memory and the files of devices, which may be larger than the machine's.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT) {
        info!("the program's memory cannot be locked: {error}");
    }
}
