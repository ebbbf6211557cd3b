//! Discards: whole blocks are unmapped; what nobody refers to any more is discarded beneath, too
//! (`process_discard_bio` and what it calls, `drivers/md/dm-thin.c`, 6.12).
//!
//! # Differences
//! The kernel waits for I/O to the blocks before each discard. Here the commit waits, and no data block is used anew
//! before it: so a read in flight sees what it would have seen, and a discard waits for nobody.

use super::{AfterCommit, Event, Job, Worker};
use crate::thin::pool::PoolMode;
use crate::thin::volume::{Durability, Volume};
use std::ops::Range;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_formats::thin::{Change, Error};
use udm_io::{Bio, Op, OpFlags, Status};
use udm_worker::Operation;

/// A discard that is being passed down.
pub(super) struct Discard {
    volume: Arc<Volume>,
    bio: Bio,
    /// Its blocks, which a cell covers.
    start: u64,
    /// Data blocks that are held until the device beneath is done with them.
    pub(super) held: Vec<Range<u64>>,
    /// Discards that are out beneath.
    left: usize,
}

impl Worker {
    pub(super) async fn discard(&mut self, volume: Arc<Volume>, bio: Bio) {
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            // As the kernel: nothing is unmapped, and nobody minds.
            return bio.end(Status::Ok);
        }
        let size = self.pool.block.get();
        let start = bio.sector().get().div_ceil(size);
        let end = bio.end_sector().get() / size;
        if start >= end {
            return bio.end(Status::Ok);
        }
        let dev = volume.device.id;
        let Some((volume, bio)) = self.cells.wait(dev, start..end, (volume, bio)) else { return };
        match self.unmap_range(&volume, start..end).await {
            Ok(held) => self.pass_down(volume, bio, start..end, held).await,
            Err(e) => {
                bio.end(Status::Io);
                self.metadata_failed("unmapping blocks", &e).await;
            }
        }
    }

    /// Unmaps blocks. Returns the data blocks that nobody refers to any more, with a reference to each that holds it.
    async fn unmap_range(&mut self, volume: &Arc<Volume>, blocks: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
        let (dev, mut from) = (volume.device.id, blocks.start);
        let mut runs: Vec<Range<u64>> = Vec::new();
        while let Some(run) = self.metadata.mapped_range(dev, from, blocks.end).await? {
            runs.push(run.data..run.data + (run.to - run.from));
            from = run.to;
        }
        if runs.is_empty() {
            return Ok(runs);
        }
        if self.parted && self.passes_down() && !self.commit().await {
            // What only this device has now may be another's after a restart. As for a pool that has failed before.
            return Ok(Vec::new());
        }
        if !self.make_room(Change::Unmap(blocks.end - blocks.start)).await {
            return Ok(Vec::new());
        }
        // From here on the blocks' bios come to the worker.
        volume.device.mappings.clear(blocks.clone());
        self.freed = true;
        let removed = self.metadata.remove_range(dev, blocks.start, blocks.end).await;
        self.made_of(removed).await?;
        self.has_changed(&volume.device);
        let mut held = Vec::new();
        let blocks = runs.iter().map(|run| run.end - run.start).sum::<u64>();
        // For all at once: what is held here no commit knows of yet. When there is little room they are not discarded
        // beneath.
        if self.passes_down()
            && self.make_room(Change::References(2 * blocks)).await
            && !std::mem::take(&mut self.alone)
        {
            for run in runs {
                self.metadata.inc_data(run.clone()).await?;
                self.hold_unshared(run, &mut held).await?;
            }
        }
        Ok(held)
    }

    /// Of a run of data blocks, each with one reference more than others have to it: keeps those that nobody else has.
    async fn hold_unshared(&mut self, run: Range<u64>, held: &mut Vec<Range<u64>>) -> Result<(), Error> {
        for data in run {
            if self.metadata.is_shared(data).await? {
                self.parted = true;
                self.metadata.dec_data(data..data + 1).await?;
                continue;
            }
            match held.last_mut() {
                Some(last) if last.end == data => last.end += 1,
                _ => held.push(data..data + 1),
            }
        }
        Ok(())
    }

    /// Whether the data device is told. One that cannot discard a whole block is not
    /// (`disable_passdown_if_not_supported`).
    fn passes_down(&self) -> bool {
        self.features.passdown && self.pool.data.limits().max_discard >= self.pool.block_len()
    }

    async fn pass_down(&mut self, volume: Arc<Volume>, bio: Bio, blocks: Range<u64>, held: Vec<Range<u64>>) {
        if held.is_empty() {
            return self.end_discard(&volume, bio);
        }
        self.cells.begin(volume.device.id, blocks.clone());
        let most = self.pool.data.limits().max_discard.get() / self.pool.block.get();
        let pieces: Vec<(Sector, Sectors)> = held.iter().flat_map(|run| self.pieces(run.clone(), most)).collect();
        let left = pieces.len();
        let id = self.add_job(Job::Discard(Discard { volume, bio, start: blocks.start, held, left }));
        for range in pieces {
            self.pool.submit_for(Operation::new(&self.pool.data, Op::Discard, range), id, Event::Done);
        }
    }

    /// A run of data blocks, in discards of at most `most` blocks.
    fn pieces(&self, run: Range<u64>, most: u64) -> Vec<(Sector, Sectors)> {
        let mut out = Vec::new();
        let mut at = run.start;
        while at < run.end {
            let blocks = (run.end - at).min(most);
            out.push((self.pool.sector_of(at), Sectors::new(blocks * self.pool.block.get())));
            at += blocks;
        }
        out
    }

    /// One discard beneath has ended. However it went: the blocks are unmapped.
    pub(super) async fn passed_down(&mut self, id: u64) {
        let Some(Job::Discard(job)) = self.jobs.get_mut(&id) else { return };
        job.left -= 1;
        if job.left > 0 {
            return;
        }
        let Some(Job::Discard(job)) = self.jobs.remove(&id) else { return };
        let Discard { volume, bio, start, held, .. } = job;
        let waiting = self.cells.end(volume.device.id, start);
        self.look_again(waiting);
        self.freed |= !held.is_empty();
        let blocks = held.iter().map(|run| run.end - run.start).sum();
        // Until they are given back.
        let others = self.holding.len();
        self.holding.extend(held.iter().cloned());
        let has_room = self.make_room(Change::References(blocks)).await;
        self.holding.truncate(others);
        if has_room && let Err(e) = self.give_back_all(held).await {
            bio.end(Status::Io);
            return self.metadata_failed("giving discarded blocks back", &e).await;
        }
        self.end_discard(&volume, bio);
    }

    async fn give_back_all(&mut self, held: Vec<Range<u64>>) -> Result<(), Error> {
        for run in held {
            self.metadata.dec_data(run).await?;
        }
        self.made().await
    }

    fn end_discard(&mut self, volume: &Arc<Volume>, bio: Bio) {
        if bio.flags().contains(OpFlags::FUA) && volume.device.durability() == Durability::Changed {
            return self.after_commit.push(AfterCommit::End(bio));
        }
        bio.end(Status::Ok);
    }
}
