//! `/dev/mapper/control`, opened.

use super::answer::Answer;
use super::device_mapper::DeviceMapper;
use crate::caller::Caller;
use rustix::io::Errno;

/// How every program names it: at the end of a path.
const CONTROL: &[u8] = b"mapper/control";

impl DeviceMapper {
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
        Ok(Answer::Descriptor { file: self.control_files().make()?, close_on_exec })
    }
}
