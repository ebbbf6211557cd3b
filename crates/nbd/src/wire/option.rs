//! The handshake: greeting, options, their data and their replies.
//!
//! Greeting of the server (18 bytes): `NBDMAGIC`, `IHAVEOPT`, handshake flags u16. The client answers with flags u32.
//! Option (16 bytes, then `length` bytes of data): `IHAVEOPT` u64, option u32, length u32.
//! Reply (20 bytes, then `length` bytes of data): magic u64, option u32, type u32, length u32.

use super::WireError;
use super::consts::{INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, info};
use super::cursor::Cursor;

/// Bytes of the server's greeting.
pub const GREETING_LEN: usize = 18;
/// Bytes of an option's header.
pub const OPTION_LEN: usize = 16;
/// Bytes of an option reply's header.
pub const OPTION_REPLY_LEN: usize = 20;

/// Encodes the greeting.
pub fn greeting(flags: u16) -> [u8; GREETING_LEN] {
    let mut bytes = [0; GREETING_LEN];
    bytes[0..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..18].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Decodes the greeting of a newstyle server: its handshake flags. An oldstyle server has another second magic.
pub fn decode_greeting(bytes: &[u8; GREETING_LEN]) -> Result<u16, WireError> {
    let mut cursor = Cursor::new(bytes);
    magic(&mut cursor, "greeting", INIT_MAGIC)?;
    magic(&mut cursor, "newstyle greeting", OPTION_MAGIC)?;
    cursor.u16("handshake flags")
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// `OPT_*`.
    pub option: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl OptionHeader {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; OPTION_LEN]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        magic(&mut cursor, "option", OPTION_MAGIC)?;
        Ok(Self { option: cursor.u32("option")?, length: cursor.u32("length of the option")? })
    }
}

/// Appends an option with its data, which must be shorter than 4 GiB.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    put_len(out, data.len());
    out.extend_from_slice(data);
}

/// The header of an option reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: u32,
    /// `REP_*`.
    pub kind: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

impl OptionReplyHeader {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; OPTION_REPLY_LEN]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        magic(&mut cursor, "option reply", OPTION_REPLY_MAGIC)?;
        Ok(Self {
            option: cursor.u32("option")?,
            kind: cursor.u32("type of the reply")?,
            length: cursor.u32("length of the reply")?,
        })
    }
}

/// Appends an option reply with its data, which must be shorter than 4 GiB.
pub fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    put_len(out, data.len());
    out.extend_from_slice(data);
}

/// The data of `OPT_INFO` and `OPT_GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Export name; empty means the default export.
    pub name: &'a str,
    /// Was `INFO_NAME` asked for?
    pub wants_name: bool,
    /// Was `INFO_DESCRIPTION` asked for?
    pub wants_description: bool,
    /// Was `INFO_BLOCK_SIZE` asked for?
    pub wants_block_size: bool,
}

impl<'a> InfoRequest<'a> {
    /// Decodes the data. Kinds of information that this codec does not know are ignored.
    pub fn decode(data: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(data);
        let name = cursor.counted_string("export name")?;
        let mut request = Self { name, wants_name: false, wants_description: false, wants_block_size: false };
        for _ in 0..cursor.u16("number of information requests")? {
            match cursor.u16("information request")? {
                info::NAME => request.wants_name = true,
                info::DESCRIPTION => request.wants_description = true,
                info::BLOCK_SIZE => request.wants_block_size = true,
                _ => {}
            }
        }
        cursor.finish("option data")?;
        Ok(request)
    }

    /// Appends the data.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_counted(out, self.name);
        let wanted = [
            (self.wants_name, info::NAME),
            (self.wants_description, info::DESCRIPTION),
            (self.wants_block_size, info::BLOCK_SIZE),
        ];
        let count = wanted.iter().filter(|(wants, _)| *wants).count() as u16;
        out.extend_from_slice(&count.to_be_bytes());
        for (_, kind) in wanted.iter().filter(|(wants, _)| *wants) {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }
}

/// The size constraints of `INFO_BLOCK_SIZE`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it; a power of two, at most 65536.
    pub minimum: u32,
    /// Requests in multiples of it are fast; a power of two, at least `minimum` and 512.
    pub preferred: u32,
    /// Longest payload of a read or write.
    pub maximum: u32,
}

/// One piece of information of a `REP_INFO`, as a client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// Size in bytes and transmission flags.
    Export {
        /// Bytes.
        size: u64,
        /// `FLAG_*`.
        flags: u16,
    },
    /// Canonical name.
    Name(&'a str),
    /// Description for people.
    Description(&'a str),
    /// Size constraints.
    BlockSize(BlockSizes),
    /// A kind that this codec does not know.
    Other(u16),
}

impl<'a> Info<'a> {
    /// Decodes the data of a `REP_INFO`.
    pub fn decode(data: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(data);
        let info = match cursor.u16("kind of information")? {
            info::EXPORT => Self::Export { size: cursor.u64("size")?, flags: cursor.u16("transmission flags")? },
            info::NAME => Self::Name(cursor.string(cursor.remaining(), "canonical name")?),
            info::DESCRIPTION => Self::Description(cursor.string(cursor.remaining(), "description")?),
            info::BLOCK_SIZE => Self::BlockSize(BlockSizes {
                minimum: cursor.u32("minimum block size")?,
                preferred: cursor.u32("preferred block size")?,
                maximum: cursor.u32("maximum payload")?,
            }),
            kind => return Ok(Self::Other(kind)),
        };
        cursor.finish("information")?;
        Ok(info)
    }

    /// Appends the data. `Other` is written as its kind alone.
    pub fn put(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Export { size, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::Description(text) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            Self::BlockSize(sizes) => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [sizes.minimum, sizes.preferred, sizes.maximum] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Other(kind) => out.extend_from_slice(&kind.to_be_bytes()),
        }
    }
}

/// The data of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`.
#[derive(Clone, Debug)]
pub struct MetaRequest<'a> {
    /// Export name.
    pub name: &'a str,
    /// How many queries follow.
    pub count: u32,
    queries: &'a [u8],
}

