//! What tables share: an origin, and the snapshots of it.
//!
//! # Who sees what first
//! A snapshot's read of the origin counts itself, and then looks again whether the chunk has an exception. An exception
//! is put into the table first, and then it is looked whether reads are counted. So either the read sees the exception,
//! or the exception's maker sees the read, and keeps the origin's writers waiting.

use super::flight;
use super::free::Free;
use super::state::{Part, State};
use super::table::Exceptions;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use udm_base::{Sector, Sectors};
use udm_formats::snapshot::{AreaReader, ChunkSize};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, Status};
use udm_kcopyd::{CopyJob, CopyOptions};
use udm_worker::{Copies, Service, Worker};

/// Counters of reads on their way to the origin, which chunks share.
const COUNTERS: usize = 1024;
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that nothing else of the process has.
pub(super) fn serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, SeqCst)
}

/// A snapshot, whichever target has it now.
pub(super) struct Snapshot {
    pub(super) id: u64,
    pub(super) origin: Arc<Origin>,
    pub(super) cow: Arc<dyn BlockDevice>,
    pub(super) chunk: ChunkSize,
    pub(super) persistent: bool,
    pub(super) exceptions: Exceptions,
    /// The target that bios come through.
    pub(super) owner: AtomicU64,
    /// Its size: writes to the origin past it do not matter.
    pub(super) sectors: AtomicU64,
    pub(super) valid: AtomicBool,
    pub(super) overflowed: AtomicBool,
    /// Whether writes to the origin make exceptions.
    pub(super) active: AtomicBool,
    /// It is being merged: it gets no exceptions any more.
    pub(super) merging: AtomicBool,
    pub(super) merge_failed: AtomicBool,
    /// It is invalid, and its header says so or cannot be written.
    pub(super) dropped: AtomicBool,
    /// Its users know of overflows (`PO`).
    pub(super) may_overflow: AtomicBool,
    reads: Box<[AtomicU32]>,
    /// Exceptions that wait for reads.
    pub(super) unsettled: AtomicUsize,
}

impl Snapshot {
    pub(super) fn new(
        origin: Arc<Origin>,
        cow: Arc<dyn BlockDevice>,
        chunk: ChunkSize,
        persistent: bool,
        sectors: Sectors,
    ) -> Self {
        let chunks = chunk.covering(origin.dev.sectors().max(sectors));
        Self {
            id: serial(),
            origin,
            cow,
            chunk,
            persistent,
            exceptions: Exceptions::new(chunks),
            owner: AtomicU64::new(0),
            sectors: AtomicU64::new(sectors.get()),
            valid: AtomicBool::new(true),
            overflowed: AtomicBool::new(false),
            active: AtomicBool::new(false),
            merging: AtomicBool::new(false),
            merge_failed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            may_overflow: AtomicBool::new(false),
            reads: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            unsettled: AtomicUsize::new(0),
        }
    }

    /// Where `sector` lies on the COW device, if its chunk is chunk `new` there.
    pub(super) fn place(&self, new: u64, sector: Sector) -> Sector {
        self.chunk.start(new) + self.chunk.within(sector)
    }

    fn counter(&self, chunk: u64) -> &AtomicU32 {
        &self.reads[chunk as usize % COUNTERS]
    }

    /// Counts a read that is to go to the origin. False when the chunk has an exception by now: it goes there.
    pub(super) fn track(&self, bio: &mut Bio) -> bool {
        let chunk = self.chunk.of(bio.sector());
        self.counter(chunk).fetch_add(1, SeqCst);
        if self.exceptions.get(chunk).is_some() {
            self.counter(chunk).fetch_sub(1, SeqCst);
            // Who made the exception may have seen the read that was none.
            return false;
        }
        flight::track(bio, self);
        true
    }

    /// A read is back from the origin.
    pub(super) fn untrack(&self, cx: &Cx<'_>, mut bio: Bio) -> Bio {
        let chunk = self.chunk.of(bio.sector());
        if !self.valid.load(SeqCst) {
            // The origin may have been written meanwhile.
            bio.fail(Status::Io);
        }
        self.counter(chunk).fetch_sub(1, SeqCst);
        self.settle(cx);
        bio
    }

    /// Looks whether exceptions that waited for reads need to wait no longer.
    pub(super) fn settle(&self, cx: &Cx<'_>) {
        if self.unsettled.load(SeqCst) > 0 {
            self.origin.post(cx, Event::Read(self.id));
        }
    }

    pub(super) fn is_read(&self, chunk: u64) -> bool {
        self.counter(chunk).load(SeqCst) > 0
    }

    /// Whether a write to the origin changes nothing that this snapshot still reads there.
    pub(super) fn is_past(&self, sector: Sector, sectors: Sectors) -> bool {
        if self.merging.load(SeqCst) || self.dropped.load(SeqCst) {
            return true;
        }
        if !self.valid.load(SeqCst) {
            return false;
        }
        let size = Sector::new(self.sectors.load(SeqCst));
        let end = (sector + sectors).min(size);
        if sector >= end {
            return true;
        }
        let last = self.chunk.of(end - Sectors::new(1));
        (self.chunk.of(sector)..=last).all(|chunk| self.exceptions.get(chunk).is_some_and(|e| e.settled))
    }
}

