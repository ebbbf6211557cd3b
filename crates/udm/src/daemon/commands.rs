//! What clients ask for, whichever socket they ask on. Nothing else leads from clients to devices.

use super::conversation::{Done, Task};
use super::socket::Peer;
use super::{Daemon, control, second};
use std::os::unix::net::UnixStream;

/// Does what a client asks for. Blocks as long as that takes, at most until the daemon stops or the client hangs up.
pub(super) fn perform(daemon: &Daemon, stream: &UnixStream, peer: Peer, task: Task) -> Done {
    match task {
        Task::Ioctl { cwd, request } => control::perform(daemon, stream, peer, cwd, request),
        Task::Line { line, greeted } => second::perform(daemon, stream, peer, &line, greeted),
    }
}
