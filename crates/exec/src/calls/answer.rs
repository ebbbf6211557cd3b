//! What a system call is answered with.

use rustix::fd::OwnedFd;

/// What is answered.
pub(crate) enum Answer {
    /// The call's value.
    Value(i64),
    /// The kernel goes on with the call: it is no business of ours.
    GoOn,
    /// A descriptor of the caller's own.
    Descriptor { file: OwnedFd, close_on_exec: bool },
}
