//! Blocks being prepared: new ones zeroed or copied from an origin, shared ones copied (`schedule_copy` and its like,
//! `drivers/md/dm-thin.c`, 6.12).

use super::bios::Within;
use super::{AfterCommit, Event, Job, Worker};
use crate::thin::flight;
use crate::thin::mapping::{Known, Place};
use crate::thin::pool::PoolMode;
use crate::thin::volume::Volume;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_formats::thin::{Change, Error};
use udm_io::{Bio, Op, OpFlags, Status};
use udm_kcopyd::{CopyFrom, CopyJob, CopyTo};

/// A data block that will be mapped once it holds what it has to hold.
pub(super) struct Prepare {
    volume: Arc<Volume>,
    block: u64,
    /// Allocated: it has one reference, which nothing durable accounts for.
    pub(super) data: u64,
    /// Whether the block was mapped to another one before.
    breaks: bool,
    /// The bio that it is for; `None` while that fills the block itself.
    bio: Option<Bio>,
    /// The bio wrote the whole block.
    overwritten: bool,
    /// What the bio asks for is there already: zeroes.
    fulfilled: bool,
    /// The bio that fills the block wants to be durable.
    fua: bool,
    /// The reference to the block went with a transaction.
    pub(super) lost: bool,
    /// Operations that are out.
    left: usize,
    status: Status,
}

/// Whether a block could be had.
enum Allocated {
    Block(u64),
    No,
    Failed,
}

impl Worker {
    /// Maps a block that has no data yet, for a write.
    pub(super) async fn provision(&mut self, io: Within) {
        let Some((io, data)) = self.allocate_for(io).await else { return };
        let covered = self.covered_by_origin(&io.volume, io.block);
        let whole = self.writes_all(&io.bio);
        if covered.is_zero() && !self.features.zero_new_blocks {
            return self.map_at_once(io, data).await;
        }
        let is_zeroes = covered.is_zero() && io.bio.op() == Op::WriteZeroes;
        let prepare = self.prepare(&io, data, false);
        let id = self.begin(prepare, io.block);
        if whole {
            return self.overwrite(id, io.bio);
        }
        self.keep_bio(id, io.bio, is_zeroes);
        let at = self.pool.sector_of(data);
        let mut copies = Vec::new();
        if let Some(origin) = io.volume.origin.as_ref().filter(|_| !covered.is_zero()) {
            copies.push((CopyFrom::Device(origin.dev.clone(), self.start_of(io.block)), at, covered));
        }
        let rest = self.pool.block_len() - covered;
        if !rest.is_zero() && self.features.zero_new_blocks {
            copies.push((CopyFrom::Zeroes, at + covered, rest));
        }
        self.copy(id, copies);
    }

    /// Gives a block of its own to a volume that shares it, for a write.
    pub(super) async fn break_sharing(&mut self, io: Within, old: u64) {
        let Some((io, data)) = self.allocate_for(io).await else { return };
        let whole = self.writes_all(&io.bio);
        let prepare = self.prepare(&io, data, true);
        let id = self.begin(prepare, io.block);
        if whole {
            return self.overwrite(id, io.bio);
        }
        self.keep_bio(id, io.bio, false);
        let from = CopyFrom::Device(self.pool.data.clone(), self.pool.sector_of(old));
        self.copy(id, vec![(from, self.pool.sector_of(data), self.pool.block_len())]);
    }

    fn prepare(&self, io: &Within, data: u64, breaks: bool) -> Prepare {
        Prepare {
            volume: io.volume.clone(),
            block: io.block,
            data,
            breaks,
            bio: None,
            overwritten: false,
            fulfilled: false,
            fua: false,
            lost: false,
            left: 0,
            status: Status::Ok,
        }
    }

    fn begin(&mut self, prepare: Prepare, block: u64) -> u64 {
        self.cells.begin(prepare.volume.device.id, block..block + 1);
        self.add_job(Job::Prepare(prepare))
    }

    /// Whether a bio brings the data of a whole block.
    fn writes_all(&self, bio: &Bio) -> bool {
        bio.op() == Op::Write && bio.sectors() == self.pool.block_len()
    }

