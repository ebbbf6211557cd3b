//! What is wrong with a buffer.

use udm_base::Errno;

/// A buffer breaks a rule of the interface: the rule, and the number that the ioctl fails with.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CodecError {
    /// The error number that the kernel gives for it.
    pub errno: Errno,
    /// What was given and what was expected.
    pub message: String,
}

impl CodecError {
    /// EINVAL with `message`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { errno: Errno::EINVAL, message: message.into() }
    }

    /// `errno` with `message`.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }
}
