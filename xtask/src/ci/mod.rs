//! `cargo xtask ci`: what a change must pass, every step even when one fails.

pub mod counts;
pub mod skips;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use counts::Counts;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Runs every step under `root` and ends with the line `N passed, N failed, N skipped`, which
/// counts tests. Failure of any step is failure of the whole.
#[must_use]
pub fn run(root: &Path) -> ExitCode {
    let mut counts = Counts::default();
    let mut outcomes = Vec::new();
    let mut step = |name: &'static str, work: &mut dyn FnMut() -> Outcome| {
        println!("== {name}");
        let start = Instant::now();
        let outcome = work();
        if let Outcome::Skipped(reason) = &outcome {
            println!("SKIP {name}: {reason}");
        }
        outcomes.push((name, outcome, start.elapsed()));
    };
    step("fmt", &mut || component(root, "fmt", "rustfmt", &["fmt", "--all", "--check"]));
    step("clippy", &mut || {
        let args = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
        component(root, "clippy", "clippy", &args)
    });
    step("tidy", &mut || tidy(root));
    step("tests", &mut || tests(root, &mut counts));
    // After the tests, so that it has the machine for itself.
    step("soak", &mut || soak(root));
    step("licences", &mut || licences(root));
    let mut skips = std::mem::take(&mut counts.skips);
    for (name, outcome, _) in &outcomes {
        if let Outcome::Skipped(reason) = outcome {
            *skips.entry(format!("{name}: {reason}")).or_default() += 1;
        }
    }
    if let Some(list) = std::env::var_os(skips::VARIABLE) {
        let start = Instant::now();
        let outcome = skips::check(&root.join(list), &skips).map_or_else(Outcome::Failed, |()| Outcome::Passed);
        outcomes.push(("skips", outcome, start.elapsed()));
    }

    println!("== summary");
    for (reason, times) in &skips {
        println!("SKIP {times:>3} {reason}");
    }
    let mut failed = false;
    for (name, outcome, time) in &outcomes {
        let word = match outcome {
            Outcome::Passed => "ok".to_owned(),
            Outcome::Skipped(reason) => format!("skipped: {reason}"),
            Outcome::Failed(reason) => {
                failed = true;
                format!("FAILED: {reason}")
            }
        };
        println!("{name:<8} {:>4} s  {word}", time.as_secs());
    }
    println!("{counts}");
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A short soak, always of the same mix, so that a change is judged and not the day.
fn soak(root: &Path) -> Outcome {
    let options = ["--seconds", "60", "--seed", "1"].map(str::to_owned);
    match crate::soak::run(root, &options) {
        code if code == ExitCode::SUCCESS => Outcome::Passed,
        _ => Outcome::Failed("see above".to_owned()),
    }
}

/// Licences, sources, duplicates and advisories (deny.toml).
fn licences(root: &Path) -> Outcome {
    if !has_subcommand("deny") {
        return Outcome::Skipped("cargo-deny is not installed".to_owned());
    }
    let run = |what: &[&str]| {
        let mut args = vec!["deny", "--workspace", "check", "--hide-inclusion-graph"];
        args.extend(what);
        finish(cargo().args(args).current_dir(root).stdin(Stdio::null()).status())
    };
    let fetch = cargo().args(["deny", "fetch", "db"]).current_dir(root).stdin(Stdio::null()).output();
    if fetch.is_ok_and(|output| output.status.success()) {
        return run(&["licenses", "bans", "sources", "advisories"]);
    }
    println!("SKIP advisories: their data base cannot be fetched from here");
    run(&["licenses", "bans", "sources"])
}

/// The same cargo that called us, or the one on the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `cargo args`, whose subcommand comes with the toolchain's component `name`; a toolchain
/// without it skips the step.
fn component(root: &Path, subcommand: &str, name: &str, args: &[&str]) -> Outcome {
    if !has_subcommand(subcommand) {
        return Outcome::Skipped(format!("the toolchain has no {name}; `rustup component add {name}` installs it"));
    }
    finish(cargo().args(args).current_dir(root).stdin(Stdio::null()).status())
}

fn has_subcommand(name: &str) -> bool {
    let probe = cargo().args([name, "--version"]).stdin(Stdio::null()).output();
    probe.is_ok_and(|output| output.status.success())
}

fn finish(status: std::io::Result<std::process::ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("cannot be started: {error}")),
    }
}

fn tidy(root: &Path) -> Outcome {
    match crate::tidy::run(root) {
        Ok(findings) if findings.is_empty() => Outcome::Passed,
        Ok(findings) => {
            for finding in &findings {
                println!("{finding}");
            }
            Outcome::Failed(format!("{} findings", findings.len()))
        }
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// Every test of the workspace; with nextest when it is installed, which leaves the examples in
/// the documentation to cargo.
fn tests(root: &Path, counts: &mut Counts) -> Outcome {
    if !has_subcommand("nextest") {
        // Output of tests that pass is asked for because it says what was skipped.
        let args = ["test", "--workspace", "--no-fail-fast", "--", "--show-output"];
        return counted(root, &args, counts);
    }
    let nextest = ["nextest", "run", "--workspace", "--no-fail-fast", "--success-output", "immediate"];
    let documentation = ["test", "--workspace", "--doc", "--no-fail-fast"];
    match (counted(root, &nextest, counts), counted(root, &documentation, counts)) {
        (Outcome::Passed, second) => second,
        (first, _) => first,
    }
}

/// Runs `cargo args`, shows what it says less the noise of tests that pass, and counts.
fn counted(root: &Path, args: &[&str], counts: &mut Counts) -> Outcome {
    let (reader, writer) = match std::io::pipe() {
        Ok(ends) => ends,
        Err(error) => return Outcome::Failed(format!("no pipe: {error}")),
    };
    let mut command = cargo();
    command.args(args).current_dir(root).stdin(Stdio::null());
    // Colours would stand between the words that are counted.
    command.env("CARGO_TERM_COLOR", "never");
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        command.env("PROPTEST_RNG_SEED", crate::random::DEFAULT_SEED.to_string());
    }
    // One pipe for both, so that lines stay in their order.
    let child = writer.try_clone().and_then(|second| command.stdout(second).stderr(writer).spawn());
    drop(command);
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Outcome::Failed(format!("cannot be started: {error}")),
    };
    show(reader, counts);
    match (finish(child.wait()), counts.failed) {
        (Outcome::Failed(status), failed) if failed > 0 => Outcome::Failed(format!("{failed} tests failed ({status})")),
        (outcome, _) => outcome,
    }
}

fn show(reader: impl Read, counts: &mut Counts) {
    let mut out = std::io::stdout().lock();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        if counts.take(text.trim_end_matches('\n')) {
            // Nobody may be listening any more; the exit code still tells.
            let _ = out.write_all(&line);
        }
        line.clear();
    }
}
