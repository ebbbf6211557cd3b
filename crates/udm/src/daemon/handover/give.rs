//! The old daemon's side.

use super::message::{CLAIM, HandOver, HandOverMessage, Settings, VERSION};
use super::wire::Link;
use crate::daemon::conversation::Left;
use crate::daemon::devices::Devices;
use crate::daemon::nodes::NodeSettings;
use crate::daemon::socket::Listener;
use crate::daemon::state::{Source, State};
use crate::daemon::{Lock, flush_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use udm_core::{MappedDevice, Polls, SuspendOptions, TableSlot, Totals};
use udm_io::{BlockDevice, DeviceId};

/// How long requests under way may take, and then the suspension of all devices.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the new daemon may take for each of its steps (it opens everything), unless the environment says otherwise.
const ANSWER: Duration = Duration::from_secs(60);
const ANSWER_SETTING: &str = "UDM_REPLACE_SECONDS";

fn answer_within() -> Duration {
    static WITHIN: OnceLock<Duration> = OnceLock::new();
    *WITHIN.get_or_init(|| match std::env::var(ANSWER_SETTING) {
        Err(_) => ANSWER,
        Ok(text) => text.parse().map(|n: u32| Duration::from_secs(n.max(1).into())).unwrap_or_else(|_| {
            warn!("{ANSWER_SETTING}={text:?}: expected seconds; they are {}", ANSWER.as_secs());
            ANSWER
        }),
    })
}

/// The first message to the new daemon.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FirstWords {
    pub(super) version: u32,
    pub(super) state: Value,
    /// Files beneath, with their devices and inodes: the new daemon must find the same files under these names.
    pub(super) files: Vec<(String, u64, u64)>,
}

/// The counters and events of a device.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) minor: u32,
    pub(super) events: u32,
    /// Reads, their sectors, writes, theirs, others, remapped, cloned, and polls: fast, sub, default.
    pub(super) totals: [u64; 10],
}

/// A daemon that is ready to take over.
pub(crate) struct Giving {
    link: Link,
    process: Process,
}

/// The way to notice its end, apart from its connection, which can end earlier.
enum Process {
    /// A pidfd.
    Pidfd(OwnedFd),
    /// Without pidfds: a pipe that it has opened, and that is closed only by its end.
    Line { pid: Pid, pipe: OwnedFd },
}

impl Giving {
    /// Tells it that it must not take over.
    pub(crate) fn refuse(&self, why: &str) {
        if let Ok(message) = HandOverMessage::new("refused", "", why) {
            let _ = self.link.send(&message, answer_within());
        }
    }
}

/// The result of a hand-over.
pub(crate) enum Given {
    /// The new daemon has everything.
    Gone,
    /// It has not; the messages are here.
    Back(Vec<HandOverMessage>),
}

/// Describes everything to the new daemon, and waits until it understands it. Nothing changes for clients.
pub(crate) fn first_words(devices: &Devices, link: Link, pid: i32) -> Result<Giving, String> {
    let refuse = |why: String| {
        let refused = HandOverMessage::new("refused", "", &why)?;
        let _ = link.send(&refused, answer_within());
        Err(why)
    };
    if let Some(name) = transient_snapshot(devices) {
        return refuse(format!(
            "{name} is a transient snapshot: what it is made of is in this process's memory only; remove it first"
        ));
    }
    let pid = Pid::from_raw(pid).ok_or("the new daemon has no process id here")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
    let state = devices.all();
    let state = serde_json::to_value(&state).map_err(|e| e.to_string())?;
    let words = FirstWords { version: VERSION, state, files: files(devices) };
    link.send(&HandOverMessage::new("state", "", words)?, answer_within())
        .map_err(|e| format!("the new daemon has gone: {e}"))?;
    let mut answer = link.receive(answer_within()).map_err(|e| format!("the new daemon does not answer: {e}"))?;
    match answer.kind.as_str() {
        "ready" => match Process::known_by(pid, pidfd, answer.fds.pop()) {
            Some(process) => Ok(Giving { link, process }),
            None => refuse("nothing would tell this daemon that the new one has ended: stop this one instead".into()),
        },
        "refused" => Err(answer.read().unwrap_or_default()),
        other => Err(format!("the new daemon answers {other:?}")),
    }
}