impl<'a> MetaRequest<'a> {
    /// Decodes the data and checks every query, so that [`Self::queries`] cannot fail. Allocates nothing: a count
    /// that the data cannot hold is an error after as many steps as there are queries.
    pub fn decode(data: &'a [u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(data);
        let name = cursor.counted_string("export name")?;
        let count = cursor.u32("number of queries")?;
        let queries = cursor.clone().bytes(cursor.remaining(), "queries")?;
        for _ in 0..count {
            cursor.counted_string("query")?;
        }
        cursor.finish("option data")?;
        Ok(Self { name, count, queries })
    }

    /// The queries.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut cursor = Cursor::new(self.queries);
        std::iter::from_fn(move || cursor.counted_string("query").ok())
    }

    /// Appends the data of a request for `queries` on the export `name`.
    pub fn put(out: &mut Vec<u8>, name: &str, queries: &[&str]) {
        put_counted(out, name);
        put_len(out, queries.len());
        for query in queries {
            put_counted(out, query);
        }
    }
}

/// Decodes the data of a `REP_META_CONTEXT`: id and name.
pub fn decode_meta_context(data: &[u8]) -> Result<(u32, &str), WireError> {
    let mut cursor = Cursor::new(data);
    let id = cursor.u32("metadata context")?;
    Ok((id, cursor.string(cursor.remaining(), "name of the metadata context")?))
}

/// Appends a string after its 32-bit length.
pub fn put_counted(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Lengths here are those of names and option data, which callers keep far below 4 GiB.
fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
}

fn magic(cursor: &mut Cursor<'_>, message: &'static str, expected: u64) -> Result<(), WireError> {
    match cursor.u64("magic")? {
        found if found == expected => Ok(()),
        found => Err(WireError::Magic { message, expected, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::consts::{opt, rep};

    #[test]
    fn greeting_and_headers_keep_their_layout() {
        assert_eq!(&greeting(3), b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(decode_greeting(&greeting(3)), Ok(3));
        assert!(matches!(
            decode_greeting(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0"),
            Err(WireError::Magic { message: "newstyle greeting", .. })
        ));

        let mut out = Vec::new();
        put_option(&mut out, opt::LIST, b"xy");
        assert_eq!(out, b"IHAVEOPT\0\0\0\x03\0\0\0\x02xy");
        let header = OptionHeader::decode(out.first_chunk().expect("16 bytes"));
        assert_eq!(header, Ok(OptionHeader { option: opt::LIST, length: 2 }));

        out.clear();
        put_reply(&mut out, opt::GO, rep::ERR_UNKNOWN, b"no");
        assert_eq!(out, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x02no");
        let header = OptionReplyHeader::decode(out.first_chunk().expect("20 bytes"));
        assert_eq!(header, Ok(OptionReplyHeader { option: opt::GO, kind: rep::ERR_UNKNOWN, length: 2 }));
    }

    #[test]
    fn info_requests() {
        #[track_caller]
        fn check(data: &[u8], expect: Option<(&str, bool, bool, bool)>) {
            let found = InfoRequest::decode(data).ok();
            let found = found.map(|r| (r.name, r.wants_name, r.wants_description, r.wants_block_size));
            assert_eq!(found, expect);
        }
        check(b"\0\0\0\0\0\0", Some(("", false, false, false)));
        check(b"\0\0\0\x01d\0\x02\0\x03\0\x01", Some(("d", true, false, true)));
        check(b"\0\0\0\x01d\0\x01\0\x63", Some(("d", false, false, false)));
        check(b"", None);
        check(b"\0\0\0\x05d\0\0", None);
        check(b"\0\0\0\x01d\0\x02\0\x03", None);
        check(b"\0\0\0\x01d\0\0\0", None);
        check(b"\xff\xff\xff\xffd\0\0", None);

        let request = InfoRequest { name: "a b", wants_name: false, wants_description: true, wants_block_size: true };
        let mut out = Vec::new();
        request.put(&mut out);
        assert_eq!(InfoRequest::decode(&out), Ok(request));
    }

    #[test]
    fn information_survives_the_round_trip() {
        let all = [
            Info::Export { size: 1 << 40, flags: 0x123 },
            Info::Name("n"),
            Info::Description(""),
            Info::BlockSize(BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 }),
            Info::Other(77),
        ];
        for info in all {
            let mut out = Vec::new();
            info.put(&mut out);
            assert_eq!(Info::decode(&out), Ok(info));
            for len in 0..out.len() {
                let shorter = Info::decode(&out[..len]);
                assert!(shorter.is_err() || matches!(info, Info::Name(_)), "{info:?} cut to {len}: {shorter:?}");
            }
        }
    }

    #[test]
    fn meta_requests() {
        let mut out = Vec::new();
        MetaRequest::put(&mut out, "disk", &["base:allocation", "x-y:"]);
        let request = MetaRequest::decode(&out).expect("well formed");
        assert_eq!((request.name, request.count), ("disk", 2));
        assert_eq!(request.queries().collect::<Vec<_>>(), ["base:allocation", "x-y:"]);
        for len in 0..out.len() {
            assert!(MetaRequest::decode(&out[..len]).is_err(), "cut to {len}");
        }
        assert!(MetaRequest::decode(b"\0\0\0\0\xff\xff\xff\xff").is_err(), "4 billion queries in no bytes");
    }
}
