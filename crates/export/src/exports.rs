//! Devices that are exported, and where a server finds them.

use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use udm_base::Errno;
use udm_io::BlockDevice;

/// A device that is exported, whichever way: what NBD, nodes, vhost-user and ublk know of it. Called from their
/// threads; may block briefly.
pub trait Export: Send + Sync {
    /// What it is known by, to clients and to a server that goes on in the place of this one.
    fn name(&self) -> String;

    /// For people; may be empty.
    fn description(&self) -> String {
        String::new()
    }

    /// The device. It must be the same at every call. Its size and its limits are what clients are told.
    fn device(&self) -> Arc<dyn BlockDevice>;

    /// Whether writes are refused now.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether what was written can be lost with this process before a flush. What outlives the process is written
    /// through then.
    fn write_through(&self) -> bool {
        false
    }

    /// Counts the device as open until the answer is dropped.
    ///
    /// # Errors
    /// Why it cannot be had now.
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        Ok(Box::new(()))
    }
}

/// Why an export cannot be had now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What open(2) of a node fails with.
    pub errno: Errno,
    /// What other clients are told.
    pub message: String,
}

impl From<Refused> for Errno {
    fn from(refused: Refused) -> Self {
        refused.errno
    }
}

/// An export that is open until this is dropped.
pub struct OpenExport {
    export: Arc<dyn Export>,
    _open: Box<dyn Any + Send>,
}

impl OpenExport {
    /// Opens it.
    ///
    /// # Errors
    /// As [`Export::open`].
    pub fn new(export: Arc<dyn Export>) -> Result<Self, Refused> {
        Ok(Self { _open: export.open()?, export })
    }
}

impl Deref for OpenExport {
    type Target = dyn Export;

    fn deref(&self) -> &Self::Target {
        &*self.export
    }
}

/// Where a server finds its exports. Called from the server's threads; may block briefly.
pub trait Exports: Send + Sync {
    /// The exports that there are.
    fn list(&self) -> Vec<Arc<dyn Export>>;

    /// The export that `client` is to have under a name. The empty name asks for the default export.
    ///
    /// # Errors
    /// There is none, or not for that client.
    fn find(&self, name: &str, client: &Client) -> Result<Arc<dyn Export>, OpenError>;

    /// Opens an export for `client`.
    ///
    /// # Errors
    /// It cannot be [found](Self::find), or [had](Export::open).
    fn open(&self, name: &str, client: &Client) -> Result<OpenExport, OpenError> {
        let export = self.find(name, client)?;
        OpenExport::new(export).map_err(|refused| OpenError::Refused(refused.message))
    }
}

/// A device under a name, for everybody.
#[derive(Clone)]
pub struct NamedDevice(pub String, pub Arc<dyn BlockDevice>);

impl Export for NamedDevice {
    fn name(&self) -> String {
        self.0.clone()
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.1.clone()
    }
}

/// The first is the default.
impl Exports for Vec<NamedDevice> {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        self.iter().map(|one| Arc::new(one.clone()) as Arc<dyn Export>).collect()
    }

    fn find(&self, name: &str, _: &Client) -> Result<Arc<dyn Export>, OpenError> {
        let found = self.iter().find(|one| name.is_empty() || one.0 == name);
        Ok(Arc::new(found.ok_or_else(|| OpenError::Unknown(name.to_owned()))?.clone()))
    }
}

/// Who asks: for messages and for the open count's holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Client {
    /// A process on this machine.
    Unix {
        /// Its id; 0 when it is in another pid namespace.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// A peer over TCP.
    Tcp(std::net::SocketAddr),
    /// No one: a test or a simulation.
    Internal,
}

impl Client {
    /// The process that is connected by a unix socket.
    pub(crate) fn of_unix(socket: &OwnedFd) -> rustix::io::Result<Self> {
        let peer = sockopt::socket_peercred(socket)?;
        Ok(Self::Unix { pid: peer.pid.as_raw_nonzero().get().unsigned_abs(), uid: peer.uid.as_raw() })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Internal => write!(f, "this process"),
        }
    }
}

/// Why an export cannot be opened. The text goes to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is none of that name.
    #[error("no export is named {0:?}")]
    Unknown(String),
    /// There is, but it cannot be had now.
    #[error("{0}")]
    Refused(String),
}
