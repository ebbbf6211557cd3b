//! A connection to the daemon that runs, if one does.

use crate::places::Places;
use rustix::net::sockopt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use udm_control::second::ClientError;

/// How often a daemon is greeted: one that is killed takes those with it that have only just connected, and so may the
/// next.
pub(crate) const TRIES: usize = 8;

/// Connects to `udm.sock` and greets who answers there; `None` when nobody does. A greeting changes nothing: when the
/// daemon goes meanwhile, there is another or none.
pub(crate) fn greeted<T>(
    places: &Places,
    mut greet: impl FnMut(UnixStream) -> Result<T, ClientError>,
) -> Result<Option<T>, ClientError> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let stream = match reach(places, &places.second()) {
            Ok(stream) => stream,
            Err(error) if nobody_listens(&error) => return Ok(None),
            Err(error) => return Err(ClientError::Io(error)),
        };
        match greet(stream) {
            Err(ClientError::Io(error)) if has_gone(&error) && tries > 0 => {}
            other => return other.map(Some),
        }
    }
}

/// Connects to a socket of the directory. Before anything is said it is looked whose directory it is, and who answers:
/// by the kernel's word (SO_PEERCRED), which holds whatever became of the path meanwhile.
pub(crate) fn reach(places: &Places, socket: &Path) -> io::Result<UnixStream> {
    let owner = places.owner()?;
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if nobody_listens(&error) => return Err(error),
        Err(error) => return Err(named(socket, &error)),
    };
    let peer = sockopt::socket_peercred(&stream)?.uid;
    if peer.as_raw() != owner && !peer.is_root() {
        let (shown, peer) = (socket.display(), peer.as_raw());
        let message =
            format!("{shown} is served by user {peer}, and its directory belongs to user {owner}: not talking to it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(stream)
}

/// Whether no daemon runs there.
pub(crate) fn nobody_listens(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether the daemon at the other end has hung up, or was killed.
pub(crate) fn has_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn named(socket: &Path, error: &io::Error) -> io::Error {
    let kind = error.kind();
    let advice = match kind {
        io::ErrorKind::PermissionDenied => {
            "; a daemon serves its own user and root: choose another --dir, or set UDM_DIR"
        }
        _ => "; choose another --dir, or set UDM_DIR",
    };
    io::Error::new(kind, format!("{}: {error}{advice}", socket.display()))
}
