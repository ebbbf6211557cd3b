//! The device mapper's control protocol. See ARCHITECTURE.md.

pub mod codec;
pub mod handler;
pub mod second;
pub mod wire;
