//! Any device is suspended for a moment, with every flag, while it is in use.

use super::{Operation, Outcome};
use crate::rush::Rush;
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "suspend",
    what: "suspends a device that is in use, with --nolockfs or without, and resumes it",
    weight: 25,
    alone: false,
    run: |turn| suspend(turn, false),
};

pub(super) const NOFLUSH: Operation = Operation {
    name: "suspend-noflush",
    what: "suspends a device that is in use with --noflush, and resumes it",
    weight: 15,
    alone: false,
    run: |turn| suspend(turn, true),
};

fn suspend(turn: &mut Turn<'_>, noflush: bool) -> Result<Outcome, String> {
    let Some(device) = turn.world.any(turn.rng) else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let mut words = vec!["suspend"];
    if noflush {
        words.push("--noflush");
    }
    if turn.rng.one_in(3) {
        words.push("--nolockfs");
    }
    words.push(&device.name);
    let _rush = if turn.rng.one_in(2) { Some(Rush::on(turn.world, &device, turn.rng)) } else { None };
    for _ in 0..=turn.rng.below(6) {
        turn.ok(&words)?;
        let most = [1, 20, 400][turn.rng.below(3) as usize];
        turn.pause(most);
        turn.until(&["resume", &device.name], super::POOL_SUSPENDED)?;
    }
    Ok(Outcome::Done)
}
