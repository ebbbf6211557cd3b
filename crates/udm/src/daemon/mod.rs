//! The daemon: the devices of one user, and the sockets that they are reached by.
//!
//! # How it starts
//! It takes the lock of its directory, so that it is the only one there; sockets that it finds are then left from one
//! that was killed. It makes the devices of the one before again. `control.sock` comes last: who reaches it reaches
//! all.
//!
//! # How it ends
//! On SIGTERM, SIGINT, SIGHUP, a client's request, or when its directory has been deleted: it takes no more requests,
//! lets those under way finish, flushes the devices, and removes its sockets. Nothing else on disk goes: the next one
//! has the same devices.

mod beneath;
mod clients;
mod control;
mod conversation;
mod flush;
mod handover;
mod late;
mod lock;
mod log;
mod lost;
mod nbd;
mod nodes;
mod own_writes;
mod resources;
mod restore;
mod second;
mod secret;
mod socket;
mod state;
mod stop;
mod tcp;
mod ublk;
mod vhost;
mod watchdog;

pub(crate) use flush::flush_all;
pub(crate) use lock::Lock;
pub(crate) use log::{open as open_log, tail as log_tail};
pub(crate) use state::{LOG, STATE};
pub(crate) use stop::Stop;
pub(crate) use tcp::{parse_address, tcp_uri};

use crate::greet::has_gone;
use crate::places::Places;
use beneath::Beneath;
use clients::{Clients, EventLoop};
use conversation::Left;
use handover::{Asked, Given, Giving, HandOver, HandOverMessage, Link, Settings, Taken};
use late::Group;
use lock::LockError;
use lost::LostDevices;
use nbd::{MainServer, Ready};
use nodes::{NodeSettings, Nodes, ReadyNodes};
use resources::Resources;
use restore::Problem;
use rustix::process::{Resource, getrlimit, setrlimit, setsid};
use socket::{Listener, Peer};
use state::{NodeState, State, StateWriter, Unsaved, VhostUserState, What};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tcp::TcpExports;
use tracing::{error, info, warn};
use udm_control::second::{NodeKind, UnderwayList};
use udm_core::Registry;
use udm_files::Claims;
use udm_io::PollPolicy;
use vhost::VhostExports;

/// The exit code of a daemon that found another in its directory.
pub(crate) const EXIT_HELD: u8 = 3;
/// The exit code of one that was to go on in the place of another, and found none.
pub(crate) const EXIT_NONE: u8 = 4;
/// How long requests under way and clients of exports may take when the daemon ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the old daemon may take for its last word.
const WORD: Duration = Duration::from_secs(60);
/// How long one that has hung up may take to end.
const ENDING: Duration = Duration::from_secs(5);
/// How often it looks whether its directory is still there.
const LOOK: Duration = Duration::from_secs(1);

/// What the daemon's threads share.
pub(crate) struct Daemon {
    places: Places,
    registry: Registry,
    /// The block devices beneath, which this process has for itself.
    claims: Claims,
    nbd: MainServer,
    tcp: TcpExports,
    vhost: VhostExports,
    nodes: Nodes,
    underway: UnderwayList,
    lost: LostDevices,
    state: StateWriter,
    /// The devices are not to be made again.
    forget: AtomicBool,
    /// Another daemon that is ready to go on.
    giving: Mutex<Option<Giving>>,
    /// The ways to daemons that are still asked whether they are.
    asking: Mutex<Vec<Arc<UnixStream>>>,
    /// Another daemon is about to go on.
    replaced: AtomicBool,
    /// Conversations that go on there, or here when it does not.
    left: Mutex<Vec<Left>>,
    /// The end was asked for, by a signal or a client.
    ended: Arc<AtomicBool>,
    stop: Arc<Stop>,
}

/// The ways to its devices.
struct Serving {
    nbd: MainServer,
    tcp: TcpExports,
    vhost: VhostExports,
    nodes: Nodes,
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
    /// Requests to nodes may come by io_uring.
    pub(crate) rings: bool,
}

