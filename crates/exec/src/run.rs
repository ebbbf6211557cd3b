//! A command within the namespace.

use crate::meeting::{ENTER, GO, LISTENER, Meeting};
use crate::{filter, sys};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A command to run.
pub struct Start<'a> {
    /// Where its supervisor waits.
    pub socket: &'a Path,
    /// The program and its arguments.
    pub words: &'a [OsString],
    /// Block devices of the host that are to be there: paths from the root on.
    pub devices: &'a [PathBuf],
    /// The directory to run in.
    pub cwd: &'a Path,
    /// The variables to set besides those of this process.
    pub variables: &'a [(&'a str, OsString)],
}

/// Why a command does not run.
#[derive(Debug)]
pub enum StartError {
    /// There is no supervisor: one is to be started.
    NoSupervisor(io::Error),
    /// The program cannot be executed.
    Program(io::Error),
    /// Something else, with what to do.
    Other(io::Error),
}

/// Starts a command. Its standard streams, its terminal and its process group are this process's. The calling process
/// must have no other threads.
///
/// # Errors
/// See [`StartError`].
pub fn start(start: &Start<'_>) -> Result<Child, StartError> {
    let [program, args @ ..] = start.words else {
        return Err(StartError::Other(io::Error::new(io::ErrorKind::InvalidInput, "expected a command after --")));
    };
    let meeting = Meeting::connect(start.socket).map_err(StartError::NoSupervisor)?;
    let mut text = ENTER.to_owned();
    for device in start.devices {
        text += &format!("\n{}", device.display());
    }
    meeting.say(&text, None).map_err(StartError::NoSupervisor)?;
    let (_, namespace) = meeting.hear().map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => StartError::NoSupervisor(error),
        _ => StartError::Other(error),
    })?;
    let namespace =
        namespace.ok_or_else(|| StartError::Other(io::Error::other("the supervisor gives no namespace")))?;
    let cwd = start.cwd.to_owned();
    let mut command = Command::new(program);
    command.args(args);
    command.envs(start.variables.iter().map(|(key, value)| (key, value)));
    let program = filter::program();
    sys::before_exec(&mut command, move || enter(&meeting, &namespace, &cwd, &program));
    command.spawn().map_err(|error| match error.raw_os_error() {
        // Those of execve(2); what `enter` says has no number.
        Some(_) => StartError::Program(error),
        None => StartError::Other(error),
    })
}

/// Has the calling process live in the namespace, and its calls answered.
fn enter(meeting: &Meeting, namespace: &OwnedFd, cwd: &Path, program: &[sys::Instruction]) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
    // Of a directory that is not there, which may be one that was covered, its parent's parent will not do either.
    rustix::process::chdir(cwd).or_else(|_| rustix::process::chdir("/"))?;
    let listener = match sys::install(program) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            sys::no_new_privileges()?;
            sys::install(program)
        }
        other => other,
    }?;
    meeting.say(LISTENER, Some(listener.as_fd()))?;
    match meeting.hear()?.0 {
        text if text == GO => Ok(()),
        text => Err(io::Error::other(text)),
    }
}

/// Whether a supervisor waits there.
///
/// # Errors
/// Of connecting: `NotFound` or `ConnectionRefused` when there is none.
pub fn is_supervised(socket: &Path) -> io::Result<()> {
    Meeting::connect(socket).map(drop)
}
