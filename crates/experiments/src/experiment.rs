//! What an experiment is, and what it is given.

use crate::report::Report;
use std::path::Path;
use udm_bench::Error;
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
