//! `udm log-writes`: what the log of a `log-writes` device holds, and its replay onto another device ([`replay`]).
//!
//! Options have the names that xfstests' `replay-log` has for them.

mod replay;

use crate::finder::{Device, Finder};
use crate::places::Places;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::{self, Write};
use udm_base::{Sector, Sectors};
use udm_formats::log_writes::{Flags, Reader, Record, SUPERBLOCK_BYTES, Superblock};

#[derive(Args)]
pub(crate) struct LogWritesArgs {
    #[command(subcommand)]
    command: LogWritesCommand,
}

#[derive(Subcommand)]
enum LogWritesCommand {
    /// Every entry: its number, where it stands, what it is, and where on the device
    List {
        #[command(flatten)]
        from: FromArgs,
        /// So many entries at most
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// The first entry that ends a replay: prints ENTRY@BLOCK, the block being that after it on the log
    Find {
        #[command(flatten)]
        from: FromArgs,
        #[command(flatten)]
        stop: StopArgs,
    },
    /// Do on a device what the log says, up to an entry, or with a check after each flush
    Replay(replay::ReplayArgs),
}

/// A log, and where in it to begin.
#[derive(Args)]
struct FromArgs {
    /// The log device: a file, a block device, a URI, or a device of the daemon
    #[arg(value_name = "LOG")]
    log: String,
    /// Begin with this entry; the first is 0
    #[arg(long, value_name = "ENTRY", default_value_t = 0)]
    start_entry: u64,
    /// Begin after the mark with this text
    #[arg(long, value_name = "MARK", conflicts_with = "start_entry")]
    start_mark: Option<String>,
}

/// Where to end: after the first entry for which one of these holds.
#[derive(Args)]
struct StopArgs {
    /// After so many entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// After the next flush
    #[arg(long)]
    next_flush: bool,
    /// After the next FUA write
    #[arg(long)]
    next_fua: bool,
    /// After the mark with this text
    #[arg(long, value_name = "MARK")]
    end_mark: Option<String>,
}

impl StopArgs {
    /// Whether `record`, the `count`-th from where it began, is the last.
    fn is_last(&self, record: &Record, count: u64) -> bool {
        let flags = record.entry.flags;
        self.limit == Some(count)
            || (self.next_flush && flags.contains(Flags::FLUSH))
            || (self.next_fua && flags.contains(Flags::FUA))
            || self.end_mark.as_ref().is_some_and(|mark| is_mark(record, mark))
    }

    fn is_empty(&self) -> bool {
        self.limit.is_none() && !self.next_flush && !self.next_fua && self.end_mark.is_none()
    }
}

fn is_mark(record: &Record, text: &str) -> bool {
    record.entry.flags == Flags::MARK && record.entry.mark == text.as_bytes()
}

/// A log that is being read.
struct Log {
    device: Device,
    superblock: Superblock,
    reader: Reader,
}

impl Log {
    /// Opens it, and goes to where the arguments say.
    fn open(finder: &Finder, from: &FromArgs) -> Result<Self, String> {
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

    fn no_mark(&self, mark: &str) -> String {
        format!("{}: there is no mark {mark:?}", self.device.name)
    }

    /// The next entry; `None` at the end.
    fn next(&mut self) -> Result<Option<Record>, String> {
        let Some((at, len)) = self.reader.want() else { return Ok(None) };
        let wrong = |e| format!("{}: {e}", self.device.name);
        self.reader.check().map_err(wrong)?;
        let bytes = self.device.read(at, len)?;
        self.reader.feed(&bytes).map(Some).map_err(wrong)
    }

    /// A place on the log in its own blocks, as `replay-log` counts.
    fn in_blocks(&self, at: Sector) -> u64 {
        self.superblock.block.in_units(at - Sector::ZERO)
    }
}

/// Runs the command. Returns the exit code.
pub(crate) fn run(args: &LogWritesArgs, places: &Result<Places, String>) -> Result<u8, String> {
    let finder = Finder::new(places);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = match &args.command {
        LogWritesCommand::List { from, limit, json } => {
            let log = Log::open(&finder, from)?;
            if *json { list_json(log, *limit, &mut out)? } else { list(log, *limit, &mut out)? }
        }
        LogWritesCommand::Find { from, stop } => {
            if stop.is_empty() {
                return Err("expected --limit, --next-flush, --next-fua or --end-mark: what to find".into());
            }
            find(Log::open(&finder, from)?, stop, &mut out)?
        }
        LogWritesCommand::Replay(args) => replay::run(args, &finder, &mut out)?,
    };
    match done.and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(format!("writing the result: {e}")),
        _ => Ok(0),
    }
}

fn list(mut log: Log, limit: Option<u64>, out: &mut impl Write) -> Result<io::Result<()>, String> {
    let mut head = writeln!(out, "{:>10} {:>12} {:>14} {:>12} {:>12}  MARK", "ENTRY", "AT", "FLAGS", "START", "LENGTH");
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let Some(r) = log.next()? else { break };
        let mark = String::from_utf8_lossy(&r.entry.mark);
        let (index, at, flags) = (r.index, r.at.get(), r.entry.flags.to_string());
        let line = format!("{index:>10} {at:>12} {flags:>14} {:>12} {:>12}  {mark}", r.sector.get(), r.sectors.get());
        head = head.and_then(|()| writeln!(out, "{}", line.trim_end()));
        if head.is_err() {
            break;
        }
    }
    Ok(head)
}

fn list_json(mut log: Log, limit: Option<u64>, out: &mut impl Write) -> Result<io::Result<()>, String> {
    let (block, entries) = (log.superblock.block.bytes(), log.superblock.entries);
    let mut rows: Vec<Value> = Vec::new();
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let Some(r) = log.next()? else { break };
        let mark = (r.entry.flags == Flags::MARK).then(|| String::from_utf8_lossy(&r.entry.mark).into_owned());
        rows.push(json!({
            "entry": r.index, "at": r.at.get(), "flags": r.entry.flags.to_string(),
            "start": r.sector.get(), "length": r.sectors.get(), "mark": mark,
        }));
    }
    Ok(writeln!(out, "{}", json!({"block_size": block, "entries": entries, "list": rows})))
}

fn find(mut log: Log, stop: &StopArgs, out: &mut impl Write) -> Result<io::Result<()>, String> {
    let mut count = 0;
    while let Some(record) = log.next()? {
        count += 1;
        if stop.is_last(&record, count) {
            return Ok(writeln!(out, "{}@{}", record.index, log.in_blocks(record.end())));
        }
    }
    Err(format!("{}: no such entry in {} from there on", log.device.name, log.superblock.entries))
}