/// Stops, and gives everything away. With `Err`, which says why, everything goes on as before. The caller has made sure
/// that no command is under way, and accepts none.
pub(crate) fn give(
    devices: &Devices,
    conversations: &mut Vec<Left>,
    sockets: &[(&str, &Listener)],
    lock: &Lock,
    giving: &Giving,
) -> Result<Given, String> {
    let begun = Instant::now();
    let refused = |why: String| {
        giving.refuse(&why);
        why
    };
    let still = Still::new(devices).map_err(refused)?;
    let mut messages = vec![HandOverMessage::new("state", "", &still.state).map_err(refused)?];
    messages.extend(fixed_messages(devices, sockets, lock).map_err(refused)?);
    messages.extend(memories(devices).map_err(refused)?);
    messages.extend(claims(devices).map_err(refused)?);
    // From here on everything goes on from the messages, in one process or the other.
    still.leave();
    for giver in devices.givers() {
        match giver.give() {
            Ok(more) => messages.extend(more),
            Err(e) => error!("{} is not passed on: {e}", giver.kind()),
        }
    }
    for left in std::mem::take(conversations) {
        match left.message() {
            Ok(message) => messages.push(message),
            Err(e) => error!("a client is hung up on: {e}"),
        }
    }
    take_down(devices);
    match send(giving, &mut messages, lock) {
        Ok(()) => {
            info!("all is passed on, after {} ms", begun.elapsed().as_millis());
            Ok(Given::Gone)
        }
        Err(why) => {
            error!("the new daemon does not take over: {why}; this one goes on");
            end(giving);
            match lock.claim(PATIENCE) {
                Ok(()) => Ok(Given::Back(messages)),
                Err(why) => {
                    error!("this one does not go on, since the new one may serve: {why}");
                    Ok(Given::Gone)
                }
            }
        }
    }
}

/// While it lives nothing is under way and nothing new comes; when it is dropped, everything goes on.
struct Still<'a> {
    devices: &'a Devices,
    paused: Vec<&'a dyn HandOver>,
    suspended: Vec<Arc<MappedDevice>>,
    /// The state without the suspensions made here.
    state: State,
    left: bool,
}

impl<'a> Still<'a> {
    fn new(devices: &'a Devices) -> Result<Self, String> {
        let state = devices.all();
        let mut still = Self { devices, paused: Vec::new(), suspended: Vec::new(), state, left: false };
        for giver in devices.givers() {
            giver.pause(PATIENCE)?;
            still.paused.push(giver);
        }
        check_holders(devices)?;
        flush_all(&devices.registry, PATIENCE);
        let deadline = Instant::now() + PATIENCE;
        let mut left: Vec<_> = devices.registry.list().into_iter().filter(|md| !md.info().suspended).collect();
        // From the top: a device above may still have to write to those beneath.
        left.sort_by_key(|md| std::cmp::Reverse(md.level()));
        for md in left.into_iter().filter(|md| md.info().active) {
            md.suspend(SuspendOptions::WITHOUT_FREEZING, &|| Instant::now() > deadline)
                .map_err(|e| format!("{} cannot be suspended: {}", md.device_name(), e.message))?;
            still.suspended.push(md);
        }
        Ok(still)
    }

    /// It must not go on here.
    fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        for md in self.suspended.iter().rev() {
            if let Err(e) = md.resume_as_before() {
                error!("{} does not go on: {}", md.device_name(), e.message);
            }
        }
        self.paused.iter().for_each(|giver| giver.resume(&self.devices.registry));
        info!("{} devices go on here", self.devices.registry.list().len());
    }
}

fn transient_snapshot(devices: &Devices) -> Option<String> {
    let is = |md: &MappedDevice| {
        let table = md.table(TableSlot::Active);
        table.is_some_and(|table| table.is_transient() && table.memories().next().is_none())
    };
    devices.registry.list().iter().find(|md| is(md)).map(|md| md.device_name())
}

