//! Replies of the transmission phase: simple ones and structured chunks.
//!
//! Simple (16 bytes, then the data of a successful read): magic u32, error u32, cookie u64.
//! Chunk (20 bytes, then `length` bytes of payload): magic u32, flags u16, type u16, cookie u64, length u32.

use super::WireError;
use super::command::NbdError;
use super::consts::{MAX_STRING, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};
use super::cursor::Cursor;

/// Bytes of a simple reply's header.
pub const SIMPLE_LEN: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_LEN: usize = 20;
/// Bytes of the header and offset that precede the data of an `OFFSET_DATA` chunk.
pub const DATA_CHUNK_LEN: usize = CHUNK_LEN + 8;
/// Bytes of one extent of a `BLOCK_STATUS` chunk.
pub const EXTENT_LEN: usize = 8;
/// Most extents that this codec takes in or sends in one chunk: 64 KiB of them. The protocol advises against more
/// than 2^20, and a client asks again where a shorter answer ends.
pub const MAX_EXTENTS: usize = 8192;

/// A reply header, as received by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply; data follows when it answers a read and `error` is 0.
    Simple {
        /// 0, or an error value.
        error: u32,
        /// The request's cookie.
        cookie: u64,
    },
    /// A structured chunk; `length` bytes follow.
    Chunk(ChunkHeader),
}

/// A chunk's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// `FLAG_DONE` on the last chunk of a reply.
    pub flags: u16,
    /// What the payload is.
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Bytes of payload.
    pub length: u32,
}

impl ReplyHeader {
    /// Decodes the header at the front of `bytes`. `Ok(None)`: more bytes are needed. With it comes its own length.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let mut cursor = Cursor::new(bytes);
        let Ok(magic) = cursor.u32("magic") else { return Ok(None) };
        let (need, name) = match magic {
            SIMPLE_REPLY_MAGIC => (SIMPLE_LEN, "simple reply"),
            STRUCTURED_REPLY_MAGIC => (CHUNK_LEN, "structured reply"),
            found => {
                return Err(WireError::Magic {
                    message: "reply",
                    expected: u64::from(SIMPLE_REPLY_MAGIC),
                    found: u64::from(found),
                });
            }
        };
        if bytes.len() < need {
            return Ok(None);
        }
        let header = if magic == SIMPLE_REPLY_MAGIC {
            Self::Simple { error: cursor.u32(name)?, cookie: cursor.u64(name)? }
        } else {
            Self::Chunk(ChunkHeader {
                flags: cursor.u16(name)?,
                kind: cursor.u16(name)?,
                cookie: cursor.u64(name)?,
                length: cursor.u32(name)?,
            })
        };
        Ok(Some((header, need)))
    }
}

impl ChunkHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; CHUNK_LEN] {
        let mut bytes = [0; CHUNK_LEN];
        bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// Encodes a simple reply's header; `None` is success.
pub fn simple(error: Option<NbdError>, cookie: u64) -> [u8; SIMPLE_LEN] {
    let mut bytes = [0; SIMPLE_LEN];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, NbdError::to_wire).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Encodes what precedes the data of the only chunk of a successful read: chunk header and offset.
/// `data_len` is the length of the data alone, at most `u32::MAX - 8`.
pub fn only_data_chunk(cookie: u64, offset: u64, data_len: u32) -> [u8; DATA_CHUNK_LEN] {
    data_chunk(cookie, offset, data_len, true)
}

/// As [`only_data_chunk`], for one of several chunks, of which the `last` ends the reply.
pub fn data_chunk(cookie: u64, offset: u64, data_len: u32, last: bool) -> [u8; DATA_CHUNK_LEN] {
    let flags = if last { chunk::FLAG_DONE } else { 0 };
    let header = ChunkHeader { flags, kind: chunk::OFFSET_DATA, cookie, length: data_len.saturating_add(8) };
    let mut bytes = [0; DATA_CHUNK_LEN];
    bytes[..CHUNK_LEN].copy_from_slice(&header.encode());
    bytes[CHUNK_LEN..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Appends a last error chunk with a message for people, cut to the protocol's longest string.
pub fn put_error_chunk(out: &mut Vec<u8>, cookie: u64, error: NbdError, message: &str) {
    let mut end = message.len().min(MAX_STRING);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // At most 4096: neither cast can lose bits.
    let header = ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::ERROR, cookie, length: 6 + end as u32 };
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(&error.to_wire().to_be_bytes());
    out.extend_from_slice(&(end as u16).to_be_bytes());
    out.extend_from_slice(&message.as_bytes()[..end]);
}

/// Encodes a last chunk without payload: success of a request that has no data to give.
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_LEN] {
    ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::NONE, cookie, length: 0 }.encode()
}

/// One extent of a metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes.
    pub length: u32,
    /// The context's flags; [`super::consts::base_allocation`] for `base:allocation`.
    pub flags: u32,
}

/// Appends a last `BLOCK_STATUS` chunk, header included. The first [`MAX_EXTENTS`] of `extents` are sent.
pub fn put_block_status(out: &mut Vec<u8>, cookie: u64, context: u32, extents: &[StatusExtent]) {
    let extents = &extents[..extents.len().min(MAX_EXTENTS)];
    // At most 64 KiB: the cast cannot lose bits.
    let length = (4 + extents.len() * EXTENT_LEN) as u32;
    let header = ChunkHeader { flags: chunk::FLAG_DONE, kind: chunk::BLOCK_STATUS, cookie, length };
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(&context.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.length.to_be_bytes());
        out.extend_from_slice(&extent.flags.to_be_bytes());
    }
}

