//! A client asks for more than it will ever read, and goes.

use super::{Operation, Outcome};
use crate::client::{Request, What, nbd::Nbd};
use crate::watch::lock;
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "vanish",
    what: "pipelines large reads and writes without reading an answer, and hangs up; others go on",
    weight: 4,
    alone: false,
    run,
};

/// Requests of a client, and bytes of each at most.
const REQUESTS: u64 = 64;
const BYTES: u64 = 32 << 20;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let device = turn.world.pick(turn.rng, |device| !lock(&device.volumes).is_empty());
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    // It is not removed meanwhile.
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&device.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let size = BYTES.min(lock(&volume.model).blocks() * 4096) as u32;
    for _ in 0..=turn.rng.below(3) {
        turn.actor.begin(format!("vanish: asks {} for a lot", device.name));
        let mut nbd = Nbd::unix(&turn.world.daemon.nbd(), &device.name).map_err(|e| format!("{}: {e}", device.name))?;
        for cookie in 0..REQUESTS {
            // A server that takes no more leaves the rest unsent: these few bytes fit into any socket.
            nbd.send(cookie, &Request::new(What::Read, 0, size)).map_err(|e| format!("{}: {e}", device.name))?;
        }
        turn.pause(100);
        drop(nbd);
    }
    turn.others_go_on("after a client has vanished", &[&device.name])?;
    Ok(Outcome::Done)
}
