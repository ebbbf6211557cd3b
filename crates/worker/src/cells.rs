//! Blocks that something is being done with: what comes for them meanwhile waits, in order (the kernel's bio prison).

use std::collections::BTreeMap;
use std::ops::Range;

struct Cell<W> {
    end: u64,
    waiting: Vec<W>,
}

/// The cells of several devices, which are told apart by a key. They do not overlap.
pub struct Cells<K, W>(BTreeMap<(K, u64), Cell<W>>);

impl<K: Ord + Copy, W> Default for Cells<K, W> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy, W> Cells<K, W> {
    fn over(&mut self, dev: K, blocks: &Range<u64>) -> Option<&mut Cell<W>> {
        let last = self.0.range_mut((dev, 0)..(dev, blocks.end)).next_back();
        last.map(|(_, cell)| cell).filter(|cell| cell.end > blocks.start)
    }

    /// Lets `waiting` wait when something is being done with any of its blocks; gives it back otherwise.
    pub fn wait(&mut self, dev: K, blocks: Range<u64>, waiting: W) -> Option<W> {
        if self.0.is_empty() {
            return Some(waiting);
        }
        match self.over(dev, &blocks) {
            Some(cell) => {
                cell.waiting.push(waiting);
                None
            }
            None => Some(waiting),
        }
    }

    /// Begins to do something with blocks that are free of cells.
    pub fn begin(&mut self, dev: K, blocks: Range<u64>) {
        debug_assert!(self.over(dev, &blocks).is_none(), "cells do not overlap");
        self.0.insert((dev, blocks.start), Cell { end: blocks.end, waiting: Vec::new() });
    }

    /// Ends what began at `start`. Returns what has waited.
    pub fn end(&mut self, dev: K, start: u64) -> Vec<W> {
        self.0.remove(&(dev, start)).map(|cell| cell.waiting).unwrap_or_default()
    }
}
