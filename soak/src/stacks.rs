//! The devices that a soak begins with.

use crate::model::Model;
use crate::volume::{Volume, Way};
use crate::world::{Kind, SECTORS, Turn};
use std::sync::Arc;

/// Sectors of a block of the pools.
pub const POOL_BLOCK: u64 = 128;
/// Blocks of the load in a volume.
pub const BLOCKS: u64 = 1024;
/// Sectors of a chunk of the snapshots.
pub const CHUNK: u64 = 16;

const MIB: u64 = 1 << 20;

/// Makes all of them, with their writers.
pub fn build(turn: &Turn<'_>) -> Result<(), String> {
    for build in [pool, plain, origin, nodes] {
        build(turn)?;
    }
    Ok(())
}

/// The table of a pool.
pub fn pool_table(metadata: &std::path::Path, data: &std::path::Path, sectors: u64) -> String {
    format!("0 {sectors} thin-pool {} {} {POOL_BLOCK} 0", metadata.display(), data.display())
}

/// Makes a thin device live, with a writer.
pub fn activate(turn: &Turn<'_>, pool: &str, id: u32, model: Model, snapshot: bool) -> Result<(), String> {
    let name = format!("{pool}-{id}");
    let table = format!("0 {} thin /dev/mapper/{pool} {id}", model.blocks() * SECTORS);
    turn.until(&["create", &name, "--table", &table], &["while pool is suspended"])?;
    let volume = Arc::new(Volume::new(&name, Way::Unix, model));
    turn.world.start(&volume);
    turn.world.add(&name, Kind::Thin { id, snapshot }, Some(pool), &table, vec![volume]);
    Ok(())
}

fn pool(turn: &Turn<'_>) -> Result<(), String> {
    let (metadata, data) = (turn.world.file("pool-meta", 4 * MIB)?, turn.world.file("pool-data", 128 * MIB)?);
    let table = pool_table(&metadata, &data, 128 * MIB / 512);
    turn.ok(&["create", "pool", "--table", &table])?;
    turn.world.add("pool", Kind::Pool { metadata, data }, None, &table, Vec::new());
    for id in 0..3 {
        turn.ok(&["message", "pool", "0", &format!("create_thin {id}")])?;
        activate(turn, "pool", id, Model::zeroes(BLOCKS), false)?;
    }
    Ok(())
}

/// A volume for each writer of a device of `name`, one after the other.
fn parts(name: &str, count: u64) -> Vec<Arc<Volume>> {
    let part = |number| {
        let mut volume = Volume::new(name, Way::Unix, Model::zeroes(BLOCKS / count));
        volume.start = number * BLOCKS / count * SECTORS * 512;
        Arc::new(volume)
    };
    (0..count).map(part).collect()
}

fn plain(turn: &Turn<'_>) -> Result<(), String> {
    let sectors = BLOCKS * SECTORS;
    let file = turn.world.file("plain", sectors * 512)?;
    let file = file.display();
    let half = sectors / 2;
    let table = format!("0 {half} linear {file} {half}\n{half} {half} linear {file} 0");
    turn.ok(&["create", "linear", "--table", &table])?;
    turn.world.add("linear", Kind::Plain, None, &table, Vec::new());
    let table = format!("0 {half} linear /dev/mapper/linear 0\n{half} {half} linear /dev/mapper/linear {half}");
    turn.ok(&["create", "stacked", "--table", &table])?;
    let volumes = parts("stacked", 2);
    volumes.iter().for_each(|volume| turn.world.start(volume));
    turn.world.add("stacked", Kind::Plain, Some("linear"), &table, volumes);
    Ok(())
}

/// A device with snapshots.
pub fn origin_table(file: &std::path::Path, blocks: u64) -> String {
    format!("0 {} snapshot-origin {}", blocks * SECTORS, file.display())
}

fn origin(turn: &Turn<'_>) -> Result<(), String> {
    let file = turn.world.file("origin", BLOCKS * SECTORS * 512)?;
    let table = origin_table(&file, BLOCKS);
    turn.ok(&["create", "origin", "--table", &table])?;
    let volumes = parts("origin", 1);
    volumes.iter().for_each(|volume| turn.world.start(volume));
    turn.world.add("origin", Kind::Origin { file }, None, &table, volumes);
    Ok(())
}

/// Devices with nodes in the file system, where that is possible.
fn nodes(turn: &Turn<'_>) -> Result<(), String> {
    for number in 0..3 {
        let name = format!("node{number}");
        let file = turn.world.file(&name, BLOCKS * SECTORS * 512)?;
        let table = format!("0 {} linear {} 0", BLOCKS * SECTORS, file.display());
        turn.ok(&["create", &name, "--table", &table])?;
        let said = turn.run(&["node", "add", &name, "--kind", "fuse"])?;
        let way = if said.ok { Way::Node(said.out.trim().into()) } else { Way::Unix };
        if !said.ok && number == 0 {
            println!("SKIP nodes: {}", said.err.trim());
        }
        let volume = Arc::new(Volume::new(&name, way, Model::zeroes(BLOCKS)));
        turn.world.start(&volume);
        turn.world.add(&name, Kind::Plain, None, &table, vec![volume]);
    }
    Ok(())
}
