//! What each command does: (the registry, a request) → an answer.
//!
//! The order of the checks, the error numbers and the flags of the answers are those of `drivers/md/dm-ioctl.c`
//! (6.12). Where the kernel only logs why it refuses, the answer carries the words.
//!
//! # Differences from the kernel
//! - [`Flags::UEVENT_GENERATED`](crate::codec::Flags::UEVENT_GENERATED) is never set: there is no udev to tell, and
//!   who sees the flag would wait for it.
//! - `DM_DEV_ARM_POLL` cannot make a socket readable at the next event; its answer has the number of events of all
//!   devices together in `event_nr`.
//! - Names, uuids and tables are UTF-8.

mod devices;
mod error;
mod events;
mod lookup;
mod suspend;
mod tables;
mod targets;

#[cfg(test)]
mod tests;

use crate::codec::{Command, Reply, Request};
use crate::wire::WireAnswer;
use error::Refusal;
use std::cell::{Cell, RefCell};
use std::path::Path;
use udm_core::{Cancel, Registry};

/// Who asks, and how it can be told to give up.
pub struct Caller<'a> {
    /// Where the relative paths of its tables begin.
    pub cwd: &'a Path,
    /// Whether it has gone: asked now and then by commands that wait.
    pub cancel: Cancel<'a>,
    /// Lets exports close the devices of clients that have hung up. Called before a removal is refused with "busy";
    /// may block briefly.
    pub reap: &'a dyn Fn(),
}

/// An answer, and which devices may be others than before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What goes back to the caller.
    pub answer: WireAnswer,
    /// What was made, removed or changed.
    pub changed: Changed,
}

/// What a command may have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// No device.
    Nothing,
    /// The one of that minor number.
    Device(u32),
    /// Any.
    Everything,
}

/// Does what the ioctl `number` with the `struct dm_ioctl` in `buf` asks for. Blocks as long as the command takes:
/// loading opens devices, suspending waits for bios, waiting waits for an event.
pub fn handle(registry: &Registry, caller: &Caller<'_>, number: u32, buf: &[u8]) -> Outcome {
    let request = match Request::parse(number, buf) {
        Ok(request) => request,
        Err(error) => {
            let answer = WireAnswer { errno: error.errno.get(), buf: Reply::version_only(), detail: error.message };
            return Outcome { answer, changed: Changed::Nothing };
        }
    };
    let handler = Handler { registry, caller, request: &request, about: Cell::new(None), notice: RefCell::default() };
    let result = handler.run();
    let changed = match (changes(request.command()), request.command(), handler.about.get()) {
        (false, ..) => Changed::Nothing,
        // Also one that is refused: it may have come half way.
        (true, Command::RemoveAll, _) => Changed::Everything,
        (true, _, minor) => minor.map_or(Changed::Nothing, Changed::Device),
    };
    match result {
        Ok(reply) => {
            if raises_event(request.command()) {
                registry.raise_event();
            }
            let answer = WireAnswer { errno: 0, buf: reply.finish(), detail: handler.notice.take() };
            Outcome { answer, changed }
        }
        Err(Refusal(error)) => {
            let answer = WireAnswer { errno: error.errno.get(), buf: Reply::version_only(), detail: error.message };
            Outcome { answer, changed }
        }
    }
}

/// One request under way.
struct Handler<'a> {
    registry: &'a Registry,
    caller: &'a Caller<'a>,
    request: &'a Request<'a>,
    /// The minor number of the device that was found or made.
    about: Cell<Option<u32>>,
    /// What the caller is to be told although all went well.
    notice: RefCell<String>,
}

impl Handler<'_> {
    fn run(&self) -> Result<Reply, Refusal> {
        match self.request.command() {
            Command::Version => Ok(Reply::to(self.request)),
            Command::RemoveAll => self.remove_all(),
            Command::ListDevices => self.list_devices(),
            Command::DevCreate => self.create(),
            Command::DevRemove => self.remove(),
            Command::DevRename => self.rename(),
            Command::DevSuspend => self.suspend_or_resume(),
            Command::DevStatus => self.status(),
            Command::DevWait => self.wait(),
            Command::TableLoad => self.load(),
            Command::TableClear => self.clear(),
            Command::TableDeps => self.deps(),
            Command::TableStatus => self.table_status(),
            Command::ListVersions => self.list_versions(),
            Command::TargetMsg => self.message(),
            Command::DevSetGeometry => self.set_geometry(),
            Command::DevArmPoll => self.arm_poll(),
            Command::GetTargetVersion => self.target_version(),
        }
    }
}

/// The commands that count as an event of the whole registry (`IOCTL_FLAGS_ISSUE_GLOBAL_EVENT`).
const fn raises_event(command: Command) -> bool {
    matches!(command, Command::RemoveAll | Command::DevCreate | Command::DevRemove | Command::DevRename)
}

/// The commands after which devices may be others than before.
pub const fn changes(command: Command) -> bool {
    use Command as C;
    match command {
        C::RemoveAll | C::DevCreate | C::DevRemove | C::DevRename | C::DevSuspend => true,
        C::TableLoad | C::TableClear | C::TargetMsg | C::DevSetGeometry => true,
        C::Version | C::ListDevices | C::DevStatus | C::DevWait | C::TableDeps | C::TableStatus => false,
        C::ListVersions | C::DevArmPoll | C::GetTargetVersion => false,
    }
}
