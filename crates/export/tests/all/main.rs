//! The ways out of udm from outside, in one program.

mod devices;
mod exported;
mod nbd;
mod node;
mod vhost_user;
