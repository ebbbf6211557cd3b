//! Who waits for what and since when, as `udm debug dump` shows it.

use super::Underway;
use serde::{Deserialize, Serialize};
use std::fmt;
use udm_core::{ChannelUse, DeviceReport, Inspection, Registry};
use udm_io::{Nanos, Op};

/// Everything that waits, or keeps others waiting.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DebugDump {
    /// Commands under way, the oldest first.
    pub commands: Vec<Underway>,
    /// Locks that could not be had in a tenth of a second, in words.
    pub locks: Vec<String>,
    /// Every mapped device.
    pub devices: Vec<DebugDevice>,
    /// Devices beneath that have asked others for something.
    pub beneath: Vec<DebugBeneath>,
    /// Channels in which something lies, or that could not be looked into.
    pub channels: Vec<DebugChannel>,
    /// How many channels could still be had.
    pub channels_left: u64,
    /// Items of the workqueue.
    pub duties: u64,
    /// Items that want to be run at once.
    pub duties_rung: u64,
    /// Other parts of the daemon: a name, and lines for people.
    #[serde(default)]
    pub parts: Vec<DebugPart>,
}

/// A mapped device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugDevice {
    /// Its name; empty when it could not be had.
    pub name: String,
    /// Its number.
    pub major: u32,
    /// Its number.
    pub minor: u32,
    /// `running`, `suspended`, `empty`, `removed` or `unknown`.
    pub state: String,
    /// Bios in flight.
    pub in_flight: u64,
    /// Of these, bios that wait for clones.
    pub parked: u64,
    /// Bios that are held until it is resumed.
    pub held: u64,
    /// Bios that have arrived since it was made.
    pub arrived: u64,
    /// What it is busy with.
    pub doing: Vec<DebugActivity>,
    /// What its targets tell of themselves: names and values.
    pub notes: Vec<(String, String)>,
}

/// Something under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugActivity {
    /// What, as `waits for bios in flight`.
    pub what: String,
    /// For how many milliseconds.
    pub elapsed_ms: u64,
}

/// A device beneath that waits for somebody else's answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugBeneath {
    /// Its name in tables.
    pub name: String,
    /// Requests under way.
    pub requests: u64,
    /// Requests that are not sent yet.
    pub queued: u64,
    /// For how many milliseconds the oldest has been waiting.
    pub oldest_ms: u64,
    /// For how many milliseconds nothing has come while something was expected.
    pub silent_ms: u64,
    /// The other side is gone for good.
    pub lost: bool,
}

/// What lies in a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugChannel {
    /// Its number.
    pub number: u64,
    /// `sleeps`, `awake`; `inside`: somebody was inside whenever it was looked at; `orphan`: its thread has dropped it.
    pub state: String,
    /// Bios that wait for a clone.
    pub parked: u64,
    /// Completions that its thread has not taken.
    pub untaken: u64,
    /// Bios that were ended elsewhere lie in its mailbox.
    pub mail: bool,
    /// In how many milliseconds its first timer is due.
    pub timer_ms: Option<u64>,
    /// Bios that are out, those that are alike together.
    pub bios: Vec<DebugBios>,
}

/// Bios that are alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugBios {
    /// The device that they were sent to last; empty when it is not known any more.
    pub device: String,
    /// `read`, `write`, `flush`, `discard` or `write-zeroes`.
    pub op: String,
    /// 0: submitters'; else clones of that level, or a worker's own.
    pub level: u64,
    /// A worker's own.
    pub own: bool,
    /// How many.
    pub count: u64,
    /// Where the first of them begins.
    pub sector: u64,
    /// How long it is.
    pub sectors: u64,
}

/// Another part of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugPart {
    /// Its name.
    pub name: String,
    /// For people.
    pub lines: Vec<String>,
}

const MS: u64 = 1_000_000;

impl DebugDump {
    /// Looks at the devices of a registry. Takes some tenths of a second at most.
    pub fn of(registry: &Registry, commands: Vec<Underway>) -> Self {
        let Inspection { devices, beneath, channels, channels_left, workqueue, locks } = registry.inspect();
        let now = registry.domain().clock().now();
        let beneath = beneath.into_iter().map(|(name, out)| DebugBeneath {
            name,
            requests: out.requests as u64,
            queued: out.queued as u64,
            oldest_ms: out.oldest_ns / MS,
            silent_ms: out.silent_ns / MS,
            lost: out.lost,
        });
        Self {
            commands,
            locks,
            devices: devices.into_iter().map(device).collect(),
            beneath: beneath.collect(),
            channels: channels.into_iter().map(|used| channel(used, now)).collect(),
            channels_left: channels_left as u64,
            duties: workqueue.items as u64,
            duties_rung: workqueue.kicked as u64,
            parts: Vec::new(),
        }
    }
}

