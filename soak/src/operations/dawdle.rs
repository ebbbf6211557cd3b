//! Clients that say half of something and no more.

use super::{Operation, Outcome};
use crate::client::nbd::{Nbd, dial};
use crate::watch::lock;
use crate::world::Turn;
use std::io::Write;

pub(super) const HANDSHAKES: Operation = Operation {
    name: "half-handshakes",
    what: "leaves many NBD handshakes half-way; others go on",
    weight: 3,
    alone: false,
    run: handshakes,
};

pub(super) const WRITES: Operation = Operation {
    name: "stalled-writes",
    what: "stops many NBD clients in the middle of large writes; others go on",
    weight: 3,
    alone: false,
    run: writes,
};

fn handshakes(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let words: [&[u8]; 4] = [b"", b"\0\0\0", b"\0\0\0\x03IHAVE", b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\xff\xff"];
    let mut open = Vec::new();
    for number in 0..60 {
        turn.actor.begin(format!("half-handshakes: number {number}"));
        let mut stream = dial(&turn.world.daemon.nbd()).map_err(|e| format!("nbd.sock: {e}"))?;
        // A server that is full has hung up.
        let _ = stream.write_all(words[turn.rng.below(4) as usize]);
        open.push(stream);
    }
    turn.others_go_on("beside half handshakes", &[])?;
    turn.pause(1000);
    Ok(Outcome::Done)
}

/// The write is within the device; its data never comes in full.
fn writes(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let device = turn.world.pick(turn.rng, |device| !lock(&device.volumes).is_empty());
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&device.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let size = (lock(&volume.model).blocks() * 4096).min(32 << 20) as u32;
    let mut open = Vec::new();
    for number in 0..=turn.rng.below(40) {
        turn.actor.begin(format!("stalled-writes: number {number} to {}", device.name));
        let mut nbd = Nbd::unix(&turn.world.daemon.nbd(), &device.name).map_err(|e| format!("{}: {e}", device.name))?;
        let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
        head.extend([0, 0, 0, 1]);
        head.extend(number.to_be_bytes());
        head.extend(volume.start.to_be_bytes());
        head.extend(size.to_be_bytes());
        head.extend([0; 1000]);
        nbd.say(&head).map_err(|e| format!("{}: {e}", device.name))?;
        open.push(nbd);
    }
    turn.others_go_on("beside stalled writes", &[])?;
    turn.pause(1000);
    Ok(Outcome::Done)
}
