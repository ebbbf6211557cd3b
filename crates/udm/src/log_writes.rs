//! `udm log-writes`: what the log of a `log-writes` device holds, and its replay onto another device ([`replay`]).
//!
//! Options have the names that xfstests' `replay-log` has for them.

mod log;
mod replay;

use crate::finder::Finder;
use crate::places::Places;
use clap::{Args, Subcommand};
use log::{FromArgs, Log, StopArgs};
use serde_json::{Value, json};
use std::io::{self, Write};
use udm_formats::log_writes::Flags;

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
