//! The daemon and its commands, each test with a daemon of its own.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod golden;
mod lifecycle;
mod merge;
mod node;
mod replace;
mod restart;
mod run;
mod snapshot;
mod vhost_user;
