//! Devices exported over TCP, on request.

use super::handover::HandOverMessage;
use super::nbd::{self, Ready};
use super::servers::{One, Servers, Speaks};
use super::state::ExportState;
use crate::exports::MappedExports;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use udm_base::Errno;
use udm_control::second::ExportEntry;
use udm_core::{Error, Registry};
use udm_export::Listen;
use udm_export::nbd::Server;
use udm_nbd::uri::{Endpoint, Uri};
use udm_nbd::wire::consts::DEFAULT_PORT;

/// Threads of one export.
const THREADS: usize = 2;

/// NBD over TCP.
pub(crate) struct Tcp;

/// Devices that are exported so.
pub(crate) type TcpExports = Servers<Tcp>;

impl Speaks for Tcp {
    type Server = Server;
    type Address = SocketAddr;
    const KIND: &'static str = "tcp";

    fn shown(one: &One<Self>) -> (String, String) {
        (one.at.to_string(), tcp_uri(one.at, &one.name))
    }

    fn reap(all: &[Arc<One<Self>>]) {
        all.iter().for_each(|one| _ = one.server.reap_hangups());
    }

    fn pause(all: &[Arc<One<Self>>], patience: Duration) -> Result<(), String> {
        for (number, one) in all.iter().enumerate() {
            if let Err(why) = nbd::pause(&one.server, patience) {
                all[..number].iter().for_each(|one| one.server.resume());
                return Err(why);
            }
        }
        Ok(())
    }

    fn open(one: &One<Self>) -> Vec<String> {
        one.server.open_exports()
    }

    fn disconnect(one: &One<Self>) -> usize {
        one.server.disconnect(&one.name)
    }

    fn resume(one: &One<Self>) {
        one.server.resume();
    }

    fn shut_down(all: &[Arc<One<Self>>], patience: Duration) {
        Server::shut_down_all(all.iter().map(|one| &one.server), patience);
    }

    fn give(one: &One<Self>) -> Result<Vec<HandOverMessage>, String> {
        nbd::give(&one.server, Self::KIND, &format!("{} {}", one.at, one.name))
    }
}

impl TcpExports {
    /// Begins to serve the device. Blocks until it listens.
    pub(crate) fn add(&self, registry: &Registry, name: &str, tcp: &str) -> Result<ExportEntry, Error> {
        let address = parse_address(tcp).map_err(|message| Error::new(Errno::EINVAL, message))?;
        if registry.by_name(name).is_none() {
            return Err(Error::new(Errno::ENXIO, format!("no device has the name {name:?}")));
        }
        let exports = Arc::new(MappedExports::only(registry, name));
        let server = Server::builder().listen(Listen::Tcp(address)).threads(THREADS).start(registry.domain(), exports);
        let server = server.map_err(|e| Error::new(Errno::of(&e), e.to_string()))?;
        let bound = server.bound().iter().find_map(|l| if let Listen::Tcp(at) = l { Some(*at) } else { None });
        Ok(self.push(name.to_owned(), bound.unwrap_or(address), server))
    }

    /// Ends the exports of a device, at one address or at all; returns how many there were. Blocks until their clients
    /// are gone. Fails only for an invalid address.
    pub(crate) fn remove(&self, name: &str, tcp: Option<&str>) -> Result<usize, Error> {
        let address = tcp.map(parse_address).transpose().map_err(|message| Error::new(Errno::EINVAL, message))?;
        Ok(self.remove_if(|one| one.name == name && address.is_none_or(|at| at == one.at)))
    }

    /// The exports from the messages of another daemon, each with its device and address; they do not serve yet.
    pub(crate) fn prepare(
        registry: &Registry,
        messages: Vec<HandOverMessage>,
        problems: &mut Vec<String>,
    ) -> Vec<(String, SocketAddr, Ready)> {
        let mut by_export: BTreeMap<(String, SocketAddr), Vec<HandOverMessage>> = BTreeMap::new();
        for message in messages {
            let export = message.name.split_once(' ').and_then(|(at, name)| Some((name.to_owned(), at.parse().ok()?)));
            match export {
                Some(export) => by_export.entry(export).or_default().push(message),
                None => problems.push(format!("{:?} is no export over TCP", message.name)),
            }
        }
        let mut ready = Vec::new();
        for ((name, at), messages) in by_export {
            let how = (&Listen::Tcp(at), Server::builder().threads(THREADS));
            match nbd::prepare(registry, MappedExports::only(registry, &name), how, messages, problems) {
                Ok(server) => ready.push((name, at, server)),
                Err(why) => problems.push(format!("{name} is not exported at {at} again: {why}")),
            }
        }
        ready
    }

    /// Serves the prepared exports.
    pub(crate) fn go_on(&self, ready: Vec<(String, SocketAddr, Ready)>) {
        for (name, at, ready) in ready {
            self.push(name, at, ready.go_on());
        }
    }

    /// What it takes to make them again.
    pub(crate) fn states(&self) -> Vec<ExportState> {
        self.all().iter().map(|one| ExportState { name: one.name.clone(), tcp: one.at.to_string() }).collect()
    }
}

/// The address for an NBD client.
pub(crate) fn tcp_uri(address: SocketAddr, name: &str) -> String {
    // A server that listens on every address is reached on this machine's own.
    let host = match address.ip() {
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        ip => ip,
    };
    let endpoint = Endpoint::Tcp { host: host.to_string(), port: address.port() };
    Uri { endpoint, export: name.to_owned() }.to_string()
}

/// `ADDRESS`, `ADDRESS:PORT`, `[IPV6]:PORT` or `:PORT`, which is loopback. Names are not looked up: what an export is
/// bound to should not depend on a resolver.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let host = |host: &str| if host == "localhost" { "127.0.0.1".parse() } else { host.parse::<IpAddr>() };
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = host(bare) {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    let parsed = text.rsplit_once(':').and_then(|(at, port)| {
        let at = at.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(at);
        let ip = if at.is_empty() { IpAddr::from([127, 0, 0, 1]) } else { host(at).ok()? };
        Some(SocketAddr::new(ip, port.parse().ok()?))
    });
    parsed.ok_or_else(|| format!("{text:?} is no TCP address: expected ADDRESS[:PORT], as 127.0.0.1:{DEFAULT_PORT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expect) in [
            ("127.0.0.1", Some("127.0.0.1:10809")),
            ("localhost:99", Some("127.0.0.1:99")),
            (":0", Some("127.0.0.1:0")),
            ("0.0.0.0:1", Some("0.0.0.0:1")),
            ("::1", Some("[::1]:10809")),
            ("[::1]", Some("[::1]:10809")),
            ("[::1]:5", Some("[::1]:5")),
            ("", None),
            ("example.org", None),
            ("127.0.0.1:65536", None),
            ("127.0.0.1:", None),
        ] {
            assert_eq!(parse_address(text).ok().map(|a| a.to_string()).as_deref(), expect, "{text:?}");
        }
    }

    #[test]
    fn uris() {
        let check = |at: &str, name: &str, expect: &str| assert_eq!(tcp_uri(at.parse().unwrap(), name), expect);
        check("127.0.0.1:10810", "vol", "nbd://127.0.0.1:10810/vol");
        check("0.0.0.0:10810", "a b", "nbd://127.0.0.1:10810/a%20b");
    }
}
