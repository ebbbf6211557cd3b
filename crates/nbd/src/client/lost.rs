//! Why a connection ends.

use crate::wire::WireError;
use rustix::io::Errno;

/// Why the connection was given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("the server hung up")]
    HungUp,
    #[error("{0}")]
    Io(#[from] Errno),
    #[error("the server breaks the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the server breaks the protocol: {0}")]
    Protocol(&'static str),
}
