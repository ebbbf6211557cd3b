//! The worker of a pool: everything that changes metadata, one thing after the other.
//!
//! It is one future for as long as the pool is open. What it awaits is metadata I/O, and drains before a commit;
//! copies, zeroing and discards are *jobs*, of which many are out while it goes on with other things.

mod bios;
mod commit;
mod control;
mod deletion;
mod discard;
mod prepare;

pub(super) use control::{Command, MetadataOf, OUT_OF_METADATA_SPACE, PoolStatus, open};

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

/// A bio that waits, and where it came from.
type Waiting = (Arc<Volume>, Bio);

/// What the worker is left.
pub(super) enum Event {
    /// A bio that its volume could not map. Its sector counts from the volume's start.
    Bio(Arc<Volume>, Bio),
    /// A client's bio has come back from the block that is being prepared with it.
    Overwritten(u64, Bio),
    /// An operation for a job has ended.
    Done(u64, Status),
    /// A control thread wants something.
    Command(Command),
    /// Nobody has the device open any more.
    Closed(u32),
}

/// What has to wait for a commit.
enum AfterCommit {
    /// It is done, and then durable.
    End(Bio),
    /// It is a flush: of the data device too, which a commit flushes.
    Flush(Arc<Volume>, Bio),
    /// It goes to its block, which durably lies where it was found then.
    Again(Arc<Volume>, Bio, Found),
}

/// What goes on while the worker does other things.
enum Job {
    Prepare(prepare::Prepare),
    Discard(discard::Discard),
}

/// The worker's own state.
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
    /// Those of them that have changed since the last commit: it costs nothing for the others.
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
    /// The change that is being made is committed by itself.
    alone: bool,
    /// Something was unmapped since the last commit, and may be in use by what is in flight.
    freed: bool,
    /// Since the last commit a device has given up data blocks that another has too. If the power goes they are its
    /// again: so until the next commit no block is one device's alone.
    parted: bool,
    last_commit: Nanos,
    /// How many commits there were that had something to commit.
    commits: u64,
    /// When writes began to wait for space.
    no_space_since: Option<Nanos>,
    /// Waiting for space was given up, whatever the table says.
    gave_up_waiting: bool,
    closing: Option<Reply<control::Done>>,
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
                // What the events before have put into the outbox does not wait for the whole of it.
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

    /// The devices that somebody has open.
    fn open_devices(&self) -> impl Iterator<Item = Arc<ThinDevice>> {
        self.devices.values().filter_map(Weak::upgrade)
    }

    /// Notes that a device differs from what was committed; but a change that was committed by itself is durable
    /// already.
    fn has_changed(&mut self, device: &Arc<ThinDevice>) {
        if device.durability() == Durability::Committed && self.metadata.is_dirty() {
            device.set_durability(Durability::Changed);
            self.changed.push(Arc::downgrade(device));
        }
    }

    /// Has bios looked at again, in their order and before everything else.
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
        // One that can commit no more does not look again and again whether it can.
        let commits = self.metadata.is_dirty() && self.pool.mode() <= PoolMode::OutOfDataSpace;
        let commit = commits.then(|| self.last_commit.after(COMMIT_PERIOD_NS));
        let deletion = self.is_deleting().then(|| self.now());
        [commit, self.no_space_deadline(), deletion].into_iter().flatten().min()
    }
}
