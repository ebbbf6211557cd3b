//! Request types and error values.

use super::consts::cmd_flag;

/// What a request asks for (`CMD_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Read bytes.
    Read = 0,
    /// Write the payload.
    Write = 1,
    /// Disconnect; has no reply.
    Disc = 2,
    /// Make durable what was answered.
    Flush = 3,
    /// Bytes no longer needed.
    Trim = 4,
    /// Bytes soon needed.
    Cache = 5,
    /// Write zeroes without a payload.
    WriteZeroes = 6,
    /// Extents of the selected metadata contexts.
    BlockStatus = 7,
}

impl Command {
    /// Decodes the `type` field of a request; `None` for a type that this codec does not know.
    pub fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disc,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            _ => return None,
        })
    }

    /// The flags that the protocol documents for this command. `FUA` is valid everywhere, as clients are known to
    /// set it on reads.
    pub fn valid_flags(self) -> u16 {
        cmd_flag::FUA
            | match self {
                Self::Read => cmd_flag::DF,
                Self::WriteZeroes => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
                Self::BlockStatus => cmd_flag::REQ_ONE,
                Self::Write | Self::Disc | Self::Flush | Self::Trim | Self::Cache => 0,
            }
    }
}

/// An error value of a reply. The protocol fixes the numbers; they are those of Linux's errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    /// The export is read-only.
    Perm = 1,
    /// The device failed.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// The request is malformed, unaligned, too long or out of range.
    Inval = 22,
    /// No room, or a write past the end.
    NoSpc = 28,
    /// Too long to be answered in one piece.
    Overflow = 75,
    /// Zeroing would be no faster than writing.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl NbdError {
    /// Decodes a nonzero error value. One that the protocol does not list counts as `EINVAL`, as it asks for.
    pub fn from_wire(value: u32) -> Self {
        match value {
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpc,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Inval,
        }
    }

    /// The value on the wire.
    pub fn to_wire(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_errors_keep_their_numbers() {
        for value in 0..8 {
            assert_eq!(Command::from_wire(value).map(|c| c as u16), Some(value));
        }
        assert_eq!(Command::from_wire(8), None);
        assert_eq!(Command::from_wire(u16::MAX), None);
        for value in [1, 5, 12, 22, 28, 75, 95, 108] {
            assert_eq!(NbdError::from_wire(value).to_wire(), value);
        }
        assert_eq!(NbdError::from_wire(9999), NbdError::Inval);
    }
}
