//! `/dev/mapper/control`, opened: the caller gets an eventfd, which poll(2) finds readable as it does the kernel's after
//! `DM_DEV_ARM_POLL`.

use super::{Answer, Answers};
use crate::caller::{Caller, event_id_of};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// How every program names it: at the end of a path.
const CONTROL: &[u8] = b"mapper/control";
/// Files that are remembered. Who opens more and keeps them gets the first ones taken for others' files.
const REMEMBERED: usize = 4096;

/// The files that stand for `/dev/mapper/control`, by the numbers of their eventfds.
#[derive(Default)]
pub(super) struct ControlFiles(Mutex<HashMap<u64, OwnedFd>>);

impl ControlFiles {
    fn make(&self) -> Result<OwnedFd, Errno> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
        let info = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // A kernel before 5.13 does not tell: then every eventfd is taken for one.
        if let Some(id) = event_id_of(&info) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= REMEMBERED
                && let Some(any) = known.keys().min().copied()
            {
                known.remove(&any);
            }
            known.insert(id, rustix::io::dup(&file)?);
        }
        Ok(file)
    }

    /// Whether a descriptor of the caller's is one.
    pub(super) fn is_one(&self, caller: &Caller<'_>, descriptor: u64) -> bool {
        match caller.event_id(descriptor) {
            Some(id) => self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&id),
            None => caller.descriptor(descriptor).is_ok_and(|name| name == b"anon_inode:[eventfd]"),
        }
    }
}

impl Answers {
    pub(super) fn open(&self, caller: &Caller<'_>, path: u64, flags: u64) -> Result<Answer, Errno> {
        // What cannot be read, the kernel says better.
        let Ok(path) = caller.text(path) else { return Ok(Answer::GoOn) };
        if !path.ends_with(CONTROL) || !caller.is_control(&path) {
            return Ok(Answer::GoOn);
        }
        if !caller.may_open_of_root() {
            return Err(Errno::ACCESS);
        }
        let close_on_exec = flags as u32 & libc::O_CLOEXEC as u32 != 0;
        Ok(Answer::Descriptor { file: self.controls.make()?, close_on_exec })
    }
}
