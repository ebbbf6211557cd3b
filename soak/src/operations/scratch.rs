//! Devices that nobody uses come, change and go.

use super::{Operation, Outcome};
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "scratch",
    what: "makes a device, renames it, asks for its state, and removes it",
    weight: 15,
    alone: false,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let name = format!("scratch{}", turn.world.number());
    let sectors = 1 + turn.rng.below(1 << 16);
    let table = match turn.rng.below(3) {
        0 => format!("0 {sectors} ram"),
        1 => format!("0 {sectors} zero"),
        _ => format!("0 {sectors} error"),
    };
    turn.ok(&["create", &name, "--table", &table])?;
    let other = format!("{name}-x");
    turn.ok(&["rename", &name, &other])?;
    for command in ["info", "table", "status", "deps"] {
        if turn.rng.one_in(3) {
            turn.ok(&[command, &other])?;
        }
    }
    turn.ok(&["remove", &other])?;
    // What is not there any more is refused, and with the right error.
    if turn.may(&["remove", &other], &["No such device or address"])? {
        return Err(format!("{other}: removed twice"));
    }
    Ok(Outcome::Done)
}
