//! What can be wrong with a store.

use std::fmt;

/// What kind of wrong. The texts may change, these do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Chunk 0 holds something else, which must not be overwritten (the kernel: ENXIO).
    Foreign,
    /// A version that nobody here knows (EINVAL).
    Version,
    /// A chunk size that cannot be (EINVAL).
    ChunkSize,
    /// The device ends before the store does (EIO).
    Truncated,
    /// An entry of an area cannot be.
    Corrupt,
}

/// What is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What kind of wrong.
    pub kind: ErrorKind,
    /// The chunk of the COW device that it was found in.
    pub chunk: u64,
    /// The field, and the entry's number where there is one.
    pub field: String,
    /// What was found, what was expected, and what to do.
    pub what: String,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, chunk: u64, field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { kind, chunk, field: field.into(), what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}, {}: {}", self.chunk, self.field, self.what)
    }
}

impl std::error::Error for Error {}
