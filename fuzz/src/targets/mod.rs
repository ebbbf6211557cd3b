//! One file for each boundary; [`crate::TARGETS`] lists what is in them.

pub mod args;
pub mod concise;
pub mod control;
pub mod daemon;
pub mod ioctl;
pub mod nbd;
pub mod pdata;
pub mod snapshot;
pub mod table;
pub mod thin;
pub mod thin_tools;
pub mod vhost_user;
