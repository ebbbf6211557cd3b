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

pub(super) const LOOP: Operation = Operation {
    name: "loop-node",
    what: "gives a device a loop device, uses it there, and takes it away",
    weight: 4,
    alone: false,
    run: loop_device,
};

/// Batches of requests.
const BATCHES: u64 = 30;

/// What a system says that has no nodes of a kind, or none left.
const NO_NODES: &[&str] =
    &["no FUSE", "needs root", "no loop devices here", "no loop device is left that has a node", "channels are in use"];
/// What is said while somebody else has them all.
const NO_CHANNELS: &[&str] = &["channels are in use"];

fn tcp(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_device(turn, |turn, name| {
        let Some(said) = turn.said(&["export", name, "--tcp", "127.0.0.1:0"], NO_CHANNELS)? else { return Ok(None) };
        let address = said.split("nbd://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let address: SocketAddr = address.parse().map_err(|_| format!("no address in {said:?}"))?;
        turn.actor.begin(format!("tcp: connects to {name} at {address}"));
        let client = Nbd::tcp(address, name).map_err(|e| format!("{name} over TCP: {e}"))?;
        Ok(Some((Box::new(client) as Box<dyn Client>, vec!["export", name, "--remove"])))
    })
}

fn node(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_device(turn, |turn, name| add_node(turn, name, "fuse"))
}

fn loop_device(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    with_device(turn, |turn, name| add_node(turn, name, "loop"))
}

/// Has the daemon set aside what it keeps for block devices that the kernel writes to
/// (`crates/udm/src/daemon/own_writes.rs`), if there are such here: with the first of them its memory grows once.
pub(crate) fn have_a_loop_device_once(turn: &Turn<'_>) -> Result<(), String> {
    let device = "linear";
    if turn.world.device(device).is_some() && turn.may(&["node", "add", device, "--kind", "loop"], NO_NODES)? {
        turn.until(&["node", "remove", device], &["in use"])?;
    }
    Ok(())
}

fn add_node<'a>(turn: &Turn<'_>, name: &'a str, kind: &str) -> Result<Option<Opened<'a>>, String> {
    if !turn.may(&["node", "add", name, "--kind", kind], NO_NODES)? {
        return Ok(None);
    }
    let path = turn.world.daemon.dir().join("dev").join(name);
    turn.actor.begin(format!("{}: opens {}", turn.name, path.display()));
    let node = Node::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Some((Box::new(node), vec!["node", "remove", name])))
}

/// A client, and the command that takes its way to the device away.
type Opened<'a> = (Box<dyn Client>, Vec<&'a str>);

/// Has a device's writer rest, and uses it by the client that `open` makes, if there is such a way here. What `open`
/// did is undone afterwards.
fn with_device(
    turn: &mut Turn<'_>,
    open: impl for<'a> FnOnce(&Turn<'_>, &'a str) -> Result<Option<Opened<'a>>, String>,
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
    let Some((client, undo)) = open(turn, &device.name)? else { return Ok(Outcome::Skipped) };
    load::burst(turn.world, &volume, turn.actor, turn.rng, client, BATCHES)?;
    // Who has it open still uses it while it is taken away, or what it is on is suspended: some of the time.
    turn.until(&undo, &["Device or resource busy", "busy", "resume it first"])?;
    drop(resting);
    std::thread::sleep(Duration::from_millis(turn.rng.below(20)));
    Ok(Outcome::Done)
}
