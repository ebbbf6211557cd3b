//! `control.sock`: the DM ioctls.

use super::Daemon;
use super::conversation::{Done, encoded};
use super::devices::Devices;
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
use udm_control::codec::{Command, DeviceKey, Flags, Request};
use udm_control::handler::{BlockNodes, Caller, Changed, Outcome, changes, handle};
use udm_control::wire::{Hello, WireAnswer, WireRequest, wipe};
use udm_core::{Error, Registry};

/// Executes a command.
pub(super) fn perform(
    daemon: &Daemon,
    stream: &UnixStream,
    peer: Peer,
    hello: Hello,
    mut request: WireRequest,
) -> Done {
    let answered = |answer: &WireAnswer, ends| Done::Answer { bytes: encoded(answer), ends, greeted: true };
    if !peer.is_allowed() {
        return answered(&refused(Errno::EACCES, refusal(peer.uid)), true);
    }
    let cwd = PathBuf::from(OsString::from_vec(hello.cwd));
    let kernel_view = hello.kernel_view.then_some(&daemon.devices.nodes as &dyn BlockNodes);
    let (command, device) = describe(&request);
    let underway = daemon.underway.begin(&command, &device, u32::try_from(peer.pid).ok());
    let kept = RefCell::new(Vec::new());
    let let_go = || kept.borrow_mut().extend(reap(&daemon.devices, &request));
    let stopped = Cell::new(false);
    let stops = || {
        stopped.set(stopped.get() || daemon.ending.stop().is_set());
        stopped.get()
    };
    let caller = Caller { cwd: &cwd, cancel: &|| stops() || hung_up(stream), reap: &let_go, kernel_view };
    let secret = secret_table(&daemon.devices.registry, &request);
    let mut outcome = match ready(&daemon.devices, &request) {
        Ok(()) => handle(&daemon.devices.registry, &caller, request.ioctl_cmd, &request.buf),
        Err(error) => Outcome { answer: refused(error.errno, error.message), changed: Changed::Nothing },
    };
    drop((secret, underway));
    if outcome.answer.errno == Errno::EBUSY.get() {
        kept.take().iter().for_each(|why| outcome.answer.detail += &format!("\n{why}"));
    }
    remember(&daemon.devices, &mut outcome, released(&request));
    if stopped.get() && has_only_waited(&request, &outcome) && daemon.replacement.is_under_way() {
        // The command may go on waiting in the next daemon.
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
        // Devices that were opened for a table that is not loaded are closed again, whatever the reason.
        Ok(Command::TableLoad) => outcome.answer.errno != 0,
        // A command that is given up leaves the device as it was.
        Ok(Command::DevSuspend) => interrupted,
        _ => interrupted && outcome.changed == Changed::Nothing,
    }
}

/// A guard for a secret table, if the request loads one.
fn secret_table(registry: &Registry, request: &WireRequest) -> Option<Loading> {
    let parsed = Request::parse(request.ioctl_cmd, &request.buf).ok()?;
    if !parsed.is_secure() || parsed.command() != Command::TableLoad {
        return None;
    }
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let md = match parsed.device_key()? {
        DeviceKey::Name(name) => registry.by_name(text(name)?),
        DeviceKey::Uuid(uuid) => registry.by_uuid(text(uuid)?),
        DeviceKey::Dev(dev) => registry.by_devt(dev).or_else(|| registry.by_node(dev)),
    };
    md.map(Loading::begin)
}

/// Whether the request's changes could be recorded.
fn ready(devices: &Devices, request: &WireRequest) -> Result<(), Error> {
    let command = Request::parse(request.ioctl_cmd, &request.buf).map(|parsed| parsed.command());
    match command {
        Ok(command) if changes(command) => devices.may_change(request.buf.len()).map_err(|unsaved| unsaved.refusal()),
        _ => Ok(()),
    }
}

/// Records the changes; the answer says if that fails.
fn remember(devices: &Devices, outcome: &mut Outcome, released: bool) {
    let saved = match outcome.changed {
        Changed::Nothing if released => {
            devices.nodes.sync();
            Ok(())
        }
        Changed::Nothing => Ok(()),
        Changed::Device(minor) => devices.changed(What::Device(minor)),
        Changed::Everything => devices.changed(What::Everything),
    };
    let Err(unsaved) = saved else { return };
    let Error { errno, message } = unsaved.confession();
    let answer = &mut outcome.answer;
    match answer.errno {
        0 => (answer.errno, answer.detail) = (errno.get(), message),
        _ => answer.detail += &format!("\n{message}"),
    }
}

/// Whether the request may have taken block devices from nodes that still exist.
fn released(request: &WireRequest) -> bool {
    let command = Request::parse(request.ioctl_cmd, &request.buf).map(|parsed| parsed.command());
    matches!(command, Ok(Command::DevRemove | Command::RemoveAll))
}

/// Before a device is reported as busy: releases holders that need not hold it. Returns the remaining ones.
fn reap(devices: &Devices, request: &WireRequest) -> Vec<String> {
    devices.reap_hangups();
    let Ok(parsed) = Request::parse(request.ioctl_cmd, &request.buf) else { return Vec::new() };
    let all = parsed.command() == Command::RemoveAll;
    let deferred = parsed.flags().contains(Flags::DEFERRED_REMOVE);
    let (name, uuid, number) = (parsed.name(), parsed.uuid(), parsed.header().device());
    devices.nodes.release(deferred, |md| {
        let info = md.info();
        // What tables above hold is not removed, whoever lets go of it. All together, those may go first.
        if !all && info.open_count > 1 {
            return false;
        }
        let named = !name.is_empty() && info.name.as_bytes() == name;
        let known = !uuid.is_empty() && info.uuid.as_bytes() == uuid;
        all || named || known || number.is_some_and(|number| number == info.devt || Some(number) == info.node)
    })
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
