//! Clients ask for zeroes and trims of gigabytes, and go.

use super::{Operation, Outcome};
use crate::client::{Request, What, nbd::Nbd};
use crate::stacks::pool_table;
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "long-zeroes",
    what: "pipelines zeroes and trims of gigabytes, on a file or a thin volume, and hangs up; others go on",
    weight: 3,
    alone: false,
    run,
};

const MIB: u64 = 1 << 20;
/// Bytes of the device, of which little is ever allocated.
const SIZE: u64 = 64 << 30;
/// Bytes of a request at most, a block short of what its field takes.
const LONG: u64 = (1 << 32) - 4096;
/// Requests of a client.
const REQUESTS: u64 = 64;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let name = format!("long{}", turn.world.number());
    let mut files = Vec::new();
    let mut devices = vec![name.clone()];
    if turn.rng.one_in(2) {
        let file = turn.world.file(&name, SIZE)?;
        turn.ok(&["create", &name, "--table", &format!("0 {} linear {} 0", SIZE / 512, file.display())])?;
        files.push(file);
    } else {
        let pool = format!("{name}-pool");
        let metadata = turn.world.file(&format!("{pool}-meta"), 16 * MIB)?;
        let data = turn.world.file(&format!("{pool}-data"), 16 * MIB)?;
        turn.ok(&["create", &pool, "--table", &pool_table(&metadata, &data, 16 * MIB / 512)])?;
        turn.ok(&["message", &pool, "0", "create_thin 0"])?;
        turn.ok(&["create", &name, "--table", &format!("0 {} thin /dev/mapper/{pool} 0", SIZE / 512)])?;
        devices.push(pool);
        files.extend([metadata, data]);
    }
    for _ in 0..=turn.rng.below(3) {
        turn.actor.begin(format!("long-zeroes: asks {name} for a lot"));
        let mut nbd = Nbd::unix(&turn.world.daemon.nbd(), &name).map_err(|e| format!("{name}: {e}"))?;
        for cookie in 0..REQUESTS {
            let what = if turn.rng.one_in(2) { What::Zero } else { What::Trim };
            let offset = turn.rng.below((SIZE - LONG) / 4096) * 4096;
            nbd.send(cookie, &Request::new(what, offset, LONG as u32)).map_err(|e| format!("{name}: {e}"))?;
        }
        turn.pause(100);
        drop(nbd);
        if turn.rng.one_in(2) {
            turn.ok(&["suspend", &name])?;
            turn.ok(&["resume", &name])?;
        }
    }
    turn.others_go_on("after clients that asked for long zeroes", &[])?;
    // What nobody waits for any more ends soon.
    turn.remove(&devices)?;
    turn.world.delete(files)?;
    Ok(Outcome::Done)
}
