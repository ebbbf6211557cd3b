//! Another daemon takes over under load; nobody notices.

use super::{Operation, Outcome};
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "replace",
    what: "replaces the daemon under load: no request fails",
    weight: 1,
    alone: true,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let done = turn.may(&["daemon", "--replace"], &["within 10 s", "not done within"])?;
    Ok(if done { Outcome::Done } else { Outcome::Skipped })
}
