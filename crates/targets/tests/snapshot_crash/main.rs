//! Snapshots that lose their power: random I/O on an origin and its snapshots, which come, go, change hands and are
//! merged, cut at random moments with unflushed writes kept, lost, torn and reordered. After each cut every snapshot
//! shows what was frozen with what was written to it, the origin what was written to that, and a merge goes on.
//!
//! `seeds.rs` has the variables that say how much is looked at.

#![allow(missing_docs)]

mod life;
mod run;
#[path = "../rig/seeds.rs"]
mod seeds;
mod stack;

use run::{Outcome, Plan};

/// Runs seeds of `plan` until so many cuts have been looked at, and `saw` something of what the plan is about.
fn check(plan: Plan, first: u64, points: u64, saw: fn(&Outcome) -> u64) {
    if let Some((done, points)) = seeds::run(plan, first, points, |seed| run::run(plan, seed), |done| done.points) {
        assert!(done.writes > done.points / 2, "something must have been written: {done:?}");
        assert!(points < 500 || saw(&done) > 0, "nothing was seen of what this is about: {done:?}");
    }
}

#[test]
fn power_cuts_with_room() {
    check(Plan::Roomy, 1, 3000, |done| done.flushes);
}

#[test]
fn power_cuts_while_snapshots_come_and_change_hands() {
    check(Plan::Handover, 1_000_000, 2500, |done| done.controls);
}

#[test]
fn power_cuts_while_snapshots_are_merged() {
    check(Plan::Merging, 2_000_000, 3000, |done| done.merges.min(done.half_merged));
}

#[test]
fn power_cuts_when_cow_devices_are_full() {
    check(Plan::Full, 3_000_000, 1500, |done| done.invalid);
}

#[test]
fn power_cuts_while_everything_grows() {
    check(Plan::Growing, 6_000_000, 1500, |done| done.grown.min(done.merges));
}

#[test]
fn power_cuts_over_a_thin_pool() {
    check(Plan::Thin, 4_000_000, 800, |done| done.controls);
}

/// One operation fails, on any device: it costs at most the snapshots, and what is not invalid is right.
#[test]
fn power_cuts_after_a_failed_operation() {
    check(Plan::Failing, 5_000_000, 700, |done| done.invalid);
}
