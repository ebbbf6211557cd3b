//! The worker of a pool: everything that changes metadata, one thing after the other.
//!
//! It is one future for as long as the pool is open. It awaits metadata I/O, and drains before a commit. Copies,
//! zeroing and discards are *jobs*: many of them are out while the worker goes on.

mod bios;
mod commit;
mod control;
mod deletion;
mod discard;
mod prepare;

pub(super) use control::{OUT_OF_METADATA_SPACE, open};

use super::event::{Done, Event};
use super::features::Features;
use super::pool::{Pool, PoolMode};
use super::volume::{Durability, Found, ThinDevice, Volume};
use deletion::Deletions;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use udm_formats::thin::Metadata;
use udm_io::{Bio, Nanos, Status};
use udm_worker::{Cells, Events, Reply};

/// A commit is made this long after the one before while there is something to commit (`COMMIT_PERIOD`).
const COMMIT_PERIOD_NS: u64 = 1_000_000_000;

/// A bio that waits, and its volume.
type Waiting = (Arc<Volume>, Bio);

/// A bio that waits for a commit.
enum AfterCommit {
    /// It is done, and is durable after the commit.
    End(Bio),
    /// It is a flush: of the data device too, which a commit flushes.
    Flush(Arc<Volume>, Bio),
    /// It goes to its block, whose mapping is durable after the commit.
    Again(Arc<Volume>, Bio, Found),
}

/// Work under way while the worker does other things.
enum Job {
    Prepare(prepare::Prepare),
    Discard(discard::Discard),
}

/// The worker's private state.
pub(super) struct Worker {
    pool: Arc<Pool>,
    metadata: Metadata,
    features: Features,
    low_water: u64,
    low_water_told: bool,
    metadata_low_told: bool,
    events: Events<Event>,
    cells: Cells<u32, Waiting>,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    devices: HashMap<u32, Weak<ThinDevice>>,
    /// Those of them that have changed since the last commit: the others cost nothing at a commit.
    changed: Vec<Weak<ThinDevice>>,
    deletions: Deletions,
    after_commit: Vec<AfterCommit>,
    /// Writes that wait for space.
    retry: Vec<Waiting>,
    /// Bios that wait for the pool to be resumed.
    parked: Vec<Waiting>,
    suspending: Vec<control::Suspending>,
    /// Data blocks with a reference that nothing durable may account for, besides those of jobs.
    holding: Vec<std::ops::Range<u64>>,
    /// The present change is committed by itself.
    alone: bool,
    /// Blocks were unmapped since the last commit, and bios in flight may still use them.
    freed: bool,
    /// Since the last commit a device has given up data blocks that another one has too. After a power cut it would
    /// have them again: so until the next commit no block counts as belonging to one device alone.
    parted: bool,
    last_commit: Nanos,
    /// How many commits there were that had something to commit.
    commits: u64,
    /// When writes began to wait for space.
    no_space_since: Option<Nanos>,
    /// The wait for space has timed out: writes fail, whatever the table says.
    gave_up_waiting: bool,
    closing: Option<Reply<Done>>,
}

impl Worker {
    pub(super) fn new(pool: Arc<Pool>, events: Events<Event>, metadata: Metadata) -> Self {
        let last_commit = pool.now();
        Self {
            pool,
            metadata,
            features: Features::default(),
            low_water: 0,
            low_water_told: false,
            metadata_low_told: false,
            events,
            cells: Cells::default(),
            jobs: HashMap::new(),
            next_job: 0,
            devices: HashMap::new(),
            changed: Vec::new(),
            deletions: Deletions::new(),
            after_commit: Vec::new(),
            retry: Vec::new(),
            parked: Vec::new(),
            suspending: Vec::new(),
            holding: Vec::new(),
            alone: false,
            freed: false,
            parted: false,
            last_commit,
            commits: 0,
            no_space_since: None,
            gave_up_waiting: false,
            closing: None,
        }
    }

    /// Serves the pool until it is closed.
    pub(super) async fn run(mut self) {
        loop {
            while let Some(event) = self.events.next() {
                self.handle(event).await;
            }
            self.check_times();
            self.commit_if_due().await;
            if self.pool.is_patient() && self.step_deletion().await {
                // Sends what earlier events have put into the outbox, without waiting for the whole turn.
                self.events.give_way().await;
            }
            self.check_suspended();
            if self.close_if_asked().await {
                return;
            }
            let deadline = self.next_deadline();
            self.events.idle(deadline).await;
        }
    }

    async fn handle(&mut self, event: Event) {
        match event {
            Event::Bio(volume, bio) => self.bio(volume, bio).await,
            Event::Overwritten(job, bio) => self.overwritten(job, bio).await,
            Event::Done(job, status) => self.job_done(job, status).await,
            Event::Command(command) => self.command(command).await,
            Event::Closed(id) => self.closed(id),
        }
        self.check_doubt().await;
    }

    async fn job_done(&mut self, id: u64, status: Status) {
        match self.jobs.get(&id) {
            Some(Job::Prepare(_)) => self.prepared(id, status).await,
            Some(Job::Discard(_)) => self.passed_down(id).await,
            None => {}
        }
    }

    fn add_job(&mut self, job: Job) -> u64 {
        self.next_job += 1;
        self.jobs.insert(self.next_job, job);
        self.next_job
    }

    fn now(&self) -> Nanos {
        self.pool.now()
    }

    /// The open devices.
    fn open_devices(&self) -> impl Iterator<Item = Arc<ThinDevice>> {
        self.devices.values().filter_map(Weak::upgrade)
    }

    /// Notes that a device differs from the last commit. A change that was committed by itself is durable already.
    fn has_changed(&mut self, device: &Arc<ThinDevice>) {
        if device.durability() == Durability::Committed && self.metadata.is_dirty() {
            device.set_durability(Durability::Changed);
            self.changed.push(Arc::downgrade(device));
        }
    }

    /// Handles bios again, in their order and before everything else.
    fn look_again(&mut self, bios: Vec<Waiting>) {
        self.events.put_first(bios.into_iter().map(|(volume, bio)| Event::Bio(volume, bio)));
    }

    fn closed(&mut self, id: u32) {
        if self.devices.get(&id).is_some_and(|device| device.strong_count() == 0) {
            self.devices.remove(&id);
            self.metadata.close_device(id);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        // A pool that can no longer commit does not try again and again.
        let commits = self.metadata.is_dirty() && self.pool.mode() <= PoolMode::OutOfDataSpace;
        let commit = commits.then(|| self.last_commit.after(COMMIT_PERIOD_NS));
        let deletion = self.is_deleting().then(|| self.now());
        [commit, self.no_space_deadline(), deletion].into_iter().flatten().min()
    }
}
