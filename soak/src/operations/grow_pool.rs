//! A pool gets more space, of either kind, while its volumes are in use.

use super::{Operation, Outcome};
use crate::stacks::pool_table;
use crate::world::{Kind, Turn};

pub(super) const OPERATION: Operation = Operation {
    name: "grow-pool",
    what: "makes the data or the metadata of a pool larger",
    weight: 4,
    alone: false,
    run,
};

const MIB: u64 = 1 << 20;
/// Past this the file system beneath might be the one that is full.
const MOST: u64 = 1024 * MIB;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let pool = turn.world.pick(turn.rng, |device| matches!(device.kind, Kind::Pool { .. }));
    let Some(pool) = pool else { return Ok(Outcome::Skipped) };
    let Kind::Pool { metadata, data } = &pool.kind else { return Ok(Outcome::Skipped) };
    let Some(mut table) = turn.world.hold(&pool) else { return Ok(Outcome::Skipped) };
    let length = |path: &std::path::Path| std::fs::metadata(path).map(|m| m.len()).map_err(|e| e.to_string());
    let (of_metadata, of_data) = (length(metadata)?, length(data)?);
    if turn.rng.one_in(3) && of_metadata < 64 * MIB {
        turn.world.lengthen(metadata, of_metadata + MIB)?;
    } else if of_data < MOST {
        turn.world.lengthen(data, of_data + 4 * MIB)?;
    } else {
        return Ok(Outcome::Skipped);
    }
    let larger = pool_table(metadata, data, length(data)? / 512);
    if turn.rng.one_in(2) {
        turn.ok(&["suspend", &pool.name])?;
    }
    turn.ok(&["load", &pool.name, "--table", &larger])?;
    turn.ok(&["resume", &pool.name])?;
    *table = larger;
    Ok(Outcome::Done)
}
