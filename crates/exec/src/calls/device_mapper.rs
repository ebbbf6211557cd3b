//! The ioctls of device mapper: from the caller's memory to the daemon, and back.
//!
//! The order of what is checked, and what is written back when, are those of `ctl_ioctl` (`drivers/md/dm-ioctl.c`,
//! 6.12).

use super::answer::Answer;
use super::control_files::ControlFiles;
use crate::caller::Caller;
use crate::daemon::{Daemon, Unanswered};
use crate::world;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};
use udm_base::DevT;
use udm_control::codec::{Command, DeviceKey, Flags, MIN_DATA_SIZE, Request, RequestBuilder, Response, TargetSpec};
use udm_control::wire::{MAX_MESSAGE, WireAnswer, wipe};
use udm_io::Executor;

/// How often it is looked for events, while anybody waits for them by poll(2).
const WATCH: Duration = Duration::from_millis(20);
/// So many bytes of names are looked at.
const LIST_BYTES: usize = 1 << 20;
/// Bytes of the version, which is written back whatever comes of the rest.
const VERSION_LEN: usize = 12;
/// Where `data_size` is.
const DATA_SIZE: std::ops::Range<usize> = 12..16;

/// Device mapper, as programs in a namespace see it.
pub(crate) struct DeviceMapper {
    daemon: Arc<Daemon>,
    controls: Arc<ControlFiles>,
    executor: Arc<dyn Executor>,
}

impl DeviceMapper {
    pub(crate) fn new(daemon: Daemon, executor: Arc<dyn Executor>) -> Self {
        Self { daemon: Arc::new(daemon), controls: Arc::default(), executor }
    }

    pub(super) fn control_files(&self) -> &ControlFiles {
        &self.controls
    }

    /// Has `/dev` follow what others have made.
    pub(super) fn refresh(&self) {
        let command = Command::ListDevices;
        let Ok(request) = RequestBuilder::new(command).capacity(LIST_BYTES).build() else { return };
        match self.daemon.ask(command.ioctl_number(), &request, &|| false) {
            Ok(answer) if answer.errno == 0 => show(command, &answer.buf),
            other => debug!("the devices are not known: {other:?}"),
        }
    }

    /// Does an ioctl of the type 0xfd.
    pub(super) fn ioctl(&self, caller: &Caller<'_>) -> Result<Answer, Errno> {
        let [descriptor, command, address, ..] = caller.call.args;
        let Some(file) = self.controls.number_of(caller, descriptor) else { return Ok(Answer::GoOn) };
        if !caller.may_administrate() {
            return Err(Errno::ACCESS);
        }
        let mut request = copy_in(caller, address)?;
        let result = self.perform(caller, command as u32, address, &request).map(|reply| {
            if let Some(events) = reply {
                self.arm(caller, file, events);
            }
        });
        if is_secure(command as u32, &request) {
            wipe(&mut request);
        }
        result.map(|()| Answer::Value(0))
    }

