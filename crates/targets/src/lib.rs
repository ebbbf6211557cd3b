//! Floor 5: the targets. [`TARGETS`] is the one list of them.

mod error;
mod linear;
mod loop_file;
mod ram;
mod snapshot;
mod striped;
mod thin;
mod zero;

use udm_core::TargetType;

/// Every target that a table may name.
pub static TARGETS: &[&TargetType] = &[
    &error::TYPE,
    &linear::TYPE,
    &loop_file::TYPE,
    &ram::TYPE,
    &snapshot::SNAPSHOT,
    &snapshot::MERGE,
    &snapshot::ORIGIN,
    &striped::TYPE,
    &thin::THIN,
    &thin::POOL,
    &zero::TYPE,
];
