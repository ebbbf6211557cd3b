//! The test binaries of the workspace. cargo builds them; they are run here, as many at once as there are CPUs: else
//! one that has a single long test leaves the other CPUs idle, and one that hangs holds up all that come after it.

use super::counts::Counts;
use super::report::Outcome;
use crate::cargo;
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a binary may run, in seconds. By itself none comes near it.
const LIMIT: u64 = 300;

/// Those that take longest begin first: at the end they would run alone.
const LONGEST: &[&str] = &[
    "crates/bench/tests/instructions.rs",
    "crates/udm/tests/real/main.rs",
    "crates/experiments/tests/seeds.rs",
    "crates/capi/tests/c.rs",
];

/// A test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The file that it was built from, within the workspace.
    pub(crate) source: String,
    program: PathBuf,
    /// The folder of its package, where it expects to be run.
    package: PathBuf,
}

/// All that there is to build. cargo resolves the features of what it is asked for and no more: asked for one package,
/// it compiles all beneath that once more, with other features.
pub(crate) const ALL: &[&str] = &["--workspace", "--all-targets"];

/// Says to tests and scripts that [`ALL`] has been built in the debug profile.
const BUILT: &str = "UDM_ALL_BUILT";

/// Has cargo build what `args` of `cargo build` select; the test binaries among it.
pub(crate) fn build(root: &Path, args: &[&str]) -> Result<Vec<Binary>, String> {
    let mut command = cargo::command(root, &["build", "--message-format=json-render-diagnostics"]);
    let built = command.args(args).stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !built.status.success() {
        return Err(format!("the tests cannot be built ({})", built.status));
    }
    Ok(String::from_utf8_lossy(&built.stdout).lines().filter_map(|line| binary(root, line)).collect())
}

/// The test binary that a line of cargo's messages is about.
fn binary(root: &Path, message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let source = Path::new(message["target"]["src_path"].as_str()?);
    Some(Binary {
        source: source.strip_prefix(root).unwrap_or(source).display().to_string(),
        program: message["executable"].as_str()?.into(),
        package: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
    })
}

impl Binary {
    /// The names of its tests that are ignored unless asked for.
    pub(crate) fn ignored(&self) -> Vec<String> {
        let listed = Command::new(&self.program).args(["--list", "--ignored", "--format", "terse"]).output();
        let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
    }

    /// Runs it with `args`; what it printed, and how it ended. Ended by force after so many seconds.
    pub(crate) fn run(&self, args: &[&str], limit: u64, output: &Path) -> (String, Outcome) {
        // A file and not a pipe: a daemon that a failed test has left behind would keep a pipe open.
        let ended = File::create(output).and_then(|out| {
            let mut command = Command::new("timeout");
            command.arg("--kill-after=10").arg(limit.to_string()).arg(&self.program).args(args);
            command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).env(BUILT, "1");
            command.stdin(Stdio::null());
            if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
                command.env("PROPTEST_RNG_SEED", crate::random::DEFAULT_SEED.to_string());
            }
            command.stderr(out.try_clone()?).stdout(out).status()
        });
        let outcome = match ended {
            // What timeout(1) says when it had to end something, gently or not.
            Ok(status) if matches!(status.code(), Some(124 | 137)) => {
                Outcome::Failed(format!("did not end within {limit} s"))
            }
            ended => ended.into(),
        };
        (String::from_utf8_lossy(&std::fs::read(output).unwrap_or_default()).into_owned(), outcome)
    }
}

/// Runs all of them, shows what they say less the noise of tests that pass, and counts.
pub(crate) fn run(root: &Path, mut binaries: Vec<Binary>, counts: &mut Counts) -> Outcome {
    let outputs = cargo::target_directory(root).join("ci");
    if let Err(error) = std::fs::create_dir_all(&outputs) {
        return Outcome::Failed(format!("{}: {error}", outputs.display()));
    }
    let rank = |binary: &Binary| LONGEST.iter().position(|long| *long == binary.source).unwrap_or(LONGEST.len());
    binaries.sort_by_key(rank);
    let queue = Mutex::new(VecDeque::from(binaries));
    let results = Mutex::new((counts, Vec::new(), Vec::new()));
    let next = || queue.lock().expect("no panic in here").pop_front();
    let work = |worker: usize| {
        while let Some(binary) = next() {
            let start = Instant::now();
            let (text, outcome) = binary.run(&["--show-output"], LIMIT, &outputs.join(format!("{worker}.out")));
            let time = start.elapsed();
            let (counts, failed, times) = &mut *results.lock().expect("no panic in here");
            let mut head = Some(format!("-- {}", binary.source));
            counts.take_binary(&text, |line| {
                head.take().into_iter().for_each(|head| println!("{head}"));
                println!("{line}");
            });
            if let Outcome::Failed(how) = outcome {
                println!("{}: {how}", binary.source);
                failed.push(binary.source.clone());
            }
            times.push((time, binary.source));
        }
    };
    std::thread::scope(|scope| {
        let many = std::thread::available_parallelism().map_or(1, usize::from);
        (0..many).for_each(|worker| drop(scope.spawn(move || work(worker))));
    });
    let (counts, failed, times) = results.into_inner().expect("no panic in here");
    show_longest(times);
    if failed.is_empty() {
        return Outcome::Passed;
    }
    Outcome::Failed(format!("{} tests failed, in {}", counts.failed, failed.join(", ")))
}

/// Where the time went.
fn show_longest(mut times: Vec<(Duration, String)>) {
    times.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    println!("{} test binaries; those that took longest:", times.len());
    for (time, source) in times.iter().take(8) {
        println!("{:>5.1} s  {source}", time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo() {
        let artifact = |test: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/io/Cargo.toml","target":{{"kind":["test"],
                "name":"file","src_path":"/w/crates/io/tests/file.rs"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let expect = Binary {
            source: "crates/io/tests/file.rs".into(),
            program: "/t/file-1".into(),
            package: "/w/crates/io".into(),
        };
        for (message, expect) in [
            (artifact("true", r#""/t/file-1""#), Some(expect)),
            (artifact("true", "null"), None),
            // A program that tests run, not a test.
            (artifact("false", r#""/t/file-1""#), None),
            (r#"{"reason":"build-finished","success":true}"#.into(), None),
            ("not JSON".into(), None),
        ] {
            assert_eq!(binary(Path::new("/w"), &message), expect, "{message}");
        }
    }
}
