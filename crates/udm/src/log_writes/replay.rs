//! Doing on a device what a log says.
//!
//! What is done is not undone: whoever wants several states of the device in one run has them one after the other, by
//! `--check`. A check that changes the device, as a mount does, works on a copy.

use super::log::{FromArgs, Log, StopArgs};
use crate::finder::{Device, Finder};
use clap::Args;
use std::io::{self, Write};
use std::process::Command;
use std::str::FromStr;
use udm_base::{SECTOR_SIZE, Sector, Sectors};
use udm_formats::log_writes::{Flags, Record};

/// How much is copied at once.
const PIECE: Sectors = Sectors::in_bytes(1 << 20);
/// A discard that can only be done by writing zeroes is left out from this length on, as `replay-log` does.
const MOST_ZEROES: Sectors = Sectors::in_bytes(128 << 20);

#[derive(Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    from: FromArgs,
    /// The device that is written: a file, a block device, a URI, or a device of the daemon
    #[arg(value_name = "DEVICE")]
    device: String,
    #[command(flatten)]
    stop: StopArgs,
    /// Run this with a shell, when all before it is on the device; it ends the replay with any exit code but 0. It
    /// finds DEVICE in $UDM_DEVICE and the entry's number in $UDM_ENTRY
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,
    /// When: after each flush, fua, discard, mark, or that many entries; several with commas
    #[arg(long, value_name = "WHEN", requires = "check", value_delimiter = ',', default_value = "flush")]
    each: Vec<When>,
    /// Leave discards out
    #[arg(long)]
    no_discard: bool,
    /// Leave entries out that end before this sector
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    start_sector: u64,
    /// Leave entries out that begin after this sector
    #[arg(long, value_name = "SECTOR", default_value_t = u64::MAX)]
    end_sector: u64,
    /// Print the entries that are replayed; twice, also those that are left out
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// After which entries there is a check.
#[derive(Clone, Copy, Debug)]
enum When {
    Flags(Flags),
    Entries(u64),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "flush" => Self::Flags(Flags::FLUSH),
            "fua" => Self::Flags(Flags::FUA),
            "discard" => Self::Flags(Flags::DISCARD),
            "mark" => Self::Flags(Flags::MARK),
            number => match number.parse() {
                Ok(n) if n > 0 => Self::Entries(n),
                _ => return Err("expected flush, fua, discard, mark, or a number from 1 on".into()),
            },
        })
    }
}

/// Replays. What is printed is given back as it went.
pub(super) fn run(args: &ReplayArgs, finder: &Finder, out: &mut impl Write) -> Result<io::Result<()>, String> {
    let mut log = Log::open(finder, &args.from)?;
    let device = finder.open_to_write(&args.device)?;
    let (first, mut count, mut checks, mut left_out) = (log.reader.index(), 0, 0u64, 0u64);
    let mut printed = Ok(());
    while let Some(record) = log.next()? {
        count += 1;
        let is_out = args.is_out(&record);
        if args.verbose > u8::from(is_out) {
            let word = if is_out { "left out" } else { "replaying" };
            let Record { index, sector, sectors, entry, .. } = &record;
            printed = printed
                .and_then(|()| writeln!(out, "{word} {index}: sector {sector}, {sectors} sectors, {}", entry.flags));
        }
        if !is_out && !apply(&log, &record, &device)? {
            left_out += 1;
        }
        if let Some(command) = args.check.as_ref().filter(|_| args.each.iter().any(|when| when.is_now(&record, count)))
        {
            printed = printed.and_then(|()| out.flush());
            device.flush()?;
            check(command, args, record.index)?;
            checks += 1;
        }
        if args.stop.is_last(&record, count) {
            break;
        }
    }
    device.flush()?;
    if left_out > 0 {
        eprintln!("udm: {left_out} discards of more than {MOST_ZEROES} sectors were left out: the device has none");
    }
    let last = log.reader.index();
    Ok(printed.and_then(|()| match args.check {
        _ if count == 0 => writeln!(out, "no entries"),
        None => writeln!(out, "entries {first} to {} replayed", last - 1),
        Some(_) => writeln!(out, "entries {first} to {} replayed, {checks} checks", last - 1),
    }))
}

impl ReplayArgs {
    fn is_out(&self, record: &Record) -> bool {
        let (start, len) = (record.sector.get(), record.sectors.get());
        let is_elsewhere = len > 0 && (start + len <= self.start_sector || start > self.end_sector);
        is_elsewhere || (self.no_discard && record.entry.flags.contains(Flags::DISCARD))
    }
}

impl When {
    fn is_now(self, record: &Record, count: u64) -> bool {
        match self {
            Self::Flags(flags) => record.entry.flags.intersects(flags),
            Self::Entries(n) => count.is_multiple_of(n),
        }
    }
}

/// Does what an entry says. False when it was left out because the device cannot.
fn apply(log: &Log, record: &Record, device: &Device) -> Result<bool, String> {
    let place = || format!("{}: entry {} at sector {}", log.device.name, record.index, record.at);
    let end = device.io.sectors().from_start();
    if record.sector + record.sectors > end {
        return Err(format!(
            "{}: sector {} + {} lies past the end of {} at {end}: expected a device as large as that which was logged",
            place(),
            record.sector,
            record.sectors,
            device.name
        ));
    }
    if record.entry.flags.contains(Flags::DISCARD) {
        return discard(record, device);
    }
    let unaligned = |at: Sector, len: Sectors| {
        let block = u64::from(device.limits.logical_block_size) / SECTOR_SIZE as u64;
        !at.get().is_multiple_of(block) || !len.get().is_multiple_of(block)
    };
    if unaligned(record.sector, record.sectors) {
        let block = device.limits.logical_block_size;
        return Err(format!("{}: it is of no whole blocks of {}, which have {block} bytes", place(), device.name));
    }
    let mut done = Sectors::ZERO;
    while done < record.data.1 {
        let len = PIECE.min(record.data.1 - done);
        device.write(record.sector + done, &log.device.read(record.data.0 + done, len)?)?;
        done += len;
    }
    Ok(true)
}

/// Makes the range zeroes, where the device can, so that a replay is the same every time; else discards it.
fn discard(record: &Record, device: &Device) -> Result<bool, String> {
    let limits = &device.limits;
    if !limits.max_write_zeroes.is_zero() || record.sectors <= MOST_ZEROES {
        device.zero(record.sector, record.sectors)?;
    } else if !limits.max_discard.is_zero() {
        device.discard(record.sector, record.sectors)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn check(command: &str, args: &ReplayArgs, entry: u64) -> Result<(), String> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("UDM_DEVICE", &args.device).env("UDM_ENTRY", entry.to_string());
    match shell.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the check failed after entry {entry}: {command}: {status}")),
        Err(e) => Err(format!("the check cannot be run: /bin/sh: {e}")),
    }
}
