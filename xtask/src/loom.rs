//! `cargo xtask loom`: the models in `crates/io/src/channel/models.rs` and `polling/models.rs`, and in
//! `crates/worker/src/models.rs`, in a target folder of their own.

use crate::cargo;
use std::path::Path;
use std::process::ExitCode;

/// Builds the crates with models of the workspace at `root` with the model checker's atomics, and runs them.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let mut args = vec!["test", "--package", "udm-io", "--package", "udm-worker", "--lib", "--profile", "fuzz"];
    args.extend(["--target-dir", "target/loom", "models"]);
    cargo::run(root, &args, &[("RUSTFLAGS", "--cfg loom".to_owned())])
}
