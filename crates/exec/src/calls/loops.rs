//! `/dev/loop-control`: a loop device that a program makes or asks for gets its node in the namespace's `/dev`, where no
//! devtmpfs puts one.

use super::answer::Answer;
use crate::caller::Caller;
use crate::world;
use rustix::io::Errno;

/// `include/uapi/linux/loop.h`, 6.12.
const LOOP_CTL_REMOVE: u32 = 0x4c81;
const CONTROL: &[u8] = b"/loop-control";

/// Does what the caller asks for, in its place.
pub(super) fn control(caller: &Caller<'_>) -> Result<Answer, Errno> {
    let [descriptor, command, argument, ..] = caller.call.args;
    if !caller.descriptor(descriptor)?.ends_with(CONTROL) || !caller.may_administrate() {
        return Ok(Answer::GoOn);
    }
    let value = world::loop_control(command as u32, argument)?;
    match command as u32 {
        LOOP_CTL_REMOVE => world::forget_loop(argument as u32),
        _ => world::show_loop(value as u32),
    }
    Ok(Answer::Value(value))
}
