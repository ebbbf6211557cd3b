//! What becomes of a bio that its volume could not map (`process_cell` and what it calls, `drivers/md/dm-thin.c`,
//! 6.12).

use super::{AfterCommit, Event, Worker};
use crate::thin::flight;
use crate::thin::mapping::{Known, Place};
use crate::thin::pool::{Gate, PoolMode};
use crate::thin::volume::{Durability, Found, ThinDevice, Volume};
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_formats::thin::{Change, Mapping};
use udm_io::{Bio, Op, OpFlags, Status};

/// A bio of one block, and what is known of it.
pub(super) struct Within {
    pub(super) volume: Arc<Volume>,
    pub(super) bio: Bio,
    pub(super) block: u64,
}

impl Within {
    pub(super) fn dev(&self) -> u32 {
        self.volume.device.id
    }

    pub(super) fn is_fua(&self) -> bool {
        self.bio.flags().contains(OpFlags::FUA)
    }
}

impl Worker {
    pub(super) async fn bio(&mut self, volume: Arc<Volume>, bio: Bio) {
        if volume.requeue.load(std::sync::atomic::Ordering::Acquire) {
            return bio.end(Status::Requeue);
        }
        if self.pool.gate() == Gate::Suspended {
            return self.parked.push((volume, bio));
        }
        if self.pool.mode() == PoolMode::Fail {
            return bio.end(Status::Io);
        }
        match bio.op() {
            Op::Flush => self.flush(&volume, bio),
            Op::Discard => self.discard(volume, bio).await,
            Op::Read | Op::Write | Op::WriteZeroes => {
                let block = self.pool.block.split(bio.sector().get()).0;
                let dev = volume.device.id;
                let Some((volume, bio)) = self.cells.wait(dev, block..block + 1, (volume, bio)) else { return };
                self.within(Within { volume, bio, block }).await;
            }
        }
    }

    fn flush(&mut self, volume: &Arc<Volume>, bio: Bio) {
        match volume.device.durability() {
            Durability::Committed => self.flush_data(volume, bio),
            Durability::Changed => self.after_commit.push(AfterCommit::Flush(volume.clone(), bio)),
            Durability::Lost => bio.end(Status::Io),
        }
    }

    /// Sends a flush on to the data device.
    pub(super) fn flush_data(&mut self, volume: &Arc<Volume>, mut bio: Bio) {
        flight::point(&mut bio, &*volume.pool_device);
        self.pool.forward(bio);
    }

    /// Ends a bio that is done, after a commit if it has to be durable and something of its device is not.
    pub(super) fn end_durably(&mut self, volume: &Arc<Volume>, bio: Bio, durable: bool) {
        match volume.device.durability() {
            _ if !durable => bio.end(Status::Ok),
            Durability::Committed => bio.end(Status::Ok),
            Durability::Changed => self.after_commit.push(AfterCommit::End(bio)),
            Durability::Lost => bio.end(Status::Io),
        }
    }

    /// Sends a bio back to its volume with what it came for.
    pub(super) fn again(&mut self, volume: &Arc<Volume>, bio: Bio, found: Found) {
        self.pool.resubmit(volume.again(bio, found));
    }

    async fn within(&mut self, io: Within) {
        let known = io.volume.device.mappings.lookup(io.block);
        // One leaf tells of many blocks. For a write that is going to change one of them the one is enough.
        if known == Known::Unknown
            && io.bio.op() == Op::Read
            && let Err(e) = self.fill(io.volume.device.clone(), io.block).await
        {
            tracing::error!("thin device {}: {e}", io.dev());
            return io.bio.end(Status::Io);
        }
        // What the cache knows it has from here; but a snapshot that came to nothing left it with blocks that it takes
        // for shared.
        let found = match known {
            Known::At(Place { data, shared: false }) => Ok(Some(Mapping { data, shared: false })),
            Known::Unmapped => Ok(None),
            Known::At(Place { shared: true, .. }) | Known::Unknown => self.metadata.find(io.dev(), io.block).await,
        };
        match found {
            Ok(Some(mapping)) => self.mapped(io, mapping).await,
            Ok(None) => self.unmapped(io).await,
            Err(e) => {
                tracing::error!("thin device {}: {e}", io.dev());
                io.bio.end(Status::Io);
            }
        }
    }

    /// Tells the mapping cache all that the leaf around a block says.
    async fn fill(&mut self, device: Arc<ThinDevice>, block: u64) -> Result<(), udm_formats::thin::Error> {
        let mut mapped = Vec::new();
        let range = self.metadata.leaf(device.id, block, &mut mapped).await?;
        let place = |m: Mapping| Place { data: m.data, shared: m.shared };
        let mapped: Vec<(u64, Place)> = mapped.into_iter().map(|(block, m)| (block, place(m))).collect();
        device.mappings.fill(block, range, &mapped);
        Ok(())
    }

