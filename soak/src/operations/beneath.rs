//! Devices beneath that are slow, silent, or gone: who uses them waits, and nobody else.

use super::{Operation, Outcome};
use crate::liar::{Liar, Manner, USELESS};
use crate::load;
use crate::model::Model;
use crate::volume::{Volume, Way};
use crate::world::Turn;
use std::process::Stdio;
use std::sync::Arc;

pub(super) const USELESS_SERVER: Operation = Operation {
    name: "useless-server",
    what: "loads a table on a server that is silent, dripping or gone: refused, and other commands do not wait",
    weight: 3,
    alone: false,
    run: useless,
};

pub(super) const SLOW_SERVER: Operation = Operation {
    name: "slow-server",
    what: "uses a device on a slow server, which hangs up in the end",
    weight: 3,
    alone: false,
    run: slow,
};

const BYTES: usize = 1 << 20;

/// Bad servers one after the other for which other commands may seem to have waited. A machine that stands still has
/// them take as long once; only who waits for the server does so each time.
const ATTEMPTS: u64 = 3;

fn useless(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let manner = USELESS[turn.rng.below(USELESS.len() as u64) as usize];
    for _ in 0..ATTEMPTS {
        if beside_useless(turn, manner)? {
            return Ok(Outcome::Done);
        }
        turn.world.stats.refused(turn.name, "other commands took longer than a server's deadline");
    }
    Err(format!("other commands waited {ATTEMPTS} times as long as one on a server that is {manner:?}"))
}

/// Whether commands that have nothing to do with a table on a bad server were through while that had its deadline
/// before it.
fn beside_useless(turn: &Turn<'_>, manner: Manner) -> Result<bool, String> {
    let name = format!("useless{}", turn.world.number());
    let socket = turn.world.root.join(format!("{name}.sock"));
    let liar = Liar::new(&socket, BYTES, manner).map_err(|e| format!("{}: {e}", socket.display()))?;
    let table = format!("0 {} linear {} 0", BYTES / 512, liar.uri());
    let mut command = turn.world.daemon.command(["create", &name, "--table", &table]);
    let mut child = command.stdout(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    turn.wait("the daemon has asked a bad server", || {
        liar.is_asked() || child.try_wait().is_ok_and(|ended| ended.is_some())
    })?;
    for number in 0..3 {
        let other = format!("{name}-{number}");
        turn.ok(&["create", &other, "--table", "0 2048 zero"])?;
        turn.ok(&["remove", &other])?;
    }
    let waits =
        !matches!(manner, Manner::Silent | Manner::Dripping) || child.try_wait().is_ok_and(|ended| ended.is_none());
    turn.actor.begin(format!("useless-server: waits for `udm create {name}` on a server that is {manner:?}"));
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Err(format!("{name}: a device on a server that is {manner:?}"));
    }
    Ok(waits)
}

fn slow(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let name = format!("slow{}", turn.world.number());
    let manner = if turn.rng.one_in(4) { Manner::Confused } else { Manner::Slow(1 + turn.rng.below(40)) };
    let socket = turn.world.root.join(format!("{name}.sock"));
    let liar = Liar::new(&socket, BYTES, manner).map_err(|e| format!("{}: {e}", socket.display()))?;
    let table = format!("0 {} linear {} 0", BYTES / 512, liar.uri());
    turn.ok(&["create", &name, "--table", &table])?;
    let volume = Arc::new(Volume::new(&name, Way::Unix, Model::zeroes(BYTES as u64 / 4096)));
    // From a server that is confused nothing good is to be had, but no hang either.
    let excuse = (manner == Manner::Confused).then(|| volume.excuse());
    let client = volume.connect(&turn.world.daemon).map_err(|e| format!("{name}: {e}"))?;
    load::burst(turn.world, &volume, turn.actor, turn.rng, client, if excuse.is_some() { 1 } else { 5 })?;
    if turn.rng.one_in(2) {
        turn.ok(&["suspend", "--noflush", &name])?;
        turn.ok(&["resume", &name])?;
    }
    let _may_fail = volume.excuse();
    liar.hang_up();
    let client = volume.connect(&turn.world.daemon).map_err(|e| format!("{name}: {e}"))?;
    load::burst(turn.world, &volume, turn.actor, turn.rng, client, 1)?;
    drop(liar);
    turn.remove([&name])?;
    Ok(Outcome::Done)
}
