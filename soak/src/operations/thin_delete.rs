//! A thin volume that was a snapshot goes, while others are in use.

use super::{Operation, Outcome};
use crate::load;
use crate::watch::lock;
use crate::world::{Kind, Turn};

pub(super) const OPERATION: Operation = Operation {
    name: "thin-delete",
    what: "reads a thin snapshot to its end, removes its device and deletes it",
    weight: 7,
    alone: false,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let thin = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Thin { snapshot: true, .. }));
    let Some(thin) = thin else { return Ok(Outcome::Skipped) };
    let (Kind::Thin { id, .. }, Some(pool)) = (&thin.kind, &thin.on) else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&thin) else { return Ok(Outcome::Skipped) };
    turn.world.forget(&thin);
    let volumes = lock(&thin.volumes).clone();
    turn.actor.begin(format!("thin-delete: has the load of {} end", thin.name));
    turn.world.stop(&volumes);
    for volume in &volumes {
        load::check(turn.world, volume, turn.actor)?;
    }
    turn.remove([&thin.name])?;
    turn.ok(&["message", pool, "0", &format!("delete {id}")])?;
    Ok(Outcome::Done)
}
