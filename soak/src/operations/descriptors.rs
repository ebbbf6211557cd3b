//! The daemon comes to the end of its descriptors.

use super::{Operation, Outcome};
use crate::client::nbd::dial;
use crate::report;
use crate::world::Turn;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

pub(super) const OPERATION: Operation = Operation {
    name: "descriptors",
    what: "lets the daemon run out of descriptors: commands are served or say what is missing, the load goes on",
    weight: 1,
    alone: true,
    run,
};

/// Descriptors that it may still open.
const LEFT: u64 = 40;

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    // One that came a moment ago has not opened all that it needs before it serves.
    turn.ok(&["ls"])?;
    let pid = turn.world.daemon.pid().ok_or("no daemon")?;
    let open: u64 = report::descriptors(pid).values().sum();
    let low = Rlimit { current: Some(open + LEFT), maximum: hard_limit(pid) };
    let usual = prlimit(Some(pid), Resource::Nofile, low).map_err(|e| format!("the limit cannot be lowered: {e}"))?;
    let mut clients = Vec::new();
    for _ in 0..2 * LEFT {
        turn.actor.begin("descriptors: opens connections");
        match dial(&turn.world.daemon.nbd()) {
            Ok(stream) => clients.push(stream),
            Err(error) => turn.world.stats.refused(turn.name, &error.to_string()),
        }
    }
    let said = turn.run(&["ls"])?;
    if !said.ok {
        turn.world.stats.refused(turn.name, said.error());
    }
    turn.others_go_on("at the end of descriptors", &[])?;
    drop(clients);
    // A daemon that hangs now would hang with it.
    let back = prlimit(Some(pid), Resource::Nofile, usual);
    back.map_err(|e| format!("the limit cannot be set back: {e}"))?;
    turn.ok(&["ls"])?;
    Ok(Outcome::Done)
}

/// The limit that nobody may raise, which stays what it is.
fn hard_limit(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
