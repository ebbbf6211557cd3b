//! `cargo xtask guests`: the tests of `crates/udm/tests/lab`, which boot a real kernel in an emulator and take minutes
//! each. One after the other: an emulator wants the CPUs for itself.

use super::report::{Outcome, Report};
use super::suite;
use crate::cargo;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long one may take, in seconds. The longest takes half of it on two CPUs that do nothing else.
const LIMIT: u64 = 480;

const USAGE: &str = "\
usage: cargo xtask guests [--seconds N]

  --seconds N  begin no test that might not have ended by then: it is skipped, and said [default: no limit]

The lab needs x86-64, an emulator and a Debian package source: see tests/lab/README.md. INSTALL=1 installs what is
missing.";

/// Runs the tests of the workspace at `root` that boot a guest, and ends with the line `N passed, N failed, N skipped`.
#[must_use]
pub fn run(root: &Path, options: &[String]) -> ExitCode {
    let seconds = match options {
        [] => None,
        [word] if matches!(word.as_str(), "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [word, number] if word == "--seconds" && number.parse::<u64>().is_ok() => number.parse::<u64>().ok(),
        _ => {
            eprintln!("xtask guests: {}: expected --seconds and a number\n\n{USAGE}", options.join(" "));
            return ExitCode::FAILURE;
        }
    };
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut report = Report::default();
    report.step("lab", |_| lab(root));
    if !report.passed("lab") {
        return report.end(root);
    }
    let mut binaries = Vec::new();
    // All, as `cargo xtask ci` has: a part would be built with other features, and so anew.
    report.step("build", |_| match suite::build(root, suite::ALL) {
        Ok(built) => {
            binaries = built;
            binaries.retain(|binary| binary.source == "crates/udm/tests/lab/main.rs");
            Outcome::Passed
        }
        Err(why) => Outcome::Failed(why),
    });
    for (binary, test) in
        binaries.iter().flat_map(|binary| binary.ignored().into_iter().map(move |test| (binary, test)))
    {
        report.step(&test, |counts| {
            if end.is_some_and(|end| end.saturating_duration_since(Instant::now()).as_secs() < LIMIT) {
                counts.skipped += 1;
                return Outcome::Skipped("there is no time left to boot a guest".to_owned());
            }
            let output = cargo::target_directory(root).join("guest.out");
            let (text, outcome) = binary.run(&["--ignored", "--exact", &test, "--nocapture"], LIMIT, &output);
            counts.take_binary(&text, |line| println!("{line}"));
            outcome
        });
    }
    report.end(root)
}

/// Whether there can be guests here.
fn lab(root: &Path) -> Outcome {
    let output =
        Command::new(root.join("tests/lab/available.sh")).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    match output {
        Ok(output) => match String::from_utf8_lossy(&output.stdout).trim().strip_prefix("SKIP ") {
            Some(reason) => Outcome::Skipped(reason.to_owned()),
            None => Outcome::from(Ok(output.status)),
        },
        Err(error) => Outcome::from(Err(error)),
    }
}