/// Runs the daemon until it ends.
pub(crate) fn run(places: Places, begin: Begin) -> Result<(), StartError> {
    let Begin { detached, fresh, poll_budget, node, rings } = begin;
    places.make()?;
    if detached {
        detach();
    }
    let lock = Lock::take(&places).map_err(|e| refused(&places, e))?;
    log::start(&places, !detached).map_err(|e| format!("{}: {e}", places.log().display()))?;
    raise_descriptor_limit();
    own_writes::keep_clear();
    let Resources { ended, stop, event_loop } = Resources::new(&own_writes::executor())?;

    let bind = |path: &std::path::Path| {
        Listener::bind(path).map_err(|e| StartError::from(format!("cannot listen on {}: {e}", path.display())))
    };
    let domain = own_writes::domain();
    if let Some(us) = poll_budget {
        domain.poll_as(PollPolicy { budget: Duration::from_micros(us.into()), ..PollPolicy::default() });
    }
    let (lost, tcp, vhost) = (LostDevices::default(), TcpExports::default(), VhostExports::default());
    let claims = Claims::default();
    let opener = Beneath::new(&domain, &claims, &places, tcp.listening()).opener();
    let registry = udm_stack::registry_over(domain.clone(), opener);
    // Before anything is restored: loop devices of the daemon before still hold what they had.
    let nodes = Nodes::new(&registry, &places, NodeSettings { node, rings });
    let late = if fresh {
        put_last_state_aside(&places, "it was asked not to restore them");
        Vec::new()
    } else {
        restore_last(&places, &registry, &lost, &tcp, &vhost, &nodes)
    };
    let nbd = MainServer::new(&registry, &places.nbd())?;
    let daemon = Daemon::new(&places, registry, claims, Serving { nbd, tcp, vhost, nodes }, lost, (ended, stop));
    let daemon = Arc::new(daemon);
    let (second, control) = (bind(&places.second())?, bind(&places.control())?);
    daemon.open_late(late);
    live(Life { daemon, control, second, event_loop, conversations: Vec::new() }, &lock)
}

/// Goes on in the place of the daemon that runs in the directory; `Ok(false)` when none does. `taken_over` is called
/// once this one has everything. Standard output is the log.
pub(crate) fn replace(places: Places, taken_over: impl FnOnce()) -> Result<bool, StartError> {
    detach();
    // Before anything is asked of the other: what is wrong here is no reason to stop anybody.
    log::start(&places, false).map_err(|e| format!("{}: {e}", places.log().display()))?;
    raise_descriptor_limit();
    own_writes::keep_clear();
    let resources = Resources::new(&own_writes::executor())?;
    let Some(Asked { link, messages, liveness }) = handover::ask_for(&places)? else { return Ok(false) };
    let refuse = |why: String| {
        if let Ok(message) = HandOverMessage::new("refused", "", &why) {
            let _ = link.send(&message, PATIENCE);
        }
        StartError::from(why)
    };
    let mut successor =
        Successor::new(&places, handover::take_over(messages, &places).map_err(refuse)?).map_err(refuse)?;
    if !successor.problems.is_empty() {
        return Err(refuse(std::mem::take(&mut successor.problems).join("\n")));
    }
    let lock = successor.lock.take().ok_or_else(|| refuse("the lock has not come".into()))?;
    let lock = Lock::adopt(lock, &places).map_err(|e| refuse(format!("{}: {e}", places.dir().display())))?;
    let word = link.send(&HandOverMessage::new("serving", "", ())?, PATIENCE).and_then(|()| link.receive(WORD));
    match word {
        Ok(message) if message.kind == "go" => {}
        // Its end, with or without having read ours; or it goes on, and has no more to say.
        Err(error) if has_gone(&error) => warn!("the daemon before has hung up"),
        Ok(message) => return Err(format!("the daemon answers {:?}", message.kind).into()),
        Err(error) => return Err(format!("the daemon does not let go: {error}").into()),
    }
    // Only now is it known that it serves nobody any more.
    lock.claim(ENDING).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => "the daemon before still lives, and goes on".to_owned(),
        _ => format!("the right to serve cannot be had: {}: {e}", places.dir().display()),
    })?;
    // Nothing of what was between the two stays open.
    drop(link);
    liveness.cut();
    lock.sign().map_err(|e| format!("{}: {e}", places.lock().display()))?;
    let life = successor.start(&places, resources)?;
    taken_over();
    live(life, &lock)?;
    Ok(true)
}

