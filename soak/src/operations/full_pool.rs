//! A pool without space: writes wait until it has grown.

use super::{Operation, Outcome};
use crate::load;
use crate::model::Model;
use crate::stacks::{POOL_BLOCK, pool_table};
use crate::volume::{Volume, Way};
use crate::world::{SECTORS, Turn};
use std::sync::Arc;

pub(super) const OPERATION: Operation = Operation {
    name: "full-pool",
    what: "fills a small pool, lets writes wait for space, and grows it: no write fails, others go on",
    weight: 3,
    alone: false,
    run,
};

/// Blocks of the pool at first, and in the end.
const FEW: u64 = 8;
const ENOUGH: u64 = 64;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let pool = format!("full{}", turn.world.number());
    let bytes = |blocks: u64| blocks * POOL_BLOCK * 512;
    let metadata = turn.world.file(&format!("{pool}-meta"), 1 << 20)?;
    let data = turn.world.file(&format!("{pool}-data"), bytes(ENOUGH))?;
    turn.ok(&["create", &pool, "--table", &pool_table(&metadata, &data, FEW * POOL_BLOCK)])?;
    turn.ok(&["set", &pool, "no_space_timeout=0"])?;
    turn.ok(&["message", &pool, "0", "create_thin 0"])?;
    let name = format!("{pool}-0");
    let blocks = (ENOUGH - 1) * POOL_BLOCK / SECTORS;
    turn.ok(&["create", &name, "--table", &format!("0 {} thin /dev/mapper/{pool} 0", blocks * SECTORS)])?;
    let volume = Arc::new(Volume::new(&name, Way::Unix, Model::zeroes(blocks)));
    turn.world.start(&volume);
    turn.wait("the pool is full", || {
        let status = turn.world.daemon.run(["status", &pool]);
        status.is_ok_and(|said| said.out.contains("out_of_data_space"))
    })?;
    turn.others_go_on("while a pool has no space", &[&name])?;
    if turn.rng.one_in(2) {
        turn.ok(&["suspend", &pool])?;
    }
    turn.ok(&["load", &pool, "--table", &pool_table(&metadata, &data, ENOUGH * POOL_BLOCK)])?;
    turn.ok(&["resume", &pool])?;
    let answers = volume.answers();
    turn.wait("writes go on in a pool that has grown", || volume.answers() > answers + 50)?;
    turn.actor.begin(format!("full-pool: has the load of {name} end"));
    turn.world.stop(std::slice::from_ref(&volume));
    load::check(turn.world, &volume, turn.actor)?;
    turn.remove([&name, &pool])?;
    turn.world.delete([metadata, data])?;
    Ok(Outcome::Done)
}
