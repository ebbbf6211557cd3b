//! The log of log-writes.

use udm_base::Sectors;
use udm_formats::log_writes::{Reader, Superblock};

/// What chance would not spell: the magic, and flags.
pub const WORDS: &[&[u8]] =
    &[&[0x72, 0x68, 0x73, 0x77, 0x66, 0x73, 0x6a, 0], &[1, 0, 0, 0, 0, 0, 0, 0], &[8], &[4], b"mark"];

/// A whole log device: what is read lies within it, and says again what its bytes said.
pub fn fuzz_log_writes(data: &[u8]) {
    let device = Sectors::in_bytes(data.len() as u64);
    let Ok(superblock) = Superblock::decode(data, device) else { return };
    let again = Superblock::decode(&superblock.encode(), device);
    assert_eq!(again, Ok(superblock));
    let mut reader = Reader::new(superblock, device);
    while let Some((at, len)) = reader.want() {
        if let Err(error) = reader.check() {
            assert_eq!(error.entry, Some(reader.index()), "{error}");
            return;
        }
        let from = (at - udm_base::Sector::ZERO).as_len();
        let bytes = &data[from..from + len.as_len()];
        let Ok(record) = reader.feed(bytes) else { return };
        assert!(record.end() <= device.from_start() && record.end() > at);
        assert!(record.sector.checked_add(record.sectors).is_some());
        let mut encoded = vec![0xff; bytes.len()];
        record.entry.encode(&mut encoded);
        // The length of inline data is not kept.
        assert_eq!(encoded[..24], bytes[..24]);
        assert_eq!(encoded[32..], bytes[32..]);
    }
}
