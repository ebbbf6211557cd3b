//! Blocks: how many there are, how many are free, and who refers to data blocks.

use std::ops::Range;

use udm_pdata::layout::MAX_METADATA_BLOCKS;

use super::Metadata;
use super::open::check_data_blocks;
use crate::thin::error::Error;

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

    /// Whether a change may be refused for want of metadata blocks before the next commit: one that maps a block takes a node of each
    /// level of three trees at most, and leaves the reserves.
    pub fn metadata_used_up(&self) -> bool {
        const CHANGE: u64 = 16;
        let least = self.store.nr_reserved() + CHANGE.min(self.metadata_blocks() / 10);
        self.metadata_free() == 0 || self.store.nr_free() <= least
    }

    /// Whether metadata run low: fewer free blocks, the reserve included, than a quarter of all or 1024 (`calc_metadata_threshold`,
    /// `drivers/md/dm-thin.c`, 6.12).
    pub fn metadata_low(&self) -> bool {
        self.store.nr_free() < (self.metadata_blocks() / 4).min(1024)
    }

    /// Makes the data space map count `blocks`, which the device has grown to. Cost: 4 KiB of metadata for each 16320 blocks.
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

    /// Makes the metadata space map count `blocks`, which the device has grown to; what the format cannot count is left unused.
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

    /// A free data block, which now has one reference: [`insert`](Self::insert) takes it over. `None`: no block is free that was free at
    /// the last commit; if [`data_free`](Self::data_free) is not 0, commit and ask again.
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

    /// Whether more than one reference to this data block is held (`dm_pool_block_is_shared`): by leaves of trees, so not by each of two
    /// devices that share the leaf.
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
