//! vhost-user-blk at the boundary of the library: a front end of our own against the server.

mod bad_input;
#[path = "../nbd/device.rs"]
mod device;
mod handover;
mod lifecycle;
mod programs;
mod requests;
mod served;
