//! The second protocol, on `udm.sock`: what the DM ioctls have no word for.
//!
//! One JSON object a line, in UTF-8; a line has at most [`MAX_LINE`] bytes. The client asks, the daemon answers each
//! request with one line, in order:
//!
//! ```text
//! → {"op":"hello","version":1}
//! ← {"ok":{"version":1,"program":"udm 0.1.0","pid":4711}}
//! → {"op":"set","name":"vol","key":"compile","value":"maybe"}
//! ← {"error":{"errno":22,"message":"compile=maybe: expected 0 or 1"}}
//! ```
//!
//! The first request is `hello`. Within a version requests, keys and fields are added, never changed: a client ignores
//! fields that it does not know, the daemon refuses requests that it does not know.
//!
//! Nothing here opens sockets or files: [`Service`] is what the daemon has to offer.

mod client;
mod debug;
mod line;
mod node;
mod options;
mod request;
mod serve;
mod stats;
mod underway;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientError};
pub use debug::{DebugActivity, DebugBeneath, DebugBios, DebugChannel, DebugDevice, DebugDump, DebugPart};
pub use line::{MAX_LINE, read_line};
pub use node::{NodeEntry, NodeKind};
pub use options::{OPTIONS, set_option};
pub use request::{ExportEntry, Hello, HostDevice, Request, VhostUserExport};
pub use serve::{Asker, Changed, Next, Service, refusal, respond};
pub use stats::{DeviceStats, PollStats};
pub use underway::{Underway, UnderwayGuard, UnderwayList};

/// The version of the protocol.
pub const VERSION: u32 = 1;
