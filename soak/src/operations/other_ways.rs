//! A device in use is used by another way for a while: an export over TCP, or a node.

use super::{Operation, Outcome};
use crate::client::{Client, file::Node, nbd::Nbd};
use crate::load;
use crate::volume::Way;
use crate::watch::lock;
use crate::world::Turn;
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const TCP: Operation = Operation {
    name: "tcp",
    what: "exports a device over TCP, uses it there, and ends the export",
    weight: 4,
    alone: false,
    run: tcp,
};

pub(super) const NODE: Operation = Operation {
    name: "node",
    what: "gives a device a node, uses it there, and takes the node away",
    weight: 4,
    alone: false,
    run: node,
};

/// Batches of requests.
const BATCHES: u64 = 30;

fn tcp(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_device(turn, |turn, name| {
        let said = turn.ok(&["export", name, "--tcp", "127.0.0.1:0"])?;
        let address = said.split("nbd://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let address: SocketAddr = address.parse().map_err(|_| format!("no address in {said:?}"))?;
        turn.actor.begin(format!("tcp: connects to {name} at {address}"));
        let client = Nbd::tcp(address, name).map_err(|e| format!("{name} over TCP: {e}"))?;
        Ok((Box::new(client) as Box<dyn Client>, vec!["export", "--remove"]))
    })
}

fn node(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_device(turn, |turn, name| {
        let said = turn.ok(&["node", "add", name, "--kind", "fuse"])?;
        turn.actor.begin(format!("node: opens {}", said.trim()));
        let node = Node::open(said.trim().as_ref()).map_err(|e| format!("{}: {e}", said.trim()))?;
        Ok((Box::new(node) as Box<dyn Client>, vec!["node", "remove"]))
    })
}

type Opened = (Box<dyn Client>, Vec<&'static str>);

/// Has a device's writer rest, and uses it by the client that `open` makes. What `open` did is undone afterwards.
fn with_device(
    turn: &mut Turn<'_>,
    open: impl FnOnce(&Turn<'_>, &str) -> Result<Opened, String>,
) -> Result<Outcome, String> {
    let device = turn.world.pick(turn.rng, |device| {
        let volumes = lock(&device.volumes);
        volumes.len() == 1 && volumes.iter().all(|volume| matches!(volume.way, Way::Unix))
    });
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&device.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    turn.actor.begin(format!("{}: has the load of {} rest", turn.name, device.name));
    let resting = volume.rest();
    let (client, undo) = open(turn, &device.name)?;
    load::burst(turn.world, &volume, turn.actor, turn.rng, client, BATCHES)?;
    // Who has it open still uses it while it is taken away: some of the time.
    let mut words = vec![undo[0]];
    match undo[0] {
        "node" => words.extend([undo[1], &device.name]),
        _ => words.extend([&device.name, undo[1]]),
    }
    turn.until(&words, &["Device or resource busy", "busy"])?;
    drop(resting);
    std::thread::sleep(Duration::from_millis(turn.rng.below(20)));
    Ok(Outcome::Done)
}
