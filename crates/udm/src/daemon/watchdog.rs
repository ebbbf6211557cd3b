//! Tells the log, once, of what has been waiting for long: for who was not there when it happened.

use super::Daemon;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tracing::warn;
use udm_control::second::{DebugDump, Service};

/// What has been waiting for so long is told.
const LONG_MS: u64 = 30_000;
/// How often it is looked.
const LOOK: Duration = Duration::from_secs(10);

/// What was found the last time.
#[derive(Default)]
struct Seen {
    commands: BTreeMap<(String, String, Option<u32>), Told>,
    /// By minors.
    devices: BTreeMap<u32, (Told, u64)>,
    locks: Vec<String>,
}

/// For how long something waits, and whether it has been told.
#[derive(Clone, Copy, Default)]
struct Told {
    ms: u64,
    told: bool,
}

impl Told {
    /// It waits for so long now. Whether that is to be told.
    fn is_due(&mut self, ms: u64) -> bool {
        // Less than the last time: another of the same kind.
        self.told &= ms >= self.ms;
        self.ms = ms;
        let due = ms >= LONG_MS && !self.told;
        self.told |= due;
        due
    }
}

impl Seen {
    /// What is to be told of what is found now, `passed` milliseconds after the last time.
    fn look(&mut self, dump: &DebugDump, passed: u64) -> Vec<String> {
        let mut news = Vec::new();
        let mut before = std::mem::take(&mut self.commands);
        for command in dump.commands.iter().filter(|command| command.command != "DM_DEV_WAIT") {
            let key = (command.command.clone(), command.device.clone(), command.pid);
            let mut told = before.remove(&key).unwrap_or_default();
            if told.is_due(command.elapsed_ms) {
                let seconds = command.elapsed_ms / 1000;
                let why = command.waits_for.as_ref().map_or_else(String::new, |what| format!(": {what}"));
                news.push(format!("{} {} has not ended for {seconds} s{why}", command.command, command.device));
            }
            self.commands.insert(key, told);
        }
        let mut before = std::mem::take(&mut self.devices);
        for device in dump.devices.iter().filter(|device| device.in_flight > 0) {
            let done = device.arrived.wrapping_sub(device.in_flight);
            let same = before.remove(&device.minor).filter(|(_, then)| *then == done);
            let (mut told, ms) = same.map_or((Told::default(), 0), |(told, _)| (told, told.ms + passed));
            if told.is_due(ms) {
                let (name, bios, seconds) = (&device.name, device.in_flight, ms / 1000);
                news.push(format!(
                    "{name}: {bios} bios in flight, and none has come back for {seconds} s{}",
                    rest(dump)
                ));
            }
            self.devices.insert(device.minor, (told, done));
        }
        let again = dump.locks.iter().filter(|lock| !self.locks.contains(lock));
        news.extend(again.map(|lock| format!("{lock} could not be had in a tenth of a second")));
        self.locks.clone_from(&dump.locks);
        news
    }
}

/// What beneath does not answer.
fn rest(dump: &DebugDump) -> String {
    let silent = dump.beneath.iter().filter(|b| b.requests > 0 && b.silent_ms >= LONG_MS / 2);
    silent.map(|b| format!("; {} has not answered for {} s", b.name, b.silent_ms / 1000)).collect()
}

impl Daemon {
    /// Looks again and again, on a thread of its own, as long as this daemon is there. It waits for nobody.
    pub(super) fn watch(self: &Arc<Self>) {
        let resting = Resting::of(self);
        let work = move || {
            let (mut seen, mut rest, mut last) = (Seen::default(), LOOK, Instant::now());
            while let Some(daemon) = resting.rest(rest) {
                let begun = Instant::now();
                let passed = begun.duration_since(std::mem::replace(&mut last, begun));
                let news = seen.look(&daemon.debug(), passed.as_millis() as u64);
                // Thousands of devices take their time: a look is not to cost more than a 500th of a CPU.
                rest = LOOK.max(begun.elapsed() * 500);
                if !news.is_empty() {
                    news.iter().for_each(|text| warn!("{text}"));
                    warn!("`udm debug dump` tells what waits for what");
                }
            }
        };
        if let Err(e) = self.registry.domain().executor().spawn("udm-watchdog", Box::new(work)) {
            warn!("nobody looks for what waits: {e}");
        }
    }
}

