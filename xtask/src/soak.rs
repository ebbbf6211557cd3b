//! `cargo xtask soak`: builds the daemon and the soak, and hands its options on.

use crate::cargo;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Runs the soak of the workspace at `root`, on the daemon of this tree unless `--udm` names another. `--release`
/// builds both as they are installed.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    if options.iter().any(|word| word == "--simulated") {
        return simulated(root, options);
    }
    let release = options.iter().any(|word| word == "--release");
    let given = names_a_daemon(options);
    let asks = options.iter().any(|word| matches!(word.as_str(), "--help" | "-h" | "--list"));
    let mut build = vec!["build", "--quiet", "--package", "udm-soak"];
    if !given && !asks {
        build.extend(["--package", "udm"]);
    }
    if release {
        build.push("--release");
    }
    if cargo::run(root, &build, &[]) != ExitCode::SUCCESS {
        return ExitCode::FAILURE;
    }
    start(root, if release { "release" } else { "debug" }, options)
}

/// Runs the soak that was built in that profile, on the daemon beside it unless the options name another.
pub(crate) fn start(root: &Path, profile: &str, options: &[String]) -> ExitCode {
    let built = cargo::target_directory(root).join(profile);
    // Not through cargo, which would keep its lock for the hours that a soak may take.
    let mut soak = Command::new(built.join("udm-soak"));
    if !names_a_daemon(options) {
        soak.arg("--udm").arg(built.join("udm"));
    }
    soak.args(options.iter().filter(|word| *word != "--release")).stdin(Stdio::null());
    match soak.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: the soak cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

fn names_a_daemon(options: &[String]) -> bool {
    options.iter().any(|word| word == "--udm" || word.starts_with("--udm="))
}

const SIMULATED: &str = "\
usage: cargo xtask soak --simulated [--seeds N] [--seed SEED] [--without NAMES]

  --seeds N        so many lives, each of the next seed [default: 1000]
  --seed SEED      the first seed [default: 1]
  --without NAMES  leave these changes away: see CHANGES in crates/targets/tests/simulated_soak/life.rs, and suspend, suspend-noflush";

/// Lives of a stack in the simulator, optimised and with every assertion on.
fn simulated(root: &Path, options: &[String]) -> ExitCode {
    let (mut seeds, mut seed, mut without) = (1000, 1, None);
    let mut words = options.iter().filter(|word| *word != "--simulated");
    while let Some(word) = words.next() {
        let number = match word.as_str() {
            "--help" | "-h" => {
                println!("{SIMULATED}");
                return ExitCode::SUCCESS;
            }
            "--seeds" => &mut seeds,
            "--seed" => &mut seed,
            "--without" => {
                without = words.next();
                continue;
            }
            word => return refuse(&format!("{word}: no such option")),
        };
        match words.next().and_then(|value| value.parse::<u64>().ok()) {
            Some(found) if found > 0 => *number = found,
            _ => return refuse(&format!("{word}: expected a number from 1 on")),
        }
    }
    let mut variables = vec![("UDM_CRASH_POINTS", seeds.to_string()), ("UDM_CRASH_SEED", (seed - 1).to_string())];
    variables.extend(without.map(|names| ("UDM_SOAK_WITHOUT", names.clone())));
    let args = ["test", "--quiet", "--package", "udm-targets", "--profile", "fuzz", "--test", "simulated_soak"];
    cargo::run(root, &args, &variables)
}

fn refuse(what: &str) -> ExitCode {
    eprintln!("xtask soak: {what}\n\n{SIMULATED}");
    ExitCode::FAILURE
}
