//! The NBD protocol's bytes: one codec for the server and the client.
//!
//! Everything on the wire is big endian. Decoders take a slice, check every length against it and return
//! [`WireError`] instead of panicking; none allocates by a number that the peer sent. Encoders write into a caller's
//! buffer or return an array, so the transmission phase never touches the heap.
//!
//! - [`consts`]: magic numbers, options, reply types, flags, limits
//! - [`command`]: request types and error values
//! - [`cursor`]: bounds-checked reading
//! - [`option`]: the handshake: option headers, their data and their replies
//! - [`request`]: the 28-byte request header
//! - [`reply`]: simple replies and structured reply chunks
//!
//! Source: the NBD project's `doc/proto.md`.

pub mod command;
pub mod consts;
pub mod cursor;
pub mod option;
pub mod reply;
pub mod request;

pub use command::{Command, NbdError};
pub use cursor::Cursor;

/// What is wrong with bytes that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends before the field does.
    #[error("{field}: {need} bytes expected, {have} left")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
        /// Bytes that the field takes.
        need: usize,
        /// Bytes that were left.
        have: usize,
    },
    /// Bytes are left after the last field.
    #[error("{extra} bytes after the end of the {message}")]
    Trailing {
        /// The message that ended.
        message: &'static str,
        /// Bytes too many.
        extra: usize,
    },
    /// A magic number is not the one expected.
    #[error("{message}: magic {found:#x} found, {expected:#x} expected")]
    Magic {
        /// The message that was being read.
        message: &'static str,
        /// What the protocol asks for.
        expected: u64,
        /// What the peer sent.
        found: u64,
    },
    /// A string is longer than the protocol allows, is not UTF-8 or holds a NUL.
    #[error("{field}: not a string of at most {max} bytes of UTF-8 without NUL")]
    String {
        /// The field that was being read.
        field: &'static str,
        /// The longest the protocol allows, in bytes.
        max: usize,
    },
    /// A number is out of the range that the protocol allows.
    #[error("{field}: {found} is out of range")]
    Range {
        /// The field that was being read.
        field: &'static str,
        /// What the peer sent.
        found: u64,
    },
}
