//! SIGPIPE, which Rust's runtime ignores.

/// Lets the signal end this process again, as it does every other command: `udm ls | head -1` is no error. Not for the
/// daemon, whose clients hang up as they like.
pub(crate) fn restore() {
    // SAFETY: the default action is no handler, so nothing runs in a signal's context; and no other thread runs yet
    // that could change it meanwhile.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
