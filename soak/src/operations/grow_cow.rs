//! A snapshot whose COW device has room for what comes next and no more, and grows in time; in the end it does not.

use super::{Operation, Outcome};
use crate::load;
use crate::model::Model;
use crate::stacks::{CHUNK, origin_table};
use crate::volume::{Volume, Way};
use crate::world::{SECTORS, Turn};
use std::sync::Arc;

pub(super) const OPERATION: Operation = Operation {
    name: "grow-cow",
    what: "writes to an origin and its snapshot, whose COW device grows just in time; then one overflows, and the origin goes on",
    weight: 3,
    alone: false,
    run,
};

/// Blocks of the origin.
const BLOCKS: u64 = 512;
/// Bytes that a batch of the load and what belongs to it may take in the COW device: all its blocks, one in a chunk,
/// and an area of metadata.
const ROOM: u64 = (96 + 4) * CHUNK * 512;
/// Batches while it grows.
const BATCHES: u64 = 12;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let number = turn.world.number();
    let (origin, snapshot) = (format!("narrow{number}"), format!("narrow{number}-snap"));
    let file = turn.world.file(&origin, BLOCKS * SECTORS * 512)?;
    let cow = turn.world.file(&snapshot, ROOM)?;
    turn.ok(&["create", &origin, "--table", &origin_table(&file, BLOCKS)])?;
    let kind = ["P", "PO"][turn.rng.below(2) as usize];
    let sectors = BLOCKS * SECTORS;
    let table = format!("0 {sectors} snapshot {} {} {kind} {CHUNK}", file.display(), cow.display());
    turn.ok(&["create", &snapshot, "--table", &table])?;
    let volumes = [&origin, &snapshot].map(|name| Arc::new(Volume::new(name, Way::Unix, Model::zeroes(BLOCKS))));
    for _ in 0..BATCHES {
        turn.world.lengthen(&cow, used(turn, &snapshot)? * 512 + ROOM)?;
        let volume = &volumes[turn.rng.below(2) as usize];
        batch(turn, volume)?;
    }
    for volume in &volumes {
        load::check(turn.world, volume, turn.actor)?;
    }
    // From here on the snapshot may become invalid, but nothing happens to its origin.
    let excuse = volumes[1].excuse();
    for _ in 0..BATCHES {
        batch(turn, &volumes[0])?;
    }
    load::check(turn.world, &volumes[0], turn.actor)?;
    drop(excuse);
    turn.remove([&snapshot, &origin])?;
    turn.world.delete([file, cow])?;
    Ok(Outcome::Done)
}

fn batch(turn: &mut Turn<'_>, volume: &Arc<Volume>) -> Result<(), String> {
    let client = volume.connect(&turn.world.daemon).map_err(|e| format!("{}: {e}", volume.name))?;
    load::burst(turn.world, volume, turn.actor, turn.rng, client, 1)
}

/// Sectors in use: `0 LENGTH snapshot USED/ALL METADATA`.
fn used(turn: &Turn<'_>, name: &str) -> Result<u64, String> {
    let status = turn.ok(&["status", name])?;
    let used = status.split_whitespace().nth(3).and_then(|word| word.split('/').next()?.parse().ok());
    used.ok_or_else(|| format!("{name} is to grow, and its status is {:?}", status.trim()))
}
