//! `udm cut`: takes the power from a device, or does on another what a cut has done.

use crate::connect;
use crate::finder::Finder;
use crate::places::Places;
use clap::Args;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use udm_base::Sectors;
use udm_control::second::{CutAnswer, Request};

#[derive(Args)]
pub(crate) struct CutArgs {
    /// The device: one with a power-cut table; with --replay, what is to be written
    name: String,
    /// By which chance decides what is left; without it one is chosen, and told
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Keep the writes that no flush had seen in this new file, for `--replay` and `udm log-writes list`
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Do what the cut of this record and --seed has done on a device that holds what was there before it
    #[arg(long, value_name = "RECORD", requires = "seed")]
    replay: Option<PathBuf>,
    /// For programs
    #[arg(long, conflicts_with = "replay")]
    json: bool,
}

/// Runs the command. Returns the exit code.
pub(crate) fn run(args: &CutArgs, places: &Result<Places, String>) -> Result<u8, String> {
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    match &args.replay {
        Some(record) => replay(args, record, seed, &Finder::new(places)),
        None => cut(args, seed, places.as_ref().map_err(Clone::clone)?),
    }
}

fn cut(args: &CutArgs, seed: u64, places: &Places) -> Result<u8, String> {
    let absolute = |path: &PathBuf| {
        // The daemon's directory is another one.
        let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
        path.into_os_string().into_string().map_err(|path| format!("{path:?}: expected a path in UTF-8"))
    };
    let record = args.record.as_ref().map(absolute).transpose()?;
    let mut client = connect::second_or_start(places).map_err(|e| e.to_string())?;
    let answer = client.ask(&Request::Cut { name: args.name.clone(), seed, record }).map_err(|e| e.to_string())?;
    if args.json {
        println!("{answer}");
        return Ok(0);
    }
    let CutAnswer { seed, writes, whole, torn, lost, disconnected, .. } =
        serde_json::from_value(answer).map_err(|e| format!("the daemon's answer cannot be understood: {e}"))?;
    println!("seed {seed}: of {writes} unflushed writes {whole} are whole, {torn} torn, {lost} lost");
    if disconnected > 0 {
        println!("{disconnected} clients were hung up on");
    }
    Ok(0)
}

fn replay(args: &CutArgs, record: &PathBuf, seed: u64, finder: &Finder) -> Result<u8, String> {
    let told = |e: &dyn std::fmt::Display| format!("{}: {e}", record.display());
    let bytes = std::fs::read(record).map_err(|e| told(&e))?;
    let survivors = udm_targets::power_cut::replay(&bytes, seed).map_err(|e| told(&e))?;
    let device = finder.open_to_write(&args.name)?;
    let end = device.io.sectors().from_start();
    let beyond = |(at, _, len): &&(_, _, Sectors)| udm_base::Sector::checked_add(*at, *len).is_none_or(|to| to > end);
    if let Some((at, _, len)) = survivors.iter().find(beyond) {
        return Err(told(&format!("a write at sector {at} + {len} lies past the end of {} at {end}", device.name)));
    }
    let count = survivors.len();
    for (at, data, len) in survivors {
        match data {
            Some(data) => device.write(at, &data)?,
            None => device.zero(at, len)?,
        }
    }
    device.flush()?;
    println!("seed {seed}: {count} ranges are written");
    Ok(0)
}