fn files(devices: &Devices) -> Vec<(String, u64, u64)> {
    let tables = devices.registry.list().into_iter();
    let tables = tables.flat_map(|md| [TableSlot::Active, TableSlot::Inactive].map(|slot| md.table(slot)));
    let beneath = tables.flatten().flat_map(|table| table.devices().to_vec());
    let mut files: Vec<_> = beneath
        .filter_map(|dev| match dev.id() {
            DeviceId::File(device, inode) => Some((dev.name(), device, inode)),
            _ => None,
        })
        .collect();
    files.sort();
    files.dedup();
    files
}

/// A user that has a device open and does not pass it on would prevent its take-over.
fn check_holders(devices: &Devices) -> Result<(), String> {
    let mut holds: BTreeMap<String, usize> = BTreeMap::new();
    for name in devices.givers().iter().flat_map(|giver| giver.holds()) {
        *holds.entry(name).or_default() += 1;
    }
    for md in devices.registry.list() {
        for table in [TableSlot::Active, TableSlot::Inactive].into_iter().filter_map(|slot| md.table(slot)) {
            for beneath in table.devices().iter().filter_map(|dev| dev.as_any().downcast_ref::<MappedDevice>()) {
                *holds.entry(beneath.device_name()).or_default() += 1;
            }
        }
    }
    for md in devices.registry.list() {
        let (name, open) = (md.device_name(), md.info().open_count as usize);
        if open > holds.get(&name).copied().unwrap_or_default() {
            return Err(format!("{name} is held open by what cannot be passed on"));
        }
    }
    Ok(())
}

/// The lock, the sockets, and the counters.
fn fixed_messages(
    devices: &Devices,
    sockets: &[(&str, &Listener)],
    lock: &Lock,
) -> Result<Vec<HandOverMessage>, String> {
    let copied = |fd: std::io::Result<OwnedFd>| fd.map_err(|e| format!("a descriptor cannot be copied: {e}"));
    let mut messages = vec![HandOverMessage::new("lock", "", ())?.with(copied(lock.duplicate())?)];
    for (name, listener) in sockets {
        messages.push(HandOverMessage::new("socket", name, ())?.with(copied(listener.duplicate())?));
    }
    let counts: Vec<Counts> = devices
        .registry
        .list()
        .iter()
        .map(|md| {
            let Totals { reads, read_sectors, writes, write_sectors, others, remapped, cloned, polls } = md.totals();
            let Polls { fast, sub, default } = polls;
            let totals = [reads, read_sectors, writes, write_sectors, others, remapped, cloned, fast, sub, default];
            Counts { minor: md.devt().minor, events: md.info().event_nr, totals }
        })
        .collect();
    let poll_budget_us = devices.registry.domain().poll_policy().budget.as_micros() as u64;
    let NodeSettings { node, rings } = devices.nodes.settings();
    let settings = Settings { node, rings, poll_budget_us };
    messages.push(HandOverMessage::new("settings", "", settings)?);
    messages.push(HandOverMessage::new("counts", "", (devices.registry.event_nr(), counts))?);
    Ok(messages)
}

/// Data in memory, as memory files: of targets, then of devices beneath, with their names. If one fails, everything
/// stays as it was.
fn memories(devices: &Devices) -> Result<Vec<HandOverMessage>, String> {
    let mut messages = Vec::new();
    for md in devices.registry.list() {
        let Some(table) = md.table(TableSlot::Active) else { continue };
        let of_targets = table.target_memories().map(|memory| (String::new(), memory));
        let of_devices = table.devices().iter().filter_map(|dev| Some((dev.name(), dev.memory()?)));
        for (index, (beneath, memory)) in of_targets.chain(of_devices).enumerate() {
            let shared = memory.share().and_then(|file| Ok((file.try_clone()?, file)));
            match shared {
                Ok((file, mine)) => {
                    if let Err(e) = memory.adopt(mine) {
                        // Memory that had moved before stays in its file.
                        tracing::debug!("{}: {e}", md.device_name());
                    }
                    let which = (md.devt().minor, index, beneath);
                    messages.push(HandOverMessage::new("memory", &md.device_name(), which)?.with(file));
                }
                Err(e) => return Err(format!("the memory of {} cannot be passed on: {e}", md.device_name())),
            }
        }
    }
    Ok(messages)
}

