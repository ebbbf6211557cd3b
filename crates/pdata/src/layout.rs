//! The bytes of every block that this crate knows, with offsets and sizes that the compiler checks.
//!
//! All numbers are little endian. Every block begins with a checksum: crc32c of the bytes from offset 4 to the block's
//! end, begun with all ones and not inverted at the end, xored with a salt of its kind, so that a block read as another
//! kind never passes. Then, somewhere, its own block number, so that a block that was written or read in the wrong
//! place is found. (`drivers/md/persistent-data`, 6.12.)

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::{BLOCK_SIZE, Block};
use crate::error::{Error, Kind};

/// The head of a btree node (`struct node_header`, `dm-btree-internal.h`). `max_entries` keys follow it, then
/// `max_entries` values.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NodeHeader {
    /// See the module.
    pub csum: U32,
    /// [`INTERNAL`] or [`LEAF`].
    pub flags: U32,
    /// Where this node lies.
    pub blocknr: U64,
    /// Entries in use.
    pub nr_entries: U32,
    /// Entries that fit: [`max_entries`].
    pub max_entries: U32,
    /// Bytes of a value; 8 in an internal node.
    pub value_size: U32,
    /// Zero.
    pub padding: U32,
}

/// The node's values are the blocks of its children.
pub const INTERNAL: u32 = 1;
/// The node's values are the tree's.
pub const LEAF: u32 = 2;

/// An entry of a space map's index: where a bitmap lies (`struct disk_index_entry`, `dm-space-map-common.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndexEntry {
    /// The bitmap's block.
    pub blocknr: U64,
    /// How many of its entries are zero, those past the device's end included.
    pub nr_free: U32,
    /// No entry before this one is zero.
    pub none_free_before: U32,
}

/// How many bitmaps the metadata space map can have.
pub const MAX_METADATA_BITMAPS: usize = 255;

/// The one block that is the metadata space map's index (`struct disk_metadata_index`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MetadataIndex {
    /// See the module.
    pub csum: U32,
    /// Zero.
    pub padding: U32,
    /// Where this block lies.
    pub blocknr: U64,
    /// Bitmap by bitmap; those past the device's end are zero.
    pub index: [IndexEntry; MAX_METADATA_BITMAPS],
}

/// The root of a space map, as a superblock holds it (`struct disk_sm_root`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SpaceMapRoot {
    /// Blocks that are counted.
    pub nr_blocks: U64,
    /// Blocks that somebody refers to.
    pub nr_allocated: U64,
    /// Metadata: the [`MetadataIndex`]. Data: the root of a btree of [`IndexEntry`].
    pub bitmap_root: U64,
    /// The root of a btree of `u32`: counts from 3 on.
    pub ref_count_root: U64,
}

impl SpaceMapRoot {
    /// Of a map in which so many of `nr_blocks` are in use.
    pub(crate) fn new(nr_blocks: u64, nr_allocated: u64, bitmap_root: u64, ref_count_root: u64) -> Self {
        Self {
            nr_blocks: nr_blocks.into(),
            nr_allocated: nr_allocated.into(),
            bitmap_root: bitmap_root.into(),
            ref_count_root: ref_count_root.into(),
        }
    }
}

/// The head of a bitmap (`struct disk_bitmap_header`). [`ENTRIES_PER_BITMAP`] pairs of bits follow, in words of 64:
/// entry `e` of a word has its count's high bit at bit `2e` and its low bit at `2e + 1`. A count of 3 means "3 or more,
/// see the tree".
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BitmapHeader {
    /// See the module.
    pub csum: U32,
    /// Zero.
    pub not_used: U32,
    /// Where this block lies.
    pub blocknr: U64,
}

