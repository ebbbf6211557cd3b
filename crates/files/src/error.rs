//! Why a file or block device could not be opened.

use std::fmt;
use std::io;
use udm_base::Errno;

/// What kept a device from being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The text names no device.
    Spec,
    /// There is nothing by that name.
    NotFound,
    /// It may not be read.
    Denied,
    /// It is neither a regular file nor a block device.
    WrongKind,
    /// Another has it open exclusively.
    Busy,
    /// The system failed in another way.
    System,
}

impl OpenErrorKind {
    pub(crate) fn of(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno as E;
        match errno {
            E::NOENT | E::NOTDIR | E::NODEV | E::NXIO => Self::NotFound,
            E::ACCESS | E::PERM | E::ROFS => Self::Denied,
            E::BUSY | E::TXTBSY => Self::Busy,
            _ => Self::System,
        }
    }
}

/// A device that could not be opened: which, why, and the system's error beneath.
#[derive(Debug)]
pub struct OpenError {
    kind: OpenErrorKind,
    spec: String,
    detail: String,
    source: Option<io::Error>,
}

impl OpenError {
    /// An error about the device that `spec` names; `detail` goes on from there: "is a directory".
    pub fn new(kind: OpenErrorKind, spec: &str, detail: impl Into<String>) -> Self {
        Self { kind, spec: spec.to_owned(), detail: detail.into(), source: None }
    }

    /// What open(2) said.
    pub(crate) fn of_open(spec: &str, errno: rustix::io::Errno) -> Self {
        Self::new(OpenErrorKind::of(errno), spec, "cannot be opened").because(errno.into())
    }

    /// The same with the error beneath.
    #[must_use]
    pub fn because(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> OpenErrorKind {
        self.kind
    }

    /// The number that an ioctl fails with for it: the system's, or what the kernel gives in its place.
    pub fn errno(&self) -> Errno {
        match (&self.source, self.kind) {
            (Some(source), _) if source.raw_os_error().is_some() => Errno::of(source),
            (_, OpenErrorKind::Spec) => Errno::EINVAL,
            (_, OpenErrorKind::NotFound) => Errno::ENOENT,
            (_, OpenErrorKind::Denied) => Errno::EACCES,
            (_, OpenErrorKind::WrongKind) => Errno::ENOTBLK,
            (_, OpenErrorKind::Busy) => Errno::EBUSY,
            (_, OpenErrorKind::System) => Errno::EIO,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.spec, self.detail)?;
        match &self.source {
            Some(source) => write!(f, ": {}", text_of(source)),
            None => Ok(()),
        }
    }
}

/// The system's words without the number that io::Error adds.
fn text_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(n) => Errno::new(n).to_string(),
        None => error.to_string(),
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
