//! The superblock of thin metadata: whatever stands in it, it is refused with its place or comes back byte for byte.

use udm_formats::thin::Error;
use udm_formats::thin::superblock::{LOCATION, MAX_DATA_BLOCK, MIN_DATA_BLOCK, SALT, Superblock};
use udm_pdata::layout::checksum;
use udm_pdata::{BLOCK_SIZE, Block};

/// Numbers that the fields have.
pub const WORDS: &[&[u8]] = &[
    &27_022_010u64.to_le_bytes(),
    &[1, 0, 0, 0],
    &[2, 0, 0, 0],
    &[8, 0, 0, 0],
    &[128, 0, 0, 0],
    &2_097_152u32.to_le_bytes(),
    &[0xff; 8],
];

/// Reads `data`, zeroes behind it, as a superblock; once as it is, once with a checksum that holds.
pub fn fuzz_thin_superblock(data: &[u8]) {
    let mut block = Block::zeroed();
    let len = data.len().min(BLOCK_SIZE);
    block.0[..len].copy_from_slice(&data[..len]);
    read(block.clone());
    let sum = checksum(&block, SALT);
    block.0[..4].copy_from_slice(&sum.to_le_bytes());
    read(block);
}

fn read(block: Box<Block>) {
    match Superblock::read(block.clone(), LOCATION) {
        Ok(superblock) => {
            let size = superblock.data_block();
            assert!((MIN_DATA_BLOCK..=MAX_DATA_BLOCK).contains(&size), "{size:?}");
            assert!(superblock.sealed(LOCATION).0 == block.0, "what nobody changed stays");
            let moved = superblock.sealed(7);
            assert!(Superblock::read(moved.clone(), 7).is_ok() && Superblock::read(moved, LOCATION).is_err());
        }
        Err(Error::Superblock { block, found, expected, .. }) => assert!(block == LOCATION && found != expected),
        Err(other) => panic!("not about a field: {other}"),
    }
}
