//! What the blocks of a volume hold: bytes that say who wrote them, where and when.
//!
//! Each write of a block has a *stamp* of its own, and the block's bytes follow from the stamp and the block's number.
//! So a write that was lost, torn, or that landed elsewhere is found as well as a flipped bit. Stamp 0 stands for
//! zeroes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a block: what a write changes as a whole, or not at all.
pub const BLOCK: usize = 4096;
/// The stamp of zeroes.
pub const ZEROES: u64 = 0;

/// A stamp that no other write has.
pub fn stamp() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Spreads bits: the finalizer of splitmix64.
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Word `index` of the block `number` as `stamp` wrote it.
const fn word(stamp: u64, number: u64, index: u64) -> u64 {
    match (stamp, index) {
        (ZEROES, _) => 0,
        (_, 0) => stamp,
        (_, 1) => number,
        _ => mix(stamp).wrapping_add(mix(number ^ 0x9e37_79b9_7f4a_7c15)).wrapping_add(mix(index)),
    }
}

/// Fills a block.
pub fn fill(block: &mut [u8], stamp: u64, number: u64) {
    for (index, bytes) in (0..).zip(block.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word(stamp, number, index).to_le_bytes());
    }
}

fn words(block: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let words = block.chunks_exact(8).filter_map(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
    (0..).zip(words)
}

/// The stamp of a block that is whole and in its place, else what is wrong with it.
pub fn read(block: &[u8], number: u64) -> Result<u64, String> {
    let stamp = block.first_chunk().map_or(ZEROES, |bytes| u64::from_le_bytes(*bytes));
    match words(block).find(|(index, found)| word(stamp, number, *index) != *found) {
        None => Ok(stamp),
        Some((1, found)) if stamp != ZEROES => Err(format!("stamp {stamp:#x}, which was written to block {found}")),
        Some((index, found)) => Err(format!(
            "begins as stamp {stamp:#x}, and at byte {} is {found:#018x} where that has {:#018x}",
            index * 8,
            word(stamp, number, index)
        )),
    }
}

/// Whether each word of the block is that of one of these stamps: what a kill may leave of a write that was under way.
pub fn is_mix(block: &[u8], number: u64, stamps: &[u64]) -> bool {
    words(block).all(|(index, found)| stamps.iter().any(|stamp| word(*stamp, number, index) == found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_know_themselves() {
        let mut block = vec![0; BLOCK];
        assert_eq!(read(&block, 7), Ok(ZEROES));
        fill(&mut block, 5, 7);
        assert_eq!(read(&block, 7), Ok(5));
        assert!(read(&block, 8).is_err_and(|text| text.contains("block 7")));
        let mut torn = block.clone();
        fill(&mut torn[..], 6, 7);
        torn[2048..].copy_from_slice(&block[2048..]);
        assert!(read(&torn, 7).is_err_and(|text| text.contains("at byte 2048")));
        assert!(is_mix(&torn, 7, &[5, 6]) && !is_mix(&torn, 7, &[6, 4]));
        torn[9] ^= 1;
        assert!(read(&torn, 7).is_err() && !is_mix(&torn, 7, &[5, 6]));
    }
}
