//! `cargo xtask fuzz`: hands its options to the driver in `fuzz/`, built so that
//! overflow and debug assertions are on and a panic unwinds.

use crate::cargo;
use std::path::Path;
use std::process::ExitCode;

/// Runs the fuzz driver of the workspace at `root` and passes on how it ended.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let mut args = vec!["run", "--quiet", "--profile", "fuzz", "--package", "udm-fuzz", "--"];
    args.extend(options.iter().map(String::as_str));
    cargo::run(root, &args, &[])
}
