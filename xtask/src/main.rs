//! `cargo xtask`: the chores of the project.

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  ci      fmt, clippy, tidy, tests, a minute of the soak, licences: what a change must pass
  guests  tests that boot a real kernel in an emulator; `cargo xtask guests --help` for its options
  tidy    the rules of STYLE.md and ARCHITECTURE.md that a program can check
  fuzz    random input against the parsers; `cargo xtask fuzz --help` for its options
  header  udm.h again from the sources of libudm
  crash   power cuts of pools and snapshots in the simulator; `cargo xtask crash --help` for its options
  soak    random operations on a daemon under verified load; `cargo xtask soak --help` for its options
  random  the property tests with other inputs; `cargo xtask random --help` for its options
  loom    every order of what threads do to a channel, model-checked; about a minute with the build";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let chore = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let root = xtask::workspace_root();
    match (chore.as_str(), rest.as_slice()) {
        ("ci", []) => xtask::ci::run(&root),
        ("guests", options) => xtask::ci::guests(&root, options),
        ("tidy", []) => tidy(&root),
        ("header", []) => header(&root),
        ("loom", []) => xtask::loom::run(&root),
        ("random", options) => xtask::random::run(&root, options),
        ("soak", options) => xtask::soak::run(&root, options),
        ("crash", options) => xtask::crash::run(&root, options),
        ("fuzz", options) => xtask::fuzz::run(&root, options),
        ("help" | "--help" | "-h", _) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        ("", _) => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
        ("ci" | "tidy" | "header" | "loom", [extra, ..]) => {
            eprintln!("xtask: `{chore}` takes no arguments, but was given `{extra}`");
            ExitCode::FAILURE
        }
        _ => {
            eprintln!("xtask: no chore is called `{chore}`\n\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn header(root: &std::path::Path) -> ExitCode {
    let made = xtask::header::generate(root);
    match made.and_then(|text| std::fs::write(root.join(xtask::header::HEADER), text).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("header: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tidy(root: &std::path::Path) -> ExitCode {
    match xtask::tidy::run(root) {
        Ok(findings) if findings.is_empty() => {
            println!("tidy: {} checks passed", xtask::tidy::CHECKS.len());
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            println!("tidy: {} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: cannot read the tree: {error}");
            ExitCode::FAILURE
        }
    }
}
