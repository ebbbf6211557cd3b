//! A daemon that serves, until its end or until another has everything.

use super::Daemon;
use super::clients::{Clients, EventLoop};
use super::commands;
use super::conversation::Left;
use super::devices::Devices;
use super::handover::{self, Given, Giving, HandOverMessage};
use super::lock::Lock;
use super::socket::Listener;
use super::state::What;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// How long requests under way and clients of exports may take when the daemon ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks whether its directory is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A daemon and the sockets that it is spoken to by.
pub(crate) struct Life {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) control: Listener,
    pub(crate) second: Listener,
    pub(crate) event_loop: EventLoop,
    /// Conversations that have left off, here or in another daemon.
    pub(crate) conversations: Vec<Left>,
}

impl Life {
    /// Serves until the end. `Some`: another daemon was to go on and did not; what it was given is here.
    pub(crate) fn serve(self, lock: &Lock) -> Result<Option<(Vec<HandOverMessage>, EventLoop)>, String> {
        let Self { daemon, control, second, event_loop, conversations } = self;
        // What is wrong is in the log; commands that change something are refused until it is written.
        let _ = daemon.devices.changed(What::Everything);
        daemon.watch();
        let commands = {
            let daemon = daemon.clone();
            move |stream: &UnixStream, peer, task| commands::perform(&daemon, stream, peer, task)
        };
        let ending = daemon.ending.clone();
        let mut clients = Clients::new(Arc::new(commands), ending, control, second, event_loop)?;
        clients.take(conversations);
        info!(
            "udm {} serves {} as process {}",
            env!("CARGO_PKG_VERSION"),
            daemon.places.dir().display(),
            std::process::id()
        );
        loop {
            let serving = clients.serve()?;
            let giving = wait_for_end(&daemon, lock);
            daemon.ending.stop().set();
            daemon.replacement.hang_up_on_asked();
            clients = serving.join()?;
            let left = clients.stop(PATIENCE);
            let Some(giving) = giving else {
                end(&daemon, clients, left);
                return Ok(None);
            };
            let mut conversations = Vec::new();
            match give(&daemon.devices, &mut clients, &mut conversations, left, lock, &giving) {
                Ok(given) => {
                    let event_loop = clients.into_desk();
                    return Ok(match given {
                        Given::Gone => None,
                        Given::Back(messages) => Some((messages, event_loop)),
                    });
                }
                Err(why) => error!("another daemon was to go on, and this one does: {why}"),
            }
            daemon.replacement.called_off();
            daemon.ending.stop().clear();
            clients.take(conversations);
        }
    }
}

/// Gives everything to another daemon. `Err`: nothing has changed. `left`: so many commands are not done. Where clients
/// are is in `conversations`, for as long as they are here.
fn give(
    devices: &Devices,
    clients: &mut Clients,
    conversations: &mut Vec<Left>,
    left: usize,
    lock: &Lock,
    giving: &Giving,
) -> Result<Given, String> {
    let late = devices.lost.late().names();
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
    *conversations = clients.leave();
    handover::give(devices, conversations, &clients.sockets(), lock, giving)
}

/// Blocks until the daemon is to end, or until another is ready to go on: then that. Devices whose removal was deferred
/// go without a request, so the state is looked at now and then.
fn wait_for_end(daemon: &Daemon, lock: &Lock) -> Option<Giving> {
    loop {
        let woken = daemon.ending.stop().wait(Some(LOOK));
        if daemon.ending.is_asked() {
            info!("ending");
            return None;
        }
        // One that was ready while another was dealt with may have nobody to wake.
        if let Some(giving) = daemon.replacement.take_ready() {
            return Some(giving);
        }
        if woken {
            // A signal sets this first, and then its flag.
            daemon.ending.stop().clear();
            continue;
        }
        if !lock.is_in_place(&daemon.places) {
            warn!("{} is gone: ending", daemon.places.dir().display());
            return None;
        }
        daemon.devices.look_around();
    }
}

/// Ends. `left`: so many commands are not done.
fn end(daemon: &Daemon, clients: Clients, left: usize) {
    if left > 0 {
        warn!("{left} commands are still under way; not waiting for them");
    }
    // Before anything goes: what clients are told is that the daemon ends, not that devices are missing.
    let why = format!("the daemon of {} is being stopped", daemon.places.dir().display());
    clients.refuse(&why, PATIENCE);
    daemon.devices.end(PATIENCE, daemon.ending.forgets());
    info!("ended");
}
