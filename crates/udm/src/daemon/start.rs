//! How a daemon begins: with nothing, with the devices of the one before, or in its place.

use super::Daemon;
use super::beneath::Beneath;
use super::devices::{Devices, Ways};
use super::handover::{self, Asked, HandOverMessage};
use super::life::Life;
use super::lock::{Lock, LockError};
use super::log;
use super::lost::LostDevices;
use super::nbd::MainServer;
use super::nodes::{NodeSettings, Nodes};
use super::own_writes;
use super::resources::Resources;
use super::restore::{self, Group, Problem};
use super::socket::Listener;
use super::state;
use super::successor::Successor;
use super::tcp::TcpExports;
use super::vhost::VhostExports;
use crate::greet::has_gone;
use crate::places::Places;
use rustix::process::{Resource, getrlimit, setrlimit, setsid};
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, warn};
use udm_control::second::NodeKind;
use udm_core::Registry;
use udm_files::Claims;
use udm_io::PollPolicy;

/// The exit code of a daemon that found another in its directory.
pub(crate) const EXIT_HELD: u8 = 3;
/// The exit code of one that was to go on in the place of another, and found none.
pub(crate) const EXIT_NONE: u8 = 4;
/// How long the old daemon may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the old daemon may take for its last word.
const WORD: Duration = Duration::from_secs(60);
/// How long one that has hung up may take to end.
const ENDING: Duration = Duration::from_secs(5);

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
    let Resources { ending, event_loop } = Resources::new(&own_writes::executor())?;

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
    let devices = Devices::new(&places, registry, claims, lost, Ways { nbd, tcp, vhost, nodes });
    let daemon = Arc::new(Daemon::new(&places, devices, ending));
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
    let problems = successor.take_problems();
    if !problems.is_empty() {
        return Err(refuse(problems.join("\n")));
    }
    let lock = successor.take_lock().ok_or_else(|| refuse("the lock has not come".into()))?;
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
        let (places, ending) = (life.daemon.places.clone(), life.daemon.ending.clone());
        let Some((messages, event_loop)) = life.serve(lock)? else { return Ok(()) };
        // What was given away comes back. A device that cannot be opened again is lost; the others go on.
        let mut successor = Successor::new(&places, handover::take_over(messages, &places)?)?;
        successor.take_problems().iter().for_each(|problem| error!("{problem}"));
        ending.stop().clear();
        life = successor.start(&places, Resources { ending, event_loop })?;
    }
}

fn detach() {
    // Fails only for the leader of a group, which a child that was just started is not.
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
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
    let state = match state::read(places.dir()) {
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