    fn perform(&self, caller: &Caller<'_>, command: u32, address: u64, request: &[u8]) -> Result<Option<u32>, Errno> {
        let parsed = Request::parse(command, request).ok();
        if let Some(parsed) = &parsed
            && let Some(reply) = super::foreign::reply(parsed)
        {
            return caller.write(address, &reply?[..]).map(|()| None);
        }
        let waits = parsed.as_ref().is_some_and(|parsed| parsed.command() == Command::DevWait);
        let gives_up = || !caller.is_waiting() || waits && caller.has_signal();
        let resolved = parsed.as_ref().and_then(|parsed| with_numbers(caller, parsed));
        let asked = self.daemon.ask(command, resolved.as_deref().unwrap_or(request), &gives_up);
        if let Some(mut resolved) = resolved {
            wipe(&mut resolved);
        }
        let mut answer = match asked {
            Ok(answer) => answer,
            Err(Unanswered::GivenUp) => return Err(Errno::INTR),
            Err(Unanswered::Broken(error)) => {
                warn!("thread {}: the daemon does not answer: {error}", caller.call.tid);
                return Err(Errno::IO);
            }
        };
        let arms = parsed.as_ref().is_some_and(|parsed| parsed.command() == Command::DevArmPoll);
        let events = Response::parse(&answer.buf).ok().filter(|_| arms).map(|reply| reply.header().event_nr);
        let written = copy_out(caller, address, request.len(), &answer);
        if let (Some(parsed), 0) = (&parsed, answer.errno) {
            show(parsed.command(), &answer.buf);
        }
        debug!("thread {}: {:?}: {} {}", caller.call.tid, parsed.map(|p| p.command()), answer.errno, answer.detail);
        wipe(&mut answer.buf);
        written?;
        match answer.errno {
            0 => Ok(events),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

impl DeviceMapper {
    /// Has the caller's file become readable at the next event. One thread looks for events as long as anybody waits.
    fn arm(&self, caller: &Caller<'_>, file: u64, events: u32) {
        if !self.controls.arm(caller, caller.call.args[0], file, events) {
            return;
        }
        let (daemon, controls) = (self.daemon.clone(), self.controls.clone());
        let watch = move || {
            let command = Command::DevArmPoll;
            let Ok(request) = RequestBuilder::new(command).build() else { return };
            while controls.any_armed() {
                std::thread::sleep(WATCH);
                match daemon.ask(command.ioctl_number(), &request, &|| false) {
                    Ok(answer) => {
                        let events = Response::parse(&answer.buf).map(|reply| reply.header().event_nr);
                        events.into_iter().for_each(|events| controls.tell(events));
                    }
                    Err(why) => debug!("events are not known: {why:?}"),
                }
            }
        };
        if let Err(error) = self.executor.spawn("udm-exec-event", Box::new(watch)) {
            warn!("no thread looks for events: {error}");
        }
    }
}

/// The caller's `struct dm_ioctl` with its data (`copy_params`).
fn copy_in(caller: &Caller<'_>, address: u64) -> Result<Vec<u8>, Errno> {
    let mut head = [0; MIN_DATA_SIZE];
    caller.read(address, &mut head)?;
    let size = head[DATA_SIZE].try_into().map_or(0, u32::from_ne_bytes) as usize;
    if !(MIN_DATA_SIZE..=MAX_MESSAGE).contains(&size) {
        return Err(Errno::INVAL);
    }
    let mut request = vec![0; size];
    caller.read(address, &mut request)?;
    // What was checked is what is used: another thread may change the memory at any time.
    request[..MIN_DATA_SIZE].copy_from_slice(&head);
    Ok(request)
}

/// As the kernel: the version always, all of it if it went well, and never more than the caller has room for.
fn copy_out(caller: &Caller<'_>, address: u64, room: usize, answer: &WireAnswer) -> Result<(), Errno> {
    let len = if answer.errno == 0 { room } else { VERSION_LEN };
    caller.write(address, &answer.buf[..answer.buf.len().min(len)])
}

fn is_secure(command: u32, request: &[u8]) -> bool {
    Request::parse(command, request).is_ok_and(|parsed| parsed.is_secure())
}

/// A table whose paths of block devices are numbers, as the caller sees them: the kernel looks them up where the caller
/// is, and knows only the numbers afterwards. `None`: there is nothing to change.
fn with_numbers(caller: &Caller<'_>, request: &Request<'_>) -> Option<Vec<u8>> {
    if request.command() != Command::TableLoad {
        return None;
    }
    let targets = request.targets().ok()?;
    if !targets.iter().any(|target| target.params.contains(&b'/')) {
        return None;
    }
    let params: Vec<Vec<u8>> = targets
        .iter()
        .map(|target| {
            let words = target.params.split(|byte| *byte == b' ').map(|word| match word.contains(&b'/') {
                true => caller.block_device(word).map_or_else(|| word.to_vec(), |number| number.to_string().into()),
                false => word.to_vec(),
            });
            words.collect::<Vec<_>>().join(&b' ')
        })
        .collect();
    let specs = targets.iter().zip(&params).map(|(target, params)| TargetSpec { params, ..*target });
    let mut builder = RequestBuilder::new(request.command()).flags(request.flags()).targets(specs);
    match request.device_key() {
        Some(DeviceKey::Name(name)) => builder = builder.name(name),
        Some(DeviceKey::Uuid(uuid)) => builder = builder.uuid(uuid),
        Some(DeviceKey::Dev(dev)) => builder = builder.dev(dev),
        None => {}
    }
    builder = builder.capacity(MIN_DATA_SIZE);
    builder.build().ok()
}

/// Has the namespace's `/dev` follow: a device that was made is there, one that was removed is not.
fn show(command: Command, reply: &[u8]) {
    let Ok(response) = Response::parse(reply) else { return };
    let header = response.header();
    let number = |dev: Option<DevT>| dev.filter(|dev| dev.major == world::LOOP_MAJOR).map(|dev| dev.minor);
    match command {
        Command::DevRemove if !header.flags.contains(Flags::DEFERRED_REMOVE) => {
            number(header.device()).into_iter().for_each(world::forget_loop);
        }
        Command::DevCreate | Command::DevStatus | Command::DevSuspend => {
            number(header.device()).into_iter().for_each(world::show_loop);
        }
        Command::ListDevices => {
            let names = response.names().unwrap_or_default();
            names.into_iter().filter_map(|entry| number(Some(entry.dev))).for_each(world::show_loop);
        }
        _ => {}
    }
}
