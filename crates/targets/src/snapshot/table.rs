//! Which chunks have an exception: read without locks, written by who holds the origin's state.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a leaf, and leaves of a node.
const WIDTH: u64 = 1024;
const BITS: u32 = WIDTH.ilog2();

/// What is known of a chunk that has an exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The chunk of the COW device.
    pub(super) new: u64,
    /// Whether no read of the snapshot's is on its way to the origin's chunk any more: the origin may be written.
    pub(super) settled: bool,
}

/// A map from chunks of the origin. Takes 8 bytes for each chunk of those thousands in which there is an exception; nodes
/// are never freed before the table.
pub(super) struct Exceptions {
    depth: u32,
    root: Node,
}

enum Node {
    Inner(Box<[OnceLock<Node>]>),
    Leaf(Box<[AtomicU64]>),
}

impl Node {
    fn new(depth: u32) -> Self {
        if depth == 0 {
            Self::Leaf((0..WIDTH).map(|_| AtomicU64::new(0)).collect())
        } else {
            Self::Inner((0..WIDTH).map(|_| OnceLock::new()).collect())
        }
    }
}

const fn pack(entry: Option<Entry>) -> u64 {
    match entry {
        None => 0,
        Some(Entry { new, settled }) => (new + 1) << 1 | settled as u64,
    }
}

const fn unpack(word: u64) -> Option<Entry> {
    match word {
        0 => None,
        word => Some(Entry { new: (word >> 1) - 1, settled: word & 1 == 1 }),
    }
}

impl Exceptions {
    /// For chunks below `chunks`.
    pub(super) fn new(chunks: u64) -> Self {
        let mut depth = 0;
        while (chunks.max(1) - 1).checked_shr(BITS * (depth + 1)).unwrap_or(0) != 0 {
            depth += 1;
        }
        Self { depth, root: Node::new(depth) }
    }

    #[inline]
    fn slot(&self, chunk: u64, make: bool) -> Option<&AtomicU64> {
        if chunk.checked_shr(BITS * (self.depth + 1)).unwrap_or(0) != 0 {
            return None;
        }
        let (mut node, mut depth) = (&self.root, self.depth);
        loop {
            let index = (chunk >> (BITS * depth) & (WIDTH - 1)) as usize;
            match node {
                Node::Leaf(entries) => return entries.get(index),
                Node::Inner(nodes) => {
                    depth -= 1;
                    let next = nodes.get(index)?;
                    node = if make { next.get_or_init(|| Node::new(depth)) } else { next.get()? };
                }
            }
        }
    }

    /// The exception of a chunk. In one order, which all threads agree on, with [`set`](Self::set) and with other accesses
    /// that are `SeqCst`.
    #[inline]
    pub(super) fn get(&self, chunk: u64) -> Option<Entry> {
        unpack(self.slot(chunk, false)?.load(Ordering::SeqCst))
    }

    /// Changes a chunk's exception. A chunk past the end has none, and gets none.
    pub(super) fn set(&self, chunk: u64, entry: Option<Entry>) {
        if let Some(slot) = self.slot(chunk, entry.is_some()) {
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
            assert_eq!(table.get(0), None);
            // Past the end, as a table on disk may say of an origin that has shrunk.
            table.set(u64::MAX, Some(Entry { new: 1, settled: true }));
            assert_eq!(table.get(u64::MAX), None);
        }
    }
}
