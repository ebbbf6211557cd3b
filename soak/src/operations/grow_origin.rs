//! An origin grows, and its snapshots with it, while they are in use.

use super::{Operation, Outcome};
use crate::stacks::{CHUNK, origin_table};
use crate::volume::Volume;
use crate::watch::lock;
use crate::world::{Device, Kind, SECTORS, Turn};
use std::sync::Arc;

pub(super) const OPERATION: Operation = Operation {
    name: "grow-origin",
    what: "makes an origin larger, and some of its snapshots",
    weight: 3,
    alone: false,
    run,
};

/// Blocks by which it grows, and as many as it has at most.
const STEP: u64 = 64;
const MOST: u64 = 4096;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let origin = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Origin { .. }));
    let Some(origin) = origin else { return Ok(Outcome::Skipped) };
    let Kind::Origin { file } = &origin.kind else { return Ok(Outcome::Skipped) };
    let Some(mut table) = turn.world.hold(&origin) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&origin.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let blocks = lock(&volume.model).blocks() + STEP;
    if blocks > MOST {
        return Ok(Outcome::Skipped);
    }
    turn.world.lengthen(file, blocks * SECTORS * 512)?;
    turn.ok(&["suspend", &origin.name])?;
    for snapshot in turn.world.standing_on(&origin.name) {
        if turn.rng.one_in(4) {
            continue;
        }
        grow(turn, &snapshot, file, &volume, blocks)?;
    }
    let larger = origin_table(file, blocks);
    turn.ok(&["load", &origin.name, "--table", &larger])?;
    turn.ok(&["resume", &origin.name])?;
    *table = larger;
    volume.grow(blocks);
    Ok(Outcome::Done)
}

fn grow(
    turn: &Turn<'_>,
    snapshot: &Arc<Device>,
    file: &std::path::Path,
    origin: &Volume,
    blocks: u64,
) -> Result<(), String> {
    let Kind::Snapshot { cow } = &snapshot.kind else { return Ok(()) };
    let Some(mut table) = turn.world.hold(snapshot) else { return Ok(()) };
    let Some(volume) = lock(&snapshot.volumes).first().cloned() else { return Ok(()) };
    let room = 2 * blocks * SECTORS * 512 + (8 << 20);
    if std::fs::metadata(cow).is_ok_and(|meta| meta.len() < room) {
        turn.world.lengthen(cow, room)?;
    }
    let kind = if table.contains(" PO ") { "PO" } else { "P" };
    let larger = format!("0 {} snapshot {} {} {kind} {CHUNK}", blocks * SECTORS, file.display(), cow.display());
    turn.ok(&["suspend", &snapshot.name])?;
    turn.ok(&["load", &snapshot.name, "--table", &larger])?;
    turn.ok(&["resume", &snapshot.name])?;
    *table = larger;
    // Where it showed nothing before it shows what the origin has, which was written without a copy.
    let mut shown = lock(&origin.model).clone();
    shown.grow(blocks);
    volume.grow_as(&shown);
    Ok(())
}
