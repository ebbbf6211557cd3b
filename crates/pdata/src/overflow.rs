//! Counts of three and more, which do not fit a bitmap's two bits: what the open transaction knows and has changed of
//! the tree that holds them. Changes are kept here and written to the tree all at once, in order, when the transaction
//! is committed: a tree that is changed for each count would change its own counts each time.

use crate::cache::NumberMap;

#[derive(Clone, Copy)]
struct Big {
    count: u32,
    dirty: bool,
}

/// See the module.
pub(crate) struct Overflow {
    /// The root of the tree.
    pub(crate) root: u64,
    /// Leaves of the tree, or more.
    pub(crate) leaves: u64,
    known: NumberMap<Big>,
    dirty: usize,
}

impl Overflow {
    /// Of an empty tree; of another, it is to be looked how large it is.
    pub(crate) fn new(root: u64) -> Self {
        Self { root, leaves: 1, known: NumberMap::default(), dirty: 0 }
    }

    /// The count of `block`, if it is known.
    pub(crate) fn get(&self, block: u64) -> Option<u32> {
        self.known.get(&block).map(|big| big.count)
    }

    /// The tree says that `block` has `count`.
    pub(crate) fn learn(&mut self, block: u64, count: u32) {
        self.known.entry(block).or_insert(Big { count, dirty: false });
    }

    /// `block` has `count` from now on; the tree is told later, also when it is too small for it.
    pub(crate) fn set(&mut self, block: u64, count: u32) {
        let before = self.known.insert(block, Big { count, dirty: true });
        self.dirty += usize::from(before.is_none_or(|big| !big.dirty));
    }

    /// How many counts are in memory.
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    /// How many counts the tree has to be told.
    pub(crate) fn remembered(&self) -> usize {
        self.dirty
    }

    /// What the tree has to be told, lowest block first.
    pub(crate) fn changes(&self) -> Vec<(u64, u32)> {
        let mut changes: Vec<_> =
            self.known.iter().filter(|(_, big)| big.dirty).map(|(block, big)| (*block, big.count)).collect();
        changes.sort_unstable();
        changes
    }

    /// The tree has been told about `block`.
    pub(crate) fn told(&mut self, block: u64) {
        if let Some(big) = self.known.get_mut(&block).filter(|big| big.dirty) {
            big.dirty = false;
            self.dirty -= 1;
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    /// The tree knows everything.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.dirty = 0;
    }
}
