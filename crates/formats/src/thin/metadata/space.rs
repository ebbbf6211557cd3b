//! Blocks: how many there are, how many are free, and who refers to data blocks.

use std::ops::Range;

use udm_pdata::Needs;
use udm_pdata::layout::{ENTRIES_PER_BITMAP, MAX_METADATA_BLOCKS};

use super::Metadata;
use super::open::check_data_blocks;
use crate::thin::error::Error;

/// Entries that a node has at least.
const ENTRIES: u64 = 84;
/// And at most.
const MOST: u64 = 252;
/// Leaves that a step of a deletion removes.
const STEP: u64 = super::deletion::LEAVES as u64;

/// Something that is to be done, as far as it matters how much room it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A device is made, or one of its blocks mapped or unmapped; a data block allocated or given back.
    One,
    /// So many neighbouring blocks of a device are unmapped.
    Unmap(u64),
    /// A device is deleted, or a [`Deletion`](super::Deletion) makes a step.
    Delete,
    /// Data blocks in a row get or lose references.
    References(u64),
    /// So many data blocks more.
    Grow(u64),
}

impl Change {
    /// Of metadata of so many blocks.
    fn needs(self, blocks: u64) -> Needs {
        // No tree is higher: with the fewest entries that nodes have it takes so many levels to refer to all blocks.
        let (mut levels, mut reach) = (2, ENTRIES);
        while reach < blocks {
            (levels, reach) = (levels + 1, reach.saturating_mul(ENTRIES));
        }
        // A way down the device's tree, the tree of devices, and that of details, each node with a neighbour that is
        // split off; where it is shared, with all that the nodes refer to.
        let (nodes, metadata) = (5 * levels + 4, 3 * (levels - 1) * MOST);
        let one = Needs { nodes, data: MOST + 2, metadata };
        let leaves = |leaves: u64, entries: u64| Needs {
            nodes: nodes + leaves,
            data: entries + 3 * MOST,
            metadata: metadata + leaves,
        };
        match self {
            Self::One => one,
            Self::Unmap(blocks) => leaves(3 * (blocks / ENTRIES + 2), blocks),
            Self::Delete => {
                // With a way down both upper trees to the id that the rest may get.
                let Needs { nodes, data, metadata } = leaves(STEP, STEP * MOST);
                Needs { nodes: nodes + 4 * levels, data, metadata }
            }
            Self::References(blocks) => Needs { nodes: 0, data: blocks, metadata: 0 },
            Self::Grow(blocks) => {
                Needs { nodes: 2 * blocks.div_ceil(ENTRIES_PER_BITMAP) + nodes, data: 0, metadata: 0 }
            }
        }
    }
}

impl Metadata {
    /// Data blocks in all.
    pub fn data_blocks(&self) -> u64 {
        self.store.data_nr_blocks()
    }

    /// Data blocks that nobody refers to. Those freed since the last commit are counted, but only allocated after it.
    pub fn data_free(&self) -> u64 {
        self.store.data_nr_free()
    }

    /// Metadata blocks in all.
    pub fn metadata_blocks(&self) -> u64 {
        self.store.nr_blocks()
    }

    /// Free metadata blocks less the reserve for commits (a tenth of all, 4096 at most), as the kernel reports them
    /// (`dm_pool_get_free_metadata_block_count`).
    pub fn metadata_free(&self) -> u64 {
        let reserve = (self.metadata_blocks() / 10).min(4096);
        self.store.nr_free().saturating_sub(reserve)
    }

    /// Whether a change can be made for which there is room, and committed: see [`Change`]. Where there is none,
    /// commit, and ask again. If there is none then, the change may still be possible. Commit directly after it: if one
    /// of them ends with [`NoSpace`](udm_pdata::Error::NoSpace), an abort loses nothing but the change.
    pub fn has_room(&self, change: Change) -> bool {
        self.store.has_room(&change.needs(self.metadata_blocks()))
    }