/// Serves until the end, or until another daemon has everything.
fn live(mut life: Life, lock: &Lock) -> Result<(), StartError> {
    loop {
        let daemon = &life.daemon;
        let (places, ended, stop) = (daemon.places.clone(), daemon.ended.clone(), daemon.stop.clone());
        let Some((messages, event_loop)) = life.serve(lock)? else { return Ok(()) };
        // What was given away comes back. A device that cannot be opened again is lost; the others go on.
        let mut successor = Successor::new(&places, handover::take_over(messages, &places)?)?;
        successor.problems.drain(..).for_each(|problem| error!("{problem}"));
        stop.clear();
        life = successor.start(&places, Resources { ended, stop, event_loop })?;
    }
}

fn detach() {
    // Fails only for the leader of a group, which a child that was just started is not.
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
}

/// A daemon that has everything to serve with, and serves nobody yet.
struct Successor {
    registry: Registry,
    claims: Claims,
    served: TcpExports,
    lost: LostDevices,
    lock: Option<OwnedFd>,
    control: OwnedFd,
    second: OwnedFd,
    nbd: Ready,
    tcp: Vec<(String, SocketAddr, Ready)>,
    vhost: Vec<vhost::Ready>,
    described: Vec<VhostUserState>,
    nodes: Vec<(String, NodeState)>,
    mounted: Option<ReadyNodes>,
    settings: Settings,
    conversations: Vec<Left>,
    problems: Vec<String>,
}

impl Successor {
    fn new(places: &Places, mut taken: Taken) -> Result<Self, String> {
        let mut problems: Vec<String> =
            taken.problems.drain(..).filter(|problem| !problem.known).map(|problem| problem.text).collect();
        let name = |path: std::path::PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (control, second) =
            (taken.fd("socket", &name(places.control()))?, taken.fd("socket", &name(places.second()))?);
        let lock = taken.fd("lock", "").ok();
        let messages = taken.all("nbd");
        let nbd = MainServer::prepare(&taken.registry, &places.nbd(), messages, &mut problems)?;
        let messages = taken.all("tcp");
        let tcp = TcpExports::prepare(&taken.registry, messages, &mut problems);
        let messages = taken.all("vhost-user");
        let vhost = vhost::prepare(&taken.registry, messages, &mut problems);
        let messages = taken.all("node");
        let mounted = ReadyNodes::prepare(&taken.registry, messages, &mut problems);
        let mut conversations = Vec::new();
        for message in taken.all(conversation::KIND) {
            match Left::of_message(message) {
                Ok(left) => conversations.push(left),
                Err(why) => problems.push(why),
            }
        }
        let settings = taken.all("settings").first().ok_or("the settings have not come")?.read()?;
        let Taken { registry, claims, tcp: served, lost, state, .. } = taken;
        let described = state.vhost_user;
        let nodes = state.devices.into_iter().filter_map(|device| Some((device.name, device.node?))).collect();
        Ok(Self {
            registry,
            claims,
            served,
            lost,
            lock,
            control,
            second,
            nbd,
            tcp,
            vhost,
            described,
            nodes,
            mounted,
            settings,
            conversations,
            problems,
        })
    }

