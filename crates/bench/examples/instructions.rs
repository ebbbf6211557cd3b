//! What `tests/instructions.rs` runs under callgrind: `instructions DEVICE BS DEPTH IOS [SETTING]…` does random reads
//! of one device of [`STACK`], and nothing else in `udm_bench::job::run`.

use std::process::ExitCode;
use udm_bench::{Fill, Lat, Load, Rw, Setting, Stack, measure};
use udm_io::Domain;

/// Every device that is counted. All sizes are powers of two, so that stripes need no division.
const STACK: &str = "n,,,,0 131072 linear null:size=64M 0;n2,,,,0 131072 linear /dev/mapper/n 0;\
    n3,,,,0 131072 linear /dev/mapper/n2 0;n8,,,,0 131072 linear /dev/mapper/n3 0;\
    s,,,,0 131072 striped 2 128 null:size=32M 0 null:size=32M 0;\
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
    let load = Load {
        rw: Rw::RandRead,
        bs: bs.parse()?,
        iodepth: depth.parse()?,
        number_ios: Some(ios.parse()?),
        runtime: None,
        lat: Lat::Off,
        fill: Fill::No,
        ..Load::default()
    };
    if *device == "null" {
        let subject = udm_bench::Subject::open(&domain, "null", "null:size=64M", true)?;
        measure(&domain, &subject, &load)?;
        return Ok(());
    }
    let stack = Stack::new(&domain, STACK)?;
    for setting in settings {
        match *setting {
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
