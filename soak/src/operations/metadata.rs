//! A pool comes to the end of its metadata: it takes no changes any more, and goes on when the metadata have grown.

use super::{Operation, Outcome};
use crate::load;
use crate::model::Model;
use crate::stacks::pool_table;
use crate::volume::{Volume, Way};
use crate::world::{SECTORS, Turn};
use std::sync::Arc;

pub(super) const OPERATION: Operation = Operation {
    name: "metadata",
    what: "uses up a pool's metadata by snapshots and writes, and lets them grow: what was there stays, and all goes on",
    weight: 3,
    alone: false,
    run,
};

const MIB: u64 = 1 << 20;
/// Bytes of metadata at first: 32 blocks.
const FEW: u64 = 128 << 10;
const BLOCKS: u64 = 512;
/// What a pool says that takes no changes.
const READ_ONLY: &[&str] = &[
    "the pool is out of metadata space",
    "unable to service pool target messages in READ_ONLY",
    "No space left on device",
];

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let pool = format!("tight{}", turn.world.number());
    let metadata = turn.world.file(&format!("{pool}-meta"), FEW)?;
    let data = turn.world.file(&format!("{pool}-data"), 1024 * MIB)?;
    let table = pool_table(&metadata, &data, 1024 * MIB / 512);
    turn.ok(&["create", &pool, "--table", &table])?;
    turn.ok(&["message", &pool, "0", "create_thin 0"])?;
    let name = format!("{pool}-0");
    turn.ok(&["create", &name, "--table", &format!("0 {} thin /dev/mapper/{pool} 0", BLOCKS * SECTORS)])?;
    let volume = Arc::new(Volume::new(&name, Way::Unix, Model::zeroes(BLOCKS)));
    turn.world.start(&volume);
    let excuse = volume.excuse();
    let mut snapshot = 1000;
    while turn.may(&["message", &pool, "0", &format!("create_snap {snapshot} 0")], READ_ONLY)? {
        snapshot += 1;
        if turn.world.has_failed() {
            return Err("another has failed".to_owned());
        }
    }
    turn.wait("the pool takes no changes", || {
        let status = turn.world.daemon.run(["status", &pool]);
        status.is_ok_and(|said| said.out.contains(" ro "))
    })?;
    turn.others_go_on("while a pool has no metadata", &[&name])?;
    turn.world.lengthen(&metadata, FEW + MIB)?;
    turn.ok(&["load", &pool, "--table", &table])?;
    turn.ok(&["suspend", &pool])?;
    turn.ok(&["resume", &pool])?;
    let status = turn.ok(&["status", &pool])?;
    if !status.contains(" rw ") {
        return Err(format!("the metadata of {pool} have grown, and its status is {}", status.trim()));
    }
    turn.actor.begin(format!("metadata: has the load of {name} rest"));
    // Nothing that was on its way is excused later.
    drop(volume.rest());
    drop(excuse);
    let answers = volume.answers();
    turn.wait("writes go on in a pool whose metadata have grown", || volume.answers() > answers + 50)?;
    turn.actor.begin(format!("metadata: has the load of {name} end"));
    turn.world.stop(std::slice::from_ref(&volume));
    load::check(turn.world, &volume, turn.actor)?;
    turn.remove([&name, &pool])?;
    turn.world.delete([metadata, data])?;
    Ok(Outcome::Done)
}
