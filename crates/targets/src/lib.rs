//! Floor 5: the targets. [`TARGETS`] is the one list of them.

mod delay;
mod dust;
mod ebs;
mod error;
mod faults;
mod flakey;
mod linear;
mod loop_file;
mod ram;
mod snapshot;
mod striped;
mod switch;
mod thin;
mod unstriped;
mod zero;

use udm_core::TargetType;

/// Every target that a table may name.
pub static TARGETS: &[&TargetType] = &[
    &delay::TYPE,
    &dust::TYPE,
    &ebs::TYPE,
    &error::TYPE,
    &flakey::TYPE,
    &linear::TYPE,
    &loop_file::TYPE,
    &ram::TYPE,
    &snapshot::SNAPSHOT,
    &snapshot::MERGE,
    &snapshot::ORIGIN,
    &striped::TYPE,
    &switch::TYPE,
    &thin::THIN,
    &thin::POOL,
    &unstriped::TYPE,
    &zero::TYPE,
];
