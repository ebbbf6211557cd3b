//! `add_key` of the kind `logon`: what cryptsetup gives to the kernel's dm-crypt, and user space can never read.

use super::answer::Answer;
use crate::caller::Caller;
use rustix::io::Errno;

/// Has the kernel go on. No target here takes keys from a keyring yet.
pub(super) fn add(_caller: &Caller<'_>) -> Result<Answer, Errno> {
    Ok(Answer::GoOn)
}
