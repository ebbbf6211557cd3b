//! A snapshot of a thin volume in use, which is then in use itself.

use super::{Operation, Outcome};
use crate::stacks::activate;
use crate::watch::lock;
use crate::world::{Kind, Turn};

pub(super) const OPERATION: Operation = Operation {
    name: "thin-snapshot",
    what: "takes a snapshot of a thin volume in use, and uses it",
    weight: 8,
    alone: false,
    run,
};

/// As many snapshots there are at a time.
const MOST: usize = 4;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let is_snapshot = |kind: &Kind| matches!(kind, Kind::Thin { snapshot: true, .. });
    if turn.world.devices().iter().filter(|device| is_snapshot(&device.kind)).count() >= MOST {
        return Ok(Outcome::Skipped);
    }
    let thin = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Thin { .. }));
    let Some(thin) = thin else { return Ok(Outcome::Skipped) };
    let (Kind::Thin { id, .. }, Some(pool)) = (&thin.kind, &thin.on) else { return Ok(Outcome::Skipped) };
    // Nobody deletes it meanwhile.
    let Some(_mine) = turn.world.hold(&thin) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&thin.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let new = 1000 + turn.world.number() as u32;
    let before = {
        let mut model = lock(&volume.model);
        model.begin_snapshot();
        model.clone()
    };
    turn.ok(&["message", pool, "0", &format!("create_snap {new} {id}")])?;
    let model = lock(&volume.model).end_snapshot(before);
    activate(turn, pool, new, model, true)?;
    Ok(Outcome::Done)
}