/// What an origin's worker is left.
pub(super) enum Event {
    /// A write to the origin, at which it points, that snapshots have to be asked about.
    Write(Bio),
    /// A write to a snapshot, whose chunk had no exception a moment ago.
    SnapshotWrite(u64, Bio),
    /// A write through a snapshot that is being merged. Its sector is the origin's.
    MergeWrite(u64, Bio),
    /// A discard of a whole chunk of a snapshot that has the place `new`, and whether it goes on to the origin.
    Discard { id: u64, new: u64, bio: Bio, pass: bool },
    /// A read of the origin is back, for which an exception of a snapshot may wait.
    Read(u64),
    /// A write of a whole chunk of a snapshot to its new place is back.
    Written(Part, Bio),
    /// A write to a chunk of a snapshot that is being merged is back.
    MergingWritten(u64, u64),
    /// A copy is done.
    Copied(Box<CopyJob>),
    /// The batch of a snapshot is on the device, or could not be written.
    Committed(u64, bool),
    /// An area of a snapshot that is being merged has been read.
    Loaded(u64, Option<AreaReader>),
    /// What has been merged is durable in the origin.
    Flushed(u64, Status),
    /// A control thread wants something.
    Control(Box<dyn FnOnce(&mut State) + Send>),
}

/// Of an origin's copiers, that of chunks.
pub(super) const COPIES: usize = 0;
/// That of zeroes in areas, which must not wait behind copies.
pub(super) const ZEROES: usize = 1;

/// What an origin's worker shares with bios on their way.
pub(super) struct Shared {
    pub(super) dev: Arc<dyn BlockDevice>,
    /// What writes need not ask the snapshots about.
    pub(super) free: Free,
    /// Exceptions are in the making, or a merge is under way.
    pub(super) busy: AtomicBool,
}

impl Service for Shared {
    type Event = Event;
    const NAME: &'static str = "origin";

    fn waits_for_others(&self) -> bool {
        // Exceptions wait for clients' writes of whole chunks and for reads of the origin, whoever has sent them.
        self.busy.load(SeqCst)
    }
}

impl Copies for Shared {
    fn copied(job: Box<CopyJob>) -> Event {
        Event::Copied(job)
    }
}

/// An origin, with the snapshots of it. Its worker ends with it.
pub(super) struct Origin {
    worker: Arc<Worker<Shared>>,
    /// Serialises the switching of snapshots.
    pub(super) switching: Mutex<()>,
}

impl Deref for Origin {
    type Target = Worker<Shared>;
    fn deref(&self) -> &Worker<Shared> {
        &self.worker
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.worker.stop();
    }
}

/// Every origin that a target has. In different domains nothing is shared.
static ORIGINS: Mutex<Vec<Weak<Origin>>> = Mutex::new(Vec::new());

impl Origin {
    /// The origin that `dev` is. May block briefly.
    pub(super) fn of(domain: &Domain, dev: Arc<dyn BlockDevice>) -> std::io::Result<Arc<Self>> {
        let mut origins = lock(&ORIGINS);
        origins.retain(|o| o.strong_count() > 0);
        let same = |o: &Arc<Self>| o.domain() == domain && o.dev.id() == dev.id();
        let known: Vec<Arc<Self>> = origins.iter().filter_map(Weak::upgrade).collect();
        if let Some(origin) = known.iter().find(|o| same(o)) {
            return Ok(origin.clone());
        }
        let pools = [32 << 20, 4096].map(|pool| CopyOptions { pool, ..CopyOptions::default() });
        let shared = Shared { free: Free::new(dev.sectors()), dev, busy: AtomicBool::new(false) };
        let worker = Worker::new(domain, shared, &pools)?;
        worker.start(|events| State::new(worker.clone()).run(events))?;
        let origin = Arc::new(Self { worker, switching: Mutex::new(()) });
        origins.push(Arc::downgrade(&origin));
        drop(origins);
        // Outside the lock: an origin's end takes it.
        drop(known);
        Ok(origin)
    }

    pub(super) fn is(&self, id: DeviceId) -> bool {
        self.dev.id() == id
    }

    /// Has the worker do something, and waits for it. Blocks. Not from inside a channel.
    pub(super) fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut State) -> T + Send + 'static) -> T {
        let answer = self.call(|reply| Event::Control(Box::new(move |state| reply.give(work(state)))));
        answer.expect("the worker of an origin that is there has not ended")
    }

    /// A write to the origin, whose sector is there already: gives it back if it may go, else keeps it until it may.
    #[inline]
    pub(super) fn write(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        if self.free.has(bio.sector(), bio.sectors()) {
            return Some(bio);
        }
        flight::point(&mut bio, &*self.dev);
        self.post(cx, Event::Write(bio));
        None
    }
}
