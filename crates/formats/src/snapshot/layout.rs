//! The two records on the device, as docs/formats/snapshot.md tells (`drivers/md/dm-snap-persistent.c`, 6.12:
//! `struct disk_header`, `struct disk_exception`). Little-endian.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "SnAp", as a little-endian number.
pub const MAGIC: u32 = 0x7041_6e53;
/// The only version there is.
pub const VERSION: u32 = 1;
/// Bytes of the header; the rest of chunk 0 is zero.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();
/// Bytes of an entry of an area.
pub const EXCEPTION_BYTES: usize = size_of::<RawException>();

/// At the start of chunk 0.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) magic: U32,
    /// Zero: the snapshot is invalid, for ever.
    pub(super) valid: U32,
    pub(super) version: U32,
    /// In sectors, a power of two.
    pub(super) chunk_size: U32,
}

/// An entry of an area. `new_chunk` 0 ends the store.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawException {
    /// A chunk of the origin.
    pub(super) old_chunk: U64,
    /// The chunk of the COW device that holds what the origin's chunk held.
    pub(super) new_chunk: U64,
}

const _: () = {
    assert!(size_of::<RawHeader>() == 16);
    assert!(offset_of!(RawHeader, magic) == 0);
    assert!(offset_of!(RawHeader, valid) == 4);
    assert!(offset_of!(RawHeader, version) == 8);
    assert!(offset_of!(RawHeader, chunk_size) == 12);
    assert!(size_of::<RawException>() == 16);
    assert!(offset_of!(RawException, old_chunk) == 0);
    assert!(offset_of!(RawException, new_chunk) == 8);
};