/// The claims on block devices beneath.
fn claims(devices: &Devices) -> Result<Vec<HandOverMessage>, String> {
    let shared = devices.claims.share().map_err(|e| format!("the claims on block devices cannot be passed on: {e}"))?;
    shared.into_iter().map(|fd| Ok(HandOverMessage::new(CLAIM, "", ())?.with(fd))).collect()
}

/// Removes every device, so that no device beneath is open any more.
fn take_down(devices: &Devices) {
    let mut left = devices.registry.list();
    left.sort_by_key(|md| std::cmp::Reverse(md.level()));
    for md in left {
        if let Err(e) = devices.registry.remove(&md, false) {
            error!("{} is not let go of: {}", md.device_name(), e.message);
        }
    }
}

fn send(giving: &Giving, messages: &mut Vec<HandOverMessage>, lock: &Lock) -> Result<(), String> {
    let gone = |e: std::io::Error| format!("it has gone: {e}");
    for message in &*messages {
        giving.link.send(message, answer_within()).map_err(gone)?;
    }
    giving.link.send(&HandOverMessage::new("end", "", ())?, answer_within()).map_err(gone)?;
    let answer = giving.link.receive(answer_within()).map_err(gone)?;
    match answer.kind.as_str() {
        "serving" => {}
        "refused" => return Err(answer.read().unwrap_or_default()),
        other => return Err(format!("it answers {other:?}")),
    }
    // The new daemon has them. Kept here, they could outlive its own for a moment.
    messages.retain(|message| message.kind != CLAIM);
    // Before `go`, so that the new one need not wait. If `go` cannot be sent, this daemon takes it back.
    lock.yield_right().map_err(|e| format!("the right to serve cannot be given up: {e}"))?;
    giving.link.send(&HandOverMessage::new("go", "", ())?, answer_within()).map_err(gone)
}

/// Makes sure that the new daemon has ended: it may have everything open.
fn end(giving: &Giving) {
    if !giving.process.end() {
        warn!("the new daemon does not end");
    }
}

impl Process {
    fn known_by(pid: Pid, pidfd: Option<OwnedFd>, pipe: Option<OwnedFd>) -> Option<Self> {
        pidfd.map(Self::Pidfd).or_else(|| pipe.map(|pipe| Self::Line { pid, pipe }))
    }

    /// Kills it, and waits until it has ended; returns whether it has.
    fn end(&self) -> bool {
        match self {
            Self::Pidfd(pidfd) => {
                // It has gone already.
                pidfd_send_signal(pidfd, Signal::KILL).is_err() || readable(pidfd, PATIENCE)
            }
            // The process id is its own as long as it lives.
            Self::Line { pid, pipe } => {
                readable(pipe, Duration::ZERO) || kill_process(*pid, Signal::KILL).is_err() || readable(pipe, PATIENCE)
            }
        }
    }
}

/// Whether there is something to read, or no writer is left; waits for a limited time.
fn readable(fd: &OwnedFd, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match poll(&mut fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|n| n > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Where the kernel has no pidfd.
    #[test]
    fn a_new_daemon_is_ended_by_its_line() {
        let (read, write) = std::io::pipe().unwrap();
        // It has the pipe as long as it lives.
        let mut new = Command::new("sleep").arg("1000").stdin(Stdio::piped()).stdout(write).spawn().unwrap();
        let pid = Pid::from_raw(new.id() as i32).unwrap();
        let process = Process::known_by(pid, None, Some(read.into())).unwrap();
        assert!(matches!(process, Process::Line { .. }));
        assert!(process.end());
        assert_eq!(new.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        // A process that has ended is not killed again: its id may belong to another.
        let own = Process::Line { pid: rustix::process::getpid(), pipe: std::io::pipe().unwrap().0.into() };
        assert!(own.end());
        assert!(Process::known_by(pid, None, None).is_none());
    }
}
