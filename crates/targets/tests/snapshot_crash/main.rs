//! Snapshots that lose their power: random I/O on an origin and its snapshots, which come, go, change hands and are merged,
//! cut at random moments with unflushed writes kept, lost, torn and reordered. After each cut every snapshot shows what was
//! frozen with what was written to it, the origin what was written to that, and a merge goes on.
//!
//! `UDM_CRASH_POINTS` says how many cuts each test looks at, `UDM_CRASH_SEED` where to begin, and with
//! `UDM_CRASH_ONLY` one seed runs alone: `cargo xtask crash` sets them.

#![allow(missing_docs)]

mod life;
mod run;
mod stack;

use run::{Outcome, Plan};

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => otherwise,
    }
}

/// Runs seeds of `plan` until so many cuts have been looked at.
fn check(plan: Plan, first: u64, points: u64) -> Outcome {
    let mut done = Outcome::default();
    if std::env::var_os("UDM_CRASH_ONLY").is_some() {
        done += run::run(plan, number("UDM_CRASH_ONLY", 0));
        println!("{plan:?}: {done:?}");
        return done;
    }
    let first = first + number("UDM_CRASH_SEED", 0);
    let points = number("UDM_CRASH_POINTS", points);
    for seed in first.. {
        // Told before, so that a failure names it.
        eprintln!("{plan:?}: seed {seed}");
        done += run::run(plan, seed);
        if done.points >= points {
            break;
        }
    }
    println!("{plan:?}: {done:?}");
    assert!(done.writes > done.points / 2, "something must have been written: {done:?}");
    done
}

#[test]
fn power_cuts_with_room() {
    check(Plan::Roomy, 1, 3000);
}

#[test]
fn power_cuts_while_snapshots_come_and_change_hands() {
    let done = check(Plan::Handover, 1_000_000, 2000);
    assert!(done.controls > 0, "{done:?}");
}

#[test]
fn power_cuts_while_snapshots_are_merged() {
    let done = check(Plan::Merging, 2_000_000, 2500);
    assert!(done.merges > 0, "{done:?}");
}

#[test]
fn power_cuts_when_cow_devices_are_full() {
    let done = check(Plan::Full, 3_000_000, 1500);
    assert!(done.invalid > 0, "{done:?}");
}

#[test]
fn power_cuts_over_a_thin_pool() {
    check(Plan::Thin, 4_000_000, 800);
}

/// One operation fails, on any device: it costs at most the snapshots, and what is not invalid is right.
#[test]
fn power_cuts_after_a_failed_operation() {
    let done = check(Plan::Failing, 5_000_000, 700);
    assert!(done.invalid > 0, "{done:?}");
}
