//! Many who connect to the control sockets and say nothing, or half of something.

use super::{Operation, Outcome};
use crate::world::Turn;
use std::io::Write;
use std::os::unix::net::UnixStream;

pub(super) const OPERATION: Operation = Operation {
    name: "idle-control",
    what: "opens up to 2000 control connections that say nothing or half a request; commands are served",
    weight: 2,
    alone: false,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let count = [50, 300, 2000][turn.rng.below(3) as usize];
    let paths = [turn.world.daemon.control(), turn.world.daemon.second()];
    let mut open = Vec::new();
    for number in 0..count {
        turn.actor.begin(format!("idle-control: connection {number} of {count}"));
        let path = &paths[turn.rng.below(2) as usize];
        match UnixStream::connect(path) {
            Ok(mut stream) => {
                let words: [&[u8]; 3] = [b"", b"UDMC", b"{\"op\":\"hel"];
                // A server with enough of them may have hung up already.
                let _ = stream.write_all(words[turn.rng.below(3) as usize]);
                open.push(stream);
            }
            Err(error) => turn.world.stats.refused(turn.name, &error.to_string()),
        }
    }
    for _ in 0..3 {
        turn.ok(&["ls"])?;
    }
    turn.others_go_on("beside idle control connections", &[])?;
    Ok(Outcome::Done)
}
