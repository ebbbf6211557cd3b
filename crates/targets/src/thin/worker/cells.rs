//! Blocks that something is being done with: what comes for them meanwhile waits, in order.

use crate::thin::volume::Volume;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use udm_io::Bio;

/// A bio that waits, and where it came from.
pub(super) type Waiting = (Arc<Volume>, Bio);

#[derive(Default)]
struct Cell {
    end: u64,
    waiting: Vec<Waiting>,
}

/// The cells of all devices. They do not overlap.
#[derive(Default)]
pub(super) struct Cells(BTreeMap<(u32, u64), Cell>);

impl Cells {
    fn over(&mut self, dev: u32, blocks: &Range<u64>) -> Option<&mut Cell> {
        let last = self.0.range_mut((dev, 0)..(dev, blocks.end)).next_back();
        last.map(|(_, cell)| cell).filter(|cell| cell.end > blocks.start)
    }

    /// Lets a bio wait when something is being done with any of its blocks; gives it back otherwise.
    pub(super) fn wait(&mut self, dev: u32, blocks: Range<u64>, bio: Waiting) -> Option<Waiting> {
        if self.0.is_empty() {
            return Some(bio);
        }
        match self.over(dev, &blocks) {
            Some(cell) => {
                cell.waiting.push(bio);
                None
            }
            None => Some(bio),
        }
    }

    /// Begins to do something with blocks that are free of cells.
    pub(super) fn begin(&mut self, dev: u32, blocks: Range<u64>) {
        debug_assert!(self.over(dev, &blocks).is_none(), "cells do not overlap");
        self.0.insert((dev, blocks.start), Cell { end: blocks.end, waiting: Vec::new() });
    }

    /// Ends what began at `start`. Returns who has waited.
    pub(super) fn end(&mut self, dev: u32, start: u64) -> Vec<Waiting> {
        self.0.remove(&(dev, start)).map(|cell| cell.waiting).unwrap_or_default()
    }
}
