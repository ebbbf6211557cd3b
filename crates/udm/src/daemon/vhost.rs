//! Devices exported as disks of virtual machines, on request.

use super::handover::HandOverMessage;
use super::servers::{One, Servers, Speaks};
use super::state::VhostUserState;
use crate::exports::MappedExports;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use udm_base::Errno;
use udm_control::second::{ExportEntry, VhostUserExport};
use udm_core::{Error, Registry};
use udm_export::Served;
use udm_export::vhost_user::{Handed, HandedSession, Prepared, Server, ServerBuilder, SessionState};

/// Descriptors of one message, beside the listener.
const FDS: usize = 60;

/// The kind of a message.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Piece {
    /// A server: the socket that it listens on, and the front end that is connected.
    Server { at: VhostUserExport, session: Option<SessionState> },
    /// More descriptors of the front end in the message before.
    More,
}

/// vhost-user.
pub(crate) struct VhostUser;

/// Devices that are exported so.
pub(crate) type VhostExports = Servers<VhostUser>;

impl Speaks for VhostUser {
    type Server = Server;
    /// The options as given, so that the next daemon chooses its own defaults.
    type Address = VhostUserExport;
    const KIND: &'static str = "vhost-user";

    fn shown(one: &One<Self>) -> (String, String) {
        (one.at.socket.clone(), format!("vhost-user:{}", one.at.socket))
    }

    fn reap(all: &[Arc<One<Self>>]) {
        Server::reap_all(all.iter().map(|one| &one.server)).wait();
    }

    fn pause(all: &[Arc<One<Self>>], patience: Duration) -> Result<(), String> {
        Server::pause_all(all.iter().map(|one| &one.server), patience).map_err(|loud| {
            let of = all.iter().find(|one| std::ptr::eq(&raw const one.server, loud));
            format!(
                "requests of a virtual machine to {} are not done after {} s. Is the device suspended?",
                of.map_or("a device", |one| &*one.name),
                patience.as_secs()
            )
        })
    }

    fn open(one: &One<Self>) -> Vec<String> {
        vec![one.name.clone(); one.server.clients()]
    }

    fn disconnect(one: &One<Self>) -> usize {
        let connected = one.server.is_connected();
        if connected {
            one.server.disconnect();
        }
        usize::from(connected)
    }

    fn resume(one: &One<Self>) {
        one.server.resume();
    }

    fn shut_down(all: &[Arc<One<Self>>], patience: Duration) {
        Server::shut_down_all(all.iter().map(|one| &one.server), patience);
    }

    fn give(one: &One<Self>) -> Result<Vec<HandOverMessage>, String> {
        let Some(Handed { listener, session }) = one.server.hand_over() else { return Ok(Vec::new()) };
        let (mut fds, mut input) = (Vec::new(), Vec::new());
        let state = session.map(|session| {
            (fds, input) = (session.fds, session.input);
            session.state
        });
        let piece = Piece::Server { at: one.at.clone(), session: state };
        let mut message = HandOverMessage::new(Self::KIND, &one.name, piece)?.with(listener);
        message.bytes = input;
        let mut fds = fds.into_iter().peekable();
        message.fds.extend(fds.by_ref().take(FDS));
        let mut messages = vec![message];
        while fds.peek().is_some() {
            let mut more = HandOverMessage::new(Self::KIND, &one.name, Piece::More)?;
            more.fds.extend(fds.by_ref().take(FDS));
            messages.push(more);
        }
        Ok(messages)
    }
}

