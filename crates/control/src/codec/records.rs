//! Reading and writing the records behind the header, with every offset checked.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct dm_target_spec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTargetSpec {
    pub(super) sector_start: u64,
    pub(super) length: u64,
    pub(super) status: i32,
    pub(super) next: u32,
    pub(super) target_type: [u8; super::DM_MAX_TYPE_NAME],
}

/// `struct dm_target_deps` before its array.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTargetDeps {
    pub(super) count: u32,
    pub(super) padding: u32,
}

/// `struct dm_name_list` before its name: the struct's size is 16, but the name begins here.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub(super) struct RawNameList {
    pub(super) dev: u64,
    pub(super) next: u32,
}

/// `event_nr` and `flags`, at the next multiple of 8 after the name's zero.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawNameTail {
    pub(super) event_nr: u32,
    pub(super) flags: u32,
}

/// `struct dm_target_versions` before its name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawTargetVersions {
    pub(super) next: u32,
    pub(super) version: [u32; 3],
}

const _: () = assert!(
    size_of::<RawTargetSpec>() == 40
        && size_of::<RawTargetDeps>() == 8
        && size_of::<RawNameList>() == 12
        && size_of::<RawNameTail>() == 8
        && size_of::<RawTargetVersions>() == 16
);

/// The record at `at`; `None` when it reaches past the end.
pub(super) fn read<T: FromBytes>(buf: &[u8], at: usize) -> Option<T> {
    let bytes = buf.get(at..at.checked_add(size_of::<T>())?)?;
    T::read_from_bytes(bytes).ok()
}

/// The text at `at` without its zero; `None` when no zero ends it within the buffer.
pub(super) fn text(buf: &[u8], at: usize) -> Option<&[u8]> {
    let rest = buf.get(at..)?;
    Some(&rest[..rest.iter().position(|&b| b == 0)?])
}

/// `n` rounded up to a multiple of 8 (`align_ptr`).
pub(super) const fn align(n: usize) -> usize {
    n.next_multiple_of(8)
}

/// Append `text`, a zero, and zeros up to a multiple of 8.
pub(super) fn push_text(data: &mut Vec<u8>, text: &[u8]) {
    data.extend_from_slice(text);
    data.push(0);
    data.resize(align(data.len()), 0);
}

/// Write `next` into the record at `at`; `field` is the field's place in it.
pub(super) fn patch_next(data: &mut [u8], at: usize, field: usize, next: usize) {
    let at = at + field;
    data[at..at + 4].copy_from_slice(&(next as u32).to_ne_bytes());
}
