//! The files that stand for an open `/dev/mapper/control`: sockets, of which the supervisor has the other ends.
//!
//! By a socket's number a descriptor of a program's is known to be one, wherever it was passed to. When the last of
//! them is closed, the other end tells. And what is written into the other end makes poll(2) find the file readable, as
//! the kernel's is after an event since `DM_DEV_ARM_POLL`.

use crate::caller::Caller;
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many more than the last time, and those that are closed are looked for.
const SWEEP: usize = 64;

#[derive(Default)]
struct Known {
    files: HashMap<u64, File>,
    /// How many there were after the last sweep.
    swept: usize,
}

struct File {
    other_end: OwnedFd,
    /// The number of events at which it was armed.
    armed: Option<u32>,
}

/// Those of all programs.
#[derive(Default)]
pub(super) struct ControlFiles(Mutex<Known>);

impl ControlFiles {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, for a program.
    pub(super) fn make(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (file, other_end) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let number = rustix::fs::fstat(&file)?.st_ino;
        let mut known = self.lock();
        if known.files.len() >= known.swept + SWEEP {
            known.files.retain(|_, file| !is_closed(&file.other_end));
            known.swept = known.files.len();
        }
        known.files.insert(number, File { other_end, armed: None });
        Ok(file)
    }

    /// The number of the file that a descriptor of the caller's is, if it is one.
    pub(super) fn number_of(&self, caller: &Caller<'_>, descriptor: u64) -> Option<u64> {
        let name = caller.descriptor(descriptor).ok()?;
        let number = std::str::from_utf8(&name).ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        self.lock().files.contains_key(&number).then_some(number)
    }

    /// Whether any waits for an event.
    pub(super) fn any_armed(&self) -> bool {
        self.lock().files.values().any(|file| file.armed.is_some())
    }

    /// From now on it is readable when there are more events than `events`. Whether it is the first that waits.
    pub(super) fn arm(&self, caller: &Caller<'_>, descriptor: u64, number: u64, events: u32) -> bool {
        // What an event before has written is what makes it readable now.
        if let Ok(file) = sys::descriptor_of(caller.call.tid, descriptor as i32) {
            let mut some = [0; 64];
            while matches!(rustix::net::recv(&file, &mut some, RecvFlags::DONTWAIT), Ok((_, 1..))) {}
        }
        let mut known = self.lock();
        let first = known.files.values().all(|file| file.armed.is_none());
        if let Some(file) = known.files.get_mut(&number) {
            file.armed = Some(events);
        }
        first
    }

    /// So many events have happened.
    pub(super) fn tell(&self, events: u32) {
        for file in self.lock().files.values_mut() {
            if file.armed.take_if(|armed| *armed != events).is_some() {
                let _ = rustix::net::send(&file.other_end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
    }
}

fn is_closed(other_end: &OwnedFd) -> bool {
    let mut one = [PollFd::new(other_end, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut one, Some(&now)), Ok(1)) && one[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_closed_are_forgotten() {
        let files = ControlFiles::default();
        let kept: Vec<_> = (0..3).map(|_| files.make().unwrap()).collect();
        for _ in 0..10 * SWEEP {
            drop(files.make().unwrap());
        }
        let known = files.lock();
        assert!(known.files.len() <= kept.len() + SWEEP, "{}", known.files.len());
        for file in &kept {
            assert!(known.files.contains_key(&rustix::fs::fstat(file).unwrap().st_ino));
        }
    }

    #[test]
    fn one_that_is_armed_becomes_readable_at_an_event() {
        let files = ControlFiles::default();
        let file = files.make().unwrap();
        let number = rustix::fs::fstat(&file).unwrap().st_ino;
        let readable = || {
            let mut one = [PollFd::new(&file, PollFlags::IN)];
            matches!(poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
        };
        files.tell(1);
        assert!(!readable(), "it was not armed");
        files.lock().files.get_mut(&number).unwrap().armed = Some(1);
        files.tell(1);
        assert!(!readable() && files.any_armed(), "nothing has happened since");
        files.tell(2);
        assert!(readable() && !files.any_armed());
    }
}
