//! Starting cargo for a chore.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Runs cargo with `args` in `root` and with these variables, and passes on how it ended.
pub(crate) fn run(root: &Path, args: &[&str], variables: &[(&str, String)]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).envs(variables.iter().map(|(name, value)| (name, value)));
    match command.current_dir(root).stdin(Stdio::null()).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
