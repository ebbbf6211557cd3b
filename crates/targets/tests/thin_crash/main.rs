//! Thin pools that lose their power: random I/O, snapshots and deletes on several volumes, cut at random moments with
//! unflushed writes kept, lost, torn and reordered. After each cut the pool is opened again: its metadata is clean,
//! what a FLUSH or FUA covered reads back, and every other sector has its old value or its new one.
//!
//! `seeds.rs` has the variables that say how much is looked at.

#![allow(missing_docs)]

mod pool;
mod run;
#[path = "../rig/seeds.rs"]
mod seeds;

use run::Plan;

/// Runs seeds of `plan` until so many cuts have been looked at.
fn check(plan: Plan, first: u64, points: u64) {
    if let Some((done, _)) = seeds::run(plan, first, points, |seed| run::run(plan, seed), |done| done.points) {
        assert!(done.writes > done.points / 20, "something must have been written: {done:?}");
    }
}

#[test]
fn power_cuts_with_room() {
    check(Plan::Roomy, 1, 4000);
}

#[test]
fn power_cuts_while_snapshots_come_and_go() {
    check(Plan::Snapshots, 1_000_000, 3000);
}

#[test]
fn power_cuts_when_space_is_short() {
    check(Plan::Short, 2_000_000, 3000);
}

/// A write fails, on the metadata device or on the data device, at each index in turn: what the pool acknowledged is
/// true.
#[test]
fn a_failed_write_at_each_index() {
    check(Plan::Failing, 3_000_000, 300);
}
