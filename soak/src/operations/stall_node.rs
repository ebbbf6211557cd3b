//! One node stalls, with as much in flight as its users can bring up: the others go on.

use super::{Operation, Outcome};
use crate::client::{Client, Request, What, file::Node};
use crate::volume::Way;
use crate::watch::lock;
use crate::world::Turn;
use std::sync::Mutex;
use std::time::Duration;

pub(super) const OPERATION: Operation = Operation {
    name: "stall-node",
    what: "suspends a device under the reads and writes of many to its node; other nodes have to go on",
    weight: 3,
    alone: false,
    run,
};

/// Who reads and writes there meanwhile, and how much each. The kernel passes on one write of a file at a time, but all
/// reads.
const USERS: usize = 40;
const BYTES: u32 = 1 << 20;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    // Two at a time would excuse each other's nodes.
    static ONE: Mutex<()> = Mutex::new(());
    let Ok(_one) = ONE.try_lock() else { return Ok(Outcome::Skipped) };
    let has_node = |volume: &crate::volume::Volume| matches!(volume.way, Way::Node(_));
    let device = turn.world.pick(turn.rng, |device| lock(&device.volumes).iter().any(|volume| has_node(volume)));
    let Some(device) = device else { return Ok(Outcome::Skipped) };
    let Some(_mine) = turn.world.hold(&device) else { return Ok(Outcome::Skipped) };
    let Some(volume) = lock(&device.volumes).first().cloned() else { return Ok(Outcome::Skipped) };
    let Way::Node(path) = volume.way.clone() else { return Ok(Outcome::Skipped) };
    // These writes are nobody's: what they leave is made known afterwards.
    let resting = volume.rest();
    turn.ok(&["suspend", &device.name])?;
    let went_on = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..USERS)
            .map(|number| {
                let path = &path;
                scope.spawn(move || {
                    let mut node = Node::open(path).map_err(|e| e.to_string())?;
                    let what = if number == 0 { What::Write { fua: false } } else { What::Read };
                    let mut batch = [Request::new(what, 0, BYTES)];
                    batch[0].data = vec![0; BYTES as usize];
                    node.execute(&mut batch, &mut || ()).map_err(|e| e.to_string())?;
                    match batch[0].answer {
                        Some(Ok(())) => Ok(()),
                        other => Err(format!("{}: {what:?} on a node that was stalled: {other:?}", path.display())),
                    }
                })
            })
            .collect();
        // Until they have brought up what they can.
        std::thread::sleep(Duration::from_millis(200));
        let went_on = turn.others_go_on(&format!("while the node of {} stalls", device.name), &[&device.name]);
        turn.ok(&["resume", &device.name])?;
        for writer in writers {
            writer.join().map_err(|_| "a writer has panicked".to_owned())??;
        }
        went_on
    });
    went_on?;
    lock(&volume.model).forget();
    drop(resting);
    Ok(Outcome::Done)
}
