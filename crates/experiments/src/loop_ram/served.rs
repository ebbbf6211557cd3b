//! The devices of a stack over NBD, for clients that are programs of their own.

use std::path::Path;
use std::sync::Arc;
use udm_bench::{Error, Stack};
use udm_export::nbd::Server;
use udm_export::{Listen, NamedDevice};
use udm_io::Domain;
use udm_nbd::uri::{Endpoint, Uri};

/// A server of some devices of a stack, which ends with it.
pub(super) struct Served {
    _server: Server,
    socket: std::path::PathBuf,
}

impl Served {
    /// Serves `names` of `stack` on a socket in `folder`.
    pub(super) fn new(domain: &Domain, stack: &Stack, names: &[&str], folder: &Path) -> Result<Self, Error> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let socket = folder.join("nbd.sock");
        let devices = names.iter().map(|name| Ok(NamedDevice(String::from(*name), stack.device(name)?)));
        let devices = devices.collect::<Result<Vec<_>, Error>>()?;
        let server = Server::builder().listen(Listen::Unix(socket.clone())).start(domain, Arc::new(devices));
        let server =
            server.map_err(|source| Error::System { what: format!("serving {}", socket.display()), source })?;
        Ok(Self { _server: server, socket })
    }

    /// Where the device of that name is.
    pub(super) fn uri(&self, name: &str) -> String {
        Uri { endpoint: Endpoint::Unix(self.socket.clone()), export: name.to_owned() }.to_string()
    }
}
