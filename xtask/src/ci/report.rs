//! What the steps of a run came to: how each ended, how long it took, and which tests were counted.

use super::counts::Counts;
use super::skips;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl From<std::io::Result<std::process::ExitStatus>> for Outcome {
    fn from(ended: std::io::Result<std::process::ExitStatus>) -> Self {
        match ended {
            Ok(status) if status.success() => Self::Passed,
            Ok(status) => Self::Failed(status.to_string()),
            Err(error) => Self::Failed(format!("cannot be started: {error}")),
        }
    }
}

struct Step {
    name: String,
    outcome: Outcome,
    time: Duration,
    /// What it used of the CPUs: the figure to compare on a machine that does other things as well.
    cpu: Duration,
}

/// The steps so far.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) counts: Counts,
    steps: Vec<Step>,
}

impl Report {
    /// Does a step and keeps how it ended.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce(&mut Counts) -> Outcome) {
        println!("== {name}");
        let (start, cpu) = (Instant::now(), cpu_of_children());
        let outcome = work(&mut self.counts);
        if let Outcome::Skipped(reason) = &outcome {
            println!("SKIP {name}: {reason}");
        }
        let (time, cpu) = (start.elapsed(), cpu_of_children().saturating_sub(cpu));
        self.steps.push(Step { name: name.to_owned(), outcome, time, cpu });
    }

    /// Whether that step was done and passed.
    pub(crate) fn passed(&self, name: &str) -> bool {
        self.steps.iter().any(|step| step.name == name && step.outcome == Outcome::Passed)
    }

    /// Prints the summary, which ends with the line `N passed, N failed, N skipped` for the tests. Failure of any step
    /// is failure of the whole, and so is a reason to skip that is not on the list that the environment names.
    pub(crate) fn end(mut self, root: &Path) -> ExitCode {
        let mut skips = std::mem::take(&mut self.counts.skips);
        for Step { name, outcome, .. } in &self.steps {
            if let Outcome::Skipped(reason) = outcome {
                *skips.entry(format!("{name}: {reason}")).or_default() += 1;
            }
        }
        if let Some(list) = std::env::var_os(skips::VARIABLE) {
            self.step("skips", |_| {
                skips::check(&root.join(list), &skips).map_or_else(Outcome::Failed, |()| Outcome::Passed)
            });
        }
        println!("== summary");
        for (reason, times) in &skips {
            println!("SKIP {times:>3} {reason}");
        }
        let mut failed = false;
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or_default();
        for Step { name, outcome, time, cpu } in &self.steps {
            let word = match outcome {
                Outcome::Passed => "ok".to_owned(),
                Outcome::Skipped(reason) => format!("skipped: {reason}"),
                Outcome::Failed(reason) => {
                    failed = true;
                    format!("FAILED: {reason}")
                }
            };
            println!("{name:<width$} {:>4} s {:>4} s of CPU  {word}", time.as_secs(), cpu.as_secs());
        }
        println!("{}", self.counts);
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// What the processes that this one started and waited for have used so far, and those that they waited for.
fn cpu_of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // proc(5): cutime and cstime are the 16th and 17th field; the second is a name in parentheses.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(13).take(2).filter_map(|field| field.parse::<u64>().ok());
    // A tick is a hundredth of a second for every architecture that udm is built for.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
