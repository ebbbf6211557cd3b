//! What a server asks of those who have devices to export.

use std::fmt;
use std::sync::Arc;
use udm_io::BlockDevice;

/// One line of a list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name that opens it.
    pub name: String,
    /// A description for people; may be empty.
    pub description: String,
}

/// An export that is open. Dropping it closes it: while it lives, its device counts as open.
pub trait Export: Send {
    /// Canonical name and description.
    fn info(&self) -> ExportInfo;

    /// The device. It must be the same at every call.
    fn device(&self) -> Arc<dyn BlockDevice>;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;
}

/// Where the server finds its exports. Called from the server's threads; may block briefly.
pub trait Exports: Send + Sync {
    /// The exports that there are.
    fn list(&self) -> Vec<ExportInfo>;

    /// Opens an export for `client`. The empty name asks for the default export.
    fn open(&self, name: &str, client: &Client) -> Result<Box<dyn Export>, OpenError>;
}

/// Who asks: for messages and for the open count's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
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
