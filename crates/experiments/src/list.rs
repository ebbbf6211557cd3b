//! The one list of experiments.

use crate::experiment::Experiment;
use crate::{loop_ram, no_clone, polling, snapshot, snapshot_cow, thin, zero_check, zero_skip};

/// Every experiment, in the order of `udm bench seeds`.
pub(crate) static EXPERIMENTS: &[Experiment] = &[
    thin::EXPERIMENT,
    snapshot::EXPERIMENT,
    zero_skip::EXPERIMENT,
    zero_check::EXPERIMENT,
    snapshot_cow::EXPERIMENT,
    no_clone::EXPERIMENT,
    loop_ram::EXPERIMENT,
    polling::EXPERIMENT,
];