impl VhostExports {
    /// Begins to serve the device. Blocks until it listens.
    pub(crate) fn add(&self, registry: &Registry, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error> {
        if registry.by_name(name).is_none() {
            return Err(Error::new(Errno::ENXIO, format!("no device has the name {name:?}")));
        }
        if !Path::new(&at.socket).is_absolute() {
            let message = format!("{:?}: expected a path from the root on", at.socket);
            return Err(Error::new(Errno::EINVAL, message));
        }
        self.serve(registry, name, at, |builder| builder)
    }

    /// Serves the prepared exports, and makes those anew that could not be passed on: their front ends connect again.
    pub(crate) fn start(&self, registry: &Registry, ready: Vec<Ready>, described: &[VhostUserState]) {
        let is = |ready: &Ready, state: &VhostUserState| ready.name == state.name && ready.at.socket == state.at.socket;
        let anew = described.iter().filter(|state| !ready.iter().any(|ready| is(ready, state)));
        for VhostUserState { name, at } in anew {
            if let Err(e) = self.add(registry, name, at) {
                tracing::error!("{name} is not exported on {} again: {}", at.socket, e.message);
            }
        }
        for Ready { name, at, listener, session } in ready {
            let served = self.serve(registry, &name, &at, |builder| {
                let builder = builder.adopt(listener);
                session.into_iter().fold(builder, ServerBuilder::go_on)
            });
            if let Err(e) = served {
                tracing::error!("{name} is not exported on {} again: {}", at.socket, e.message);
            }
        }
    }

    fn serve(
        &self,
        registry: &Registry,
        name: &str,
        at: &VhostUserExport,
        choose: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Result<ExportEntry, Error> {
        let mode = at.mode.as_deref().map(str::parse).transpose().map_err(|e: String| Error::new(Errno::EINVAL, e))?;
        let mut builder = Server::builder(Path::new(&at.socket));
        if let Some(queues) = at.queues {
            builder = builder.queues(queues);
        }
        if let Some(entries) = at.queue_size {
            builder = builder.queue_size(entries);
        }
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        let exports = Arc::new(MappedExports::only(registry, name));
        let server = choose(builder).start(registry.domain(), exports, name);
        let server = server.map_err(|e| Error::new(Errno::of(&e), e.to_string()))?;
        Ok(self.push(name.to_owned(), at.clone(), server))
    }

    /// Ends the exports of a device, on one socket or at all; returns how many there were. Blocks until their front
    /// ends' requests are done, some seconds at most.
    pub(crate) fn remove(&self, name: &str, socket: Option<&str>) -> usize {
        self.remove_if(|one| one.name == name && socket.is_none_or(|socket| socket == one.at.socket))
    }

    /// What it takes to make them again.
    pub(crate) fn states(&self) -> Vec<VhostUserState> {
        self.all().iter().map(|one| VhostUserState { name: one.name.clone(), at: one.at.clone() }).collect()
    }
}

/// A server whose messages have come; it serves nobody yet.
pub(crate) struct Ready {
    name: String,
    at: VhostUserExport,
    listener: OwnedFd,
    session: Option<Prepared>,
}

/// The exports from the messages of another daemon, with the front ends' memory mapped and their devices open. Front
/// ends that cannot go on are reported in `problems` and disconnected.
pub(crate) fn prepare(registry: &Registry, messages: Vec<HandOverMessage>, problems: &mut Vec<String>) -> Vec<Ready> {
    let mut handed: Vec<(HandOverMessage, VhostUserExport, Option<SessionState>)> = Vec::new();
    for mut message in messages {
        match (message.read(), handed.last_mut()) {
            (Ok(Piece::Server { at, session }), _) => handed.push((message, at, session)),
            (Ok(Piece::More), Some((first, ..))) => first.fds.append(&mut message.fds),
            (Ok(Piece::More), None) => problems.push("descriptors of no front end have come".into()),
            (Err(why), _) => problems.push(why),
        }
    }
    let mut ready = Vec::new();
    for (HandOverMessage { name, bytes, mut fds, .. }, at, session) in handed {
        if fds.is_empty() {
            problems.push(format!("{}: the socket has not come", at.socket));
            continue;
        }
        let listener = fds.remove(0);
        let session = session.and_then(|state| {
            let exports = MappedExports::only(registry, &name);
            let prepared = HandedSession { state, input: bytes, fds }.prepare(&exports, &name);
            prepared.map_err(|why| problems.push(format!("a virtual machine's disk {name}: {why}"))).ok()
        });
        ready.push(Ready { name, at, listener, session });
    }
    ready
}