    fn job(&mut self, id: u64) -> Option<&mut Prepare> {
        match self.jobs.get_mut(&id) {
            Some(Job::Prepare(prepare)) => Some(prepare),
            _ => None,
        }
    }

    fn keep_bio(&mut self, id: u64, bio: Bio, fulfilled: bool) {
        if let Some(job) = self.job(id) {
            (job.bio, job.fulfilled) = (Some(bio), fulfilled);
        }
    }

    /// The bio itself fills the block. It does so before the block is mapped: a commit in between must not make durable
    /// what is not written yet.
    fn overwrite(&mut self, id: u64, mut bio: Bio) {
        let pool = self.pool.clone();
        let Some(job) = self.job(id) else { return bio.end(Status::Io) };
        job.left = 1;
        let sector = pool.sector_of(job.data);
        // What is to be durable is made so by the commit that follows, which flushes the data device.
        job.fua = bio.flags().contains(OpFlags::FUA);
        bio.set_flags(bio.flags().without(OpFlags::FUA));
        pool.watch(&mut bio, move |bio| (Event::Overwritten(id, bio), None));
        flight::detour(&mut bio, &pool, sector);
        pool.forward(bio);
    }

    fn copy(&mut self, id: u64, copies: Vec<(CopyFrom, Sector, Sectors)>) {
        let pool = self.pool.clone();
        if let Some(job) = self.job(id) {
            job.left = copies.len();
        }
        for (from, sector, sectors) in copies {
            let to = CopyTo::new(pool.data.clone(), sector);
            let is_zeroes = matches!(from, CopyFrom::Zeroes);
            let mut copy = CopyJob::new(from, sectors, vec![to]);
            if is_zeroes {
                // The block is about to be used: what lies beneath may as well keep its memory for it.
                copy.flags = OpFlags::NO_UNMAP;
            }
            copy.token = id;
            pool.copy(0, copy);
        }
    }

    /// Where nothing has to be prepared.
    async fn map_at_once(&mut self, io: Within, data: u64) {
        let Within { volume, bio, block } = io;
        match self.map_block(&volume, block, data).await {
            Ok(false) => bio.end(Status::Io),
            Ok(true) => {
                volume.device.mappings.set(block, Known::At(Place { data, shared: false }));
                self.go_on(&volume, bio, data);
            }
            Err(e) => {
                bio.end(Status::Io);
                self.metadata_failed("mapping a block", &e).await;
            }
        }
    }

    /// Maps a block to a data block that was allocated for it. False when metadata can be changed no more.
    async fn map_block(&mut self, volume: &Arc<Volume>, block: u64, data: u64) -> Result<bool, Error> {
        // Not to be durable without its mapping.
        self.holding.push(data..data + 1);
        let has_room = self.make_room(Change::One).await;
        self.holding.pop();
        if !has_room {
            return Ok(false);
        }
        let inserted = self.metadata.insert(volume.device.id, block, data).await;
        self.made_of(inserted).await?;
        self.has_changed(&volume.device);
        Ok(true)
    }

    /// Sends a bio to its block, which is mapped and maybe not committed yet.
    fn go_on(&mut self, volume: &Arc<Volume>, bio: Bio, data: u64) {
        let found = volume.found(Known::At(Place { data, shared: false }), true);
        if bio.flags().contains(OpFlags::FUA) {
            self.after_commit.push(AfterCommit::Again(volume.clone(), bio, found));
        } else {
            self.again(volume, bio, found);
        }
    }

    pub(super) async fn overwritten(&mut self, id: u64, mut bio: Bio) {
        let status = bio.status();
        bio.clear_status();
        if let Some(job) = self.job(id) {
            if job.fua {
                bio.set_flags(bio.flags().with(OpFlags::FUA));
            }
            (job.bio, job.overwritten) = (Some(bio), true);
        } else {
            bio.end(Status::Io);
        }
        self.prepared(id, status).await;
    }

