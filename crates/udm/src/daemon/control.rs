//! `control.sock`: the DM ioctls.

use super::Daemon;
use super::clients::encoded;
use super::conversation::Done;
use super::secret::Loading;
use super::socket::Peer;
use super::state::What;
use super::stop::hung_up;
use crate::exports::refusal;
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tracing::{debug, info};
use udm_base::Errno;
use udm_control::codec::{Command, DeviceKey, Request};
use udm_control::handler::{Caller, Changed, Outcome, changes, handle};
use udm_control::wire::{WireAnswer, WireRequest, wipe};
use udm_core::Error;

/// Does a command.
pub(super) fn perform(
    daemon: &Daemon,
    stream: &UnixStream,
    peer: Peer,
    cwd: Vec<u8>,
    mut request: WireRequest,
) -> Done {
    let answered = |answer: &WireAnswer, ends| Done::Answer { bytes: encoded(answer), ends, greeted: true };
    if !peer.is_allowed() {
        return answered(&refused(Errno::EACCES, refusal(peer.uid)), true);
    }
    let cwd = PathBuf::from(OsString::from_vec(cwd));
    let (command, device) = describe(&request);
    let underway = daemon.underway.begin(&command, &device, u32::try_from(peer.pid).ok());
    let kept = RefCell::new(Vec::new());
    let reap = || kept.borrow_mut().extend(daemon.reap(&request));
    let stopped = Cell::new(false);
    let stops = || {
        stopped.set(stopped.get() || daemon.stop.is_set());
        stopped.get()
    };
    let caller = Caller { cwd: &cwd, cancel: &|| stops() || hung_up(stream), reap: &reap };
    let secret = secret_table(daemon, &request);
    let mut outcome = match ready(daemon, &request) {
        Ok(()) => handle(&daemon.registry, &caller, request.ioctl_cmd, &request.buf),
        Err(error) => Outcome { answer: refused(error.errno, error.message), changed: Changed::Nothing },
    };
    drop((secret, underway));
    if outcome.answer.errno == Errno::EBUSY.get() {
        kept.take().iter().for_each(|why| outcome.answer.detail += &format!("\n{why}"));
    }
    remember(daemon, &mut outcome, released(&request));
    if stopped.get() && has_only_waited(&request, &outcome) && daemon.is_being_replaced() {
        // It may wait in the next daemon as well.
        return Done::Again(request);
    }
    if Request::parse(request.ioctl_cmd, &request.buf).is_ok_and(|parsed| parsed.is_secure()) {
        wipe(&mut request.buf);
    }
    match outcome.answer.errno {
        0 if outcome.changed != Changed::Nothing => info!("process {}: {command} {device}", peer.pid),
        0 => debug!("process {}: {command} {device}", peer.pid),
        errno => {
            let errno = Errno::new(errno);
            info!("process {}: {command} {device}: {errno:?}: {}", peer.pid, outcome.answer.detail);
        }
    }
    answered(&outcome.answer, false)
}

/// Whether a command that was told to stop has done nothing but wait.
fn has_only_waited(request: &WireRequest, outcome: &Outcome) -> bool {
    let interrupted = outcome.answer.errno == Errno::EINTR.get();
    match Request::parse(request.ioctl_cmd, &request.buf).map(|parsed| parsed.command()) {
        // What is opened for a table that is not loaded is closed again, whatever stood in its way.
        Ok(Command::TableLoad) => outcome.answer.errno != 0,
        // One that is given up leaves the device as it was.
        Ok(Command::DevSuspend) => interrupted,
        _ => interrupted && outcome.changed == Changed::Nothing,
    }
}

/// A table that is to be shown nowhere, if the request loads one.
fn secret_table(daemon: &Daemon, request: &WireRequest) -> Option<Loading> {
    let parsed = Request::parse(request.ioctl_cmd, &request.buf).ok()?;
    if !parsed.is_secure() || parsed.command() != Command::TableLoad {
        return None;
    }
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let md = match parsed.device_key()? {
        DeviceKey::Name(name) => daemon.registry.by_name(text(name)?),
        DeviceKey::Uuid(uuid) => daemon.registry.by_uuid(text(uuid)?),
        DeviceKey::Dev(dev) => daemon.registry.by_devt(dev),
    };
    md.map(Loading::begin)
}

/// Whether what the request changes could be remembered.
fn ready(daemon: &Daemon, request: &WireRequest) -> Result<(), Error> {
    let command = Request::parse(request.ioctl_cmd, &request.buf).map(|parsed| parsed.command());
    match command {
        Ok(command) if changes(command) => {
            daemon.state.ready(daemon, request.buf.len()).map_err(|unsaved| unsaved.refusal())
        }
        _ => Ok(()),
    }
}

/// Writes what has changed; the answer tells when that cannot be done.
fn remember(daemon: &Daemon, outcome: &mut Outcome, released: bool) {
    let saved = match outcome.changed {
        Changed::Nothing if released => {
            daemon.nodes.sync();
            Ok(())
        }
        Changed::Nothing => Ok(()),
        Changed::Device(minor) => daemon.changed(What::Device(minor)),
        Changed::Everything => daemon.changed(What::Everything),
    };
    let Err(unsaved) = saved else { return };
    let Error { errno, message } = unsaved.confession();
    let answer = &mut outcome.answer;
    match answer.errno {
        0 => (answer.errno, answer.detail) = (errno.get(), message),
        _ => answer.detail += &format!("\n{message}"),
    }
}

/// Whether the request may have taken block devices from nodes that are still there.
fn released(request: &WireRequest) -> bool {
    let command = Request::parse(request.ioctl_cmd, &request.buf).map(|parsed| parsed.command());
    matches!(command, Ok(Command::DevRemove | Command::RemoveAll))
}

impl Daemon {
    /// Before the request is told that a device is busy: what need not hold it lets go. Returns what does not.
    fn reap(&self, request: &WireRequest) -> Vec<String> {
        self.reap_hangups();
        let Ok(parsed) = Request::parse(request.ioctl_cmd, &request.buf) else { return Vec::new() };
        let all = parsed.command() == Command::RemoveAll;
        let (name, uuid, number) = (parsed.name(), parsed.uuid(), parsed.header().device());
        self.nodes.release(|md| {
            let info = md.info();
            let named = !name.is_empty() && info.name.as_bytes() == name;
            let known = !uuid.is_empty() && info.uuid.as_bytes() == uuid;
            all || named || known || number.is_some_and(|number| number == info.devt)
        })
    }
}

/// The command and the device, for people.
fn describe(request: &WireRequest) -> (String, String) {
    match Request::parse(request.ioctl_cmd, &request.buf) {
        Ok(parsed) => {
            let name = [parsed.name(), parsed.uuid()].into_iter().find(|text| !text.is_empty());
            let number = || parsed.header().device().map(|dev| dev.to_string());
            let name = name.map(|n| String::from_utf8_lossy(n).into_owned()).or_else(number);
            (parsed.command().symbol().to_owned(), name.unwrap_or_default())
        }
        Err(_) => (format!("ioctl 0x{:08x}", request.ioctl_cmd), String::new()),
    }
}

fn refused(errno: Errno, detail: String) -> WireAnswer {
    WireAnswer { errno: errno.get(), buf: Vec::new(), detail }
}
