//! The old daemon's side.

use super::{CLAIM, HandOver, HandOverMessage, Link, Settings, VERSION};
use crate::daemon::nodes::NodeSettings;
use crate::daemon::socket::Listener;
use crate::daemon::state::State;
use crate::daemon::{Daemon, Lock, flush_all};
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

/// How long requests under way may take, and then the suspending of all devices.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the new daemon may take for each of its steps, unless the environment says: it opens everything.
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

/// What the new daemon is told first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FirstWords {
    pub(super) version: u32,
    pub(super) state: Value,
    /// Files beneath, with their devices and inodes: by these names the new daemon must find the same.
    pub(super) files: Vec<(String, u64, u64)>,
}

/// What a device did, and its events.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) minor: u32,
    pub(super) events: u32,
    /// Reads, their sectors, writes, theirs, others, remapped, cloned, and polls: fast, sub, default.
    pub(super) totals: [u64; 10],
}

/// A daemon that waits to take over.
pub(crate) struct Giving {
    link: Link,
    process: Process,
}

/// What tells when it has ended: another than its connection, which can end before it does.
enum Process {
    /// The kernel's word.
    Pidfd(OwnedFd),
    /// Where the kernel has no such word: a pipe that it has opened, and that nobody closes but its end.
    Line { pid: Pid, pipe: OwnedFd },
}

impl Giving {
    /// Tells it that it is not to go on.
    pub(crate) fn refuse(&self, why: &str) {
        if let Ok(message) = HandOverMessage::new("refused", "", why) {
            let _ = self.link.send(&message, answer_within());
        }
    }
}

/// What came of it.
pub(crate) enum Given {
    /// The new daemon has everything.
    Gone,
    /// It has not; what was to be given is here.
    Back(Vec<HandOverMessage>),
}

/// Tells the new daemon what there is, and waits until it understands it. Nothing changes for anybody.
pub(crate) fn first_words(daemon: &Daemon, link: Link, pid: i32) -> Result<Giving, String> {
    let refuse = |why: String| {
        let refused = HandOverMessage::new("refused", "", &why)?;
        let _ = link.send(&refused, answer_within());
        Err(why)
    };
    if let Some(name) = transient_snapshot(daemon) {
        return refuse(format!(
            "{name} is a transient snapshot: what it is made of is in this process's memory only; remove it first"
        ));
    }
    let pid = Pid::from_raw(pid).ok_or("the new daemon has no process id here")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
    let state = State::of(&daemon.registry, &daemon.lost, &daemon.tcp, &daemon.vhost, &daemon.nodes);
    let state = serde_json::to_value(&state).map_err(|e| e.to_string())?;
    let words = FirstWords { version: VERSION, state, files: files(daemon) };
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

/// Stops, and gives everything away. Until it is `Ok`, all goes on as before when it returns; `Err` says why. The
/// caller has seen to it that no command is under way, and accepts none.
pub(crate) fn give(
    daemon: &Daemon,
    sockets: &[(&str, &Listener)],
    lock: &Lock,
    giving: &Giving,
) -> Result<Given, String> {
    let begun = Instant::now();
    let refused = |why: String| {
        giving.refuse(&why);
        why
    };
    let still = Still::new(daemon).map_err(refused)?;
    let mut messages = vec![HandOverMessage::new("state", "", &still.state).map_err(refused)?];
    messages.extend(fixed_messages(daemon, sockets, lock).map_err(refused)?);
    messages.extend(memories(daemon).map_err(refused)?);
    messages.extend(claims(daemon).map_err(refused)?);
    // From here on what goes on goes on from the messages, in whichever process.
    still.leave();
    for giver in daemon.givers() {
        match giver.give() {
            Ok(more) => messages.extend(more),
            Err(e) => error!("{} is not passed on: {e}", giver.kind()),
        }
    }
    for left in std::mem::take(&mut *daemon.left()) {
        match left.message() {
            Ok(message) => messages.push(message),
            Err(e) => error!("a client is hung up on: {e}"),
        }
    }
    take_down(daemon);
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

/// Nothing is under way, and nothing comes, as long as it lives; then all goes on.
struct Still<'a> {
    daemon: &'a Daemon,
    paused: Vec<&'a dyn HandOver>,
    suspended: Vec<Arc<MappedDevice>>,
    /// As users know it: without what was suspended here.
    state: State,
    left: bool,
}

impl<'a> Still<'a> {
    fn new(daemon: &'a Daemon) -> Result<Self, String> {
        let state = State::of(&daemon.registry, &daemon.lost, &daemon.tcp, &daemon.vhost, &daemon.nodes);
        let mut still = Self { daemon, paused: Vec::new(), suspended: Vec::new(), state, left: false };
        for giver in daemon.givers() {
            giver.pause(PATIENCE)?;
            still.paused.push(giver);
        }
        check_holders(daemon)?;
        flush_all(&daemon.registry, PATIENCE);
        let deadline = Instant::now() + PATIENCE;
        let mut left: Vec<_> = daemon.registry.list().into_iter().filter(|md| !md.info().suspended).collect();
        // From the top: what is above may still have to write through what is beneath.
        left.sort_by_key(|md| std::cmp::Reverse(md.level()));
        for md in left.into_iter().filter(|md| md.info().active) {
            md.suspend(SuspendOptions::default(), &|| Instant::now() > deadline)
                .map_err(|e| format!("{} cannot be suspended: {}", md.device_name(), e.message))?;
            still.suspended.push(md);
        }
        Ok(still)
    }

    /// It is not to go on here.
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
        self.paused.iter().for_each(|giver| giver.resume(&self.daemon.registry));
        info!("{} devices go on here", self.daemon.registry.list().len());
    }
}

