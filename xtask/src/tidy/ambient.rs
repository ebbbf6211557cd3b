//! Below the binary nothing reads argv, the environment or the clock, and nothing
//! spawns a thread: those come through the executor and clock of `io`, which the
//! simulator replaces. One `Instant::now()` elsewhere and a seed no longer replays.

use std::collections::BTreeSet;

use super::rust_file::RustFile;
use super::{Finding, Tree};

/// The files that hold the real clock and executor.
const SEAMS: &[&str] = &["crates/io/src/clock", "crates/io/src/executor"];

/// What reads argv and hands it down: the binaries.
const BINARIES: &[&str] = &["crates/udm/", "crates/experiments/src/main.rs"];

/// Token sequences, and what to use instead.
const FORBIDDEN: &[(&[&str], &str)] = &[
    (&["std", "::", "env"], ENVIRONMENT),
    (&["SystemTime", "::", "now"], CLOCK),
    (&["Instant", "::", "now"], CLOCK),
    (&["clock_gettime"], CLOCK),
    (&["thread", "::", "spawn"], THREAD),
    (&["thread", "::", "Builder"], THREAD),
    (&["thread", "::", "scope"], THREAD),
];

/// The same things, imported.
const FORBIDDEN_IMPORTS: &[(&[&str], &str)] = &[
    (&["std", "env"], ENVIRONMENT),
    (&["std", "thread", "spawn"], THREAD),
    (&["std", "thread", "Builder"], THREAD),
    (&["std", "thread", "scope"], THREAD),
];

const ENVIRONMENT: &str = "argv and environment are read by the binary, which hands down what it found";
const CLOCK: &str = "time comes from the clock of `io`, which the simulator can drive";
const THREAD: &str = "threads come from the executor of `io`, which the simulator can drive";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().filter(|file| is_below_the_binary(&file.path)).flat_map(check_file).collect()
}

fn is_below_the_binary(path: &str) -> bool {
    let is_seam = SEAMS.iter().filter_map(|seam| path.strip_prefix(seam)).any(|rest| rest.starts_with(['.', '/']));
    let is_binary = BINARIES.iter().any(|binary| path.starts_with(binary));
    path.starts_with("crates/") && !is_binary && !path.ends_with("/build.rs") && !is_seam
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let mut places = BTreeSet::new();
    for (sequence, why) in FORBIDDEN {
        for (line, rest) in file.sequences(sequence) {
            // `std::env::consts` is fixed when the program is built.
            let is_constant = rest.get(1).is_some_and(|token| token.text == "consts");
            if !is_constant {
                places.insert((line, *why));
            }
        }
    }
    for import in &file.uses {
        for (path, why) in FORBIDDEN_IMPORTS {
            let starts = import.path.iter().zip(*path).filter(|(a, b)| a == b).count() == path.len();
            let is_constant = import.path.iter().any(|part| part == "consts");
            if starts && !is_constant {
                places.insert((import.line, *why));
            }
        }
    }
    let product = places.into_iter().filter(|(line, _)| !file.is_test(*line));
    product.map(|(line, why)| Finding::new(&file.path, line, why)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::expect;

    fn lines(path: &str, text: &str, lines: &[usize]) {
        let places: Vec<String> = lines.iter().map(|line| format!("{path}:{line}")).collect();
        expect(check, &[(path, text)], &places.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn each_way_to_reach_the_outside_is_found() {
        let bad = |text: &str| lines("crates/core/src/a.rs", text, &[2]);
        bad("\nuse std::env;");
        bad("\nuse std::{env::var, io};");
        bad("\nfn f() { let _ = std::env::args(); }");
        bad("\nfn f() { let _ = std::time::Instant::now(); }");
        bad("\nfn f() { log!(SystemTime::now()); }");
        bad("\nfn f() { rustix::time::clock_gettime(c); }");
        bad("\nfn f() { std::thread::spawn(g); }");
        bad("\nuse std::thread::Builder;");
        bad("\nfn f() { thread::scope(|s| {}); }");
    }

    #[test]
    fn harmless_neighbours_pass() {
        let good = |text: &str| lines("crates/core/src/a.rs", text, &[]);
        good("use std::time::{Duration, Instant};");
        good("const OS: &str = std::env::consts::OS;");
        good("use std::thread::{self, ThreadId};");
        good("const V: &str = env!(\"CARGO_PKG_VERSION\");");
        good("#[cfg(test)]\nmod tests {\n    fn f() { std::thread::spawn(g); }\n}");
    }

    #[test]
    fn only_the_seams_and_the_binary_may() {
        let text = "fn f() { Instant::now(); }";
        lines("crates/io/src/clock.rs", text, &[]);
        lines("crates/io/src/executor/threads.rs", text, &[]);
        lines("crates/udm/src/main.rs", text, &[]);
        lines("crates/experiments/src/main.rs", text, &[]);
        lines("crates/experiments/src/cli.rs", text, &[1]);
        lines("crates/io/tests/it.rs", text, &[]);
        lines("crates/io/src/clockwork.rs", text, &[1]);
    }
}
