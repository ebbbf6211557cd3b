//! Floor 6: the devices of one process. A [`registry`] knows every target and opens every kind of device; a [`Stack`]
//! is the devices of a concise specification in a registry of their own. The daemon, `udm run`, the load generator and
//! the library for C all begin here.

mod concise;
mod host;
mod open;
mod stack;

pub use concise::{ConciseDevice, parse_concise};
pub use host::{open, open_for_table, registry, registry_over};
pub use open::{OpenOptions, open_beneath};
pub use stack::{Stack, StackError};
