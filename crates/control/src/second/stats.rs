//! What a device did, as `udm info --json` shows it.

use super::NodeEntry;
use serde::{Deserialize, Serialize};
use udm_core::MappedDevice;
use udm_io::BlockDevice;

/// A device's state and counters since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Its name.
    pub name: String,
    /// Its uuid; empty when it has none.
    pub uuid: String,
    /// Its number.
    pub major: u32,
    /// Its number.
    pub minor: u32,
    /// How many hold it open.
    pub open: u32,
    /// Events so far.
    pub events: u32,
    /// `ACTIVE` or `SUSPENDED`, as `dmsetup info` has it.
    pub state: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether bios may be polled for: every device beneath can.
    pub io_poll: bool,
    /// Bios that went on as they were.
    pub remapped: u64,
    /// Clones made.
    pub cloned: u64,
    /// Writes of zeroes that a thin pool completed without allocating.
    pub zero_skipped_bios: u64,
    /// Their bytes.
    pub zero_skipped_bytes: u64,
    /// Bios that were polled for.
    pub polls: PollStats,
    /// Reads that arrived.
    pub reads: u64,
    /// Their sectors.
    pub read_sectors: u64,
    /// Writes that arrived.
    pub writes: u64,
    /// Their sectors.
    pub write_sectors: u64,
    /// Flushes, discards and write zeroes that arrived.
    pub others: u64,
    /// Sectors, for dmsetup's column.
    pub read_ahead: u32,
    /// The option.
    pub clone_always: bool,
    /// The option.
    pub compile: bool,
    /// Why the device has an error table in the place of its own: it could not be made again after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Its node in the file system, if it has one.
    pub node: Option<NodeEntry>,
    /// The option, in microseconds; none: as the daemon says.
    pub poll_budget: Option<u32>,
}

/// Bios that were polled for, by which queues were looked into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PollStats {
    /// The queue that the cookie names.
    pub fast: u64,
    /// The channel's queues.
    pub sub: u64,
    /// All queues.
    pub default: u64,
}

impl DeviceStats {
    /// The device's now.
    pub fn of(md: &MappedDevice) -> Self {
        let (info, totals, skips) = (md.info(), md.totals(), md.zero_skips());
        Self {
            name: info.name,
            uuid: info.uuid,
            major: info.devt.major,
            minor: info.devt.minor,
            open: info.open_count,
            events: info.event_nr,
            state: if info.suspended { "SUSPENDED" } else { "ACTIVE" }.to_owned(),
            read_only: info.read_only,
            io_poll: md.can_poll(),
            remapped: totals.remapped,
            cloned: totals.cloned,
            zero_skipped_bios: skips.bios,
            zero_skipped_bytes: skips.bytes,
            polls: PollStats { fast: totals.polls.fast, sub: totals.polls.sub, default: totals.polls.default },
            reads: totals.reads,
            read_sectors: totals.read_sectors,
            writes: totals.writes,
            write_sectors: totals.write_sectors,
            others: totals.others,
            read_ahead: md.read_ahead(),
            clone_always: md.clone_always(),
            compile: md.compile(),
            lost: None,
            node: None,
            poll_budget: md.chosen_poll_budget(),
        }
    }
}
