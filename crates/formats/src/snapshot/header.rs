//! Chunk 0.

use super::layout::{HEADER_BYTES, MAGIC, RawHeader, VERSION};
use super::{ChunkSize, Error, ErrorKind};
use udm_base::Sectors;
use zerocopy::{FromBytes, IntoBytes};

/// What the header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whether the snapshot holds. Once it does not, it never does again.
    pub valid: bool,
    /// The chunk size, which goes before that of a table.
    pub chunk: ChunkSize,
}

/// What is at the start of a COW device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Nothing: the four bytes of the magic are zero. A snapshot may make its store here.
    Empty,
    /// A store.
    Store(Header),
}

impl Header {
    /// Reads the first bytes of a COW device; [`HEADER_BYTES`] are enough. The order of the checks is the kernel's
    /// (`read_header` and `persistent_read_metadata`, `drivers/md/dm-snap-persistent.c`, 6.12).
    ///
    /// # Errors
    /// When the device is too short, when there is something else, and when chunk size or version cannot be.
    pub fn probe(bytes: &[u8]) -> Result<Probe, Error> {
        let Ok((raw, _)) = RawHeader::read_from_prefix(bytes) else {
            let what = format!("the COW device ends after {} bytes, and the header has {HEADER_BYTES}", bytes.len());
            return Err(Error::new(ErrorKind::Truncated, 0, "header", what));
        };
        match raw.magic.get() {
            0 => return Ok(Probe::Empty),
            MAGIC => {}
            found => {
                let what = format!(
                    "found {found:#010x}, expected {MAGIC:#010x} (\"SnAp\") or, for a new snapshot, zero: the device \
                     holds something else. If nothing on it is needed, write zeroes to its first chunk"
                );
                return Err(Error::new(ErrorKind::Foreign, 0, "magic", what));
            }
        }
        let found = raw.chunk_size.get();
        let chunk = ChunkSize::new(Sectors::new(found.into())).map_err(|why| {
            let what = format!("invalid on-disk chunk size {found}: {why}");
            Error::new(ErrorKind::ChunkSize, 0, "chunk_size", what)
        })?;
        if raw.version.get() != VERSION {
            let what = format!("unable to handle snapshot disk version {}: expected {VERSION}", raw.version);
            return Err(Error::new(ErrorKind::Version, 0, "version", what));
        }
        Ok(Probe::Store(Self { valid: raw.valid.get() != 0, chunk }))
    }

    /// The bytes that chunk 0 begins with; what follows in it is zero.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let chunk_size = u32::try_from(self.chunk.sectors().get()).expect("at most 2^21");
        let raw = RawHeader {
            magic: MAGIC.into(),
            valid: u32::from(self.valid).into(),
            version: VERSION.into(),
            chunk_size: chunk_size.into(),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The kernel's warning when a table asked for another chunk size: the header's is used.
    pub fn overrides(&self, table: ChunkSize) -> Option<String> {
        let (here, there) = (self.chunk.sectors(), table.sectors());
        (here != there).then(|| format!("chunk size {here} in device metadata overrides table chunk size of {there}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(magic: u32, valid: u32, version: u32, chunk: u32) -> Vec<u8> {
        [magic, valid, version, chunk].iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    #[test]
    fn as_on_disk() {
        let chunk = ChunkSize::new(Sectors::new(16)).unwrap();
        let header = Header { valid: true, chunk };
        assert_eq!(header.encode(), *b"SnAp\x01\0\0\0\x01\0\0\0\x10\0\0\0");
        for valid in [true, false] {
            let header = Header { valid, chunk };
            assert_eq!(Header::probe(&header.encode()), Ok(Probe::Store(header)));
        }
    }

    #[test]
    fn whatever_there_may_be() {
        let kind = |bytes: &[u8]| Header::probe(bytes).map_err(|e| (e.kind, e.field));
        assert_eq!(kind(&bytes(0, 7, 7, 7)), Ok(Probe::Empty));
        for (bytes, expect, field) in [
            (vec![], ErrorKind::Truncated, "header"),
            (vec![0; 15], ErrorKind::Truncated, "header"),
            (bytes(0x6546_6458, 1, 1, 16), ErrorKind::Foreign, "magic"),
            (bytes(MAGIC, 1, 2, 16), ErrorKind::Version, "version"),
            (bytes(MAGIC, 1, 0, 16), ErrorKind::Version, "version"),
            (bytes(MAGIC, 1, 1, 0), ErrorKind::ChunkSize, "chunk_size"),
            (bytes(MAGIC, 1, 1, 17), ErrorKind::ChunkSize, "chunk_size"),
            (bytes(MAGIC, 1, 1, 1 << 31), ErrorKind::ChunkSize, "chunk_size"),
        ] {
            assert_eq!(kind(&bytes), Err((expect, field.to_owned())), "{bytes:?}");
        }
    }

    #[test]
    fn the_headers_chunk_size_wins() {
        let of = |n| ChunkSize::new(Sectors::new(n)).unwrap();
        let header = Header { valid: true, chunk: of(16) };
        assert_eq!(header.overrides(of(16)), None);
        let text = "chunk size 16 in device metadata overrides table chunk size of 32.";
        assert_eq!(header.overrides(of(32)).as_deref(), Some(text));
    }
}
