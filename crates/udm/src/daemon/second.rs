//! `udm.sock`: the second protocol.

use super::conversation::Done;
use super::socket::Peer;
use super::state::What;
use super::{Daemon, handover, log};
use crate::exports::refusal;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use tracing::debug;
use udm_base::Errno;
use udm_control::second::{
    self, Asker, Changed, ExportEntry, Hello, Next, NodeEntry, NodeKind, Service, Underway, UnderwayGuard, VERSION,
    VhostUserExport, respond,
};
use udm_core::{Error, MappedDevice, Registry};
use udm_nbd::uri::{Endpoint, Uri};

/// Answers a line.
pub(super) fn perform(daemon: &Daemon, stream: &UnixStream, peer: Peer, line: &[u8], greeted: bool) -> Done {
    if !peer.is_allowed() {
        let bytes = second::refusal(Errno::EACCES, &refusal(peer.uid)).into_bytes();
        return Done::Answer { bytes, ends: true, greeted };
    }
    let mut asker = Asker { greeted, pid: u32::try_from(peer.pid).ok() };
    let (answer, next) = respond(line, daemon, &mut asker);
    let greeted = asker.greeted;
    if next != Next::Replace {
        return Done::Answer { bytes: answer.into_bytes(), ends: next == Next::HangUp, greeted };
    }
    match (&*stream).write_all(answer.as_bytes()) {
        Ok(()) => daemon.prepare_replacement(stream, peer),
        Err(error) => debug!("process {}: {error}", peer.pid),
    }
    Done::Taken
}

impl Service for Daemon {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn hello(&self) -> Hello {
        let program = format!("udm {}", env!("CARGO_PKG_VERSION"));
        Hello { version: VERSION, program, pid: std::process::id() }
    }

    fn exports(&self) -> Vec<ExportEntry> {
        let socket = self.places.nbd();
        let devices = self.registry.list().into_iter().filter(|md| md.info().active);
        let own = devices.map(|md| {
            let name = md.device_name();
            let uri = Uri { endpoint: Endpoint::Unix(socket.clone()), export: name.clone() }.to_string();
            ExportEntry { name, transport: "unix".into(), address: socket.display().to_string(), uri }
        });
        own.chain(self.tcp.list()).chain(self.vhost.list()).collect()
    }

    fn add_export(&self, name: &str, tcp: &str) -> Result<ExportEntry, Error> {
        self.tcp.add(&self.registry, name, tcp)
    }

    fn add_vhost_user(&self, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error> {
        self.vhost.add(&self.registry, name, at)
    }

    fn remove_export(&self, name: &str, tcp: Option<&str>, vhost_user: Option<&str>) -> Result<usize, Error> {
        let over_tcp = if tcp.is_some() || vhost_user.is_none() { self.tcp.remove(name, tcp)? } else { 0 };
        let over_vhost = if vhost_user.is_some() || tcp.is_none() { self.vhost.remove(name, vhost_user) } else { 0 };
        if over_tcp + over_vhost > 0 {
            return Ok(over_tcp + over_vhost);
        }
        let known = self.tcp.list().into_iter().chain(self.vhost.list());
        let known: Vec<_> = known.map(|e| format!("{} at {}", e.name, e.address)).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::new(Errno::ENXIO, format!("no such export of {name:?}; there are: {known}")))
    }

    fn underway(&self) -> Vec<Underway> {
        let mut list = self.underway.list();
        // Who waits for an event waits for nobody in particular.
        for command in list.iter_mut().filter(|command| command.command != "DM_DEV_WAIT") {
            command.waits_for = self.registry.waits_for(&command.device);
        }
        list
    }

    fn begin(&self, command: &str, device: &str, pid: Option<u32>) -> Option<UnderwayGuard<'_>> {
        Some(self.underway.begin(command, device, pid))
    }

    fn log_tail(&self, lines: usize) -> Vec<String> {
        log::tail(&self.places, lines)
    }

    fn nodes(&self) -> Vec<NodeEntry> {
        self.nodes.list()
    }

    fn add_node(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<Option<NodeEntry>, Error> {
        self.nodes.add(name, kind, mapper)
    }

    fn remove_node(&self, name: &str) -> Result<(), Error> {
        self.nodes.remove(name)
    }

    fn may_change(&self) -> Result<(), Error> {
        self.state.ready(self, 0).map_err(|why| why.refusal())
    }

    fn changed(&self, what: Changed) -> Result<(), Error> {
        let what = match what {
            Changed::Device(minor) => What::Device(minor),
            Changed::Exports => What::Exports,
        };
        Self::changed(self, what).map_err(|why| why.confession())
    }

    fn lost(&self, device: &MappedDevice) -> Option<String> {
        self.lost.of(device).map(|lost| lost.reason)
    }

    fn may_replace(&self, version: u32) -> Result<(), Error> {
        if version == handover::VERSION {
            return Ok(());
        }
        let ours = handover::VERSION;
        let message =
            format!("the new daemon passes things on by version {version}, this one by {ours}: stop it instead");
        Err(Error::new(Errno::EPROTO, message))
    }

    fn shut_down(&self, forget: bool) {
        tracing::info!("a client asks to end");
        self.forget.store(forget, Ordering::Release);
        self.ended.store(true, Ordering::Release);
        self.stop.set();
    }
}
