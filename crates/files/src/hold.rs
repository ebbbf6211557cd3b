//! Exclusive opens: the lock on a file, and who has it when it is refused.

use crate::error::{OpenError, OpenErrorKind};
use crate::holder::process;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::Stat;
use std::fs;
use udm_base::DevT;

/// Takes an open-file-description lock on the whole file: a write lock, or a read lock where the file is only read,
/// which still keeps writers of the exclusive kind out. It goes with the last descriptor of the open file.
pub(crate) fn lock(fd: BorrowedFd<'_>, stat: &Stat, read_only: bool, spec: &str) -> Result<(), OpenError> {
    let kind = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    // SAFETY: all-zero is a valid flock: the whole file, and the pid that OFD locks ask to be 0.
    let mut whole: libc::flock = unsafe { std::mem::zeroed() };
    whole.l_type = kind as libc::c_short;
    whole.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: a descriptor that is open, and a flock of our own.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
        return Err(OpenError::new(OpenErrorKind::System, spec, "cannot be locked").because(error));
    }
    let dev = DevT::new(rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let holder = holder_of_file(dev, stat.st_ino);
    Err(OpenError::new(OpenErrorKind::Busy, spec, format!("is in use by {holder}")))
}

/// Who holds a lock on a file, as `NAME (pid N)`.
///
/// `/proc/locks` names the owner of a POSIX lock; an OFD lock has none, so that the descriptors of every process that
/// may be looked at are searched (`lock:` lines of `/proc/PID/fdinfo/FD`, `Documentation/filesystems/proc.rst`, 6.12).
fn holder_of_file(dev: DevT, ino: u64) -> String {
    let file = format!("{:02x}:{:02x}:{ino}", dev.major, dev.minor);
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let by_pid = locks.lines().filter_map(|line| lock_owner(line, &file)).find(|pid| *pid > 0);
    match by_pid.map(|pid| pid as u32).or_else(|| search_descriptors(&file)) {
        Some(pid) => process(pid),
        None => "another process that this user may not look at".into(),
    }
}

/// The pid in a line as `1: OFDLCK ADVISORY WRITE -1 fe:00:1234 0 EOF`, if it is about `file`.
fn lock_owner(line: &str, file: &str) -> Option<i64> {
    // A lock that someone waits for has an arrow before its type.
    let mut fields = line.split_whitespace().filter(|f| *f != "->").skip(3);
    fields.next().filter(|access| matches!(*access, "WRITE" | "READ"))?;
    let pid = fields.next()?.parse().ok()?;
    (fields.next()? == file).then_some(pid)
}

fn search_descriptors(file: &str) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        infos
            .filter_map(|e| fs::read_to_string(e.path()).ok())
            .any(|info| info.lines().any(|l| l.strip_prefix("lock:").is_some_and(|l| lock_owner(l, file).is_some())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_locks() {
        for (line, expect) in [
            ("1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF", Some(-1)),
            ("12: POSIX  ADVISORY  READ  4711 fe:00:1234 0 EOF", Some(4711)),
            ("12: -> POSIX  ADVISORY  WRITE  4712 fe:00:1234 0 EOF", Some(4712)),
            ("2: FLOCK  ADVISORY  WRITE 99 fe:00:12345 0 EOF", None),
            ("2: LEASE  ACTIVE", None),
            ("", None),
        ] {
            assert_eq!(lock_owner(line, "fe:00:1234"), expect, "{line}");
        }
    }
}
