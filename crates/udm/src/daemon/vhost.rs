//! Devices exported as disks of virtual machines, when asked.

use super::handover::{HandOver, HandOverMessage};
use super::state::VhostUserState;
use crate::exports::MappedExports;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use udm_base::Errno;
use udm_control::second::{ExportEntry, VhostUserExport};
use udm_core::{Error, Registry};
use udm_export::vhost_user::{Handed, HandedSession, Prepared, Server, ServerBuilder, SessionState};

/// One device on one socket.
struct Exported {
    name: String,
    /// As it was asked for, so that the next daemon chooses what was not said anew.
    at: VhostUserExport,
    server: Server,
}

/// The kind of the messages.
const KIND: &str = "vhost-user";
/// Descriptors of one message, beside the listener.
const FDS: usize = 60;

/// What one message is.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Piece {
    /// A server: the socket that it listens on, and the front end that is connected.
    Server { at: VhostUserExport, session: Option<SessionState> },
    /// More descriptors of the front end before.
    More,
}

/// All of them.
#[derive(Default)]
pub(crate) struct VhostExports {
    all: Mutex<Vec<Exported>>,
}

impl VhostExports {
    fn lock(&self) -> MutexGuard<'_, Vec<Exported>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Serves what was prepared, and anew what could not be passed on: their front ends connect again.
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
        let exported = Exported { name: name.to_owned(), at: at.clone(), server };
        let entry = exported.entry();
        self.lock().push(exported);
        Ok(entry)
    }

    /// Ends those of a device, on one socket or at all; returns how many there were. Blocks until their front ends'
    /// requests are done, some seconds at most.
    pub(crate) fn remove(&self, name: &str, socket: Option<&str>) -> usize {
        let chosen = |e: &Exported| e.name == name && socket.is_none_or(|socket| socket == e.at.socket);
        let gone: Vec<_> = self.lock().extract_if(.., |e| chosen(e)).collect();
        Server::shut_down_all(gone.iter().map(|e| &e.server), Duration::from_secs(5));
        gone.len()
    }

    pub(crate) fn list(&self) -> Vec<ExportEntry> {
        self.lock().iter().map(Exported::entry).collect()
    }

    /// What it takes to make them again: names, and how they are served.
    pub(crate) fn described(&self) -> Vec<(String, VhostUserExport)> {
        self.lock().iter().map(|e| (e.name.clone(), e.at.clone())).collect()
    }

    pub(crate) fn reap_hangups(&self) {
        let reaping = Server::reap_all(self.lock().iter().map(|exported| &exported.server));
        // Without the lock, which others want meanwhile.
        reaping.wait();
    }

    /// Ends all.
    pub(crate) fn shut_down(&self, patience: Duration) {
        let all = std::mem::take(&mut *self.lock());
        Server::shut_down_all(all.iter().map(|exported| &exported.server), patience);
    }
}

impl HandOver for VhostExports {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        let all = self.lock();
        Server::pause_all(all.iter().map(|exported| &exported.server), patience).map_err(|loud| {
            let of = all.iter().find(|exported| std::ptr::eq(&raw const exported.server, loud));
            format!(
                "requests of a virtual machine to {} are not done after {} s. Is the device suspended?",
                of.map_or("a device", |exported| &*exported.name),
                patience.as_secs()
            )
        })
    }

    fn holds(&self) -> Vec<String> {
        let all = self.lock();
        all.iter().filter(|exported| exported.server.is_connected()).map(|exported| exported.name.clone()).collect()
    }

    fn resume(&self, _: &Registry) {
        self.lock().iter().for_each(|exported| exported.server.resume());
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        let mut messages = Vec::new();
        for Exported { name, at, server } in std::mem::take(&mut *self.lock()) {
            let Some(Handed { listener, session }) = server.hand_over() else { continue };
            let (mut fds, mut input) = (Vec::new(), Vec::new());
            let state = session.map(|session| {
                (fds, input) = (session.fds, session.input);
                session.state
            });
            let mut message = HandOverMessage::new(KIND, &name, Piece::Server { at, session: state })?.with(listener);
            message.bytes = input;
            let mut fds = fds.into_iter().peekable();
            message.fds.extend(fds.by_ref().take(FDS));
            messages.push(message);
            while fds.peek().is_some() {
                let mut more = HandOverMessage::new(KIND, &name, Piece::More)?;
                more.fds.extend(fds.by_ref().take(FDS));
                messages.push(more);
            }
        }
        Ok(messages)
    }
}

/// A server whose messages have come; it serves nobody yet.
pub(crate) struct Ready {
    name: String,
    at: VhostUserExport,
    listener: OwnedFd,
    session: Option<Prepared>,
}

/// What goes on from the messages of another daemon, with the front ends' memory mapped and their devices open. Front
/// ends that cannot go on are told in `problems`, and hung up on.
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

impl Exported {
    fn entry(&self) -> ExportEntry {
        let address = self.at.socket.clone();
        let uri = format!("vhost-user:{address}");
        ExportEntry { name: self.name.clone(), transport: "vhost-user".into(), address, uri }
    }
}
