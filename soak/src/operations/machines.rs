//! Virtual machines come and go, and negotiate anew.

use super::{Operation, Outcome};
use crate::content::{self, BLOCK};
use crate::stacks::POOL_BLOCK;
use crate::world::Turn;
use std::path::Path;
use std::time::Duration;
use udm_export::vhost_user::front::{FrontEnd, FrontError, FrontOptions, FrontQueue, Kind, Part};

pub(super) const MACHINE: Operation = Operation {
    name: "machine",
    what: "uses a device as a virtual machine does, negotiating anew from time to time",
    weight: 4,
    alone: false,
    run: machine,
};

pub(super) const CHANNELS: Operation = Operation {
    name: "channels",
    what: "has more queues of virtual machines than the daemon has channels; pools can still be suspended",
    weight: 1,
    alone: false,
    run: channels,
};

/// Blocks of the device.
const BLOCKS: u64 = 256;
/// Exports with two queues each: more than 256 channels.
const EXPORTS: u64 = 140;

/// A disk of this operation's own.
fn disk(turn: &Turn<'_>) -> Result<(String, std::path::PathBuf), String> {
    let name = format!("disk{}", turn.world.number());
    let file = turn.world.file(&name, BLOCKS * BLOCK as u64)?;
    turn.ok(&["create", &name, "--table", &format!("0 {} linear {} 0", BLOCKS * 8, file.display())])?;
    Ok((name, file))
}

fn machine(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let (name, file) = disk(turn)?;
    let socket = turn.world.root.join(format!("{name}.sock"));
    let path = socket.display().to_string();
    turn.ok(&["export", &name, "--vhost-user", &path, "--queues", "2"])?;
    let mut stamps = vec![content::ZEROES; BLOCKS as usize];
    for boot in 0..=turn.rng.below(4) {
        let options = FrontOptions {
            queues: 1 + turn.rng.below(2) as u16,
            queue_size: 16 << turn.rng.below(4),
            indirect: turn.rng.one_in(2),
            event_idx: turn.rng.one_in(2),
            inflight: turn.rng.one_in(2),
            write_through: turn.rng.one_in(2),
            ..FrontOptions::default()
        };
        turn.actor.begin(format!("machine: {name} boots, number {boot}"));
        let (front, mut queues) = loop {
            match FrontEnd::connect(&socket, options) {
                Ok(connected) => break connected,
                // A disk has one machine at a time, and the one before may not be known to have gone.
                Err(FrontError::Closed) => turn.world.stats.refused(turn.name, "the machine before is still there"),
                // Others may have all channels for a while.
                Err(error @ FrontError::Refused(_)) => turn.world.stats.refused(turn.name, &error.to_string()),
                Err(error) => return Err(format!("{name}, boot {boot}: {error}")),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        for queue in &mut queues {
            use_queue(turn, &name, &front, queue, &mut stamps)?;
        }
    }
    turn.ok(&["export", &name, "--remove"])?;
    turn.remove([&name])?;
    turn.world.delete([file])?;
    Ok(Outcome::Done)
}

/// Writes and reads blocks, one after the other.
fn use_queue(
    turn: &mut Turn<'_>,
    name: &str,
    front: &FrontEnd,
    queue: &mut FrontQueue,
    stamps: &mut [u64],
) -> Result<(), String> {
    for _ in 0..40 {
        let block = turn.rng.below(BLOCKS);
        let part = Part { guest: front.data_guest(0), len: BLOCK as u32 };
        let kind = match turn.rng.below(8) {
            0 => Kind::Flush,
            1..4 => Kind::Write,
            _ => Kind::Read,
        };
        let mut bytes = vec![0; BLOCK];
        let stamp = content::stamp();
        if kind == Kind::Write {
            content::fill(&mut bytes, stamp, block);
            front.memory().write(front.data(), &bytes);
        }
        let parts = if kind == Kind::Flush { &[][..] } else { &[part] };
        if !queue.submit(kind, if kind == Kind::Flush { 0 } else { block * 8 }, parts, 1) {
            return Err(format!("{name}: an idle queue has no room"));
        }
        queue.kick();
        turn.actor.begin(format!("machine: {kind:?} of block {block} of {name}"));
        let done = loop {
            if let Some(done) = queue.completed() {
                break done;
            }
            queue.wait(Duration::from_millis(100)).map_err(|e| format!("{name}: {e}"))?;
        };
        if done.status != 0 {
            return Err(format!("{name}: {kind:?} of block {block} has status {}", done.status));
        }
        match kind {
            Kind::Write => stamps[block as usize] = stamp,
            Kind::Read => {
                let found = content::read(&front.memory().read(front.data(), BLOCK), block);
                if found != Ok(stamps[block as usize]) {
                    let expected = stamps[block as usize];
                    return Err(format!(
                        "WRONG DATA: {name}, block {block}: expected stamp {expected:#x}, found {found:?}"
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn channels(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let (name, file) = disk(turn)?;
    let mut fronts = Vec::new();
    for number in 0..EXPORTS {
        let socket = turn.world.root.join(format!("{name}.{number}.sock"));
        let path = socket.display().to_string();
        turn.ok(&["export", &name, "--vhost-user", &path, "--queues", "2"])?;
        turn.actor.begin(format!("channels: machine {number} on {name}"));
        let options = FrontOptions { queues: 2, queue_size: 16, memory: 1 << 16, ..FrontOptions::default() };
        match FrontEnd::connect(Path::new(&socket), options) {
            Ok(connected) => fronts.push(connected),
            // At the limit it is refused, and says so.
            Err(error) => turn.world.stats.refused(turn.name, &error.to_string()),
        }
    }
    // What needs a channel for control finds one.
    small_pool(turn, &name)?;
    turn.others_go_on("beside many queues", &[])?;
    drop(fronts);
    turn.ok(&["export", &name, "--remove"])?;
    turn.remove([&name])?;
    turn.world.delete([file])?;
    Ok(Outcome::Done)
}

/// Makes a pool with a volume, suspends and resumes both, and takes them down.
fn small_pool(turn: &Turn<'_>, name: &str) -> Result<(), String> {
    let pool = format!("{name}-pool");
    let (metadata, data) = (turn.world.file(&format!("{pool}-meta"), 1 << 20)?, turn.world.file(&pool, 1 << 20)?);
    let table = crate::stacks::pool_table(&metadata, &data, 16 * POOL_BLOCK);
    turn.ok(&["create", &pool, "--table", &table])?;
    turn.ok(&["message", &pool, "0", "create_thin 0"])?;
    let thin = format!("{pool}-0");
    turn.ok(&["create", &thin, "--table", &format!("0 2048 thin /dev/mapper/{pool} 0")])?;
    for device in [&pool, &thin] {
        turn.ok(&["suspend", device])?;
        turn.ok(&["resume", device])?;
    }
    turn.remove([&thin, &pool])?;
    turn.world.delete([metadata, data])?;
    Ok(())
}
