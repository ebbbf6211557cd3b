//! `udm bench` as a program of its own, without the rest of udm.

use std::process::ExitCode;

fn main() -> ExitCode {
    udm_bench::cli::run(std::env::args_os().skip(1), None).into()
}