    /// Whether metadata have run out, as the kernel says it: nothing but the reserve for commits is left.
    pub fn metadata_used_up(&self) -> bool {
        const CHANGE: u64 = 16;
        let least = self.store.nr_reserved() + CHANGE.min(self.metadata_blocks() / 10);
        self.metadata_free() == 0 || self.store.nr_free() <= least
    }

    /// Whether metadata run low: fewer free blocks, the reserve included, than a quarter of all or 1024
    /// (`calc_metadata_threshold`, `drivers/md/dm-thin.c`, 6.12).
    pub fn metadata_low(&self) -> bool {
        self.store.nr_free() < (self.metadata_blocks() / 4).min(1024)
    }

    /// Makes the data space map count `blocks`, which the device has grown to. Cost: 4 KiB of metadata for each 16320
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Shrink`], [`Error::TooLarge`], those beneath.
    pub async fn resize_data(&mut self, blocks: u64) -> Result<(), Error> {
        let from = self.data_blocks();
        if blocks == from {
            return self.check();
        }
        let last = self.begin()?;
        if blocks < from {
            return self.end(last, Err(Error::Shrink { what: "data", from, to: blocks }));
        }
        if let Err(error) = check_data_blocks(blocks) {
            return self.end(last, Err(error));
        }
        self.grown = true;
        let done = self.store.data_extend(blocks).await;
        self.end(last, done.map_err(Error::from))
    }

    /// Makes the metadata space map count `blocks`, which the device has grown to; what the format cannot count is left
    /// unused.
    ///
    /// # Errors
    /// [`Error::Shrink`], those beneath.
    pub async fn resize_metadata(&mut self, blocks: u64) -> Result<(), Error> {
        let (from, to) = (self.metadata_blocks(), blocks.min(MAX_METADATA_BLOCKS));
        if to == from {
            return self.check();
        }
        let last = self.begin()?;
        if to < from {
            return self.end(last, Err(Error::Shrink { what: "metadata", from, to }));
        }
        self.grown = true;
        let done = self.store.extend(to).await;
        self.end(last, done.map_err(Error::from))
    }

    /// A free data block, which now has one reference: [`insert`](Self::insert) takes it over. `None`: no block is free
    /// that was free at the last commit; if [`data_free`](Self::data_free) is not 0, commit and ask again.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn alloc_data_block(&mut self) -> Result<Option<u64>, Error> {
        let last = self.begin()?;
        let done = self.store.data_alloc().await;
        self.end(last, done.map_err(Error::from))
    }

    /// Takes one more reference to each of these data blocks.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath.
    pub async fn inc_data(&mut self, blocks: Range<u64>) -> Result<(), Error> {
        let last = self.begin()?;
        let done = match self.check_data(&blocks) {
            Ok(()) => self.store.data_inc(blocks).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        self.end(last, done)
    }

    /// Gives one reference to each of these data blocks back.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath (a count that is zero already).
    pub async fn dec_data(&mut self, blocks: Range<u64>) -> Result<(), Error> {
        let last = self.begin()?;
        let done = match self.check_data(&blocks) {
            Ok(()) => self.store.data_dec(blocks).await.map_err(Error::from),
            Err(error) => Err(error),
        };
        self.end(last, done)
    }

    /// Whether more than one reference to this data block is held (`dm_pool_block_is_shared`): by leaves of trees, so
    /// not by each of two devices that share the leaf.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath.
    pub async fn is_shared(&mut self, block: u64) -> Result<bool, Error> {
        Ok(self.data_references(block).await? > 1)
    }

    /// How many references to this data block are held.
    ///
    /// # Errors
    /// As [`is_shared`](Self::is_shared).
    pub async fn data_references(&mut self, block: u64) -> Result<u32, Error> {
        self.check()?;
        self.check_data(&(block..block.saturating_add(1)))?;
        Ok(self.store.data_ref_count(block).await?)
    }

    pub(super) fn check_data(&self, range: &Range<u64>) -> Result<(), Error> {
        let blocks = self.data_blocks();
        if range.end > blocks && !range.is_empty() {
            return Err(Error::NoDataBlock { block: range.start.max(blocks), blocks });
        }
        Ok(())
    }
}
