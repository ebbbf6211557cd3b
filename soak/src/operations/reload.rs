//! Any device gets its table once more, while it is in use.

use super::{Operation, Outcome};
use crate::rush::Rush;
use crate::world::{Kind, Turn};

pub(super) const OPERATION: Operation = Operation {
    name: "reload",
    what: "loads a device's table anew and resumes it, suspended before or not",
    weight: 20,
    alone: false,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let Some(device) = turn.world.any(turn.rng) else { return Ok(Outcome::Skipped) };
    let Some(table) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let _rush = if turn.rng.one_in(2) { Some(Rush::on(turn.world, &device, turn.rng)) } else { None };
    let first = turn.rng.one_in(2);
    if first {
        turn.ok(&["suspend", &device.name])?;
    }
    let load = ["load", &device.name, "--table", &table];
    // An origin takes one snapshot back at a time, also if it is the same.
    match device.kind {
        Kind::Merging { .. } => drop(turn.may(&load, &["A snapshot is already merging."])?),
        _ => turn.until(&load, super::POOL_SUSPENDED)?,
    }
    turn.pause(50);
    turn.until(&["resume", &device.name], super::POOL_SUSPENDED)?;
    Ok(Outcome::Done)
}
