//! Floor 2: NBD, the network block device protocol: what both ends share, and the client end.
//!
//! - [`wire`]: constants, headers and payloads as bytes. No I/O, no state.
//! - [`NbdDevice`]: a remote export as a block device
//! - [`uri`]: `nbd://` and `nbd+unix://` names of remote exports.
//!
//! The server end lives in the export crate and uses the same [`wire`].
//! Source of every format here: `doc/proto.md` and `doc/uri.md` of the NBD project.

mod client;
pub mod uri;
pub mod wire;

pub use client::{ConnectError, NbdDevice};

/// Entries for fuzzers.
pub mod fuzz {
    pub use super::client::fuzz::server_says;
}
