//! The way back out: a daemon that is started by a program within must not live there, where its devices would be seen
//! by nobody else.

use crate::sys;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::process::Command;
use std::sync::Arc;

/// The namespace that this process was in when this was made.
#[derive(Clone)]
pub struct Outside(Arc<OwnedFd>);

impl Outside {
    /// To be made before the namespace is.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn here() -> io::Result<Self> {
        Ok(Self(Arc::new(openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)))
    }

    /// Has a command run there.
    pub fn run(&self, command: &mut Command) {
        sys::in_namespace(command, self.0.clone());
    }
}
