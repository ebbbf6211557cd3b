//! NBD servers that go on in the next daemon.

use super::handover::{HandOver, HandOverMessage};
use crate::exports::MappedExports;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use udm_core::Registry;
use udm_export::Listen;
use udm_export::nbd::{ConnectionState, HandedConnection, Prepared, Server, ServerBuilder};

/// The server that every device has an export on.
pub(crate) struct MainServer(pub(crate) Server);

/// What one message of a server is.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Piece {
    /// A socket that it listens on.
    Listener,
    /// A client. Of the bytes so many are what was received.
    Connection { state: ConnectionState, input: usize },
}

impl HandOver for MainServer {
    fn kind(&self) -> &'static str {
        "nbd"
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        pause(&self.0, patience)
    }

    fn holds(&self) -> Vec<String> {
        self.0.open_exports()
    }

    fn resume(&self, _: &Registry) {
        self.0.resume();
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        give(&self.0, self.kind(), "")
    }
}

/// As [`HandOver::pause`].
pub(super) fn pause(server: &Server, patience: Duration) -> Result<(), String> {
    if server.pause(patience) {
        return Ok(());
    }
    let names = server.open_exports().join(", ");
    Err(format!(
        "requests of NBD clients are not done after {} s; clients have open: {names}. Is a device suspended?",
        patience.as_secs()
    ))
}

/// Everything of a server, as messages of that kind and name.
pub(super) fn give(server: &Server, kind: &str, name: &str) -> Result<Vec<HandOverMessage>, String> {
    let handed = server.hand_over();
    let mut messages = Vec::new();
    for (_, socket) in handed.listeners {
        messages.push(HandOverMessage::new(kind, name, Piece::Listener)?.with(socket));
    }
    for HandedConnection { socket, state, mut input, unsent } in handed.connections {
        let mut message =
            HandOverMessage::new(kind, name, Piece::Connection { state, input: input.len() })?.with(socket);
        input.extend_from_slice(&unsent);
        message.bytes = input;
        messages.push(message);
    }
    Ok(messages)
}

/// A server whose messages have come. It runs and serves nobody yet; nothing of it can fail any more.
pub(crate) struct Ready {
    server: Still,
    connections: Vec<Prepared>,
}

/// A server that has touched nothing. Dropped, it leaves sockets that are another process's as they are.
struct Still {
    server: Option<Server>,
    adopted: bool,
}

impl Drop for Still {
    fn drop(&mut self) {
        if let Some(server) = self.server.take().filter(|_| self.adopted) {
            drop(server.hand_over());
        }
    }
}

/// Opens all that the clients have open. Clients whose exports cannot be had are told in `problems`, and hung up on.
/// Fails when there can be no server.
pub(super) fn prepare(
    registry: &Registry,
    exports: MappedExports,
    (at, builder): (&Listen, ServerBuilder),
    messages: Vec<HandOverMessage>,
    problems: &mut Vec<String>,
) -> Result<Ready, String> {
    let (exports, mut listeners, mut connections) = (Arc::new(exports), Vec::new(), Vec::new());
    for mut message in messages {
        let mut one = || match message.read()? {
            Piece::Listener => {
                listeners.push(message.fd()?);
                Ok(())
            }
            Piece::Connection { state, input } => {
                let socket = message.fd()?;
                let mut input_bytes = std::mem::take(&mut message.bytes);
                if input > input_bytes.len() {
                    return Err(format!("{input} bytes of input, of {} in all", input_bytes.len()));
                }
                let unsent = input_bytes.split_off(input);
                let handed = HandedConnection { socket, state, input: input_bytes, unsent };
                connections.push(handed.prepare(&*exports).map_err(|e| e.to_string())?);
                Ok(())
            }
        };
        if let Err(why) = one() {
            problems.push(why);
        }
    }
    let adopted = !listeners.is_empty();
    let builder = match adopted {
        // One that has not come is made anew.
        false => builder.listen(at.clone()),
        true => listeners.into_iter().fold(builder, |builder, socket| builder.adopt(at.clone(), socket)),
    };
    let server = builder.paused().start(registry.domain(), exports).map_err(|e| e.to_string())?;
    Ok(Ready { server: Still { server: Some(server), adopted }, connections })
}

impl Ready {
    /// Serves.
    pub(super) fn go_on(mut self) -> Server {
        let server = self.server.server.take().expect("it is taken once, here");
        server.resume();
        self.connections.into_iter().for_each(|connection| server.take(connection));
        server
    }
}

impl MainServer {
    /// A new one on its socket.
    pub(crate) fn new(registry: &Registry, socket: &Path) -> Result<Self, String> {
        let exports = Arc::new(MappedExports::all(registry));
        let server = Server::builder().listen(Listen::Unix(socket.to_owned())).start(registry.domain(), exports);
        server.map(Self).map_err(|e| e.to_string())
    }

    /// One that goes on from the messages of another.
    pub(crate) fn prepare(
        registry: &Registry,
        socket: &Path,
        messages: Vec<HandOverMessage>,
        problems: &mut Vec<String>,
    ) -> Result<Ready, String> {
        let how = (&Listen::Unix(socket.to_owned()), Server::builder());
        prepare(registry, MappedExports::all(registry), how, messages, problems)
    }

    /// Serves what was prepared.
    pub(crate) fn go_on(ready: Ready) -> Self {
        Self(ready.go_on())
    }
}
