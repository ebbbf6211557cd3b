//! The chores of the project, as a library so that tests can call them.
//!
//! `cargo xtask` (see `main.rs`) is the way in from a shell. Nothing here is
//! part of the product; the product's crates must not depend on it.

mod cargo;
pub mod ci;
pub mod crash;
pub mod fuzz;
pub mod header;
pub mod loom;
pub mod random;
pub mod soak;
pub mod tidy;

use std::path::PathBuf;

/// The root of the workspace that this program was built from.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