    /// An operation for the block has ended; with the last the block is mapped.
    pub(super) async fn prepared(&mut self, id: u64, status: Status) {
        let Some(job) = self.job(id) else { return };
        if job.status.is_ok() {
            job.status = status;
        }
        job.left = job.left.saturating_sub(1);
        if job.left > 0 {
            return;
        }
        let Some(Job::Prepare(job)) = self.jobs.remove(&id) else { return };
        let Prepare { volume, block, data, breaks, bio, overwritten, fulfilled, status, lost, .. } = job;
        let dev = volume.device.id;
        let waiting = self.cells.end(dev, block);
        if lost || self.pool.mode() > PoolMode::OutOfDataSpace {
            // The metadata can change no more, or could not meanwhile; what was allocated went with the transaction.
            bio.into_iter().chain(waiting.into_iter().map(|(_, bio)| bio)).for_each(|bio| bio.end(Status::Io));
            return;
        }
        if !status.is_ok() {
            bio.into_iter().for_each(|bio| bio.end(status));
            self.look_again(waiting);
            return self.give_back(data).await;
        }
        if breaks {
            // A commit by itself waits for who has found what was there before.
            volume.device.mappings.replace(block, Known::Unknown);
        }
        (self.freed, self.parted) = (self.freed | breaks, self.parted | breaks);
        let mapped = self.map_block(&volume, block, data).await;
        if !matches!(mapped, Ok(true)) {
            bio.into_iter().chain(waiting.into_iter().map(|(_, bio)| bio)).for_each(|bio| bio.end(Status::Io));
            if let Err(e) = mapped {
                self.metadata_failed("mapping a block", &e).await;
            }
            return;
        }
        let known = Known::At(Place { data, shared: false });
        if breaks {
            volume.device.mappings.replace(block, known);
        } else {
            volume.device.mappings.set(block, known);
        }
        self.look_again(waiting);
        let Some(bio) = bio else { return };
        if overwritten || fulfilled {
            let fua = bio.flags().contains(OpFlags::FUA);
            self.end_durably(&volume, bio, fua);
        } else {
            self.go_on(&volume, bio, data);
        }
    }

    /// Gives back a block that was allocated and is not used after all.
    async fn give_back(&mut self, data: u64) {
        if !self.make_room(Change::References(1)).await {
            return;
        }
        let given = self.metadata.dec_data(data..data + 1).await;
        if let Err(e) = self.made_of(given).await {
            self.metadata_failed("giving a block back", &e).await;
        }
    }

    /// A data block for a write; without one, the write waits or fails.
    async fn allocate_for(&mut self, io: Within) -> Option<(Within, u64)> {
        if self.pool.mode() != PoolMode::Write {
            self.unserviceable(io.volume, io.bio);
            return None;
        }
        match self.allocate().await {
            Allocated::Block(data) => Some((io, data)),
            Allocated::No => {
                self.unserviceable(io.volume, io.bio);
                None
            }
            Allocated::Failed => {
                io.bio.end(Status::Io);
                None
            }
        }
    }

    /// `alloc_data_block`
    async fn allocate(&mut self) -> Allocated {
        self.check_low_water();
        if !self.make_room(Change::One).await {
            return Allocated::Failed;
        }
        let mut found = self.metadata.alloc_data_block().await;
        if matches!(found, Ok(None)) {
            // What was freed in the open transaction can be had after its commit.
            if !self.commit().await {
                return Allocated::Failed;
            }
            found = self.metadata.alloc_data_block().await;
        }
        match found {
            Ok(Some(data)) => {
                // What it is for is another change.
                if std::mem::take(&mut self.alone) {
                    return self.commit_holding(data).await;
                }
                Allocated::Block(data)
            }
            Ok(None) => {
                self.set_mode(PoolMode::OutOfDataSpace);
                Allocated::No
            }
            Err(e) => {
                self.metadata_failed("allocating a block", &e).await;
                Allocated::Failed
            }
        }
    }

    async fn commit_holding(&mut self, data: u64) -> Allocated {
        // Not to be durable without a mapping.
        self.holding.push(data..data + 1);
        let committed = self.commit().await;
        self.holding.pop();
        if committed && self.pool.mode() == PoolMode::Write { Allocated::Block(data) } else { Allocated::Failed }
    }
}
