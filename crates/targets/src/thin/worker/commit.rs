//! Commits, what becomes of a pool when something fails or runs out, and the times at which the worker acts by itself.

use super::{AfterCommit, COMMIT_PERIOD_NS, Job, Worker};
use crate::thin::pool::PoolMode;
use crate::thin::volume::Durability;
use std::ops::Range;
use udm_formats::thin::{Change, Error};
use udm_io::{Nanos, Status};
use udm_worker::{Memory, Operation};

fn is_out_of_metadata(error: &Error) -> bool {
    matches!(error, Error::Data(udm_pdata::Error::NoSpace(udm_pdata::Space::Metadata)))
}

impl Worker {
    /// Commits for those who wait for it, or because it is time.
    pub(super) async fn commit_if_due(&mut self) {
        let asked = !self.after_commit.is_empty();
        let can = self.metadata.is_dirty() && self.pool.mode() <= PoolMode::OutOfDataSpace;
        let late = can && self.last_commit.after(COMMIT_PERIOD_NS) <= self.now();
        // What was freed can be had after the commit.
        let short = can && self.freed && self.pool.mode() == PoolMode::OutOfDataSpace;
        if !asked && !late && !short {
            return;
        }
        let before = self.commits;
        let committed = self.commit().await;
        for one in std::mem::take(&mut self.after_commit) {
            match one {
                AfterCommit::End(bio) => bio.end(if committed { Status::Ok } else { Status::Io }),
                AfterCommit::Flush(_, bio) if self.commits > before => bio.end(Status::Ok),
                AfterCommit::Flush(volume, bio) if committed => self.flush_data(&volume, bio),
                AfterCommit::Flush(_, bio) => bio.end(Status::Io),
                AfterCommit::Again(volume, bio, found) if committed => self.again(&volume, bio, found),
                AfterCommit::Again(_, bio, _) => bio.end(Status::Io),
            }
        }
    }

