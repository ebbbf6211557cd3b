//! System calls that have no safe wrapper: seccomp, and what belongs to its listener.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::io;

/// `struct sock_filter` (`include/uapi/linux/filter.h`, 6.12): an instruction of a filter.
pub(crate) type Instruction = libc::sock_filter;

const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
/// Only a signal that kills interrupts a call that the listener has begun with (Linux 5.19).
const SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

/// `include/uapi/linux/seccomp.h`, 6.12.
const SECCOMP_IOCTL_NOTIF_RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SECCOMP_IOCTL_NOTIF_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const SECCOMP_IOCTL_NOTIF_ID_VALID: libc::Ioctl = 0x4008_2102;
const SECCOMP_IOCTL_NOTIF_ADDFD: libc::Ioctl = 0x4018_2103;
const SECCOMP_IOCTL_NOTIF_SET_FLAGS: libc::Ioctl = 0x4008_2104;
const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;
const SECCOMP_ADDFD_FLAG_SEND: u32 = 2;
/// The listener's thread runs on the caller's CPU (Linux 6.6).
const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: libc::c_ulong = 1;

/// A system call that waits for an answer (`struct seccomp_notif`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Notification {
    pub(crate) id: u64,
    /// The thread, in the listener's namespace of processes; 0 when it has none there.
    pub(crate) tid: u32,
    flags: u32,
    pub(crate) number: i32,
    pub(crate) arch: u32,
    instruction_pointer: u64,
    pub(crate) args: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    srcfd: u32,
    newfd: u32,
    newfd_flags: u32,
}

const _: () = assert!(size_of::<Notification>() == 80 && size_of::<Response>() == 24 && size_of::<AddFd>() == 24);

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Puts the calling thread, and all that it starts, behind a filter. Returns the filter's listener.
///
/// # Errors
/// EACCES: the caller has no right to, see [`no_new_privileges`]. EBUSY: a filter with a listener is there already.
pub(crate) fn install(filter: &[Instruction]) -> io::Result<OwnedFd> {
    let set = |flags: libc::c_ulong| {
        let program = libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the call reads the program, whose instructions live until it returns.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        checked(fd as libc::c_int)
    };
    let fd = match set(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set(SECCOMP_FILTER_FLAG_NEW_LISTENER),
        other => other,
    }?;
    // SAFETY: the call has just made the descriptor, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives up that a program which is executed gets more rights than this one, as setuid programs do.
pub(crate) fn no_new_privileges() -> io::Result<()> {
    // SAFETY: the call takes numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Waits for a system call. `None`: the caller has gone before it could be received.
pub(crate) fn receive(listener: impl AsFd) -> io::Result<Option<Notification>> {
    let mut notification = Notification::default();
    // SAFETY: the ioctl writes one seccomp_notif, any of whose bytes are valid.
    let received =
        unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
    match checked(received) {
        Ok(_) => Ok(Some(notification)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the call still waits. Only after this what was opened of its thread by the thread's number is known to be
/// the thread's, and not that of one that has the number now.
pub(crate) fn is_waiting(listener: impl AsFd, id: u64) -> bool {
    // SAFETY: the ioctl reads one number.
    unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

fn send(listener: impl AsFd, response: &Response) -> io::Result<()> {
    // SAFETY: the ioctl reads one seccomp_notif_resp.
    let sent =
        unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SECCOMP_IOCTL_NOTIF_SEND, std::ptr::from_ref(response)) };
    checked(sent).map(drop)
}

/// Has the kernel go on with the call.
pub(crate) fn go_on(listener: impl AsFd, id: u64) -> io::Result<()> {
    send(listener, &Response { id, val: 0, error: 0, flags: SECCOMP_USER_NOTIF_FLAG_CONTINUE })
}

/// Answers the call: a value, or an error number.
pub(crate) fn answer(listener: impl AsFd, id: u64, result: Result<i64, i32>) -> io::Result<()> {
    let (val, error) = match result {
        Ok(value) => (value, 0),
        Err(errno) => (0, -errno),
    };
    send(listener, &Response { id, val, error, flags: 0 })
}

/// Gives the caller a descriptor, and answers with its number. With `close_on_exec` as the caller asked for.
pub(crate) fn answer_with_descriptor(
    listener: impl AsFd,
    id: u64,
    file: impl AsFd,
    close_on_exec: bool,
) -> io::Result<()> {
    let newfd_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
    let srcfd = file.as_fd().as_raw_fd() as u32;
    let add = AddFd { id, flags: SECCOMP_ADDFD_FLAG_SEND, srcfd, newfd: 0, newfd_flags };
    // SAFETY: the ioctl reads one seccomp_notif_addfd.
    let added = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SECCOMP_IOCTL_NOTIF_ADDFD, &raw const add) };
    checked(added).map(drop)
}

/// Has a caller wait on the CPU that it is on, as far as the kernel can: an answer comes sooner.
pub(crate) fn wake_up_nearby(listener: impl AsFd) {
    // SAFETY: the ioctl takes a number. A kernel before 6.6 refuses it.
    unsafe {
        libc::ioctl(listener.as_fd().as_raw_fd(), SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
    }
}

/// Takes the calling thread out of what it shares with others.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: no descriptors are taken apart, which is all that the call's contract is about.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// An ioctl of `/dev/loop-control` that takes a number and answers with one.
pub(crate) fn loop_control(control: impl AsFd, command: u32, argument: u64) -> Result<i64, rustix::io::Errno> {
    let (fd, command) = (control.as_fd().as_raw_fd(), command as libc::Ioctl);
    // SAFETY: LOOP_CTL_ADD, LOOP_CTL_REMOVE and LOOP_CTL_GET_FREE take a number or nothing; others are refused.
    let value = unsafe { libc::ioctl(fd, command, argument as libc::c_ulong) };
    checked(value)
        .map(i64::from)
        .map_err(|error| rustix::io::Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Has a command do something between its fork and its execution. The process must have no other threads then, for
/// `work` may do anything, which between fork and exec only a process with one thread may.
pub(crate) fn before_exec(
    command: &mut std::process::Command,
    work: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: with one thread no lock is held by another that is not there after the fork.
    unsafe { command.pre_exec(work) };
}

/// Has a command run in another mount namespace, from whichever thread it is started.
pub(crate) fn in_namespace(command: &mut std::process::Command, namespace: std::sync::Arc<OwnedFd>) {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::unix::process::CommandExt;
    let enter = move || Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?);
    // SAFETY: between fork and exec this is a system call and nothing else.
    unsafe { command.pre_exec(enter) };
}

/// A descriptor of another process's, as one of ours.
pub(crate) fn descriptor_of(tid: u32, descriptor: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers. PIDFD_THREAD (Linux 6.9) is what a thread that leads no group needs.
    let mut pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, libc::O_EXCL) };
    if pidfd < 0 {
        // SAFETY: the same.
        pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, 0) };
    }
    let pidfd = checked(pidfd as libc::c_int)?;
    // SAFETY: the call has just made the descriptor, for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: the call takes numbers.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), descriptor, 0) };
    let got = checked(got as libc::c_int)?;
    // SAFETY: the same.
    Ok(unsafe { OwnedFd::from_raw_fd(got) })
}
