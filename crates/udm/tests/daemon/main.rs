//! The daemon and its commands, each test with a daemon of its own.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod cut;
mod golden;
mod lifecycle;
mod log_writes;
mod merge;
mod node;
mod replace;
mod restart;
mod run;
mod snapshot;
mod vhost_user;
