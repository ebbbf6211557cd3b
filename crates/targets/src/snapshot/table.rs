//! Which chunks have an exception: read without locks, written by the origin's worker.

use super::radix::Radix;
use std::sync::atomic::Ordering;

/// The exception of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The chunk of the COW device.
    pub(super) new: u64,
    /// Whether no read of the snapshot is under way to the origin's chunk any more: the origin may be written.
    pub(super) settled: bool,
}

/// A map from chunks of the origin. Takes 8 bytes for each chunk of those groups of a thousand with an exception.
pub(super) struct Exceptions(Radix);

/// The low bits of a packed number: its kind.
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
    /// A table that is quickest for chunks below `chunks`.
    pub(super) fn new(chunks: u64) -> Self {
        Self(Radix::new(chunks))
    }

    /// The exception of a chunk. In one total order with [`set`](Self::set) and with other `SeqCst` accesses.
    #[inline]
    pub(super) fn get(&self, chunk: u64) -> Option<Entry> {
        unpack(self.0.get(chunk)?.load(Ordering::SeqCst))
    }

    /// The run of the chunk's exception in the making, if there is one.
    pub(super) fn pending(&self, chunk: u64) -> Option<u32> {
        let word = self.0.get(chunk)?.load(Ordering::SeqCst);
        (word & PENDING != 0).then_some((word >> TAG_BITS) as u32)
    }

    /// The highest chunk of the COW device that an exception has. Looks at all of them.
    pub(super) fn highest(&self) -> u64 {
        let mut highest = 0;
        self.0.for_each(|word| {
            highest = unpack(word.load(Ordering::SeqCst)).map_or(0, |entry| entry.new).max(highest);
        });
        highest
    }

    /// Notes the run of the chunk's exception in the making. The chunk has no exception yet.
    pub(super) fn set_pending(&self, chunk: u64, run: u32) {
        let word = u64::from(run) << TAG_BITS | PENDING;
        // To others than the worker it says what was said before.
        self.0.get_or_make(chunk).store(word, Ordering::Release);
    }

    /// Says of an exception that is there that no read is on its way to the origin's chunk any more.
    pub(super) fn settle(&self, chunk: u64, new: u64) {
        // Only the worker asks for that; to others it says what was said before.
        self.0.get_or_make(chunk).store(pack(Some(Entry { new, settled: true })), Ordering::Release);
    }

    /// Changes a chunk's exception. Allocates, 160 KiB at worst for one far from all others: chunks are limited by a
    /// device, not by input.
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
            table.settle(0, 3);
            assert_eq!((table.get(0), table.pending(0)), (Some(Entry { new: 3, settled: true }), None));
            // In an origin that has grown.
            table.set(chunks * 2000, Some(Entry { new: 1, settled: true }));
            assert_eq!(table.get(chunks * 2000), Some(Entry { new: 1, settled: true }));
            assert_eq!(table.get(0), Some(Entry { new: 3, settled: true }));
        }
    }
}
