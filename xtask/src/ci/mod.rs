//! `cargo xtask ci`: what a change must pass, every step even when one fails. `cargo xtask guests`: the tests that
//! boot a real kernel.

pub mod counts;
mod guests;
mod report;
pub mod skips;
mod suite;

use crate::cargo;
use counts::Counts;
use report::{Outcome, Report};
use std::path::Path;
use std::process::ExitCode;

pub use guests::run as guests;

/// Runs every step under `root` and ends with the line `N passed, N failed, N skipped`, which
/// counts tests. Failure of any step is failure of the whole.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let mut report = Report::default();
    report.step("fmt", |_| component(root, "fmt", "rustfmt", &["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    report.step("clippy", |_| component(root, "clippy", "clippy", &clippy));
    let mut binaries = Vec::new();
    report.step("build", |_| match suite::build(root, suite::ALL) {
        Ok(built) => {
            binaries = built;
            Outcome::Passed
        }
        Err(why) => Outcome::Failed(why),
    });
    if report.passed("build") {
        // Tidiness is among them.
        report.step("tests", |counts| suite::run(root, binaries, counts));
        report.step("examples", |counts| documentation(root, counts));
        // After the tests, so that it has the machine for itself.
        report.step("soak", |_| soak(root));
    }
    report.step("licences", |counts| licences(root, counts));
    report.end(root)
}

/// The examples in the documentation, which are cargo's to build and run.
fn documentation(root: &Path, counts: &mut Counts) -> Outcome {
    // Colours would stand between the words that are counted.
    let output = cargo::command(root, &["test", "--workspace", "--doc", "--no-fail-fast"])
        .env("CARGO_TERM_COLOR", "never")
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().filter(|line| counts.take(line)).for_each(|line| println!("{line}"));
            let outcome = Outcome::from(Ok(output.status));
            if outcome != Outcome::Passed {
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
            }
            outcome
        }
        Err(error) => Outcome::from(Err(error)),
    }
}

/// A short soak, always of the same mix, so that a change is judged and not the day.
fn soak(root: &Path) -> Outcome {
    let options = ["--seconds", "60", "--seed", "1"].map(str::to_owned);
    match crate::soak::start(root, "debug", &options) {
        code if code == ExitCode::SUCCESS => Outcome::Passed,
        _ => Outcome::Failed("see above".to_owned()),
    }
}

/// Licences, sources, duplicates and advisories (deny.toml).
fn licences(root: &Path, counts: &mut Counts) -> Outcome {
    if !has_subcommand(root, "deny") {
        return Outcome::Skipped("cargo-deny is not installed".to_owned());
    }
    let run = |what: &[&str]| {
        let args = [&["deny", "--workspace", "check", "--hide-inclusion-graph"], what].concat();
        Outcome::from(cargo::command(root, &args).status())
    };
    let fetch = cargo::command(root, &["deny", "fetch", "db"]).output();
    if fetch.is_ok_and(|output| output.status.success()) {
        return run(&["licenses", "bans", "sources", "advisories"]);
    }
    counts.skip("advisories: their data base cannot be fetched from here");
    run(&["licenses", "bans", "sources"])
}

/// Runs `cargo args`, whose subcommand comes with the toolchain's component `name`; a toolchain
/// without it skips the step.
fn component(root: &Path, subcommand: &str, name: &str, args: &[&str]) -> Outcome {
    if !has_subcommand(root, subcommand) {
        return Outcome::Skipped(format!("the toolchain has no {name}; `rustup component add {name}` installs it"));
    }
    cargo::command(root, args).status().into()
}

fn has_subcommand(root: &Path, name: &str) -> bool {
    cargo::command(root, &[name, "--version"]).output().is_ok_and(|output| output.status.success())
}