    /// Serves. This process is the only one that does.
    fn start(self, places: &Places, resources: Resources) -> Result<Life, String> {
        let adopt = |path: std::path::PathBuf, socket| {
            Listener::adopt(&path, socket).map_err(|e| format!("{}: {e}", path.display()))
        };
        let (control, second) = (adopt(places.control(), self.control)?, adopt(places.second(), self.second)?);
        let nbd = MainServer::go_on(self.nbd);
        let tcp = self.served;
        tcp.go_on(self.tcp);
        let vhost = VhostExports::default();
        vhost.start(&self.registry, self.vhost, &self.described);
        let Settings { node, rings, poll_budget_us } = self.settings;
        let budget = Duration::from_micros(poll_budget_us);
        self.registry.domain().poll_as(PollPolicy { budget, ..PollPolicy::default() });
        let nodes = Nodes::start(&self.registry, places, NodeSettings { node, rings }, self.mounted);
        for (name, NodeState { kind, mapper }) in &self.nodes {
            if let Err(e) = nodes.bring_back(name, *kind, *mapper) {
                error!("{name} has no node again: {}", e.message);
            }
        }
        let Resources { ended, stop, event_loop } = resources;
        let serving = Serving { nbd, tcp, vhost, nodes };
        let daemon = Daemon::new(places, self.registry, self.claims, serving, self.lost, (ended, stop));
        Ok(Life { daemon: Arc::new(daemon), control, second, event_loop, conversations: self.conversations })
    }
}

/// A daemon and the sockets that it is spoken to by.
struct Life {
    daemon: Arc<Daemon>,
    control: Listener,
    second: Listener,
    event_loop: EventLoop,
    conversations: Vec<Left>,
}

impl Life {
    /// Serves until the end. `Some`: another daemon was to go on and did not; what it was given is here.
    fn serve(self, lock: &Lock) -> Result<Option<(Vec<HandOverMessage>, EventLoop)>, StartError> {
        let Self { daemon, control, second, event_loop, conversations } = self;
        // What is wrong is in the log; commands that change something are refused until it is written.
        let _ = daemon.changed(What::Everything);
        daemon.watch();
        let mut clients = Clients::new(daemon.clone(), control, second, event_loop)?;
        clients.take(conversations);
        info!(
            "udm {} serves {} as process {}",
            env!("CARGO_PKG_VERSION"),
            daemon.places.dir().display(),
            std::process::id()
        );
        loop {
            let serving = clients.serve()?;
            let giving = daemon.wait_for_end(lock);
            daemon.stop.set();
            daemon.hang_up_on_asked();
            clients = serving.join()?;
            let left = clients.stop(PATIENCE);
            let Some(giving) = giving else {
                daemon.end(clients, left);
                return Ok(None);
            };
            match daemon.give(&mut clients, left, lock, &giving) {
                Ok(given) => {
                    let event_loop = clients.into_desk();
                    return Ok(match given {
                        Given::Gone => None,
                        Given::Back(messages) => Some((messages, event_loop)),
                    });
                }
                Err(why) => error!("another daemon was to go on, and this one does: {why}"),
            }
            daemon.replaced.store(false, Ordering::Release);
            daemon.stop.clear();
            clients.take(std::mem::take(&mut *daemon.left()));
        }
    }
}

impl Daemon {
    fn new(
        places: &Places,
        registry: Registry,
        claims: Claims,
        serving: Serving,
        lost: LostDevices,
        (ended, stop): (Arc<AtomicBool>, Arc<Stop>),
    ) -> Self {
        let Serving { nbd, tcp, vhost, nodes } = serving;
        let underway = UnderwayList::new(registry.domain().clock().clone());
        let (state, forget) = (StateWriter::default(), AtomicBool::new(false));
        let (places, giving, asking, left) = (places.clone(), Mutex::default(), Mutex::default(), Mutex::default());
        let replaced = AtomicBool::new(false);
        Self {
            places,
            registry,
            claims,
            nbd,
            tcp,
            vhost,
            nodes,
            underway,
            lost,
            state,
            forget,
            giving,
            asking,
            replaced,
            left,
            ended,
            stop,
        }
    }

    /// What goes on in the next daemon.
    fn givers(&self) -> [&dyn HandOver; 5] {
        [&self.nbd, &self.tcp, &self.vhost, &self.nodes, self.nodes.ublk()]
    }

