//! What a process has to put right before it does anything else.

/// Lets SIGPIPE, which Rust's runtime ignores, end this process again, as it does every other command:
/// `udm ls | head -1` is no error. Not for the daemon, whose clients hang up as they like.
pub(crate) fn restore_sigpipe() {
    // SAFETY: the default action is no handler, so nothing runs in a signal's context; and no other thread runs yet
    // that could change it meanwhile.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Closes what the process has inherited beyond its three standard streams. A daemon that kept the pipe of a script
/// which happened to start it would let the script's reader wait for ever.
pub(crate) fn close_inherited() {
    // SAFETY: called first of all, when nothing in this process owns a descriptor yet. A kernel without the call
    // (before 5.9) refuses it, and all stays open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Lets a write beyond the limit of files (`ulimit -f`) fail instead of ending the process: it may be a client's, or
/// the state.
pub(crate) fn survive_file_limit() {
    // SAFETY: as in `restore_sigpipe`; to ignore a signal takes no handler either.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
