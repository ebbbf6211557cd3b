//! Seeds, one after the other, until enough has been looked at: for `thin_crash` and `snapshot_crash`.
//!
//! `UDM_CRASH_POINTS` says how many cuts each test looks at, `UDM_CRASH_SEED` where to begin, and with
//! `UDM_CRASH_ONLY` one seed runs alone: `cargo xtask crash` sets them.

use std::fmt::Debug;
use std::ops::AddAssign;

/// Runs seeds of `plan`, of which the first is `first` unless told, until `points` of the outcome have come to so many.
/// Returns what came of them, and how many it was to be; `None` when one seed ran alone.
pub(crate) fn run<O: AddAssign + Default + Debug>(
    plan: impl Debug,
    first: u64,
    points: u64,
    run: impl Fn(u64) -> O,
    points_of: impl Fn(&O) -> u64,
) -> Option<(O, u64)> {
    if std::env::var_os("UDM_CRASH_ONLY").is_some() {
        println!("{plan:?}: {:?}", run(number("UDM_CRASH_ONLY", 0)));
        return None;
    }
    let points = number("UDM_CRASH_POINTS", points);
    let mut done = O::default();
    for seed in first + number("UDM_CRASH_SEED", 0).. {
        // Told before, so that a failure names it.
        eprintln!("{plan:?}: seed {seed}");
        done += run(seed);
        if points_of(&done) >= points {
            break;
        }
    }
    println!("{plan:?}: {done:?}");
    Some((done, points))
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
        Err(_) => otherwise,
    }
}