    fn is_being_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    fn left(&self) -> MutexGuard<'_, Vec<Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another daemon wants to go on here. Nothing stops before it has understood everything.
    fn prepare_replacement(&self, stream: &UnixStream, peer: Peer) {
        info!("process {} is to go on in the place of this one", peer.pid);
        match self.ask(stream, peer) {
            Ok(giving) => {
                // Of two that want it at once the first is told by its end that it does not get it.
                *self.giving.lock().unwrap_or_else(PoisonError::into_inner) = Some(giving);
                self.replaced.store(true, Ordering::Release);
                self.stop.set();
            }
            Err(why) => warn!("process {} does not go on in the place of this one: {why}", peer.pid),
        }
    }

    /// Asks one that wants to go on. Blocks until it answers, or this one stops.
    fn ask(&self, stream: &UnixStream, peer: Peer) -> Result<Giving, String> {
        let asking = || self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = || stream.try_clone().map_err(|e| e.to_string());
        let (way, held) = (copy()?, Arc::new(copy()?));
        asking().push(held.clone());
        // Who stops after this look hangs up.
        let result = match self.stop.is_set() {
            true => Err("this one stops already".into()),
            false => handover::first_words(self, Link::new(way), peer.pid),
        };
        asking().retain(|other| !Arc::ptr_eq(other, &held));
        result
    }