fn transient_snapshot(daemon: &Daemon) -> Option<String> {
    let is = |md: &MappedDevice| {
        let table = md.table(TableSlot::Active);
        table.is_some_and(|table| table.is_transient() && table.memories().next().is_none())
    };
    daemon.registry.list().iter().find(|md| is(md)).map(|md| md.device_name())
}

fn files(daemon: &Daemon) -> Vec<(String, u64, u64)> {
    let tables = daemon.registry.list().into_iter();
    let tables = tables.flat_map(|md| [TableSlot::Active, TableSlot::Inactive].map(|slot| md.table(slot)));
    let devices = tables.flatten().flat_map(|table| table.devices().to_vec());
    let mut files: Vec<_> = devices
        .filter_map(|dev| match dev.id() {
            DeviceId::File(device, inode) => Some((dev.name(), device, inode)),
            _ => None,
        })
        .collect();
    files.sort();
    files.dedup();
    files
}

/// Whoever has a device open and does not pass it on would keep it from the new daemon.
fn check_holders(daemon: &Daemon) -> Result<(), String> {
    let mut holds: BTreeMap<String, usize> = BTreeMap::new();
    for name in daemon.givers().iter().flat_map(|giver| giver.holds()) {
        *holds.entry(name).or_default() += 1;
    }
    for md in daemon.registry.list() {
        for table in [TableSlot::Active, TableSlot::Inactive].into_iter().filter_map(|slot| md.table(slot)) {
            for beneath in table.devices().iter().filter_map(|dev| dev.as_any().downcast_ref::<MappedDevice>()) {
                *holds.entry(beneath.device_name()).or_default() += 1;
            }
        }
    }
    for md in daemon.registry.list() {
        let (name, open) = (md.device_name(), md.info().open_count as usize);
        if open > holds.get(&name).copied().unwrap_or_default() {
            return Err(format!("{name} is held open by what cannot be passed on"));
        }
    }
    Ok(())
}

