//! The bits of a slot: where a leaf or node is. 0 is nothing.

/// Set in slots and in no entry.
pub(super) const TAG: u64 = 1;
const CLASS: u32 = 1;
pub(super) const UNMAPPED: u64 = 1 << 5;
pub(super) const USED: u64 = 1 << 6;
const UNIT: u32 = 7;
const STAMP: u32 = 35;
pub(super) const UNITS: usize = 1 << (STAMP - UNIT);

pub(super) const fn new(class: usize, unit: usize, stamp: u64, unmapped: bool) -> u64 {
    let unmapped = if unmapped { UNMAPPED } else { 0 };
    TAG | (class as u64) << CLASS | unmapped | (unit as u64) << UNIT | stamp << STAMP
}

pub(super) const fn class(slot: u64) -> usize {
    (slot >> CLASS & 15) as usize
}

pub(super) const fn unit(slot: u64) -> usize {
    (slot >> UNIT) as usize & (UNITS - 1)
}
