//! `cargo xtask crash`: power cuts of pools and snapshots in the simulator, as many as one has time for.

use crate::cargo;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask crash [--points N] [--seed N] [--only SEED] [NAME]

  --points N   cuts that each test looks at [default: 100000]
  --seed N     begin so many seeds later, to look at others than last time
  --only SEED  one seed, as a failure names it; with the NAME of its test
  NAME         only tests whose names have this in them";

/// Runs the crash tests of the workspace at `root`, optimised and with every assertion on.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let mut variables = Vec::new();
    let mut name = None;
    let mut points = "100000".to_owned();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let variable = match option.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            "--points" => "UDM_CRASH_POINTS",
            "--seed" => "UDM_CRASH_SEED",
            "--only" => "UDM_CRASH_ONLY",
            word if word.starts_with('-') || name.is_some() => return refuse(&format!("{word}: no such option")),
            word => {
                name = Some(word);
                continue;
            }
        };
        match options.next() {
            Some(number) if number.parse::<u64>().is_ok() && variable == "UDM_CRASH_POINTS" => {
                points.clone_from(number)
            }
            Some(number) if number.parse::<u64>().is_ok() => variables.push((variable, number.clone())),
            found => return refuse(&format!("{option} {}: expected a number", found.map_or("", String::as_str))),
        }
    }
    variables.push(("UDM_CRASH_POINTS", points));
    let mut args = vec!["test", "--package", "udm-targets", "--profile", "fuzz", "--test", "*_crash", "--"];
    args.extend(name);
    args.push("--nocapture");
    cargo::run(root, &args, &variables)
}

fn refuse(what: &str) -> ExitCode {
    eprintln!("xtask crash: {what}\n\n{USAGE}");
    ExitCode::FAILURE
}
