//! What each system call that is asked about comes to.

mod answer;
mod control_files;
mod device_mapper;
mod foreign;
mod keys;
mod loops;
mod open;

pub(crate) use device_mapper::DeviceMapper;

use crate::caller::Caller;
use crate::filter::{Abi, Call};
use crate::notify::Answerer;
use crate::sys::{self, Notification};
use answer::Answer;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use tracing::debug;

/// What is answered to the calls of all programs in a namespace.
pub(crate) struct Answers(DeviceMapper);

impl Answers {
    pub(crate) fn new(device_mapper: DeviceMapper) -> Self {
        Self(device_mapper)
    }

    /// Has `/dev` follow what others have made.
    pub(crate) fn refresh(&self) {
        self.0.refresh();
    }

    fn of(&self, caller: &Caller<'_>) -> Result<Answer, Errno> {
        let call = Abi::of(caller.call.arch).and_then(|abi| abi.call(caller.call.number as u32));
        match call {
            Some(Call::Ioctl) if caller.call.args[1] as u32 & 0xff00 == 0xfd00 => self.0.ioctl(caller),
            Some(Call::Ioctl) => loops::control(caller),
            Some(Call::OpenAt) => self.0.open(caller, caller.call.args[1], caller.call.args[2]),
            Some(Call::Open) => self.0.open(caller, caller.call.args[0], caller.call.args[1]),
            Some(Call::AddKey) => keys::add(caller),
            None => Ok(Answer::GoOn),
        }
    }
}

impl Answerer for Answers {
    fn answer(&self, listener: &OwnedFd, call: Notification) {
        let answer = Caller::new(listener.as_fd(), call).and_then(|caller| self.of(&caller));
        let sent = match answer {
            Ok(Answer::Value(value)) => sys::answer(listener, call.id, Ok(value)),
            Ok(Answer::GoOn) => sys::go_on(listener, call.id),
            Ok(Answer::Descriptor { file, close_on_exec }) => {
                let given = sys::answer_with_descriptor(listener, call.id, file, close_on_exec);
                // It has no room for another descriptor.
                given.or_else(|error| sys::answer(listener, call.id, Err(error.raw_os_error().unwrap_or(libc::EMFILE))))
            }
            Err(errno) => sys::answer(listener, call.id, Err(errno.raw_os_error())),
        };
        if let Err(error) = sent {
            // It has been killed meanwhile.
            debug!("thread {} gets no answer: {error}", call.tid);
        }
    }
}
