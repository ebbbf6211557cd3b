//! What `tests/instructions.rs` runs under callgrind: `instructions DEVICE BS DEPTH IOS [SETTING]…` does random reads
//! of one device of [`STACK`], of `thin`, `snapshot`, `origin` or `loop` (on a file in memory), and nothing else in
//! `udm_bench::job::run`. With `write` it writes, with `poll` requests are polled for.

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
    let polled = load.completion == CompletionMode::Poll;
    if *device == "thin" {
        let (_pool, subject) = thin(&domain, polled)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    if matches!(*device, "origin" | "snapshot") {
        let (_stack, subject) = origin(&domain, device, polled)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    if *device == "loop" {
        let folder = tempfile::TempDir::new_in("/dev/shm")?;
        let file = folder.path().join("file");
        std::fs::write(&file, vec![7; 64 << 20])?;
        let stack = Stack::new(&domain, &format!("loop,,,,0 131072 loop {} 0", file.display()))?;
        measure(&domain, &stack.subject("loop")?, &load)?;
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
fn thin(domain: &Domain, polled: bool) -> Result<(udm_stack::Stack, Subject), Box<dyn std::error::Error>> {
    const BLOCK: u64 = 128;
    const BLOCKS: u64 = 256;
    let stack = udm_stack::Stack::new(
        domain,
        &format!(
            "meta,,,,0 32768 ram;data,,,,{};pool,,,,0 65536 thin-pool /dev/mapper/meta /dev/mapper/data 128 0",
            memory(65536, polled)
        ),
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

/// The table of a device in memory: at hand at once, or to be polled for.
fn memory(sectors: u64, polled: bool) -> String {
    match polled {
        true => format!("0 {sectors} linear null:size={}K:memory=1:poll_queues=1 0", sectors / 2),
        false => format!("0 {sectors} ram"),
    }
}

/// An origin in memory with a snapshot that has all its chunks, and one of the two.
fn origin(
    domain: &Domain,
    device: &str,
    polled: bool,
) -> Result<(udm_stack::Stack, Subject), Box<dyn std::error::Error>> {
    const SECTORS: u64 = 65536;
    let stack = udm_stack::Stack::new(
        domain,
        &format!(
            "base,,,,{};cow,,,,{};snapshot,,,,0 65536 snapshot /dev/mapper/base /dev/mapper/cow P 8;\
             origin,,,,0 65536 snapshot-origin /dev/mapper/base",
            memory(65536, polled),
            memory(131072, polled)
        ),
    )?;
    let md = stack.device("origin")?;
    let io = BlockingIo::new(domain, md.clone())?;
    let failed = |status| format!("writing the origin: {status:?}");
    for sector in (0..SECTORS).step_by(1024) {
        io.write(Sector::new(sector), &[7; 512 << 10][..], OpFlags::NONE).map_err(failed)?;
    }
    let subject = Subject::device(device, stack.device(device)?);
    Ok((stack, subject))
}
