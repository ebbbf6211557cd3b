//! A log that is being read, and the arguments that say where it begins and ends.

use crate::finder::{Device, Finder};
use clap::Args;
use udm_base::{Sector, Sectors};
use udm_formats::log_writes::{Flags, Reader, Record, SUPERBLOCK_BYTES, Superblock};

/// A log, and where in it to begin.
#[derive(Args)]
pub(super) struct FromArgs {
    /// The log device: a file, a block device, a URI, or a device of the daemon
    #[arg(value_name = "LOG")]
    pub(super) log: String,
    /// Begin with this entry; the first is 0
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    pub(super) start_entry: u64,
    /// Begin after the mark with this text
    #[arg(long, value_name = "MARK", conflicts_with = "start_entry")]
    pub(super) start_mark: Option<String>,
}

/// Where to end: after the first entry for which one of these holds.
#[derive(Args)]
pub(super) struct StopArgs {
    /// After so many entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,
    /// After the next flush
    #[arg(long)]
    pub(super) next_flush: bool,
    /// After the next FUA write
    #[arg(long)]
    pub(super) next_fua: bool,
    /// After the mark with this text
    #[arg(long, value_name = "MARK")]
    pub(super) end_mark: Option<String>,
}

impl StopArgs {
    /// Whether `record`, the `count`-th from where it began, is the last.
    pub(super) fn is_last(&self, record: &Record, count: u64) -> bool {
        let flags = record.entry.flags;
        self.limit == Some(count)
            || (self.next_flush && flags.contains(Flags::FLUSH))
            || (self.next_fua && flags.contains(Flags::FUA))
            || self.end_mark.as_ref().is_some_and(|mark| is_mark(record, mark))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limit.is_none() && !self.next_flush && !self.next_fua && self.end_mark.is_none()
    }
}

fn is_mark(record: &Record, text: &str) -> bool {
    record.entry.flags == Flags::MARK && record.entry.mark == text.as_bytes()
}

/// A log that is being read.
pub(super) struct Log {
    pub(super) device: Device,
    pub(super) superblock: Superblock,
    pub(super) reader: Reader,
}

impl Log {
    /// Opens it, and goes to where the arguments say.
    pub(super) fn open(finder: &Finder, from: &FromArgs) -> Result<Self, String> {
        let device = finder.open(&from.log)?;
        let sectors = device.io.sectors();
        let start = device.read(Sector::ZERO, sectors.min(Sectors::covering(SUPERBLOCK_BYTES as u64)))?;
        let superblock = Superblock::decode(&start, sectors).map_err(|e| format!("{}: {e}", device.name))?;
        let reader = Reader::new(superblock, sectors);
        let mut log = Self { device, superblock, reader };
        if let Some(mark) = &from.start_mark {
            while !is_mark(&log.next()?.ok_or_else(|| log.no_mark(mark))?, mark) {}
        } else {
            for _ in 0..from.start_entry {
                if log.next()?.is_none() {
                    let (name, entries) = (&log.device.name, superblock.entries);
                    return Err(format!("{name}: --start-entry {}: the log has {entries} entries", from.start_entry));
                }
            }
        }
        Ok(log)
    }

    pub(super) fn no_mark(&self, mark: &str) -> String {
        format!("{}: there is no mark {mark:?}", self.device.name)
    }

    /// The next entry; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, String> {
        let Some((at, len)) = self.reader.want() else { return Ok(None) };
        let wrong = |e| format!("{}: {e}", self.device.name);
        self.reader.check().map_err(wrong)?;
        let bytes = self.device.read(at, len)?;
        self.reader.feed(&bytes).map(Some).map_err(wrong)
    }

    /// A place on the log in its own blocks, as `replay-log` counts.
    pub(super) fn in_blocks(&self, at: Sector) -> u64 {
        self.superblock.block.in_units(at - Sector::ZERO)
    }
}
