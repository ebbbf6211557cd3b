//! Leaves as they are made: read from their piece, changed, and written to one that fits.

use super::arena::{DENSE, FAN, Words};
use super::{entry, slot};
use std::sync::atomic::{AtomicU64, Ordering};

/// A leaf while it is made.
pub(super) struct Image {
    entries: [u64; FAN],
    pub(super) unmapped: bool,
}

impl Image {
    pub(super) const fn new(unmapped: bool) -> Self {
        Self { entries: [0; FAN], unmapped }
    }

    pub(super) fn read(words: &Words, slot: u64) -> Self {
        let mut image = Self::new(slot & slot::UNMAPPED != 0);
        if slot::class(slot) != 0 {
            for word in words.of(slot::unit(slot), slot::class(slot)) {
                let entry = word.load(Ordering::Relaxed);
                if entry != 0 {
                    image.entries[entry::index(entry)] = entry;
                }
            }
        }
        image
    }

    pub(super) const fn put(&mut self, entry: u64) {
        self.entries[entry::index(entry)] = entry;
    }

    /// Has the more frequent of unmapped and unknown said by the leaf.
    pub(super) fn settle(&mut self) {
        let count = |state: u64| self.entries.iter().filter(|&&e| e != 0 && e & entry::STATE == state).count();
        let silent = self.entries.iter().filter(|&&e| e == 0).count();
        let (unmapped, unknown) = (count(entry::UNMAPPED), count(entry::UNKNOWN));
        let (said, other) =
            if self.unmapped { (entry::UNMAPPED, entry::UNKNOWN) } else { (entry::UNKNOWN, entry::UNMAPPED) };
        let (silent, others) = if self.unmapped { (silent + unmapped, unknown) } else { (silent + unknown, unmapped) };
        let flip = others > silent;
        for (index, e) in self.entries.iter_mut().enumerate() {
            let state = if *e == 0 { said } else { *e & entry::STATE };
            if state == said {
                *e = if flip { said | entry::at(index) } else { 0 };
            } else if state == other && flip {
                *e = 0;
            }
        }
        self.unmapped ^= flip;
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.iter().filter(|&&e| e != 0).count()
    }

    pub(super) fn write(&self, piece: &[AtomicU64], class: usize) {
        for (index, &entry) in self.entries.iter().enumerate().filter(|(_, e)| **e != 0) {
            let at = if class == DENSE { Some(index) } else { probe(piece, index).0 };
            piece[at.expect("the class was chosen to fit")].store(entry, Ordering::Release);
        }
    }
}

/// A block's word in a piece that is searched from a hash of the index, or where it could be put, and what is there.
pub(super) fn probe(piece: &[AtomicU64], index: usize) -> (Option<usize>, u64) {
    let start = (((index as u32).wrapping_mul(0x9e37_79b1) as u64 * piece.len() as u64) >> 32) as usize;
    for at in (start..piece.len()).chain(0..start) {
        let found = piece[at].load(Ordering::Acquire);
        if found == 0 || entry::index(found) == index {
            return (Some(at), found);
        }
    }
    (None, 0)
}