/// A daemon that is looked after now and then, and not held in between: one that gives everything to another lets go of
/// it.
pub(super) struct Resting {
    daemon: Weak<Daemon>,
    ended: Arc<AtomicBool>,
}

impl Resting {
    pub(super) fn of(daemon: &Arc<Daemon>) -> Self {
        Self { daemon: Arc::downgrade(daemon), ended: daemon.ended.clone() }
    }

    /// Lets time pass; `None` when the daemon is ending or has gone.
    pub(super) fn rest(&self, time: Duration) -> Option<Arc<Daemon>> {
        let mut left = time;
        while !left.is_zero() {
            if self.ended.load(Ordering::Acquire) || self.daemon.strong_count() == 0 {
                return None;
            }
            let now = left.min(super::LOOK);
            std::thread::sleep(now);
            left -= now;
        }
        self.daemon.upgrade().filter(|daemon| !daemon.ended.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udm_control::second::{DebugBeneath, DebugDevice, Underway};

    fn dump(command: Option<u64>, in_flight: u64, arrived: u64) -> DebugDump {
        let device = DebugDevice {
            name: "vol".into(),
            major: 600,
            minor: 3,
            state: "running".into(),
            in_flight,
            parked: 0,
            held: 0,
            arrived,
            doing: Vec::new(),
            notes: Vec::new(),
        };
        let name = "nbd://far/x".into();
        let beneath = DebugBeneath { name, requests: 2, queued: 0, oldest_ms: 31_000, silent_ms: 31_000, lost: false };
        let of = |command: &str, elapsed_ms| Underway {
            command: command.into(),
            device: "vol".into(),
            elapsed_ms,
            pid: Some(7),
            waits_for: Some("waits for bios in flight".into()),
        };
        let commands =
            command.into_iter().flat_map(|ms| [of("DM_DEV_SUSPEND", ms), of("DM_DEV_WAIT", 99_000)]).collect();
        DebugDump { commands, devices: vec![device], beneath: vec![beneath], ..DebugDump::default() }
    }

    #[test]
    fn what_waits_for_long_is_told_once() {
        let mut seen = Seen::default();
        let mut look = |dump: &DebugDump| seen.look(dump, 10_000);
        assert_eq!(look(&dump(Some(29_000), 0, 0)), Vec::<String>::new());
        let told = "DM_DEV_SUSPEND vol has not ended for 39 s: waits for bios in flight";
        assert_eq!(look(&dump(Some(39_000), 0, 0)), [told]);
        assert_eq!(look(&dump(Some(49_000), 0, 0)), Vec::<String>::new());
        assert_eq!(look(&dump(None, 0, 0)), Vec::<String>::new());
        assert_eq!(look(&dump(Some(39_000), 0, 0)), [told], "another one");
    }

    #[test]
    fn devices_that_stand_still_are_told_once() {
        let mut seen = Seen::default();
        let mut look = |dump: &DebugDump| seen.look(dump, 10_000);
        let none = Vec::<String>::new();
        // As many in flight each time, but others.
        for arrived in [2, 12, 22, 32, 42] {
            assert_eq!(look(&dump(None, 2, arrived)), none);
        }
        assert_eq!(look(&dump(None, 2, 42)), none);
        // More have come, none has left.
        assert_eq!(look(&dump(None, 3, 43)), none);
        let told = "vol: 3 bios in flight, and none has come back for 30 s; nbd://far/x has not answered for 31 s";
        assert_eq!(look(&dump(None, 3, 43)), [told]);
        assert_eq!(look(&dump(None, 3, 43)), none);
        assert_eq!(look(&dump(None, 0, 43)), none);
        assert_eq!(look(&dump(None, 1, 44)), none);
    }

    #[test]
    fn locks_are_told_when_they_are_first_found() {
        let mut seen = Seen::default();
        let held = DebugDump { locks: vec!["the lock of plans".into()], ..DebugDump::default() };
        assert_eq!(seen.look(&held, 1).len(), 1);
        assert_eq!(seen.look(&held, 1).len(), 0);
        assert_eq!(seen.look(&DebugDump::default(), 1).len(), 0);
        assert_eq!(seen.look(&held, 1).len(), 1);
    }
}
