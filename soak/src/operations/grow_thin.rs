//! A thin volume grows while it is in use.

use super::{Operation, Outcome, POOL_SUSPENDED};
use crate::watch::lock;
use crate::world::{Kind, SECTORS, Turn};

pub(super) const OPERATION: Operation = Operation {
    name: "grow-thin",
    what: "makes a thin volume in use larger, suspended before or not",
    weight: 4,
    alone: false,
    run,
};

/// Blocks by which it grows, and as many as it has at most.
const STEP: u64 = 64;
const MOST: u64 = 2048;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let thin = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Thin { .. }));
    let Some(thin) = thin else { return Ok(Outcome::Skipped) };
    let (Kind::Thin { id, .. }, Some(pool)) = (&thin.kind, &thin.on) else { return Ok(Outcome::Skipped) };
    let Some(mut table) = turn.world.hold(&thin) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&thin.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let blocks = lock(&volume.model).blocks() + STEP;
    if blocks > MOST {
        return Ok(Outcome::Skipped);
    }
    let larger = format!("0 {} thin /dev/mapper/{pool} {id}", blocks * SECTORS);
    if turn.rng.one_in(2) {
        turn.ok(&["suspend", &thin.name])?;
    }
    turn.until(&["load", &thin.name, "--table", &larger], POOL_SUSPENDED)?;
    turn.until(&["resume", &thin.name], POOL_SUSPENDED)?;
    *table = larger;
    volume.grow(blocks);
    Ok(Outcome::Done)
}
