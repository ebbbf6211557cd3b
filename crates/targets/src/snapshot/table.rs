//! Which chunks have an exception: read without locks, written by the origin's worker.

use super::radix::Radix;
use std::sync::atomic::Ordering;

/// What is known of a chunk that has an exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The chunk of the COW device.
    pub(super) new: u64,
    /// Whether no read of the snapshot's is on its way to the origin's chunk any more: the origin may be written.
    pub(super) settled: bool,
}

/// A map from chunks of the origin. Takes 8 bytes for each chunk of those thousands in which there is an exception.
pub(super) struct Exceptions(Radix);

/// Below a packed number: what it is the number of.
const TAG_BITS: u32 = 2;
const SETTLED: u64 = 1;
const PENDING: u64 = 2;

const fn pack(entry: Option<Entry>) -> u64 {
    match entry {
        None => 0,
        Some(Entry { new, settled }) => (new + 1) << TAG_BITS | settled as u64,
    }
}

const fn unpack(word: u64) -> Option<Entry> {
    match word {
        0 => None,
        word if word & PENDING != 0 => None,
        word => Some(Entry { new: (word >> TAG_BITS) - 1, settled: word & SETTLED != 0 }),
    }
}

impl Exceptions {
    /// Quickest for chunks below `chunks`.
    pub(super) fn new(chunks: u64) -> Self {
        Self(Radix::new(chunks))
    }

    /// The exception of a chunk. In one order, which all threads agree on, with [`set`](Self::set) and with other
    /// accesses that are `SeqCst`.
    #[inline]
    pub(super) fn get(&self, chunk: u64) -> Option<Entry> {
        unpack(self.0.get(chunk)?.load(Ordering::SeqCst))
    }

    /// The run that is to bring the chunk's exception, if there is one.
    pub(super) fn pending(&self, chunk: u64) -> Option<usize> {
        let word = self.0.get(chunk)?.load(Ordering::SeqCst);
        (word & PENDING != 0).then_some((word >> TAG_BITS) as usize)
    }

    /// The highest chunk of the COW device that an exception has. Looks at all.
    pub(super) fn highest(&self) -> u64 {
        let mut highest = 0;
        self.0.for_each(|word| {
            highest = unpack(word.load(Ordering::SeqCst)).map_or(0, |entry| entry.new).max(highest);
        });
        highest
    }

    /// Notes which run is to bring the chunk's exception. Until then it has none.
    pub(super) fn set_pending(&self, chunk: u64, run: usize) {
        let word = (run as u64) << TAG_BITS | PENDING;
        self.0.get_or_make(chunk).store(word, Ordering::SeqCst);
    }

    /// Changes a chunk's exception. Allocates, 160 KiB at worst for one far from all others: chunks are those of a
    /// device, not of a list that somebody wrote.
    pub(super) fn set(&self, chunk: u64, entry: Option<Entry>) {
        let slot = if entry.is_some() { Some(self.0.get_or_make(chunk)) } else { self.0.get(chunk) };
        if let Some(slot) = slot {
            slot.store(pack(entry), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_near_and_far_are_kept_apart() {
        for chunks in [1, 1000, 1024, 1025, 1 << 20, (1 << 20) + 1, 1 << 52] {
            let table = Exceptions::new(chunks);
            let picks = [0, 1, 1023, 1024, 5000, chunks / 2, chunks - 1];
            let picks = picks.iter().filter(|chunk| **chunk < chunks);
            for &chunk in picks.clone() {
                let entry = Some(Entry { new: chunk + 7, settled: chunk % 2 == 0 });
                assert_eq!(table.get(chunk).filter(|e| e.new != chunk + 7), None);
                table.set(chunk, entry);
            }
            for &chunk in picks.clone() {
                assert_eq!(table.get(chunk), Some(Entry { new: chunk + 7, settled: chunk % 2 == 0 }));
            }
            table.set(0, None);
            assert_eq!((table.get(0), table.pending(0)), (None, None));
            for run in [0, 1, 77] {
                table.set_pending(0, run);
                assert_eq!((table.get(0), table.pending(0)), (None, Some(run)));
            }
            table.set(0, Some(Entry { new: 3, settled: false }));
            assert_eq!((table.get(0), table.pending(0)), (Some(Entry { new: 3, settled: false }), None));
            // Of an origin that has grown.
            table.set(chunks * 2000, Some(Entry { new: 1, settled: true }));
            assert_eq!(table.get(chunks * 2000), Some(Entry { new: 1, settled: true }));
            assert_eq!(table.get(0), Some(Entry { new: 3, settled: false }));
        }
    }
}
