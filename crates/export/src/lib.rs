//! Floor 5: ways out for a mapped device. An export sees a [`BlockDevice`](udm_io::BlockDevice) and names no target.

pub mod exports;
mod listener;
pub mod nbd;
pub mod node;
mod slots;
pub mod ublk;
pub mod vhost_user;
mod worker;

pub use exports::{Client, Export, Exports, NamedDevice, OpenError, OpenExport, Refused};
pub use listener::Listen;
