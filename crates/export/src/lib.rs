//! Floor 5: exports of mapped devices. An export sees a [`BlockDevice`](udm_io::BlockDevice) and names no target.

pub mod exports;
mod listener;
pub mod nbd;
pub mod node;
pub mod ublk;
pub mod vhost_user;
mod worker;

pub use exports::{Client, Export, Exports, NamedDevice, OpenError, OpenExport, Parameters, Refused, Served, Told};
pub use listener::Listen;
