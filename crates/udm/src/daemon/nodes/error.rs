//! What commands on nodes are refused with.

use std::io;
use udm_base::Errno;
use udm_core::Error;

/// An error of that number.
pub(super) fn failed(errno: Errno, message: impl Into<String>) -> Error {
    Error::new(errno, message)
}

/// What the system has said.
pub(super) fn of_io(error: &io::Error) -> Error {
    let errno = match error.kind() {
        io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        io::ErrorKind::PermissionDenied => Errno::EPERM,
        io::ErrorKind::ResourceBusy => Errno::EBUSY,
        _ => Errno::of(error),
    };
    failed(errno, error.to_string())
}
