//! Thin pools that lose their power: random I/O, snapshots and deletes on several volumes, cut at random moments with
//! unflushed writes kept, lost, torn and reordered. After each cut the pool is opened again: its metadata is clean, what a
//! FLUSH or FUA covered reads back, and every other sector has its old value or its new one.
//!
//! `UDM_CRASH_POINTS` says how many cuts each test looks at, `UDM_CRASH_SEED` where to begin, and with
//! `UDM_CRASH_ONLY` one seed runs alone: `cargo xtask crash` sets them.

#![allow(missing_docs)]

mod pool;
mod run;

use run::{Outcome, Plan};

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => otherwise,
    }
}

/// Runs seeds of `plan` until so many cuts have been looked at.
fn check(plan: Plan, first: u64, points: u64) {
    if std::env::var_os("UDM_CRASH_ONLY").is_some() {
        run::run(plan, number("UDM_CRASH_ONLY", 0));
        return;
    }
    let first = first + number("UDM_CRASH_SEED", 0);
    let points = number("UDM_CRASH_POINTS", points);
    let mut done = Outcome::default();
    for seed in first.. {
        // Told before, so that a failure names it.
        eprintln!("{plan:?}: seed {seed}");
        done += run::run(plan, seed);
        if done.points >= points {
            break;
        }
    }
    println!("{plan:?}: {done:?}");
    assert!(done.writes > done.points / 20, "something must have been written: {done:?}");
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

/// A write fails, on the metadata device or on the data device, at each index in turn: what the pool acknowledged is true.
#[test]
fn a_failed_write_at_each_index() {
    check(Plan::Failing, 3_000_000, 300);
}
