//! A pool whose volumes are many, or far apart: each is written to and read.

use super::{Operation, Outcome};
use crate::client::{Client, Request, What, nbd::Nbd};
use crate::content::{self, BLOCK};
use crate::stacks::{POOL_BLOCK, pool_table};
use crate::world::Turn;
use std::sync::Mutex;

pub(super) const OPERATION: Operation = Operation {
    name: "crowd",
    what: "touches more than 512 volumes of one pool, and takes them down again",
    weight: 2,
    alone: false,
    run: many,
};

pub(super) const WIDE: Operation = Operation {
    name: "wide",
    what: "touches a volume in more than 512 places that are far apart",
    weight: 2,
    alone: false,
    run: wide,
};

/// More than the mapping cache has directories, or nodes.
const MANY: u64 = 530;
const MIB: u64 = 1 << 20;
/// Sectors that a node of the mapping cache covers: 2^18 blocks.
const FAR: u64 = (1 << 18) * POOL_BLOCK;

/// Writes a block and reads it back, on a connection of its own.
fn touch(turn: &Turn<'_>, name: &str, offset: u64) -> Result<(), String> {
    turn.actor.begin(format!("{}: touches {name} at byte {offset}", turn.name));
    let failed = |e: std::io::Error| format!("{name}: {e}");
    let mut nbd = Nbd::unix(&turn.world.daemon.nbd(), name).map_err(failed)?;
    let stamp = content::stamp();
    let mut write = Request::new(What::Write { fua: false }, offset, BLOCK as u32);
    write.data = vec![0; BLOCK];
    content::fill(&mut write.data, stamp, offset);
    for mut request in [write, Request::new(What::Read, offset, BLOCK as u32)] {
        let batch = std::slice::from_mut(&mut request);
        nbd.execute(batch, &mut || turn.actor.moved()).map_err(failed)?;
        match request.answer {
            Some(Ok(())) if content::read(&request.data, offset) == Ok(stamp) => {}
            other => return Err(format!("{name}, byte {offset}: {:?} gives {other:?}, or other data", request.what)),
        }
    }
    Ok(())
}

/// A pool of its own that goes in the end.
fn with_pool(
    turn: &mut Turn<'_>,
    work: impl FnOnce(&mut Turn<'_>, &str, &mut Vec<String>) -> Result<(), String>,
) -> Result<Outcome, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let Ok(_one) = ONE.try_lock() else { return Ok(Outcome::Skipped) };
    let pool = format!("crowd{}", turn.world.number());
    let metadata = turn.world.file(&format!("{pool}-meta"), 16 * MIB)?;
    let data = turn.world.file(&format!("{pool}-data"), 128 * MIB)?;
    turn.ok(&["create", &pool, "--table", &pool_table(&metadata, &data, 128 * MIB / 512)])?;
    let mut made = Vec::new();
    work(turn, &pool, &mut made)?;
    turn.remove(&made)?;
    turn.remove([&pool])?;
    turn.world.delete([metadata, data])?;
    Ok(Outcome::Done)
}

fn volume(turn: &Turn<'_>, pool: &str, id: u64, sectors: u64, made: &mut Vec<String>) -> Result<String, String> {
    let name = format!("{pool}-{id}");
    turn.ok(&["message", pool, "0", &format!("create_thin {id}")])?;
    turn.ok(&["create", &name, "--table", &format!("0 {sectors} thin /dev/mapper/{pool} {id}")])?;
    made.push(name.clone());
    Ok(name)
}

fn many(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_pool(turn, |turn, pool, made| {
        for id in 0..MANY {
            let name = volume(turn, pool, id, 64 * POOL_BLOCK, made)?;
            touch(turn, &name, 0)?;
            if turn.world.has_failed() {
                break;
            }
        }
        Ok(())
    })
}

fn wide(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_pool(turn, |turn, pool, made| {
        let name = volume(turn, pool, 0, MANY * FAR, made)?;
        for place in 0..MANY {
            touch(turn, &name, place * FAR * 512)?;
        }
        Ok(())
    })
}
