//! The experiments of `udm bench`: a program of its own, so that udm does not carry a simulator that only they need.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the program is called.
pub const PROGRAM: &str = "udm-experiments";
/// The word that has it list what it can do, a line each.
pub const LIST: &str = "--list";

fn missing() -> String {
    format!("{PROGRAM} is neither beside udm nor on PATH; `make` builds it, `make install` installs it")
}

/// The experiments, for the help of `udm bench`.
pub(super) fn list(program: Option<&Path>) -> String {
    let asked =
        program.map(|program| Command::new(program).arg(LIST).stdin(Stdio::null()).stderr(Stdio::null()).output());
    match asked {
        Some(Ok(output)) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
        _ => format!("Experiments: {}", missing()),
    }
}

/// Runs the program with the experiments in the place of this one. Returns only when it cannot be run: why.
pub(super) fn take_over(program: Option<&Path>, words: &[OsString]) -> String {
    let name = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let Some(program) = program else {
        return format!("{name}: expected an option, or an experiment, of which none is here: {}", missing());
    };
    let error = Command::new(program).args(words).exec();
    format!("{name}: {}: {error}", program.display())
}