/// Blocks that one bitmap counts.
pub const ENTRIES_PER_BITMAP: u64 = 4 * (BLOCK_SIZE - size_of::<BitmapHeader>()) as u64;
/// Words of one bitmap.
pub const WORDS_PER_BITMAP: usize = (BLOCK_SIZE - size_of::<BitmapHeader>()) / 8;
/// Blocks of metadata that can be used at most: 16,256 MiB (`DM_SM_METADATA_MAX_BLOCKS`, `dm-space-map-metadata.h`).
pub const MAX_METADATA_BLOCKS: u64 = MAX_METADATA_BITMAPS as u64 * ENTRIES_PER_BITMAP;

/// The head of an array's block (`struct array_block`, `dm-array.c`). The values follow it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ArrayHeader {
    /// See the module.
    pub csum: U32,
    /// Values that fit.
    pub max_entries: U32,
    /// Values in use.
    pub nr_entries: U32,
    /// Bytes of a value.
    pub value_size: U32,
    /// Where this block lies.
    pub blocknr: U64,
}

const _: () = {
    assert!(size_of::<NodeHeader>() == 32);
    assert!(offset_of!(NodeHeader, flags) == 4);
    assert!(offset_of!(NodeHeader, blocknr) == 8);
    assert!(offset_of!(NodeHeader, nr_entries) == 16);
    assert!(offset_of!(NodeHeader, max_entries) == 20);
    assert!(offset_of!(NodeHeader, value_size) == 24);
    assert!(size_of::<IndexEntry>() == 16);
    assert!(offset_of!(IndexEntry, nr_free) == 8);
    assert!(offset_of!(IndexEntry, none_free_before) == 12);
    assert!(size_of::<MetadataIndex>() == BLOCK_SIZE);
    assert!(offset_of!(MetadataIndex, blocknr) == 8);
    assert!(offset_of!(MetadataIndex, index) == 16);
    assert!(size_of::<SpaceMapRoot>() == 32);
    assert!(offset_of!(SpaceMapRoot, nr_allocated) == 8);
    assert!(offset_of!(SpaceMapRoot, bitmap_root) == 16);
    assert!(offset_of!(SpaceMapRoot, ref_count_root) == 24);
    assert!(size_of::<BitmapHeader>() == 16);
    assert!(offset_of!(BitmapHeader, blocknr) == 8);
    assert!(ENTRIES_PER_BITMAP == 16_320);
    assert!(WORDS_PER_BITMAP == 510);
    assert!(size_of::<ArrayHeader>() == 24);
    assert!(offset_of!(ArrayHeader, blocknr) == 16);
    assert!(max_entries(8) == 252);
    assert!(max_entries(24) == 126);
    assert!(max_entries(16) == 168);
    assert!(max_entries(4) == 336);
    assert!(array_max_entries(8) == 509);
};

/// How many entries a node has whose values take `value_size` bytes: as many as fit, rounded down to a multiple of
/// three (`calc_max_entries`, `dm-btree.c`).
#[must_use]
pub const fn max_entries(value_size: usize) -> usize {
    (BLOCK_SIZE - size_of::<NodeHeader>()) / (8 + value_size) / 3 * 3
}

/// How many values of `value_size` bytes a block of an array has (`calc_max_entries`, `dm-array.c`).
#[must_use]
pub const fn array_max_entries(value_size: usize) -> usize {
    (BLOCK_SIZE - size_of::<ArrayHeader>()) / value_size
}

impl Kind {
    /// What its checksums are xored with; zero for what is no block of its own.
    #[must_use]
    pub const fn salt(self) -> u32 {
        match self {
            Self::Node => 121_107,
            Self::Bitmap => 240_779,
            Self::Index => 160_478,
            Self::Array => 595_846_735,
            Self::SpaceMapRoot => 0,
        }
    }

    /// Where in the block its own number stands.
    const fn blocknr_at(self) -> usize {
        match self {
            Self::Array => offset_of!(ArrayHeader, blocknr),
            _ => offset_of!(NodeHeader, blocknr),
        }
    }
}