/// The lock, the sockets, and what was counted.
fn fixed_messages(daemon: &Daemon, sockets: &[(&str, &Listener)], lock: &Lock) -> Result<Vec<HandOverMessage>, String> {
    let copied = |fd: std::io::Result<OwnedFd>| fd.map_err(|e| format!("a descriptor cannot be copied: {e}"));
    let mut messages = vec![HandOverMessage::new("lock", "", ())?.with(copied(lock.duplicate())?)];
    for (name, listener) in sockets {
        messages.push(HandOverMessage::new("socket", name, ())?.with(copied(listener.duplicate())?));
    }
    let counts: Vec<Counts> = daemon
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
    let poll_budget_us = daemon.registry.domain().poll_policy().budget.as_micros() as u64;
    let NodeSettings { node, rings } = daemon.nodes.settings();
    let settings = Settings { node, rings, poll_budget_us };
    messages.push(HandOverMessage::new("settings", "", settings)?);
    messages.push(HandOverMessage::new("counts", "", (daemon.registry.event_nr(), counts))?);
    Ok(messages)
}

/// What is in memory, as files of memory: that of targets, then that of devices beneath, with their names. When one
/// cannot be had, all is where it was.
fn memories(daemon: &Daemon) -> Result<Vec<HandOverMessage>, String> {
    let mut messages = Vec::new();
    for md in daemon.registry.list() {
        let Some(table) = md.table(TableSlot::Active) else { continue };
        let of_targets = table.target_memories().map(|memory| (String::new(), memory));
        let of_devices = table.devices().iter().filter_map(|dev| Some((dev.name(), dev.memory()?)));
        for (index, (beneath, memory)) in of_targets.chain(of_devices).enumerate() {
            let shared = memory.share().and_then(|file| Ok((file.try_clone()?, file)));
            match shared {
                Ok((file, mine)) => {
                    if let Err(e) = memory.adopt(mine) {
                        // One that had moved before is still where it was.
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
fn claims(daemon: &Daemon) -> Result<Vec<HandOverMessage>, String> {
    let shared = daemon.claims.share().map_err(|e| format!("the claims on block devices cannot be passed on: {e}"))?;
    shared.into_iter().map(|fd| Ok(HandOverMessage::new(CLAIM, "", ())?.with(fd))).collect()
}

/// Removes every device, so that nothing beneath is open any more.
fn take_down(daemon: &Daemon) {
    let mut left = daemon.registry.list();
    left.sort_by_key(|md| std::cmp::Reverse(md.level()));
    for md in left {
        if let Err(e) = daemon.registry.remove(&md, false) {
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
    // It has them. Kept here they would outlive, for a moment, what it lets go of.
    messages.retain(|message| message.kind != CLAIM);
    // Before the word, so that the new one need not wait. When it does not get the word it is the old one's again.
    lock.yield_right().map_err(|e| format!("the right to serve cannot be given up: {e}"))?;
    giving.link.send(&HandOverMessage::new("go", "", ())?, answer_within()).map_err(gone)
}

/// Sees to it that the new daemon is no more: it may have everything open.
fn end(giving: &Giving) {
    if !giving.process.end() {
        warn!("the new daemon does not end");
    }
}

impl Process {
    fn known_by(pid: Pid, pidfd: Option<OwnedFd>, pipe: Option<OwnedFd>) -> Option<Self> {
        pidfd.map(Self::Pidfd).or_else(|| pipe.map(|pipe| Self::Line { pid, pipe }))
    }

    /// Kills it, and waits until it has gone; whether it has.
    fn end(&self) -> bool {
        match self {
            Self::Pidfd(pidfd) => {
                // It has gone already.
                pidfd_send_signal(pidfd, Signal::KILL).is_err() || readable(pidfd, PATIENCE)
            }
            // The number is its own as long as it lives.
            Self::Line { pid, pipe } => {
                readable(pipe, Duration::ZERO) || kill_process(*pid, Signal::KILL).is_err() || readable(pipe, PATIENCE)
            }
        }
    }
}

/// Whether there is something to read, or nobody to write any more; waits at most so long.
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
        // One that has gone is not killed again: its number may be another's.
        let own = Process::Line { pid: rustix::process::getpid(), pipe: std::io::pipe().unwrap().0.into() };
        assert!(own.end());
        assert!(Process::known_by(pid, None, None).is_none());
    }
}
