//! The device mapper's control protocol. See ARCHITECTURE.md.

pub mod codec;
pub mod wire;
