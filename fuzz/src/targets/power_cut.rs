//! The record of a power cut.

/// What marks of a record say.
pub const WORDS: &[&[u8]] = &[b"atomic 1", b"durable 0 8", &[8, 0, 0, 0, 0, 0, 0, 0], &[4, 0, 0, 0, 0, 0, 0, 0]];

/// A whole record: what survives by some seed does not overlap.
pub fn fuzz_record(data: &[u8]) {
    let Ok(survivors) = udm_targets::power_cut::replay(data, 7) else { return };
    let mut end = udm_base::Sector::ZERO;
    for (sector, bytes, sectors) in survivors {
        assert!(sector >= end && !sectors.is_zero());
        assert!(bytes.is_none_or(|bytes| bytes.len() == sectors.as_len()));
        end = sector + sectors;
    }
}