fn device(report: DeviceReport) -> DebugDevice {
    let doing = report.doing.into_iter().map(|(what, ns)| DebugActivity { what, elapsed_ms: ns / MS });
    DebugDevice {
        name: report.name,
        major: report.devt.major,
        minor: report.devt.minor,
        state: report.state.to_owned(),
        in_flight: report.in_flight,
        parked: report.parked,
        held: report.held as u64,
        arrived: report.arrived,
        doing: doing.collect(),
        notes: report.notes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

fn channel(used: ChannelUse, now: Nanos) -> DebugChannel {
    let ChannelUse { channel, bios } = used;
    let state = match &channel.content {
        None => "inside",
        Some(_) if channel.orphan => "orphan",
        Some(_) if channel.sleeping => "sleeps",
        Some(_) => "awake",
    };
    let bios = bios.into_iter().map(|group| DebugBios {
        device: group.device,
        op: op_name(group.op).to_owned(),
        level: group.level as u64,
        own: group.internal,
        count: group.count as u64,
        sector: group.first.0.get(),
        sectors: group.first.1.get(),
    });
    let content = channel.content.as_ref();
    DebugChannel {
        number: channel.number as u64,
        state: state.to_owned(),
        parked: content.map_or(0, |c| c.parked as u64),
        untaken: content.map_or(0, |c| c.untaken as u64),
        mail: channel.mail,
        timer_ms: content.and_then(|c| c.timer).map(|at| at.since(now) / MS),
        bios: bios.collect(),
    }
}

const fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write-zeroes",
    }
}

/// For people. What is idle is left out.
impl fmt::Display for DebugDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in &self.commands {
            write!(f, "command {} {}: for {}", c.command, c.device, Elapsed(c.elapsed_ms))?;
            match &c.waits_for {
                Some(what) => writeln!(f, ": {what}")?,
                None => writeln!(f)?,
            }
        }
        for lock in &self.locks {
            writeln!(f, "lock: {lock} is held")?;
        }
        for d in &self.devices {
            write!(f, "device {} ({}:{}): {}", d.name, d.major, d.minor, d.state)?;
            for (n, what) in [(d.in_flight, "in flight"), (d.parked, "waiting for clones"), (d.held, "held")] {
                if n > 0 {
                    write!(f, ", {n} {what}")?;
                }
            }
            writeln!(f)?;
            for doing in &d.doing {
                writeln!(f, "  {} for {}", doing.what, Elapsed(doing.elapsed_ms))?;
            }
            for (name, value) in &d.notes {
                writeln!(f, "  {name}: {value}")?;
            }
        }
        for b in self.beneath.iter().filter(|b| b.requests + b.queued > 0 || b.lost) {
            let lost = if b.lost { ", lost" } else { "" };
            let (oldest, silent) = (Elapsed(b.oldest_ms), Elapsed(b.silent_ms));
            let (requests, queued) = (b.requests, b.queued);
            writeln!(
                f,
                "beneath {}: {requests} requests under way, {queued} queued, the oldest for {oldest}, silent for {silent}{lost}",
                b.name
            )?;
        }
        for c in &self.channels {
            writeln!(f, "channel {}: {}{}", c.number, c.state, c.rest())?;
            for b in &c.bios {
                let device = if b.device.is_empty() { "?" } else { &b.device };
                let whose = if b.own { "own " } else { "" };
                let (count, op, level, at, len) = (b.count, &b.op, b.level, b.sector, b.sectors);
                writeln!(f, "  {count} {whose}{op} of level {level} at {device}, the first {at} + {len}")?;
            }
        }
        writeln!(
            f,
            "channels left: {}; keeper: {} duties, {} rung",
            self.channels_left, self.duties, self.duties_rung
        )?;
        for part in &self.parts {
            writeln!(f, "{}:", part.name)?;
            for line in &part.lines {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}

impl DebugChannel {
    fn rest(&self) -> String {
        let counts = [(self.parked, "waiting for clones"), (self.untaken, "not taken")];
        let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!(", {n} {what}"));
        let mail = self.mail.then(|| ", mail".to_owned());
        let timer = self.timer_ms.map(|ms| format!(", a timer in {}", Elapsed(ms)));
        counts.chain(mail).chain(timer).collect()
    }
}

/// A time as people read it.
struct Elapsed(u64);

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms < 10_000 => write!(f, "{ms} ms"),
            ms => write!(f, "{} s", ms / 1000),
        }
    }
}
