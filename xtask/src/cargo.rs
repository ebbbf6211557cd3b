//! Starting cargo for a chore.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The same cargo that called us, or the one on the path, for `args` in `root`, without standard input.
pub(crate) fn command(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root).stdin(Stdio::null());
    command
}

/// Runs cargo with `args` in `root` and with these variables, and passes on how it ended.
pub(crate) fn run(root: &Path, args: &[&str], variables: &[(&str, String)]) -> ExitCode {
    let mut command = command(root, args);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where cargo builds.
pub(crate) fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |given| root.join(given))
}
