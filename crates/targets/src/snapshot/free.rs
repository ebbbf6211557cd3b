//! Which parts of an origin no snapshot needs any more: what a write to the origin looks at first, and most often last.
//!
//! A bit says it of 4 KiB. It is set by who has asked every snapshot, and holds until the next snapshot joins: an
//! exception stays, and a snapshot that goes away needs less. So a bit that is set is true, and one that is not has
//! whoever reads it ask the snapshots. Reading takes no lock and no atomic read-modify-write, which would wait for the
//! stores of the copy before.
//!
//! It takes 32 KiB for each GiB of the origin that was written with snapshots there, and 32 MiB at most: for an origin
//! past the first TiB of such writes, the snapshots are asked each time.

use super::radix::{Radix, WIDTH};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use udm_base::{Sector, Sectors};

/// What a bit stands for, as a power of two of sectors.
const GRAIN_BITS: u32 = 3;
pub(super) const GRAIN: Sectors = Sectors::new(1 << GRAIN_BITS);
/// Leaves at most, of 8 KiB each.
const LEAVES: u64 = 4096;

pub(super) struct Free {
    /// There is no snapshot.
    all: AtomicBool,
    bits: Radix,
    leaves: AtomicU64,
}

/// The words of a range of grains, and the bits of the range in each.
fn words(grains: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let Range { start, end } = grains;
    (start / 64..end.div_ceil(64)).map(move |word| {
        let (first, last) = (start.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
        (word, (u64::MAX >> (64 - (last - first))) << first)
    })
}

impl Free {
    /// Of an origin of that size, without snapshots. It may grow.
    pub(super) fn new(sectors: Sectors) -> Self {
        let bits = Radix::new(sectors.get().div_ceil(GRAIN.get()).div_ceil(64));
        Self { all: AtomicBool::new(true), bits, leaves: AtomicU64::new(0) }
    }

    /// Whether it is known of a whole range, which is not empty.
    #[inline]
    pub(super) fn has(&self, sector: Sector, sectors: Sectors) -> bool {
        if self.all.load(Ordering::Acquire) {
            return true;
        }
        let last = (sector + sectors).get() - 1;
        let mut grains = words(sector.get() >> GRAIN_BITS..(last >> GRAIN_BITS) + 1);
        grains.all(|(word, mask)| self.bits.get(word).is_some_and(|w| w.load(Ordering::Acquire) & mask == mask))
    }

    /// Notes it of a range of whole grains. By the worker.
    pub(super) fn note(&self, sector: Sector, sectors: Sectors) {
        for (word, mask) in words(sector.get() >> GRAIN_BITS..(sector + sectors).get() >> GRAIN_BITS) {
            if self.may_take(word) {
                self.bits.get_or_make(word).fetch_or(mask, Ordering::Release);
            }
        }
    }

    /// Whether a word is there, or there may be one more leaf.
    fn may_take(&self, word: u64) -> bool {
        let is_there = self.bits.get(word).is_some();
        is_there || self.leaves.fetch_add(1, Ordering::Relaxed) < LEAVES
    }

    /// A snapshot joins, or needs again what it did not need. By the worker, when no write to the origin is on its way.
    pub(super) fn forget(&self) {
        self.bits.for_each(|word| word.store(0, Ordering::Release));
        self.all.store(false, Ordering::Release);
    }

    /// The last snapshot has gone. By the worker.
    pub(super) fn set_all(&self) {
        self.all.store(true, Ordering::Release);
    }
}

const _: () = assert!(LEAVES * WIDTH * 8 == 32 << 20, "as the head says");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_what_was_noted() {
        const SIZE: u64 = 1 << 24;
        /// Ranges that were noted, and one that is asked for.
        type Row = (&'static [(u64, u64)], (u64, u64), bool);
        const ROWS: &[Row] = &[
            (&[], (0, 1), false),
            (&[(0, 8)], (0, 1), true),
            (&[(0, 8)], (7, 1), true),
            (&[(0, 8)], (7, 2), false),
            (&[(0, 8)], (8, 8), false),
            (&[(8, 8)], (0, 16), false),
            (&[(0, 8), (8, 8)], (0, 16), true),
            (&[(0, 512)], (0, 512), true),
            (&[(0, 512)], (0, 513), false),
            (&[(8, 2048)], (9, 2047), true),
            (&[(8, 2048)], (8, 2049), false),
            (&[(8, 2048)], (0, 2048), false),
            (&[(504, 16)], (511, 2), true),
            (&[(504, 8), (520, 8)], (505, 20), false),
            (&[(SIZE - 8, 8)], (SIZE - 1, 1), true),
            // Where the origin has grown, near its old end and far from it.
            (&[(SIZE + 8, 8)], (SIZE + 8, 8), true),
            (&[(SIZE + 8, 8)], (SIZE + 16, 8), false),
            (&[(SIZE - 8, 16)], (SIZE - 8, 16), true),
            (&[(SIZE * 5000, 8)], (SIZE * 5000, 8), true),
            (&[(SIZE * 5000, 8)], (SIZE * 5000 + 8, 1), false),
            // Words of two leaves.
            (&[(524_280, 16)], (524_280, 16), true),
            (&[(524_280, 8)], (524_280, 16), false),
        ];
        for (noted, (at, len), expect) in ROWS {
            let free = Free::new(Sectors::new(SIZE));
            assert!(free.has(Sector::new(*at), Sectors::new(*len)), "no snapshot needs anything");
            free.forget();
            noted.iter().for_each(|(at, len)| free.note(Sector::new(*at), Sectors::new(*len)));
            assert_eq!(free.has(Sector::new(*at), Sectors::new(*len)), *expect, "{noted:?} {at}+{len}");
            free.forget();
            assert!(!free.has(Sector::new(*at), Sectors::new(*len)));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let leaf = WIDTH * 64 * GRAIN.get();
        let free = Free::new(Sectors::new(leaf * (LEAVES + 2)));
        free.forget();
        (0..LEAVES + 2).for_each(|at| free.note(Sector::new(at * leaf), GRAIN));
        for (at, expect) in [(0, true), (LEAVES - 1, true), (LEAVES, false), (LEAVES + 1, false)] {
            assert_eq!(free.has(Sector::new(at * leaf), GRAIN), expect, "leaf {at}");
        }
        let mut words = 0;
        free.bits.for_each(|_| words += 1);
        assert_eq!(words, LEAVES * WIDTH);
    }
}
