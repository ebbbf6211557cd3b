//! `cargo xtask soak` builds and runs this.

use clap::Parser;
use std::process::ExitCode;
use udm_soak::options::Options;

fn main() -> ExitCode {
    udm_soak::run::run(Options::parse())
}
