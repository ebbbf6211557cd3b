//! What `tests/instructions.rs` runs under callgrind: `instructions DEVICE BS DEPTH IOS [SETTING]…` does random reads
//! of one device of [`STACK`], of `thin` or `origin`, and nothing else in `udm_bench::job::run`. With `write` it writes,
//! with `poll` requests are polled for.

use std::path::Path;
use std::process::ExitCode;
use udm_base::Sector;
use udm_bench::{CompletionMode, Fill, Lat, Load, Rw, Setting, Stack, Subject, measure};
use udm_core::{SuspendOptions, TableLine};
use udm_io::{BlockingIo, Domain, OpFlags};

/// Every device that is counted. All sizes are powers of two, so that stripes need no division.
const STACK: &str = "n,,,,0 131072 linear null:size=64M 0;n2,,,,0 131072 linear /dev/mapper/n 0;\
    n3,,,,0 131072 linear /dev/mapper/n2 0;n8,,,,0 131072 linear /dev/mapper/n3 0;\
    s,,,,0 131072 striped 2 128 null:size=32M 0 null:size=32M 0;\
    p,,,,0 131072 linear null:size=64M:poll_queues=1 0;p2,,,,0 131072 linear /dev/mapper/p 0;\
    p3,,,,0 32768 linear null:size=16M:poll_queues=1 0,32768 32768 linear null:size=16M:poll_queues=1 0,\
    65536 65536 linear null:size=32M:poll_queues=1 0;\
    ps,,,,0 131072 striped 2 128 null:size=32M:poll_queues=1 0 null:size=32M:poll_queues=1 0;\
    r,,,,0 131072 ram;l,,,,0 131072 linear /dev/mapper/r 0;z,,,,0 131072 zero";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("instructions: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let [device, bs, depth, ios, settings @ ..] = words else {
        return Err("expected DEVICE BS DEPTH IOS [SETTING]…".into());
    };
    let domain = Domain::default();
    let (writes, settings): (Vec<&str>, Vec<&str>) = settings.iter().partition(|s| **s == "write");
    let (polls, settings): (Vec<&str>, Vec<&str>) = settings.into_iter().partition(|s| *s == "poll");
    let load = Load {
        completion: if polls.is_empty() { CompletionMode::Interrupt } else { CompletionMode::Poll },
        rw: if writes.is_empty() { Rw::RandRead } else { Rw::RandWrite },
        bs: bs.parse()?,
        iodepth: depth.parse()?,
        number_ios: Some(ios.parse()?),
        runtime: None,
        lat: Lat::Off,
        fill: Fill::No,
        ..Load::default()
    };
    if *device == "null" {
        let subject = Subject::open(&domain, "null", "null:size=64M:poll_queues=1", true)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    if *device == "thin" {
        let (_pool, subject) = thin(&domain)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    if *device == "origin" {
        let (_stack, subject) = origin(&domain)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    let stack = Stack::new(&domain, STACK)?;
    for setting in settings {
        match setting {
            // Each device by itself, as if its neighbours could not be looked through.
            "compile=0" => ["n", "n2", "n3", "n8", "s", "r", "l", "z"]
                .iter()
                .try_for_each(|name| stack.set(name, Setting::Compile(false)))?,
            "clone_always=1" => stack.set(device, Setting::CloneAlways(true))?,
            other => return Err(format!("no setting {other:?}").into()),
        }
    }
    measure(&domain, &stack.subject(device)?, &load)?;
    Ok(())
}

/// A thin volume in memory, every block of which has data, and its pool.
fn thin(domain: &Domain) -> Result<(udm_stack::Stack, Subject), Box<dyn std::error::Error>> {
    const BLOCK: u64 = 128;
    const BLOCKS: u64 = 256;
    let stack = udm_stack::Stack::new(
        domain,
        "meta,,,,0 32768 ram;data,,,,0 65536 ram;pool,,,,0 65536 thin-pool /dev/mapper/meta /dev/mapper/data 128 0",
    )?;
    stack.device("pool")?.message(Sector::ZERO, &["create_thin", "0"]).map_err(|e| e.message)?;
    let md = stack.registry().create("thin", "", None).map_err(|e| e.message)?;
    let table = TableLine::parse_all(&format!("0 {} thin /dev/mapper/pool 0", BLOCK * BLOCKS))?;
    md.load(&table, false, Path::new("/")).map_err(|e| e.message)?;
    md.resume(SuspendOptions::default(), &|| false).map_err(|e| e.message)?;
    let io = BlockingIo::new(domain, md.clone())?;
    let failed = |status| format!("writing the volume: {status:?}");
    for block in 0..BLOCKS {
        io.write(Sector::new(block * BLOCK), &[7; 512], OpFlags::NONE).map_err(failed)?;
    }
    // Committed, so that nothing is left to be done meanwhile.
    io.flush().map_err(failed)?;
    Ok((stack, Subject::device("thin", md)))
}

/// An origin in memory with a snapshot that has all its chunks.
fn origin(domain: &Domain) -> Result<(udm_stack::Stack, Subject), Box<dyn std::error::Error>> {
    const SECTORS: u64 = 65536;
    let stack = udm_stack::Stack::new(
        domain,
        "base,,,,0 65536 ram;cow,,,,0 131072 ram;snap,,,,0 65536 snapshot /dev/mapper/base /dev/mapper/cow P 8;\
         origin,,,,0 65536 snapshot-origin /dev/mapper/base",
    )?;
    let md = stack.device("origin")?;
    let io = BlockingIo::new(domain, md.clone())?;
    let failed = |status| format!("writing the origin: {status:?}");
    for sector in (0..SECTORS).step_by(1024) {
        io.write(Sector::new(sector), &[7; 512 << 10][..], OpFlags::NONE).map_err(failed)?;
    }
    Ok((stack, Subject::device("origin", md)))
}
