//! Exported devices, and how a server finds them.

use rustix::fd::OwnedFd;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use udm_base::{Errno, Sectors};
use udm_io::{BlockDevice, Limits};

/// An exported device, as NBD, nodes, vhost-user and ublk see it. Called from their threads; may block briefly.
pub trait Export: Send + Sync {
    /// Its name, for clients and for a server that takes over from this one.
    fn name(&self) -> String;

    /// For people; may be empty.
    fn description(&self) -> String {
        String::new()
    }

    /// The device. It must be the same at every call. Clients are told its size and its limits.
    fn device(&self) -> Arc<dyn BlockDevice>;

    /// Whether writes are refused now.
    fn read_only(&self) -> bool {
        false
    }

    /// Whether written data can be lost with this process before a flush. An export that outlives the process then
    /// writes through.
    fn write_through(&self) -> bool {
        false
    }

    /// What clients are told of it now.
    fn parameters(&self) -> Parameters {
        let device = self.device();
        Parameters {
            sectors: device.sectors(),
            limits: device.limits(),
            read_only: self.read_only() || device.read_only(),
            write_through: self.write_through(),
        }
    }

    /// Counts the device as open until the answer is dropped.
    ///
    /// # Errors
    /// Why it cannot be had now.
    fn open(&self) -> Result<Box<dyn Any + Send>, Refused> {
        Ok(Box::new(()))
    }
}

/// What the clients of a device are told of it. It changes when the device gets another table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// The size.
    pub sectors: Sectors,
    /// What requests have to keep to.
    pub limits: Limits,
    /// Writes are refused.
    pub read_only: bool,
    /// See [`Export::write_through`].
    pub write_through: bool,
}

/// A device that is served, as whoever has exported it sees it, whichever the way: NBD, a node of FUSE or ublk,
/// vhost-user.
pub trait Served {
    /// How clients reach it: `unix`, `tcp`, `vhost-user`, `fuse`, `fuse-io_uring` or `ublk`.
    fn transport(&self) -> &'static str;

    /// How many clients have it. What the kernel has counts as one, whoever uses that.
    fn clients(&self) -> usize;

    /// The device has other parameters: clients are told, as far as their protocol has a word for it. Blocks for what
    /// the kernel takes to change a block device.
    ///
    /// # Errors
    /// The kernel's.
    fn changed(&self, then: &Parameters, now: &Parameters) -> io::Result<Told>;
}

/// Whether clients learn of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// They do.
    Yes,
    /// Those that have the device go by its old size for as long as they have it.
    KeepSize,
}

/// Why an export cannot be opened now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The error of open(2) on a node.
    pub errno: Errno,
    /// The text for other clients.
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

/// A server's list of exports. Called from the server's threads; may block briefly.
pub trait Exports: Send + Sync {
    /// All exports.
    fn list(&self) -> Vec<Arc<dyn Export>>;

    /// The export of a name for `client`. The empty name means the default export.
    ///
    /// # Errors
    /// There is none, or none for that client.
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

/// A device under a name, for every client.
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

/// The client: for messages, and as the holder in the open count.
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
    /// There is, but it cannot be opened now.
    #[error("{0}")]
    Refused(String),
}
