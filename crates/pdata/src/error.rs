//! What can go wrong, and where.

use std::fmt;

use crate::block::IoError;

/// What a metadata block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A node of a btree.
    Node,
    /// A bitmap of a space map.
    Bitmap,
    /// The index of the metadata space map.
    Index,
    /// A block of an array.
    Array,
    /// A root of a space map, which lies within somebody else's block.
    SpaceMapRoot,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "btree node",
            Self::Bitmap => "space map bitmap",
            Self::Index => "metadata index",
            Self::Array => "array block",
            Self::SpaceMapRoot => "space map root",
        })
    }
}

/// Bytes on disk that are not what they have to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind} in metadata block {block}: {field} is {found}, expected {expected}")]
pub struct Damage {
    /// The metadata block that holds it.
    pub block: u64,
    /// What the block was read as.
    pub kind: Kind,
    /// What about it is wrong.
    pub field: &'static str,
    /// What was there.
    pub found: String,
    /// What would have been right.
    pub expected: String,
}

/// Which space has run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// Blocks for metadata.
    Metadata,
    /// Blocks for data.
    Data,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "metadata",
            Self::Data => "data",
        })
    }
}

/// Why an operation on metadata failed. After any error of an operation that changes something, the open transaction
/// can only be aborted; what was committed is untouched.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// A metadata block could not be read.
    #[error("reading metadata block {block}: {error}")]
    Read {
        /// Which.
        block: u64,
        /// Why.
        error: IoError,
    },
    /// Metadata could not be written or flushed.
    #[error("writing metadata: {0}")]
    Write(IoError),
    /// What was read cannot be right.
    #[error(transparent)]
    Damage(Box<Damage>),
    /// No block is left.
    #[error("no free {0} block is left")]
    NoSpace(Space),
    /// An earlier write failed, or an operation failed or was given up half-way: abort the transaction, or open again.
    #[error("an earlier operation on the metadata failed; abort the transaction")]
    Poisoned,
    /// The caller asked for what cannot be.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// An error about the bytes of `block`.
    pub fn damage(block: u64, kind: Kind, field: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Damage(Box::new(Damage { block, kind, field, found: found.to_string(), expected: expected.to_string() }))
    }
}
