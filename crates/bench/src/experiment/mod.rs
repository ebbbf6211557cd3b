//! Experiments: measurements that answer a question, with their own devices, rounds, limits and a picture.
//!
//! [`EXPERIMENTS`] is the one list of them. Each gives a [`Report`]: rows, charts and what was done, which is written as JSON,
//! Markdown and SVG. What a row's fields mean is told at [`Row`].
//!
//! # Invariants
//! - What is compared takes turns: [`turns`] runs each of several ways once a round, and figures are medians of rounds.
//! - A row says what was compared, its limit and the verdict; a report without a limit has no verdict.
//! - What a run leaves outside of its folder is nothing.

mod backing;
mod chart;
mod fio;
mod loop_ram;
mod machine;
mod no_clone;
mod pass;
mod polling;
mod report;
mod row;
pub(crate) mod seeds;
mod snapshot;
mod source_tree;
mod thin;
mod turns;
mod zero_check;
mod zero_skip;

pub(crate) use chart::{Bar, Chart, Group, Tone};
pub(crate) use report::Report;
pub(crate) use row::{Limit, Row, Unit};
pub(crate) use turns::{Figures, Way, turns};

use crate::Error;
use std::path::Path;
use udm_io::Domain;

/// One experiment.
pub(crate) struct Experiment {
    /// As it is called on the command line and in files.
    pub(crate) name: &'static str,
    /// What it shows, in a line.
    pub(crate) about: &'static str,
    /// Whether it makes files beside its results, so that it cannot do without a folder.
    pub(crate) wants_folder: bool,
    pub(crate) run: fn(&Setting<'_>) -> Result<Report, Error>,
}

/// Every experiment, in the order of `udm bench seeds`.
pub(crate) static EXPERIMENTS: &[Experiment] = &[
    thin::EXPERIMENT,
    snapshot::EXPERIMENT,
    zero_skip::EXPERIMENT,
    zero_check::EXPERIMENT,
    crate::snapshot_cow::EXPERIMENT,
    no_clone::EXPERIMENT,
    loop_ram::EXPERIMENT,
    polling::EXPERIMENT,
];

/// The experiments that `udm bench seeds` runs, as users know them.
#[cfg(test)]
const SEED_EXPERIMENTS: [&str; 5] = ["no-clone", "zero-skip", "loop-ram", "snapshot-cow", "polling"];

/// What an experiment is given.
pub(crate) struct Setting<'a> {
    pub(crate) domain: &'a Domain,
    /// Less of everything: to see that it works.
    pub(crate) quick: bool,
    /// Where files may be made, which are gone afterwards. Without `--out` there is none.
    pub(crate) folder: Option<&'a Path>,
    /// The file of udm's fio engine, if there is one.
    pub(crate) fio_engine: Option<&'a Path>,
    /// Only rows whose name has this in it are wanted.
    pub(crate) only: Option<&'a str>,
    /// Tells how far it is: on a terminal a line that changes, else lines.
    pub(crate) progress: &'a dyn Fn(&str),
    /// The command that repeats the run.
    pub(crate) command: String,
}

impl Setting<'_> {
    /// Whether the row of this name is wanted. What is not need not be measured; its row is left out in any case.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.only.is_none_or(|text| row.contains(text))
    }

    /// `full`, or `quick` if less of everything will do.
    pub(crate) fn or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
