//! The header of a request of the transmission phase.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic [`REQUEST_MAGIC`] |
//! | 4 | 2 | command flags |
//! | 6 | 2 | type |
//! | 8 | 8 | cookie, opaque to the server |
//! | 16 | 8 | offset in bytes |
//! | 24 | 4 | length in bytes |
//!
//! A `CMD_WRITE` is followed by `length` bytes of payload.

use super::WireError;
use super::consts::REQUEST_MAGIC;

/// Bytes of a request header.
pub const REQUEST_LEN: usize = 28;

/// A request header, as sent: nothing but the magic has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `CMD_FLAG_*` bits.
    pub flags: u16,
    /// The type; see [`super::Command::from_wire`].
    pub kind: u16,
    /// What the reply must carry back.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Request {
    /// Decodes a header. The only error is a wrong magic: the stream has lost its place and must be closed.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, WireError> {
        // Fixed offsets into a fixed array: the compiler removes every check.
        let magic = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if magic != REQUEST_MAGIC {
            return Err(WireError::Magic {
                message: "request",
                expected: u64::from(REQUEST_MAGIC),
                found: u64::from(magic),
            });
        }
        Ok(Self {
            flags: u16::from_be_bytes([bytes[4], bytes[5]]),
            kind: u16::from_be_bytes([bytes[6], bytes[7]]),
            cookie: be64(bytes, 8),
            offset: be64(bytes, 16),
            length: u32::from_be_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]),
        })
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

fn be64(bytes: &[u8; REQUEST_LEN], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_layout() {
        let request = Request {
            flags: 0x0102,
            kind: 0x0304,
            cookie: 0x05060708_090a0b0c,
            offset: 0x0d0e0f10_11121314,
            length: 0x15161718,
        };
        let bytes = request.encode();
        assert_eq!(bytes[..4], [0x25, 0x60, 0x95, 0x13]);
        assert!(bytes[4..].iter().copied().eq(1..=24));
        assert_eq!(Request::decode(&bytes), Ok(request));
    }

    #[test]
    fn a_wrong_magic_is_an_error() {
        let mut bytes = Request { flags: 0, kind: 0, cookie: 0, offset: 0, length: 0 }.encode();
        bytes[3] ^= 1;
        assert!(matches!(Request::decode(&bytes), Err(WireError::Magic { found: 0x2560_9512, .. })));
    }
}