/// Decodes a `BLOCK_STATUS` payload: the context, and an iterator over its extents.
/// The payload must hold at least one extent and none of length 0.
pub fn block_status(payload: &[u8]) -> Result<(u32, impl Iterator<Item = StatusExtent> + '_), WireError> {
    let mut cursor = Cursor::new(payload);
    let context = cursor.u32("metadata context")?;
    let len = cursor.remaining();
    if len == 0 || !len.is_multiple_of(EXTENT_LEN) {
        return Err(WireError::Range { field: "length of the block status", found: payload.len() as u64 });
    }
    let descriptors = cursor.bytes(len, "extents")?;
    let extents = descriptors.chunks_exact(EXTENT_LEN).map(|bytes| {
        let mut cursor = Cursor::new(bytes);
        // Eight bytes each: neither read can fail.
        StatusExtent { length: cursor.u32("length").unwrap_or(0), flags: cursor.u32("flags").unwrap_or(0) }
    });
    if extents.clone().any(|extent| extent.length == 0) {
        return Err(WireError::Range { field: "length of an extent", found: 0 });
    }
    Ok((context, extents))
}

/// Decodes the payload of an error chunk of type `kind`: the error and its message (empty if there is none, or if it
/// is no text).
pub fn error_payload(kind: u16, payload: &[u8]) -> Result<(NbdError, &str), WireError> {
    let mut cursor = Cursor::new(payload);
    let error = cursor.u32("error")?;
    if error == 0 {
        return Err(WireError::Range { field: "error of an error chunk", found: 0 });
    }
    let len = usize::from(cursor.u16("length of the message")?);
    if len > MAX_STRING {
        return Err(WireError::String { field: "error message", max: MAX_STRING });
    }
    let message = std::str::from_utf8(cursor.bytes(len, "error message")?).unwrap_or("");
    if kind == chunk::ERROR_OFFSET {
        cursor.u64("offset of the error")?;
    }
    Ok((NbdError::from_wire(error), message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::consts::base_allocation;

    #[test]
    fn a_simple_reply_keeps_its_layout() {
        let bytes = simple(Some(NbdError::NoSpc), 0x0102_0304_0506_0708);
        assert_eq!(bytes, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]);
        for len in 0..SIMPLE_LEN {
            assert_eq!(ReplyHeader::decode(&bytes[..len]), Ok(None));
        }
        let expect = ReplyHeader::Simple { error: 28, cookie: 0x0102_0304_0506_0708 };
        assert_eq!(ReplyHeader::decode(&bytes), Ok(Some((expect, SIMPLE_LEN))));
    }

    #[test]
    fn a_data_chunk_keeps_its_layout() {
        let bytes = only_data_chunk(9, 4096, 512);
        assert_eq!(bytes[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(bytes[16..], [0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let expect = ChunkHeader { flags: 1, kind: chunk::OFFSET_DATA, cookie: 9, length: 520 };
        assert_eq!(ReplyHeader::decode(&bytes), Ok(Some((ReplyHeader::Chunk(expect), CHUNK_LEN))));
        assert_eq!(ReplyHeader::decode(&bytes[..19]), Ok(None));
    }

    #[test]
    fn a_reply_with_a_strange_magic_is_an_error() {
        assert!(ReplyHeader::decode(&[0, 0, 0, 1]).is_err());
        assert_eq!(ReplyHeader::decode(&[0, 0, 0]), Ok(None));
    }

    #[test]
    fn errors_survive_the_round_trip() {
        for (message, expect) in [("", ""), ("why", "why"), (&"é".repeat(3000), &"é".repeat(2048))] {
            let mut bytes = Vec::new();
            put_error_chunk(&mut bytes, 1, NbdError::Overflow, message);
            assert_eq!(error_payload(chunk::ERROR, &bytes[CHUNK_LEN..]), Ok((NbdError::Overflow, expect)));
        }
        let with_text = [0, 0, 0, 5, 0, 2, b'h', b'i'];
        assert_eq!(error_payload(chunk::ERROR, &with_text), Ok((NbdError::Io, "hi")));
        assert!(error_payload(chunk::ERROR_OFFSET, &with_text).is_err(), "the offset is missing");
        assert!(error_payload(chunk::ERROR, &[0, 0, 0, 0, 0, 0]).is_err(), "error 0");
        assert!(error_payload(chunk::ERROR, &[0, 0, 0, 5, 0, 3, b'h', b'i']).is_err(), "message cut off");
    }

    #[test]
    fn block_status_survives_the_round_trip() {
        let extents = [
            StatusExtent { length: 4096, flags: 0 },
            StatusExtent { length: 8192, flags: base_allocation::STATE_HOLE | base_allocation::STATE_ZERO },
        ];
        let mut out = Vec::new();
        put_block_status(&mut out, 3, 1, &extents);
        let (context, decoded) = block_status(&out[CHUNK_LEN..]).expect("well formed");
        assert_eq!((context, decoded.collect::<Vec<_>>()), (1, extents.to_vec()));
        for bad in [&[][..], &[0, 0, 0, 1], &[0, 0, 0, 1, 2], &[0; 12]] {
            assert!(block_status(bad).is_err(), "{bad:?}");
        }
    }
}
