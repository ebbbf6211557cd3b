//! Devices exported over TCP, when asked.

use super::handover::{HandOver, HandOverMessage};
use super::nbd::{self, Ready};
use crate::exports::MappedExports;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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

/// One device on one address.
struct TcpExport {
    name: String,
    address: SocketAddr,
    server: Server,
}

/// All of them.
#[derive(Default)]
pub(crate) struct TcpExports(Arc<Mutex<Vec<TcpExport>>>);

/// Where they listen, for who must not keep them alive.
pub(crate) struct Listening(Weak<Mutex<Vec<TcpExport>>>);

impl Listening {
    /// The addresses now.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let exports = self.0.upgrade().map(TcpExports);
        exports.map_or_else(Vec::new, |exports| exports.lock().iter().map(|export| export.address).collect())
    }
}

impl TcpExports {
    fn lock(&self) -> MutexGuard<'_, Vec<TcpExport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn listening(&self) -> Listening {
        Listening(Arc::downgrade(&self.0))
    }

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
        let export = TcpExport { name: name.to_owned(), address: bound.unwrap_or(address), server };
        let entry = export.entry();
        self.lock().push(export);
        Ok(entry)
    }

    /// Ends those of a device, at one address or at all; returns how many there were. Blocks until their clients are
    /// gone. Fails only for an address that is none.
    pub(crate) fn remove(&self, name: &str, tcp: Option<&str>) -> Result<usize, Error> {
        let address = tcp.map(parse_address).transpose().map_err(|message| Error::new(Errno::EINVAL, message))?;
        let chosen = |export: &TcpExport| export.name == name && address.is_none_or(|at| at == export.address);
        let gone: Vec<_> = self.lock().extract_if(.., |export| chosen(export)).collect();
        Server::shut_down_all(gone.iter().map(|export| &export.server), Duration::from_secs(5));
        Ok(gone.len())
    }

    /// What goes on from the messages of another daemon, each with its device and address; it serves nobody yet.
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

    /// Serves what was prepared.
    pub(crate) fn go_on(&self, ready: Vec<(String, SocketAddr, Ready)>) {
        let served = ready.into_iter().map(|(name, address, ready)| TcpExport { name, address, server: ready.go_on() });
        self.lock().extend(served);
    }

    pub(crate) fn list(&self) -> Vec<ExportEntry> {
        self.lock().iter().map(TcpExport::entry).collect()
    }

    pub(crate) fn reap_hangups(&self) {
        self.lock().iter().for_each(|export| {
            export.server.reap_hangups();
        });
    }

    /// Ends all.
    pub(crate) fn shut_down(&self, patience: Duration) {
        let all = std::mem::take(&mut *self.lock());
        Server::shut_down_all(all.iter().map(|export| &export.server), patience);
    }
}

impl HandOver for TcpExports {
    fn kind(&self) -> &'static str {
        "tcp"
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        let all = self.lock();
        for (number, export) in all.iter().enumerate() {
            if let Err(why) = nbd::pause(&export.server, patience) {
                all[..number].iter().for_each(|export| export.server.resume());
                return Err(why);
            }
        }
        Ok(())
    }

    fn holds(&self) -> Vec<String> {
        self.lock().iter().flat_map(|export| export.server.open_exports()).collect()
    }

    fn resume(&self, _: &Registry) {
        self.lock().iter().for_each(|export| export.server.resume());
    }

    fn give(&self) -> Result<Vec<HandOverMessage>, String> {
        let mut messages = Vec::new();
        for TcpExport { name, address, server } in std::mem::take(&mut *self.lock()) {
            messages.extend(nbd::give(&server, self.kind(), &format!("{address} {name}"))?);
        }
        Ok(messages)
    }
}

impl TcpExport {
    fn entry(&self) -> ExportEntry {
        ExportEntry {
            name: self.name.clone(),
            transport: "tcp".into(),
            address: self.address.to_string(),
            uri: tcp_uri(self.address, &self.name),
        }
    }
}

/// What an NBD client is given for an address.
pub(crate) fn tcp_uri(address: SocketAddr, name: &str) -> String {
    // Who listens on every address is reached on this machine's own.
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