/// The checksum of `block` with `salt`: what belongs in its first four bytes (`dm_bm_checksum`, `dm-block-manager.c`).
/// About 0.3 µs.
#[must_use]
pub fn checksum(block: &Block, salt: u32) -> u32 {
    // The kernel begins with all ones, as everybody, but does not invert the end; the crate does.
    !crc32c::crc32c(&block.0[4..]) ^ salt
}

/// Writes into `block` its number and its checksum, as every block has to have them before it is written.
pub fn seal(block: &mut Block, kind: Kind, at: u64) {
    let blocknr = kind.blocknr_at();
    block.0[blocknr..blocknr + 8].copy_from_slice(&at.to_le_bytes());
    let sum = checksum(block, kind.salt());
    block.0[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Checks that `block`, which was read from `at`, is a `kind` and lies where it belongs, and that what its head says is
/// possible. The keys of a node are in order afterwards; that children and values exist is for who follows them.
///
/// # Errors
/// [`Error::Damage`] that names the field.
pub fn check(block: &Block, kind: Kind, at: u64) -> Result<(), Error> {
    let number = word(block, kind.blocknr_at());
    if number != at {
        return Err(Error::damage(at, kind, "its own block number", number, at));
    }
    let (found, expected) = (word32(block, 0), checksum(block, kind.salt()));
    if found != expected {
        return Err(Error::damage(at, kind, "the checksum", format!("{found:#010x}"), format!("{expected:#010x}")));
    }
    match kind {
        Kind::Node => crate::node::check(block, at),
        Kind::Array => {
            let (head, _) = ArrayHeader::ref_from_prefix(&block.0).expect("a block is longer than a head");
            let (size, max, nr) = (head.value_size.get(), head.max_entries.get(), head.nr_entries.get());
            let room = BLOCK_SIZE - size_of::<ArrayHeader>();
            if size == 0 || size as usize > room {
                return Err(Error::damage(at, kind, "the size of a value", size, format!("1 to {room}")));
            }
            let fit = array_max_entries(size as usize);
            if max as usize != fit {
                return Err(Error::damage(at, kind, "max_entries", max, fit));
            }
            if nr > max {
                return Err(Error::damage(at, kind, "nr_entries", nr, format!("at most {max}")));
            }
            Ok(())
        }
        Kind::Bitmap | Kind::Index | Kind::SpaceMapRoot => Ok(()),
    }
}

pub(crate) fn word(block: &Block, at: usize) -> u64 {
    u64::from_le_bytes(block.0[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn word32(block: &Block, at: usize) -> u32 {
    u32::from_le_bytes(block.0[at..at + 4].try_into().expect("four bytes"))
}

/// The block as the metadata space map's index.
#[must_use]
pub fn index(block: &Block) -> &MetadataIndex {
    MetadataIndex::ref_from_bytes(&block.0).expect("an index is as long as a block")
}

/// The count at `entry` of a bitmap: 0, 1, 2, or 3 for "see the tree".
///
/// # Panics
/// When `entry` is not below [`ENTRIES_PER_BITMAP`].
#[must_use]
pub fn bitmap_get(block: &Block, entry: u64) -> u32 {
    assert!(entry < ENTRIES_PER_BITMAP);
    let byte = block.0[size_of::<BitmapHeader>() + (entry / 4) as usize];
    let pair = byte >> (entry % 4 * 2);
    u32::from(pair & 1) << 1 | u32::from(pair >> 1 & 1)
}

/// Sets the count at `entry` of a bitmap.
///
/// # Panics
/// When `entry` is not below [`ENTRIES_PER_BITMAP`], or `count` above 3.
pub fn bitmap_set(block: &mut Block, entry: u64, count: u32) {
    assert!(entry < ENTRIES_PER_BITMAP && count <= 3);
    let byte = &mut block.0[size_of::<BitmapHeader>() + (entry / 4) as usize];
    let shift = entry % 4 * 2;
    let pair = (count >> 1 | (count & 1) << 1) as u8;
    *byte = *byte & !(3 << shift) | pair << shift;
}
