//! `udm.sock`: the second protocol.

use super::conversation::Conversation;
use super::socket::Peer;
use super::state::What;
use super::stop::Stop;
use super::{Daemon, handover, log};
use crate::exports::refusal;
use serde_json::json;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::debug;
use udm_base::Errno;
use udm_control::second::{
    Changed, Ended, ExportEntry, Hello, MAX_LINE, NodeEntry, NodeKind, Service, Underway, VERSION, VhostUserExport,
    converse, read_line,
};
use udm_core::{Error, MappedDevice, Registry};
use udm_io::nbd::uri::{Endpoint, Uri};

/// How long one that is to be refused may take to ask.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a client until it hangs up or breaks the protocol, or the daemon stops: then where the conversation can go on.
pub(super) fn serve(daemon: &Daemon, stream: &UnixStream, peer: Peer, mut greeted: bool) -> Option<Conversation> {
    if !peer.is_allowed() {
        // It reads no answer before it has asked.
        let _ = stream.set_read_timeout(Some(REFUSAL_TIMEOUT));
        let _ = read_line(&mut BufReader::new(stream), MAX_LINE);
        let answer = json!({ "error": { "errno": Errno::EACCES.get(), "message": refusal(peer.uid) } });
        let _ = writeln!(&*stream, "{answer}");
        return None;
    }
    let mut lines = Lines { stream, stop: &daemon.stop, between: true, stopped: false };
    let ended = converse(&mut BufReader::new(&mut lines), &mut &*stream, daemon, &mut greeted);
    match ended {
        Ok(Ended::HungUp) => {}
        Ok(Ended::Replace) => daemon.prepare_replacement(stream, peer),
        Err(_) if lines.stopped => return Some(Conversation::Second { greeted }),
        Err(error) => debug!("process {}: {error}", peer.pid),
    }
    None
}

/// What a client sends, until the daemon stops between two lines.
struct Lines<'a> {
    stream: &'a UnixStream,
    stop: &'a Stop,
    /// The last line that has come has come whole.
    between: bool,
    stopped: bool,
}

impl Read for Lines<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !self.stop.wait_for(self.stream.as_fd()) && self.between {
            self.stopped = true;
            return Err(io::Error::other("the daemon stops"));
        }
        let got = self.stream.read(buf)?;
        if let Some(last) = buf[..got].last() {
            self.between = *last == b'\n';
        }
        Ok(got)
    }
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
