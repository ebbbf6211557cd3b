//! What `cargo xtask soak` does to a daemon, done by one seed to the bio: pools, volumes, snapshots and what passes on
//! are suspended, reloaded, grown, made and deleted at random moments, while bios are in flight. What it finds can be
//! done again.
//!
//! `seeds.rs` has the variables that say how much is looked at; `cargo xtask soak --simulated` sets them.

#![allow(missing_docs)]

mod life;
#[path = "../rig/seeds.rs"]
mod seeds;
mod stack;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds in which a life has to get from one step to the next, on any machine: a bio that goes round for ever lets no
/// simulated time pass, so only a real clock notices.
const PATIENCE: u64 = 100;

/// Lives that once hung, beyond the first: what a command had left on the channel of control threads nobody served.
const HUNG: &[u64] = &[13, 20, 28, 35, 36, 42];

/// Steps of all lives. It stands still when one hangs.
pub(crate) static STEPS: AtomicU64 = AtomicU64::new(0);
/// Whose life it is.
pub(crate) static SEED: AtomicU64 = AtomicU64::new(0);

/// Says whose life it was, and ends the process: past what captures the output of tests, and before anything is
/// dropped, since a channel cannot be while somebody is inside.
fn end(what: &dyn std::fmt::Display) -> ! {
    let (seed, steps) = (SEED.load(Ordering::Relaxed), STEPS.load(Ordering::Relaxed));
    let again = format!("again by `cargo xtask soak --simulated --seed {seed} --seeds 1`");
    let _ = writeln!(std::io::stderr(), "seed {seed}, step {steps}: {what}\n{again}");
    std::process::exit(101)
}

/// Ends the process when nothing moves, or something is wrong.
fn watch() {
    std::panic::set_hook(Box::new(|info| end(&format!("{info}\n{}", std::backtrace::Backtrace::force_capture()))));
    std::thread::spawn(|| {
        let (mut seen, mut quiet) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = STEPS.load(Ordering::Relaxed);
            quiet = if now == seen { quiet + 1 } else { 0 };
            seen = now;
            if quiet == PATIENCE {
                end(&format!("HANG: no step for {PATIENCE} s"));
            }
        }
    });
}

#[test]
fn a_random_life_of_a_stack() {
    watch();
    if std::env::var_os("UDM_CRASH_SEED").is_none() {
        for seed in HUNG {
            life::run(*seed);
        }
    }
    if let Some((done, _)) = seeds::run("soak", 1, 12, life::run, |done| done.lives) {
        let few = done.changes < done.steps / 20 || done.checked < done.steps / 10;
        assert!(!few, "something must have happened: {done:?}");
    }
}
