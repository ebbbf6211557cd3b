//! A snapshot is merged into its origin, which is in use and goes on as the snapshot; whatever else happens comes in
//! between.

use super::{Operation, Outcome};
use crate::stacks::{CHUNK, origin_table};
use crate::watch::lock;
use crate::world::{Kind, SECTORS, Turn};

pub(super) const IN: Operation = Operation {
    name: "merge",
    what: "has an origin in use show one of its snapshots, and merges that in the background",
    weight: 4,
    alone: false,
    run: begin,
};

pub(super) const OUT: Operation = Operation {
    name: "merge-end",
    what: "gives a merged device in use its origin's table again, when the merge is done",
    weight: 8,
    alone: false,
    run: end,
};

fn begin(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let snapshot = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Snapshot { .. }));
    let Some(snapshot) = snapshot else { return Ok(Outcome::Skipped) };
    let origin = snapshot.on.as_ref().and_then(|on| turn.world.device(on));
    let Some(origin) = origin else { return Ok(Outcome::Skipped) };
    let (Kind::Snapshot { cow }, Kind::Origin { file }) = (&snapshot.kind, &origin.kind) else {
        return Ok(Outcome::Skipped);
    };
    let Some(mine) = turn.world.hold(&origin) else { return Ok(Outcome::Skipped) };
    let Some(taken) = turn.world.hold(&snapshot) else { return Ok(Outcome::Skipped) };
    let volume = lock(&origin.volumes).first().cloned();
    let (Some(volume), Some(shown)) = (volume, lock(&snapshot.volumes).first().cloned()) else {
        return Ok(Outcome::Skipped);
    };
    let blocks = lock(&shown.model).blocks();
    // It may not have grown with its origin.
    if lock(&volume.model).blocks() != blocks {
        return Ok(Outcome::Skipped);
    }
    let kind = if taken.contains(" PO ") { "PO" } else { "P" };
    let sectors = blocks * SECTORS;
    let table = format!("0 {sectors} snapshot-merge {} {} {kind} {CHUNK}", file.display(), cow.display());
    turn.world.forget(&snapshot);
    turn.actor.begin(format!("merge: has the load of {} end", snapshot.name));
    turn.world.stop(std::slice::from_ref(&shown));
    // Its own device hands the exceptions over, also those that writes to the origin make until then. Or it has gone
    // before, and nothing may be written to the origin any more that it does not get.
    let hands_over = turn.rng.one_in(2);
    if hands_over {
        turn.ok(&["suspend", &snapshot.name])?;
        turn.pause(50);
    }
    turn.actor.begin(format!("merge: has the load of {} rest", origin.name));
    let resting = volume.rest();
    if !hands_over {
        turn.remove([&snapshot.name])?;
    }
    turn.ok(&["suspend", &origin.name])?;
    turn.ok(&["load", &origin.name, "--table", &table])?;
    turn.ok(&["resume", &origin.name])?;
    let model = lock(&shown.model).clone();
    *lock(&volume.model) = model;
    drop(resting);
    if hands_over {
        turn.remove([&snapshot.name])?;
    }
    let kind = Kind::Merging { file: file.clone(), cow: cow.clone() };
    turn.world.become_another(&origin, kind, &table);
    drop(mine);
    Ok(Outcome::Done)
}

fn end(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let device = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Merging { .. }));
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    let Kind::Merging { file, cow } = &device.kind else { return Ok(Outcome::Skipped) };
    let Some(mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&device.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    if !is_done(&turn.ok(&["status", &device.name])?)? {
        return Ok(Outcome::Skipped);
    }
    let table = origin_table(file, lock(&volume.model).blocks());
    if turn.rng.one_in(2) {
        turn.ok(&["suspend", &device.name])?;
    }
    turn.ok(&["load", &device.name, "--table", &table])?;
    turn.ok(&["resume", &device.name])?;
    turn.world.delete([cow])?;
    turn.world.become_another(&device, Kind::Origin { file: file.clone() }, &table);
    drop(mine);
    Ok(Outcome::Done)
}

/// `0 LENGTH snapshot-merge ALLOCATED/ALL METADATA`: in the end nothing but the metadata is allocated.
fn is_done(status: &str) -> Result<bool, String> {
    let words: Vec<&str> = status.split_whitespace().collect();
    match words[..] {
        [_, _, "snapshot-merge", allocated, metadata] => Ok(allocated.split('/').next() == Some(metadata)),
        _ => Err(format!("the status of a merge is {status:?}")),
    }
}
