//! What can be wrong with a log.

use std::fmt;
use udm_base::Sector;

/// What kind of wrong. The texts may change, these do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Sector 0 holds something else.
    Foreign,
    /// A version that nobody here knows.
    Version,
    /// A sector size that cannot be.
    SectorSize,
    /// The device ends before the log does.
    Truncated,
    /// An entry that cannot be.
    Corrupt,
}

/// What is wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// What kind of wrong.
    pub kind: ErrorKind,
    /// The sector of the log device that it was found in.
    pub sector: Sector,
    /// The entry's number, from 0; `None` in the superblock.
    pub entry: Option<u64>,
    /// The field.
    pub field: &'static str,
    /// What was found, what was expected, and what to do.
    pub what: String,
}

impl Error {
    pub(super) fn superblock(kind: ErrorKind, field: &'static str, what: impl Into<String>) -> Self {
        Self { kind, sector: Sector::ZERO, entry: None, field, what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry {
            None => write!(f, "superblock, {}: {}", self.field, self.what),
            Some(entry) => write!(f, "entry {entry} at sector {}, {}: {}", self.sector, self.field, self.what),
        }
    }
}

impl std::error::Error for Error {}
