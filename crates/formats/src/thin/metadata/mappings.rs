//! Mappings: looking up, mapping, unmapping.

use std::ops::Range;

use udm_pdata::btree;

use super::{Device, Mapping, Metadata, Run};
use crate::thin::error::Error;
use crate::thin::values::{BlockTime, Details};

/// How many leaves one call of the tree removes at most; in between others of its kind could run.
const LEAVES: usize = 64;

/// How many leaves of one run are looked at: 8,000 blocks and more, about 0.2 ms when they are in memory.
const OF_RUN: usize = 64;

impl Metadata {
    /// Where a virtual block lies. About 0.25 µs when the nodes are in memory.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Mapping`], those beneath.
    pub async fn find(&mut self, dev: u32, block: u64) -> Result<Option<Mapping>, Error> {
        self.check()?;
        let Device { root, details, .. } = self.device(dev).await?;
        match btree::lookup(&mut self.store, root, block).await? {
            Some(value) => self.mapping(dev, &details, block, value).map(Some),
            None => Ok(None),
        }
    }

    /// Everything that the leaf around `block` says: appends its mappings to `into`, and returns the range of virtual
    /// blocks, with `block` in it, of which no others are mapped.
    ///
    /// # Errors
    /// As [`find`](Self::find); `into` is as it was then.
    pub async fn leaf(&mut self, dev: u32, block: u64, into: &mut Vec<(u64, Mapping)>) -> Result<Range<u64>, Error> {
        self.check()?;
        let Device { root, details, .. } = self.device(dev).await?;
        let range = self.read_leaf(root, block).await?;
        let before = into.len();
        for (block, value) in &self.scratch {
            match self.mapping(dev, &details, *block, *value) {
                Ok(mapping) => into.push((*block, mapping)),
                Err(error) => {
                    into.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(range)
    }

    /// The entries of the leaf around `block`, into `scratch`. The last key that there can be is never that of a block:
    /// a device has fewer sectors than 2^64.
    async fn read_leaf(&mut self, root: u64, block: u64) -> Result<Range<u64>, Error> {
        self.scratch.clear();
        let range = btree::leaf(&mut self.store, root, block, &mut self.scratch).await?;
        Ok(*range.start()..range.end().saturating_add(1))
    }

    /// The first run of mapped blocks in `from..to`, which lie in a row on the data device, too, and are alike shared
    /// or not. A long one is not followed to its end, so that others need not wait while a whole tree is read: what is
    /// mapped next may go on with it.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn mapped_range(&mut self, dev: u32, from: u64, to: u64) -> Result<Option<Run>, Error> {
        self.check()?;
        let Device { root, details, .. } = self.device(dev).await?;
        let mut run: Option<Run> = None;
        let mut at = from;
        let mut leaves = 0;
        // Where nothing is mapped the second leaf says what comes next: none is empty.
        while at < to && leaves < OF_RUN {
            let range = self.read_leaf(root, at).await?;
            leaves += 1;
            let first = self.scratch.partition_point(|(block, _)| *block < at);
            for (block, value) in &self.scratch[first..] {
                let next = run.map_or(*block, |run| run.to);
                if *block >= to || *block != next {
                    return Ok(run);
                }
                let Mapping { data, shared } = self.mapping(dev, &details, *block, *value)?;
                match &mut run {
                    None => run = Some(Run { from: *block, to: *block + 1, data, shared }),
                    Some(run) if data == run.data + (run.to - run.from) && shared == run.shared => run.to += 1,
                    Some(_) => return Ok(run),
                }
            }
            // A run goes on in the next leaf only if it reached the end of this one.
            if run.is_some_and(|run| run.to != range.end) {
                return Ok(run);
            }
            if range.end == u64::MAX {
                break;
            }
            at = range.end;
        }
        Ok(run)
    }

    /// The highest mapped block.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn highest_mapped(&mut self, dev: u32) -> Result<Option<u64>, Error> {
        self.check()?;
        let Device { root, .. } = self.device(dev).await?;
        let last = btree::lookup_le::<BlockTime>(&mut self.store, root, u64::MAX).await?;
        Ok(last.map(|(block, _)| block))
    }

    /// Maps a virtual block to a data block, whose reference it takes over; the reference to where it lay before is
    /// given back, unless it is the same block. About 1 µs when the nodes are in memory.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::NoDataBlock`], those beneath.
    pub async fn insert(&mut self, dev: u32, block: u64, data: u64) -> Result<(), Error> {
        let last = self.begin()?;
        let done = self.try_insert(dev, block, data).await;
        self.end(last, done)
    }

    async fn try_insert(&mut self, dev: u32, block: u64, data: u64) -> Result<(), Error> {
        self.check_data(&(data..data.saturating_add(1)))?;
        let Device { mut root, details, .. } = self.own(dev).await?;
        let value = BlockTime { block: data, time: self.open.time };
        let old = btree::insert(&mut self.store, &mut root, block, value).await?;
        let mapped = match old {
            None => details.mapped_blocks.saturating_add(1),
            Some(old) => {
                if old.block != data {
                    self.store.data_dec(old.block..old.block + 1).await?;
                }
                details.mapped_blocks
            }
        };
        self.keep(dev, root, mapped).await
    }

    /// Unmaps every block in `from..to` and gives their references back. Returns how many were mapped. About 5 µs for
    /// each leaf of 252 blocks; a caller with others to serve asks for a part at a time.
    ///
    /// # Errors
    /// As [`find`](Self::find), and [`Error::Details`] when the device says that fewer are mapped.
    pub async fn remove_range(&mut self, dev: u32, from: u64, to: u64) -> Result<u64, Error> {
        self.check()?;
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        // To unmap what is not mapped makes nothing dirty.
        let Device { root, .. } = self.device(dev).await?;
        match btree::lookup_ge::<BlockTime>(&mut self.store, root, from).await? {
            Some((first, _)) if first < to => {}
            _ => return Ok(0),
        }
        let last = self.begin()?;
        let done = self.try_remove_range(dev, from, to).await;
        self.end(last, done)
    }

    async fn try_remove_range(&mut self, dev: u32, from: u64, to: u64) -> Result<u64, Error> {
        let mut next = Some(from);
        let mut removed = 0;
        while let Some(from) = next {
            let done = self.remove_leaves(dev, from, to - 1, LEAVES).await?;
            removed += done.entries;
            next = done.next;
        }
        Ok(removed)
    }

    /// Unmaps what some leaves have of `from..=to`.
    pub(super) async fn remove_leaves(
        &mut self,
        dev: u32,
        from: u64,
        to: u64,
        leaves: usize,
    ) -> Result<btree::Removed, Error> {
        let Device { mut root, details, .. } = self.own(dev).await?;
        let done = btree::remove_range::<BlockTime>(&mut self.store, &mut root, from, to, leaves).await?;
        let Some(left) = details.mapped_blocks.checked_sub(done.entries) else {
            let what =
                format!("{} mapped blocks by its details, but {} were found", details.mapped_blocks, done.entries);
            return Err(Error::Details { dev, what });
        };
        self.keep(dev, root, left).await?;
        Ok(done)
    }

    fn mapping(&self, dev: u32, details: &Details, block: u64, value: BlockTime) -> Result<Mapping, Error> {
        let blocks = self.data_blocks();
        if value.block >= blocks {
            return Err(Error::Mapping { dev, block, data: value.block, blocks });
        }
        Ok(Mapping { data: value.block, shared: details.shares(value.time) })
    }
}
