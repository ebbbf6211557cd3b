//! The daemon is killed under load; another goes on.

use super::{Operation, Outcome};
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "kill",
    what: "kills the daemon under load and starts another: what was flushed is there",
    weight: 1,
    alone: true,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    turn.actor.begin("kill: the daemon is killed");
    turn.world.daemon.kill();
    turn.ok(&["ls"])?;
    let status = turn.ok(&["daemon", "--status"])?;
    if let Some(lost) = status.lines().find(|line| line.starts_with("lost:")) {
        return Err(format!("after a kill: {lost}"));
    }
    Ok(Outcome::Done)
}
