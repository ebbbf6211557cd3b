//! The devices of a stack over NBD, for clients that are programs of their own.

use std::path::Path;
use std::sync::Arc;
use udm_bench::{Error, Stack};
use udm_core::MappedDevice;
use udm_export::nbd::{Client, Export, ExportInfo, Exports, Listen, OpenError, Server};
use udm_io::{BlockDevice, Domain};
use udm_nbd::uri::{Endpoint, Uri};

struct Devices(Vec<(String, Arc<MappedDevice>)>);

struct One(String, Arc<MappedDevice>);

impl Exports for Devices {
    fn list(&self) -> Vec<ExportInfo> {
        self.0.iter().map(|(name, _)| ExportInfo { name: name.clone(), description: String::new() }).collect()
    }

    fn open(&self, name: &str, _: &Client) -> Result<Box<dyn Export>, OpenError> {
        let found = self.0.iter().find(|(known, _)| known == name);
        let (name, md) = found.ok_or_else(|| OpenError::Unknown(name.to_owned()))?;
        Ok(Box::new(One(name.clone(), md.clone())))
    }
}

impl Export for One {
    fn info(&self) -> ExportInfo {
        ExportInfo { name: self.0.clone(), description: String::new() }
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.1.clone()
    }

    fn read_only(&self) -> bool {
        false
    }
}

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
        let devices = names.iter().map(|name| Ok((String::from(*name), stack.device(name)?)));
        let devices = Devices(devices.collect::<Result<_, Error>>()?);
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
