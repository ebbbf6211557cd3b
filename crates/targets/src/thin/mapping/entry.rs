//! The bits of an entry. 0 is none: the leaf's own word counts.

use super::arena::FAN;

pub(super) const UNMAPPED: u64 = 1 << 1;
pub(super) const MAPPED: u64 = 2 << 1;
pub(super) const UNKNOWN: u64 = 3 << 1;
pub(super) const STATE: u64 = 3 << 1;
const INDEX: u32 = 3;
pub(super) const ERA: u32 = 12;
pub(super) const ERAS: u64 = 1 << 12;
pub(super) const DATA: u32 = 24;

pub(super) const fn at(index: usize) -> u64 {
    (index as u64) << INDEX
}

pub(super) const fn index(entry: u64) -> usize {
    (entry >> INDEX) as usize & (FAN - 1)
}
