//! Snapshots with a COW device of their own come and go while their origin is in use.

use super::{Operation, Outcome};
use crate::load;
use crate::stacks::CHUNK;
use crate::volume::{Volume, Way};
use crate::watch::lock;
use crate::world::{Kind, SECTORS, Turn};
use std::sync::Arc;

pub(super) const OPERATION: Operation = Operation {
    name: "snapshot",
    what: "takes a snapshot of an origin in use, and uses it",
    weight: 6,
    alone: false,
    run: take,
};

pub(super) const DROP: Operation = Operation {
    name: "snapshot-remove",
    what: "reads a snapshot to its end, and removes it",
    weight: 4,
    alone: false,
    run: remove,
};

/// As many snapshots an origin has at a time.
const MOST: usize = 3;

fn take(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let origin = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Origin { .. }));
    let Some(origin) = origin else { return Ok(Outcome::Skipped) };
    let Kind::Origin { file } = &origin.kind else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&origin) else { return Ok(Outcome::Skipped) };
    if turn.world.standing_on(&origin.name).len() >= MOST {
        return Ok(Outcome::Skipped);
    }
    let Some(volume) = lock(&origin.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let name = format!("snap{}", turn.world.number());
    let blocks = lock(&volume.model).blocks();
    // Room for each chunk twice, for what the origin grows by.
    let cow = turn.world.file(&format!("{name}-cow"), 2 * blocks * SECTORS * 512 + (8 << 20))?;
    let kind = ["P", "PO"][turn.rng.below(2) as usize];
    let sectors = blocks * SECTORS;
    let table = format!("0 {sectors} snapshot {} {} {kind} {CHUNK}", file.display(), cow.display());
    let before = {
        let mut model = lock(&volume.model);
        model.begin_snapshot();
        model.clone()
    };
    // As lvm2 does it: what is on its way to the origin is there before the snapshot is.
    turn.ok(&["suspend", &origin.name])?;
    let made = turn.ok(&["create", &name, "--table", &table]);
    turn.ok(&["resume", &origin.name])?;
    let model = lock(&volume.model).end_snapshot(before);
    made?;
    let snapshot = Arc::new(Volume::new(&name, Way::Unix, model));
    turn.world.start(&snapshot);
    turn.world.add(&name, Kind::Snapshot { cow }, Some(&origin.name), &table, vec![snapshot]);
    Ok(Outcome::Done)
}

fn remove(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let device = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Snapshot { .. }));
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    let Kind::Snapshot { cow } = &device.kind else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    turn.world.forget(&device);
    let volumes = lock(&device.volumes).clone();
    turn.actor.begin(format!("{}: has the load of {} end", turn.name, device.name));
    turn.world.stop(&volumes);
    for volume in &volumes {
        load::check(turn.world, volume, turn.actor)?;
    }
    turn.remove([&device.name])?;
    turn.world.delete([cow])?;
    Ok(Outcome::Done)
}
