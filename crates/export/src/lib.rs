//! Floor 5: ways out for a mapped device. An export sees a [`BlockDevice`](udm_io::BlockDevice) and names no target.

pub mod nbd;
pub mod node;
pub mod ublk;
pub mod vhost_user;
