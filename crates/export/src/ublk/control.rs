//! The control device: what begins, describes and ends devices. Commands are rare and may take long, so each has a ring
//! of its own, and is waited for with patience.

use super::uapi::{
    ANY_DEVICE, CONTROL, ControlCommand, DeviceInfo, NO_QUEUE, Params, command, feature, in_submission, param,
};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::time::Duration;
use zerocopy::IntoBytes;

/// For commands that the driver answers at once.
const SHORT: Duration = Duration::from_secs(30);

/// The control device, open.
pub(super) struct Control(OwnedFd);

/// What identifies a device to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) number: u32,
    /// Of somebody without rights: each command then names its file, whose permissions decide.
    pub(super) unprivileged: bool,
}

/// The path of a device's character device.
pub(super) fn character_device(number: u32) -> String {
    format!("/dev/ublkc{number}")
}

fn said(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// Why there is no ublk here, and what to do.
    pub(super) fn open() -> io::Result<Self> {
        let opened = rustix::fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        opened.map(Self).map_err(|error| {
            let error = io::Error::from(error);
            let text = match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "there is no ublk here (no {CONTROL}): load the kernel's module with `modprobe ublk_drv` (Linux 6.0 or \
                     later, CONFIG_BLK_DEV_UBLK); a container has to be given it. Without, a node of kind fuse or loop"
                ),
                io::ErrorKind::PermissionDenied => format!(
                    "{CONTROL} may not be opened: ublk needs root, or a udev rule that gives it to this user; \
                     else a node of kind fuse"
                ),
                _ => return said(CONTROL, error),
            };
            io::Error::new(if error.kind() == io::ErrorKind::NotFound { io::ErrorKind::Unsupported } else { error.kind() }, text)
        })
    }

    /// What the driver can; 0 where it is too old to say (before 6.5).
    pub(super) fn features(&self) -> io::Result<u64> {
        let mut features = 0u64;
        let which = Which { number: ANY_DEVICE, unprivileged: false };
        match self.run(command::GET_FEATURES, which, features.as_mut_bytes(), 0, SHORT) {
            Ok(_) => Ok(features),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL)) => Ok(0),
            Err(error) => Err(said("asking the ublk driver what it can", error)),
        }
    }

    /// Adds a device; what the driver made of the wishes comes back in `info`.
    pub(super) fn add(&self, info: &mut DeviceInfo) -> io::Result<Which> {
        let which = Which { number: info.dev_id, unprivileged: false };
        self.run(command::ADD_DEV, which, info.as_mut_bytes(), 0, SHORT).map_err(|error| {
            let text = match error.raw_os_error() {
                Some(libc::EPERM) => {
                    "the driver refuses: without root it makes unprivileged devices only, of which this \
                                      kernel may know nothing"
                }
                Some(libc::EACCES) => {
                    "there are as many unprivileged devices as the module's parameter ublks_max allows"
                }
                _ => return said("adding a ublk device", error),
            };
            io::Error::new(error.kind(), format!("adding a ublk device: {text}"))
        })?;
        Ok(Which { number: info.dev_id, unprivileged: info.flags & feature::UNPRIVILEGED_DEV != 0 })
    }

    /// What the driver knows of a device.
    pub(super) fn info(&self, number: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        // This command names the file in any case.
        let which = Which { number, unprivileged: true };
        self.run(command::GET_DEV_INFO2, which, info.as_mut_bytes(), 0, SHORT)?;
        Ok(info)
    }

    pub(super) fn set_params(&self, which: Which, params: &Params) -> io::Result<()> {
        let mut params = *params;
        let result = self.run(command::SET_PARAMS, which, params.as_mut_bytes(), 0, SHORT);
        result.map(drop).map_err(|e| said("the parameters of a ublk device", e))
    }

    /// The parameters, and the numbers of the block device once it is started.
    pub(super) fn params(&self, which: Which) -> io::Result<Params> {
        let types = param::BASIC | param::DISCARD | param::DEVT;
        let mut params = Params { len: size_of::<Params>() as u32, types, ..Params::default() };
        self.run(command::GET_PARAMS, which, params.as_mut_bytes(), 0, SHORT)?;
        Ok(params)
    }

    /// Makes the block device appear. Its queues must be fetching, and serve: partitions are looked for.
    pub(super) fn start(&self, which: Which, patience: Duration) -> io::Result<()> {
        self.tell(command::START_DEV, which, own_pid(), patience, "starting a ublk device")
    }

    /// Makes the block device disappear, whoever has it open. Requests that wait fail. Its queues must serve.
    pub(super) fn stop(&self, which: Which, patience: Duration) -> io::Result<()> {
        self.tell(command::STOP_DEV, which, 0, patience, "stopping a ublk device")
    }

    /// Forgets a device, stopping it first. Its number is free when the last who has it open has closed it.
    pub(super) fn delete(&self, which: Which, patience: Duration) -> io::Result<()> {
        self.tell(command::DEL_DEV_ASYNC, which, 0, patience, "deleting a ublk device")
    }

    /// Begins to take a device over whose server has gone. `ResourceBusy` as long as it is still going.
    pub(super) fn start_recovery(&self, which: Which) -> io::Result<()> {
        self.run(command::START_USER_RECOVERY, which, &mut [], 0, SHORT).map(drop)
    }

    /// Lets requests come again, those first that were under way. Its queues must be fetching.
    pub(super) fn end_recovery(&self, which: Which, patience: Duration) -> io::Result<()> {
        self.tell(command::END_USER_RECOVERY, which, own_pid(), patience, "taking a ublk device over")
    }

    /// Changes the size of a device that is in use.
    pub(super) fn update_size(&self, which: Which, sectors: u64) -> io::Result<()> {
        self.tell(command::UPDATE_SIZE, which, sectors, SHORT, "the size of a ublk device")
    }

    /// Runs one command without a buffer. Blocks. Errors say what it was.
    fn tell(&self, command: u32, which: Which, data: u64, patience: Duration, what: &str) -> io::Result<()> {
        self.run(command, which, &mut [], data, patience).map(drop).map_err(|e| said(what, e))
    }

    /// Runs one command with `buffer` for what it reads and writes. Blocks.
    ///
    /// # Errors
    /// What the driver answers; `TimedOut` when it does not: the command then goes on in the kernel.
    fn run(&self, command: u32, which: Which, buffer: &mut [u8], data: u64, patience: Duration) -> io::Result<u32> {
        let mut memory = Vec::new();
        if which.unprivileged {
            memory.extend_from_slice(character_device(which.number).as_bytes());
            memory.push(0);
        }
        let path = memory.len();
        memory.extend_from_slice(buffer);
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        let mut ring = builder.dontfork().build(2).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EPERM) => io::Error::new(
                io::ErrorKind::Unsupported,
                "ublk needs io_uring, which is forbidden or missing here (see the sysctl kernel.io_uring_disabled)",
            ),
            _ => error,
        })?;
        let control = ControlCommand {
            dev_id: which.number,
            queue_id: NO_QUEUE,
            len: memory.len() as u16,
            addr: if memory.is_empty() { 0 } else { memory.as_mut_ptr() as u64 },
            data,
            dev_path_len: path as u16,
            pad: 0,
            reserved: 0,
        };
        let entry = opcode::UringCmd80::new(Fd(self.0.as_raw_fd()), command).cmd(in_submission(&control)).build();
        // SAFETY: the command reads and writes `memory` only, which stays until it is done: below it is forgotten, not
        // freed, when that is not seen.
        unsafe { ring.submission().push(&entry) }.map_err(|_| io::Error::other("a ring without room"))?;
        let result = match wait(&mut ring, patience) {
            Ok(Some(result)) => result,
            unknown => {
                std::mem::forget(memory);
                let message = format!("the ublk driver does not answer within {} s", patience.as_secs());
                return Err(unknown.err().unwrap_or_else(|| io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        };
        buffer.copy_from_slice(&memory[path..]);
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as u32) }
    }
}

/// Submits what is queued and waits for its completion; `None` when that takes too long.
fn wait(ring: &mut IoUring<squeue::Entry128, cqueue::Entry>, patience: Duration) -> io::Result<Option<i32>> {
    let until = Timespec::new().sec(patience.as_secs()).nsec(patience.subsec_nanos());
    let args = SubmitArgs::new().timespec(&until);
    loop {
        let entered = ring.submitter().submit_with_args(1, &args);
        if let Some(entry) = ring.completion().next() {
            return Ok(Some(entry.result()));
        }
        match entered {
            Ok(_) => {}
            // A signal; who is told to end still has to finish this.
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

fn own_pid() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get() as u64
}

impl DeviceInfo {
    /// As an identity.
    pub(super) fn which(&self) -> Which {
        Which { number: self.dev_id, unprivileged: self.flags & feature::UNPRIVILEGED_DEV != 0 }
    }
}
