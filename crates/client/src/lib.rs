//! The client's side of udm. See ARCHITECTURE.md.

pub mod dmsetup;
