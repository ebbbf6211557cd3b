//! `cargo xtask loom`: the models in `crates/io/src/channel/models.rs`, in a target folder of their own.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Builds the io crate of the workspace at `root` with the model checker's atomics and runs its models.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["test", "--package", "udm-io", "--lib", "--profile", "fuzz", "--target-dir", "target/loom"])
        .args(["channel::models"])
        .env("RUSTFLAGS", "--cfg loom")
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