    /// One that does not answer keeps nobody from ending, nor from giving everything to another.
    fn hang_up_on_asked(&self) {
        for stream in &*self.asking.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Gives everything to another daemon. `Err`: nothing has changed. `left`: so many commands are not done.
    fn give(&self, clients: &mut Clients, left: usize, lock: &Lock, giving: &Giving) -> Result<Given, String> {
        let late = self.lost.late().names();
        if !late.is_empty() {
            let why = format!("these are still being opened: {}", late.join(", "));
            giving.refuse(&why);
            return Err(why);
        }
        if left > 0 {
            let why = format!("{left} commands are not done after {} s", PATIENCE.as_secs());
            giving.refuse(&why);
            return Err(why);
        }
        *self.left() = clients.leave();
        handover::give(self, &clients.sockets(), lock, giving)
    }

    /// Blocks until the daemon is to end, or until another is ready to go on: then that. Devices whose removal was
    /// deferred go without a request, so the state is looked at now and then.
    fn wait_for_end(&self, lock: &Lock) -> Option<Giving> {
        loop {
            let woken = self.stop.wait(Some(LOOK));
            if self.ended.load(Ordering::Acquire) {
                info!("ending");
                return None;
            }
            // One that was ready while another was dealt with may have nobody to wake.
            let giving = self.giving.lock().unwrap_or_else(PoisonError::into_inner).take();
            if giving.is_some() {
                self.replaced.store(true, Ordering::Release);
                return giving;
            }
            if woken {
                // A signal sets this first, and then its flag.
                self.stop.clear();
                continue;
            }
            if !lock.is_in_place(&self.places) {
                warn!("{} is gone: ending", self.places.dir().display());
                return None;
            }
            self.nodes.look_around();
            self.state.look_around(self);
        }
    }

    /// Ends. `left`: so many commands are not done.
    fn end(&self, clients: Clients, left: usize) {
        if left > 0 {
            warn!("{left} commands are still under way; not waiting for them");
        }
        // Before anything goes: what clients are told is that the daemon ends, not that devices are missing.
        let why = format!("the daemon of {} is being stopped", self.places.dir().display());
        clients.refuse(&why, PATIENCE);
        let _ = self.state.save(self, What::Everything);
        self.nodes.end(PATIENCE, self.forget.load(Ordering::Acquire));
        self.tcp.shut_down(PATIENCE);
        self.vhost.shut_down(PATIENCE);
        self.nbd.0.shut_down(PATIENCE);
        flush_all(&self.registry, PATIENCE);
        if self.forget.load(Ordering::Acquire) {
            match self.state.forget(self.places.dir()) {
                Ok(()) => info!("the devices are forgotten, as asked"),
                Err(error) => error!("{} cannot be removed: {error}", self.places.state().display()),
            }
        }
        self.state.close(self);
        info!("ended");
    }

    /// Lets exports close the devices of clients that have hung up.
    fn reap_hangups(&self) {
        self.nbd.0.reap_hangups();
        self.tcp.reap_hangups();
        self.vhost.reap_hangups();
    }

    /// Something may have changed: nodes follow, and the state is written.
    fn changed(&self, what: What) -> Result<(), Unsaved> {
        self.nodes.sync();
        self.state.save(self, what)
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

/// Makes the devices of the daemon before again. What stands in the way of a device is told in the log, and its own
/// table kept; a state that is not understood is put aside as a whole.
fn restore_last(
    places: &Places,
    registry: &Registry,
    lost: &LostDevices,
    tcp: &TcpExports,
    vhost: &VhostExports,
    nodes: &Nodes,
) -> Vec<Group> {
    let state = match State::read(places.dir()) {
        Ok(None) => return Vec::new(),
        Ok(Some((state, None))) => state,
        Ok(Some((state, Some(left_out)))) => {
            warn!("{left_out}; as a kill or a power cut leaves it. It is kept in {}", places.last_log().display());
            if let Err(error) = std::fs::copy(places.state_log(), places.last_log()) {
                warn!("{}: {error}", places.last_log().display());
            }
            state
        }
        Err(why) => {
            put_last_state_aside(places, &why);
            return Vec::new();
        }
    };
    let (mut problems, late) = restore::restore_what_answers(registry, lost, &state);
    for export in &state.exports {
        if let Err(e) = tcp.add(registry, &export.name, &export.tcp) {
            let text = format!("{} is not exported at {} again: {}", export.name, export.tcp, e.message);
            error!("{text}");
            problems.push(Problem { text, known: false });
        }
    }
    for export in &state.vhost_user {
        if let Err(e) = vhost.add(registry, &export.name, &export.at) {
            let text = format!("{} is not exported on {} again: {}", export.name, export.at.socket, e.message);
            error!("{text}");
            problems.push(Problem { text, known: false });
        }
    }
    let is_late = |minor| late.iter().flatten().any(|(_, state)| state.minor == minor);
    for device in state.devices.iter().filter(|device| !is_late(device.minor)) {
        let Some(node) = device.node else { continue };
        if let Err(e) = nodes.bring_back(&device.name, node.kind, node.mapper) {
            let text = format!("{} has no node again: {}", device.name, e.message);
            error!("{text}");
            problems.push(Problem { text, known: false });
        }
    }
    if !problems.is_empty() {
        let kept = places.last_state();
        match state.text().map_err(std::io::Error::from).and_then(|text| log::keep(&kept, &text)) {
            Ok(()) => warn!("the state with all tables is kept in {}", kept.display()),
            Err(error) => warn!("{}: {error}", kept.display()),
        }
    }
    late
}

/// Forgets the devices of a daemon that has ended.
pub(crate) fn forget(places: &Places) -> Result<(), String> {
    if !places.dir().exists() {
        return Ok(());
    }
    places.check_own()?;
    let _lock = Lock::take(places).map_err(|e| refused(places, e).message)?;
    state::forget(places.dir()).map_err(|e| format!("{}: {e}", places.state().display()))
}

/// Keeps for people what is not restored.
fn put_last_state_aside(places: &Places, why: &str) {
    let kept = places.last_state();
    // The log first: without its state it says nothing.
    let moved = [(places.state_log(), places.last_log()), (places.state(), kept.clone())];
    for (from, to) in moved {
        match std::fs::rename(&from, &to) {
            Ok(()) if to == kept => {
                error!(
                    "the devices of the daemon before are not restored, their tables are in {}: {why}",
                    to.display()
                );
            }
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => error!("the devices of the daemon before are not restored: {why}; {}: {error}", to.display()),
        }
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
