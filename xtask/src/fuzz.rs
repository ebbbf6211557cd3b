//! `cargo xtask fuzz`: hands its options to the driver in `fuzz/`, built so that
//! overflow and debug assertions are on and a panic unwinds.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Runs the fuzz driver of the workspace at `root` and passes on how it ended.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--profile", "fuzz", "--package", "udm-fuzz", "--"])
        .args(options)
        .current_dir(root)
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
