//! Programs of the kernel's device mapper (dmsetup, lvm2, cryptsetup, containerd), unmodified, on udm.
//!
//! A command runs in a mount namespace with a `/dev` of its own, and behind a seccomp filter that asks a *supervisor*
//! about the few system calls that would reach the kernel's device mapper: the supervisor answers in its place, with
//! what a daemon of udm says. Children inherit both.
//!
//! - [`world`]: the namespace: what is in `/dev`, `/proc/devices`, `/proc/misc`, and which directories are private
//! - [`filter`]: which system calls are asked about
//! - [`supervisor`]: the process that answers
//! - [`run`]: a command within it
//!
//! # What this is not
//! A sandbox. A process within may leave the namespace if it has the right to, and opens by `openat2` or io_uring are
//! not asked about. It only has to be *true* for programs that mean to talk to device mapper.

pub mod filter;
pub mod outside;
pub mod run;
pub mod supervisor;
pub mod world;

mod caller;
mod calls;
mod daemon;
mod meeting;
mod notify;
mod sys;

/// The variable that tells a program within whose daemon it talks to: the daemon's directory.
pub const WITHIN: &str = "UDM_EXEC";
