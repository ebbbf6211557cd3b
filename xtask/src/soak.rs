//! `cargo xtask soak`: builds the daemon and the soak, and hands its options on.

use crate::cargo;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Runs the soak of the workspace at `root`, on the daemon of this tree unless `--udm` names another. `--release` builds both as
/// they are installed.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let release = options.iter().any(|word| word == "--release");
    let given = options.iter().any(|word| word == "--udm" || word.starts_with("--udm="));
    let asks = options.iter().any(|word| matches!(word.as_str(), "--help" | "-h" | "--list" | "--simulated"));
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
    let built = target_directory(root).join(if release { "release" } else { "debug" });
    // Not through cargo, which would keep its lock for the hours that a soak may take.
    let mut soak = Command::new(built.join("udm-soak"));
    if !given {
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

fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |given| root.join(given))
}