    /// Makes every change durable (`commit`). False when the pool cannot, or has just failed to.
    pub(super) async fn commit(&mut self) -> bool {
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            return false;
        }
        if !self.metadata.is_dirty() && !self.freed {
            self.note_committed();
            self.check_metadata_space();
            return true;
        }
        match self.commit_and_go_on().await {
            Ok(()) => true,
            Err(e) => {
                self.metadata_failed("committing", &e).await;
                false
            }
        }
    }

    async fn commit_and_go_on(&mut self) -> Result<(), Error> {
        self.commit_now().await?;
        // Before anything is held: what is held when the pool stops would stay allocated.
        self.check_metadata_space();
        self.hold_again().await;
        self.check_data_space();
        Ok(())
    }

    /// Sees to it that there are metadata blocks for a change and for the commit after it, by a commit before if need
    /// be. False when nothing can be changed any more.
    ///
    /// Where there may be too few even then, the change is committed by itself, before anybody hears of it: see
    /// [`made`](Self::made). When it comes to nothing, nothing else does.
    pub(super) async fn make_room(&mut self, change: Change) -> bool {
        self.alone = false;
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            return false;
        }
        if !self.metadata.has_room(change) {
            if !self.commit().await {
                return false;
            }
            self.alone = !self.metadata.has_room(change);
        }
        self.pool.mode() <= PoolMode::OutOfDataSpace
    }

    /// A change has been made, for which [`make_room`](Self::make_room) was asked. The mapping cache knows nothing any
    /// more that is not so.
    pub(super) async fn made(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.alone) { self.commit_and_go_on().await } else { Ok(()) }
    }

    /// The same of a change that came to something, or to nothing.
    pub(super) async fn made_of<T>(&mut self, change: Result<T, Error>) -> Result<T, Error> {
        let done = change?;
        self.made().await?;
        Ok(done)
    }

    async fn commit_now(&mut self) -> Result<(), Error> {
        if self.freed {
            self.pool.drain().await;
            self.freed = false;
        }
        for held in self.holds() {
            self.metadata.dec_data(held).await?;
        }
        // Before any mapping to it is durable, what lies in a block has to be.
        let (status, _) = self.pool.submit(Operation::flush(&self.pool.data), Memory::None).await;
        if !status.is_ok() {
            tracing::error!("thin-pool: the data device cannot be flushed");
            return Err(udm_pdata::Error::Write(udm_pdata::IoError::Failed).into());
        }
        self.metadata.commit().await?;
        self.parted = false;
        self.commits += 1;
        self.note_committed();
        Ok(())
    }

    fn note_committed(&mut self) {
        self.last_commit = self.now();
        let changed = self.changed.drain(..).filter_map(|device| device.upgrade());
        changed.for_each(|device| device.set_durability(Durability::Committed));
    }

    /// Data blocks that have a reference which must not become durable: if the power went, nobody would give it back.
    fn holds(&self) -> Vec<Range<u64>> {
        let of_job = |job: &Job| match job {
            Job::Prepare(prepare) if prepare.lost => Vec::new(),
            Job::Prepare(prepare) => std::iter::once(prepare.data..prepare.data + 1).collect(),
            Job::Discard(discard) => discard.held.clone(),
        };
        self.jobs.values().flat_map(of_job).chain(self.holding.iter().cloned()).collect()
    }

    /// A transaction has begun: before anything is allocated, what jobs and changes under way have is held in it too.
    ///
    /// The commit before has given back as many metadata blocks as this takes, but for those by which the trees of
    /// large counts have grown. Should that be too few, the pool stops: else it would give the blocks to others while
    /// they are being filled.
    async fn hold_again(&mut self) {
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            return;
        }
        let Err(error) = self.take_holds().await else { return };
        tracing::error!("thin-pool: holding blocks failed: {error}");
        let ran_out = is_out_of_metadata(&error);
        self.abort(!ran_out).await;
        self.set_mode(if ran_out { PoolMode::OutOfMetadataSpace } else { PoolMode::ReadOnly });
    }

    async fn take_holds(&mut self) -> Result<(), Error> {
        for held in self.holds() {
            self.metadata.inc_data(held).await?;
        }
        Ok(())
    }

    /// A metadata operation has failed (`metadata_operation_failed`): what is not committed is dropped, and nothing is
    /// changed any more until somebody has checked the metadata.
    pub(super) async fn metadata_failed(&mut self, what: &str, error: &Error) {
        tracing::error!("thin-pool: {what} failed: {error}");
        if matches!(error, Error::ReadOnly) {
            return self.set_mode(PoolMode::ReadOnly);
        }
        // That metadata blocks ran out says nothing against those that are there.
        let ran_out = is_out_of_metadata(error);
        self.abort(!ran_out).await;
        if self.pool.mode() == PoolMode::Fail {
            return;
        }
        if !ran_out {
            self.set_mode(PoolMode::ReadOnly);
        } else if !self.metadata.has_room(Change::One) {
            self.set_mode(PoolMode::OutOfMetadataSpace);
        } else {
            // The pool goes on, and what was allocated in the transaction may be given out anew: nobody may be writing
            // there.
            self.pool.drain().await;
            self.hold_again().await;
        }
    }

    /// A look-up may have written changed metadata to make room for what it read, and failed: then nothing can be
    /// looked up before an abort. Those that failed changes have seen to it themselves.
    pub(super) async fn check_doubt(&mut self) {
        if self.metadata.is_in_doubt() && !self.metadata.is_failed() {
            let error = Error::from(udm_pdata::Error::Poisoned);
            self.metadata_failed("making room for metadata", &error).await;
        }
    }

    /// `abort_transaction`. What was held is so no more: see [`hold_again`](Self::hold_again).
    async fn abort(&mut self, needs_check: bool) {
        if let Err(e) = self.metadata.abort().await {
            tracing::error!("thin-pool: the transaction cannot be aborted: {e}");
            self.set_mode(PoolMode::Fail);
        } else if needs_check && let Err(e) = self.metadata.set_needs_check().await {
            tracing::error!("thin-pool: needs_check cannot be set: {e}");
            self.set_mode(PoolMode::Fail);
        }
        // What is known of mappings may be what was aborted.
        for device in self.open_devices() {
            if device.durability() == Durability::Changed {
                device.set_durability(Durability::Lost);
            }
            device.mappings.forget_all();
        }
        self.deletions.begin_again();
    }

    /// What jobs have allocated or hold is not theirs any more.
    fn lose_holds(&mut self) {
        for job in self.jobs.values_mut() {
            match job {
                Job::Prepare(prepare) => prepare.lost = true,
                Job::Discard(discard) => discard.held.clear(),
            }
        }
    }

    /// `set_pool_mode`
    pub(super) fn set_mode(&mut self, wanted: PoolMode) {
        let old = self.pool.mode();
        let mode = match wanted {
            _ if old == PoolMode::Fail => old,
            PoolMode::Write if self.metadata.needs_check() => {
                tracing::error!("thin-pool: unable to switch pool to write mode until repaired");
                if old == PoolMode::Write { PoolMode::ReadOnly } else { old }
            }
            wanted => wanted,
        };
        self.pool.set_mode(mode);
        match mode {
            PoolMode::Fail => {
                self.metadata.set_read_only(true);
                self.pool.fail_gate();
                self.end_waiting(Some(Status::Io));
                self.lose_holds();
            }
            PoolMode::ReadOnly | PoolMode::OutOfMetadataSpace => {
                self.metadata.set_read_only(true);
                self.end_waiting(Some(Status::Io));
                self.lose_holds();
            }
            PoolMode::OutOfDataSpace => {
                if old != mode {
                    self.no_space_since = Some(self.now());
                }
            }
            PoolMode::Write => {
                self.metadata.set_read_only(false);
                (self.no_space_since, self.gave_up_waiting) = (None, false);
            }
        }
        if old != mode {
            tracing::info!("thin-pool: mode changed from {old:?} to {mode:?}");
            self.pool.event();
        }
    }

    /// `check_low_water_mark`
    pub(super) fn check_low_water(&mut self) {
        if self.metadata.data_free() <= self.low_water && !self.low_water_told {
            self.low_water_told = true;
            tracing::warn!("thin-pool: reached low water mark for data device: sending event");
            self.pool.event();
        }
    }

    fn check_metadata_space(&mut self) {
        let low = self.metadata.metadata_low();
        if low && !self.metadata_low_told {
            tracing::warn!("thin-pool: reached low water mark for metadata device: sending event");
            self.pool.event();
        }
        self.metadata_low_told = low;
        if self.metadata.metadata_used_up() && self.pool.mode() < PoolMode::OutOfMetadataSpace {
            tracing::error!("thin-pool: no free metadata blocks");
            self.set_mode(PoolMode::OutOfMetadataSpace);
        }
    }

    fn check_data_space(&mut self) {
        if self.pool.mode() == PoolMode::OutOfDataSpace && self.metadata.data_free() > 0 {
            self.set_mode(PoolMode::Write);
            self.end_waiting(None);
        }
    }

    pub(super) fn no_space_deadline(&self) -> Option<Nanos> {
        let timeout = self.pool.no_space_timeout.load(std::sync::atomic::Ordering::Relaxed);
        let since = self.no_space_since.filter(|_| timeout > 0 && self.waits_for_space())?;
        Some(since.after(timeout))
    }

    /// `do_no_space_timeout`: who waits for space has waited long enough.
    pub(super) fn check_times(&mut self) {
        if self.pool.mode() == PoolMode::OutOfDataSpace && self.no_space_deadline().is_some_and(|at| at <= self.now()) {
            tracing::warn!("thin-pool: no space came in time: switching to error_if_no_space");
            self.gave_up_waiting = true;
            self.pool.event();
            self.end_waiting(Some(Status::NoSpace));
        }
    }
}
