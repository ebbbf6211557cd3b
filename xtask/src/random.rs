//! `cargo xtask random`: the property tests with other inputs than those of the default suite.

use crate::cargo;
use std::path::Path;
use std::process::ExitCode;

/// What `cargo xtask ci` gives proptest, so that a change is judged by the same inputs each time. Other seeds are
/// looked at here.
pub const DEFAULT_SEED: u64 = 1;

const USAGE: &str = "\
usage: cargo xtask random [--rounds N] [--from SEED] [PACKAGE…]

  --rounds N   so many runs, each with the next seed [default: 20]
  --from SEED  the first seed [default: 2]
  PACKAGE      only these packages [default: those with property tests]

Stops at the first failure and says how to run that seed again. What it finds becomes a named test.";

/// Packages with property tests.
const PACKAGES: [&str; 7] =
    ["udm-base", "udm-client", "udm-control", "udm-export", "udm-formats", "udm-pdata", "udm-sim"];

/// Runs the property tests of the workspace at `root` with one seed after the other.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let (mut rounds, mut from) = (20, DEFAULT_SEED + 1);
    let mut packages = Vec::new();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let number = match option.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            "--rounds" => &mut rounds,
            "--from" => &mut from,
            word if word.starts_with('-') => return refuse(&format!("{word}: no such option")),
            package => {
                packages.push(package);
                continue;
            }
        };
        match options.next().map(|word| (word, word.parse())) {
            Some((_, Ok(found))) => *number = found,
            found => return refuse(&format!("{option} {}: expected a number", found.map_or("", |(word, _)| word))),
        }
    }
    if packages.is_empty() {
        packages.extend(PACKAGES);
    }
    let mut args = vec!["test", "--quiet", "--profile", "fuzz", "--lib", "--tests"];
    packages.iter().for_each(|package| args.extend(["--package", package]));
    for seed in (from..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        println!("== seed {seed}");
        let variables = [("PROPTEST_RNG_SEED", seed.to_string())];
        if cargo::run(root, &args, &variables) != ExitCode::SUCCESS {
            eprintln!("xtask random: again by `cargo xtask random --rounds 1 --from {seed} {}`", packages.join(" "));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn refuse(what: &str) -> ExitCode {
    eprintln!("xtask random: {what}\n\n{USAGE}");
    ExitCode::FAILURE
}
