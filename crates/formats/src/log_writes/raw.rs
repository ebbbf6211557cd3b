//! The bytes of a superblock and of an entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, LE, U32, U64, Unaligned};

/// What sector 0 begins with (`WRITE_LOG_MAGIC`).
pub const MAGIC: u64 = 0x6a_7366_7773_6872;
/// The one version (`WRITE_LOG_VERSION`).
pub const VERSION: u64 = 1;
/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: usize = 32;
/// Bytes of an entry; a mark's text follows them.
pub const ENTRY_BYTES: usize = 32;

/// `struct log_write_super`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub(super) magic: U64<LE>,
    pub(super) version: U64<LE>,
    pub(super) nr_entries: U64<LE>,
    pub(super) sectorsize: U32<LE>,
    /// The compiler's padding: what the kernel writes here is what lay on its stack.
    pub(super) padding: U32<LE>,
}

/// `struct log_write_entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawEntry {
    pub(super) sector: U64<LE>,
    pub(super) nr_sectors: U64<LE>,
    pub(super) flags: U64<LE>,
    pub(super) data_len: U64<LE>,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES && size_of::<RawEntry>() == ENTRY_BYTES);
    assert!(std::mem::offset_of!(RawSuperblock, sectorsize) == 24);
    assert!(std::mem::offset_of!(RawEntry, flags) == 16 && std::mem::offset_of!(RawEntry, data_len) == 24);
};