    async fn mapped(&mut self, io: Within, mapping: Mapping) {
        let known = Known::At(Place { data: mapping.data, shared: mapping.shared });
        if io.bio.op() == Op::Read {
            io.volume.device.mappings.set(io.block, known);
            let found = io.volume.found(known, false);
            return self.again(&io.volume, io.bio, found);
        }
        if self.is_zeroes_over_all(&io) && self.pool.mode() <= PoolMode::OutOfDataSpace {
            self.parted |= mapping.shared;
            return self.unmap(io).await;
        }
        if mapping.shared {
            return self.break_sharing(io, mapping.data).await;
        }
        io.volume.device.mappings.set(io.block, known);
        let found = io.volume.found(known, true);
        match io.volume.device.durability() {
            Durability::Lost if io.is_fua() => io.bio.end(Status::Io),
            Durability::Changed if io.is_fua() => {
                self.after_commit.push(AfterCommit::Again(io.volume, io.bio, found));
            }
            _ => self.again(&io.volume, io.bio, found),
        }
    }

    async fn unmapped(&mut self, io: Within) {
        match io.bio.op() {
            Op::Read => {
                io.volume.device.mappings.set(io.block, Known::Unmapped);
                let found = io.volume.found(Known::Unmapped, false);
                return self.again(&io.volume, io.bio, found);
            }
            Op::Write if self.can_skip(&io) => {
                if self.pool.mode() > PoolMode::OutOfDataSpace {
                    return io.bio.end(Status::Io);
                }
                io.volume.skipped(io.bio.sectors().bytes());
                let fua = io.is_fua();
                return self.end_durably(&io.volume, io.bio, fua);
            }
            Op::WriteZeroes if self.is_nothing_to_do(&io) => {
                if self.pool.mode() > PoolMode::OutOfDataSpace {
                    return io.bio.end(Status::Io);
                }
                let fua = io.is_fua();
                return self.end_durably(&io.volume, io.bio, fua);
            }
            _ => {}
        }
        self.provision(io).await;
    }

    /// Whether what lies from `from` on in an unmapped block reads as zeroes: not where an external origin shows
    /// through.
    fn shows_zeroes(&self, volume: &Volume, from: Sector) -> bool {
        volume.origin.as_ref().is_none_or(|origin| from >= origin.end())
    }

    /// Whether a write to an unmapped block may be forgotten.
    fn can_skip(&self, io: &Within) -> bool {
        self.features.skips() && self.shows_zeroes(&io.volume, io.bio.sector()) && io.bio.is_zero()
    }

    /// Whether zeroes to an unmapped block may be forgotten. Where new blocks are not zeroed they may not: the block
    /// could show something else once it is provisioned.
    fn is_nothing_to_do(&self, io: &Within) -> bool {
        let stays = io.bio.flags().contains(OpFlags::NO_UNMAP);
        !stays && self.features.zero_new_blocks && self.shows_zeroes(&io.volume, io.bio.sector())
    }

    /// Whether a bio makes a whole mapped block zeroes, and it may be unmapped for that.
    fn is_zeroes_over_all(&self, io: &Within) -> bool {
        if io.bio.sectors() != self.pool.block_len()
            || !self.features.zero_new_blocks
            || !self.shows_zeroes(&io.volume, io.bio.sector())
        {
            return false;
        }
        match io.bio.op() {
            Op::WriteZeroes => !io.bio.flags().contains(OpFlags::NO_UNMAP),
            Op::Write => self.features.unmaps() && io.bio.is_zero(),
            _ => false,
        }
    }

    /// Makes a block zeroes by unmapping it. Nothing is passed down: until the commit the old data may be needed again.
    async fn unmap(&mut self, io: Within) {
        if !self.make_room(Change::One).await {
            return io.bio.end(Status::Io);
        }
        io.volume.device.mappings.replace(io.block, Known::Unknown);
        self.freed = true;
        let removed = self.metadata.remove_range(io.dev(), io.block, io.block + 1).await;
        if let Err(e) = self.made_of(removed).await {
            io.bio.end(Status::Io);
            return self.metadata_failed("unmapping a block", &e).await;
        }
        self.has_changed(&io.volume.device);
        io.volume.device.mappings.set(io.block, Known::Unmapped);
        let fua = io.is_fua();
        self.end_durably(&io.volume, io.bio, fua);
    }

    /// A write for which no block can be had waits or fails (`handle_unserviceable_bio`).
    pub(super) fn unserviceable(&mut self, volume: Arc<Volume>, bio: Bio) {
        match self.pool.mode() {
            PoolMode::OutOfDataSpace if self.waits_for_space() => self.retry.push((volume, bio)),
            PoolMode::OutOfDataSpace => bio.end(Status::NoSpace),
            _ => bio.end(Status::Io),
        }
    }

    pub(super) fn waits_for_space(&self) -> bool {
        !self.features.error_if_no_space && !self.gave_up_waiting
    }

    /// Has everything that waits for space tried again, or fails it.
    pub(super) fn end_waiting(&mut self, status: Option<Status>) {
        let waiting = std::mem::take(&mut self.retry);
        match status {
            Some(status) => waiting.into_iter().for_each(|(_, bio)| bio.end(status)),
            None => self.events.put_last(waiting.into_iter().map(|(volume, bio)| Event::Bio(volume, bio))),
        }
    }

    /// Where a block begins on its volume.
    pub(super) fn start_of(&self, block: u64) -> Sector {
        Sector::new(block * self.pool.block.get())
    }

    /// How much of a block an external origin shows through.
    pub(super) fn covered_by_origin(&self, volume: &Volume, block: u64) -> Sectors {
        let start = self.start_of(block);
        let end = volume.origin.as_ref().and_then(|origin| origin.end().checked_since(start));
        end.unwrap_or(Sectors::ZERO).min(self.pool.block_len())
    }
}
