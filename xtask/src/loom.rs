//! `cargo xtask loom`: the models in `crates/io/src/channel/models.rs` and `polling/models.rs`, in a target folder of their own.

use crate::cargo;
use std::path::Path;
use std::process::ExitCode;

/// Builds the io crate of the workspace at `root` with the model checker's atomics and runs its models.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let args = ["test", "--package", "udm-io", "--lib", "--profile", "fuzz", "--target-dir", "target/loom", "models"];
    cargo::run(root, &args, &[("RUSTFLAGS", "--cfg loom".to_owned())])
}
