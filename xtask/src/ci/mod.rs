//! `cargo xtask ci`: what a change must pass, every step even when one fails. `cargo xtask guests`: the tests that
//! boot a real kernel.

pub mod counts;
mod guests;
mod report;
pub mod skips;
mod suite;

use crate::cargo;
use counts::Counts;
use report::{Beside, Outcome, Report};
use std::path::Path;
use std::process::{Command, ExitCode};

pub use guests::run as guests;

/// Runs every step under `root` and ends with the line `N passed, N failed, N skipped`, which
/// counts tests. Failure of any step is failure of the whole.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let mut report = Report::default();
    report.step("fmt", |_| component(root, "fmt", "rustfmt", &["fmt", "--all", "--check"], None));
    let mut binaries = Vec::new();
    report.step("build", |_| match suite::build(root, suite::ALL) {
        Ok(built) => {
            binaries = built;
            Outcome::Passed
        }
        Err(why) => Outcome::Failed(why),
    });
    if report.passed("build") {
        // Tests wait for much that is no work of a CPU: what can be done meanwhile is.
        let beside = std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                [Beside::step("clippy", |said| clippy(root, said)), Beside::step("soak", |said| soak(root, said))]
            });
            // Tidiness is among them.
            report.step("tests", |counts| suite::run(root, binaries, counts));
            beside.join()
        });
        match beside {
            Ok(steps) => steps.into_iter().for_each(|step| report.beside(step)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        report.step("examples", |counts| documentation(root, counts));
    } else {
        report.beside(Beside::step("clippy", |said| clippy(root, said)));
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

fn clippy(root: &Path, said: &mut String) -> Outcome {
    let args = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    component(root, "clippy", "clippy", &args, Some(said))
}

/// A short soak, always of the same mix, so that a change is judged and not the day.
fn soak(root: &Path, said: &mut String) -> Outcome {
    let options = ["--once", "--seed", "1"].map(str::to_owned);
    run_quietly(&mut crate::soak::command(root, "debug", &options), said)
}

/// Runs a command, and takes what it says.
fn run_quietly(command: &mut Command, said: &mut String) -> Outcome {
    let output = command.output();
    if let Ok(output) = &output {
        for bytes in [&output.stdout, &output.stderr] {
            *said += &String::from_utf8_lossy(bytes);
        }
    }
    Outcome::from(output.map(|output| output.status))
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

/// Runs `cargo args`, whose subcommand comes with the toolchain's component `name`; a toolchain without it skips the
/// step. What is said is shown, unless it is to be kept.
fn component(root: &Path, subcommand: &str, name: &str, args: &[&str], said: Option<&mut String>) -> Outcome {
    if !has_subcommand(root, subcommand) {
        return Outcome::Skipped(format!("the toolchain has no {name}; `rustup component add {name}` installs it"));
    }
    let mut command = cargo::command(root, args);
    match said {
        Some(said) => run_quietly(&mut command, said),
        None => command.status().into(),
    }
}

fn has_subcommand(root: &Path, name: &str) -> bool {
    cargo::command(root, &[name, "--version"]).output().is_ok_and(|output| output.status.success())
}
