//! A device on an NBD server that somebody else wrote, which dies and comes again.

use super::{Operation, Outcome};
use crate::load;
use crate::model::Model;
use crate::volume::{Volume, Way};
use crate::world::{SECTORS, Turn};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Once};

pub(super) const OPERATION: Operation = Operation {
    name: "nbdkit",
    what: "uses a device on nbdkit, which is killed and comes again; a reload mends the device",
    weight: 3,
    alone: false,
    run,
};

const BLOCKS: u64 = 1024;

/// A server, which ends with the value.
struct Server(Child);

impl Server {
    fn new(turn: &Turn<'_>, socket: &Path, file: &Path) -> Result<Option<Self>, String> {
        // The one before was killed and has left it.
        let _ = std::fs::remove_file(socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket).arg("file").arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("nbdkit: {error}")),
        };
        turn.wait("nbdkit listens", || std::os::unix::net::UnixStream::connect(socket).is_ok())?;
        Ok(Some(server))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let name = format!("kit{}", turn.world.number());
    let socket = turn.world.root.join(format!("{name}.sock"));
    let file = turn.world.file(&name, BLOCKS * SECTORS * 512)?;
    let Some(mut server) = Server::new(turn, &socket, &file)? else {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| println!("SKIP nbdkit: it is not installed"));
        return Ok(Outcome::Skipped);
    };
    let table = format!("0 {} linear nbd+unix:///?socket={} 0", BLOCKS * SECTORS, socket.display());
    turn.ok(&["create", &name, "--table", &table])?;
    let volume = Arc::new(Volume::new(&name, Way::Unix, Model::zeroes(BLOCKS)));
    turn.world.start(&volume);
    for _ in 0..=turn.rng.below(3) {
        some_answers(turn, &volume)?;
        let excuse = volume.excuse();
        drop(server);
        turn.pause(100);
        let Some(another) = Server::new(turn, &socket, &file)? else { return Ok(Outcome::Skipped) };
        server = another;
        if turn.rng.one_in(2) {
            turn.ok(&["suspend", &name])?;
        }
        turn.ok(&["load", &name, "--table", &table])?;
        turn.ok(&["resume", &name])?;
        turn.actor.begin(format!("nbdkit: has the load of {name} rest"));
        // Nothing that was on its way is excused later.
        drop(volume.rest());
        drop(excuse);
    }
    some_answers(turn, &volume)?;
    turn.actor.begin(format!("nbdkit: has the load of {name} end"));
    turn.world.stop(std::slice::from_ref(&volume));
    load::check(turn.world, &volume, turn.actor)?;
    turn.remove([&name])?;
    drop(server);
    turn.world.delete([file, socket])?;
    Ok(Outcome::Done)
}

fn some_answers(turn: &Turn<'_>, volume: &Volume) -> Result<(), String> {
    let answers = volume.answers();
    turn.wait("the load on nbdkit goes on", || volume.answers() > answers + 100)
}
