//! What tables share: an origin, and the snapshots of it.
//!
//! # Locks
//! All that changes hangs on one lock of the origin, held for bookkeeping only: what is to be sent, ended or told is noted in
//! a [`Todo`] and done when the lock is free again. Reads and writes of chunks that have their exceptions take no lock.
//!
//! # Who sees what first
//! A snapshot's read of the origin counts itself, and then looks again whether the chunk has an exception. An exception is
//! put into the table first, and then it is looked whether reads are counted. So either the read sees the exception, or the
//! exception's maker sees the read, and keeps the origin's writers waiting.

use super::flight;
use super::free::Free;
use super::line::Line;
use super::state::{Outgoing, Part, State, Todo};
use super::table::Exceptions;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_core::MappedDevice;
use udm_formats::snapshot::ChunkSize;
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, InternalIoOwner, InternalWaiter, MAX_CHANNELS, Nanos, Status};
use udm_kcopyd::{Copied, CopyJob, CopyStats};
use udm_kcopyd::{Work, WorkItem};

/// Counters of reads on their way to the origin, which chunks share.
const COUNTERS: usize = 1024;
/// How often the workqueue looks while something is out.
const ATTENTION_NS: u64 = 10_000_000;
/// How long it goes on looking afterwards.
const LINGER_NS: u64 = 500_000_000;

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
            self.origin.with_state(cx, |state, todo| state.settle(&self.origin, self.id, todo));
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

/// What comes back by way of [`flight::watch`].
pub(super) enum Landed {
    /// A write of a whole chunk of a snapshot, to its new place.
    Full(Part),
    /// A write to a chunk of a snapshot that is being merged.
    Merging(u64, u64),
}

/// What a channel is about to do, and whether it is at it: what comes of it then is done next, not within.
#[derive(Default)]
#[repr(align(128))]
struct Desk(Mutex<(bool, Todo)>);

/// An origin, with the snapshots of it.
pub(super) struct Origin {
    this: Weak<Origin>,
    pub(super) domain: Domain,
    pub(super) dev: Arc<dyn BlockDevice>,
    pub(super) copies: Line,
    /// Of zeroes in areas, which must not wait behind copies.
    zeroes: Line,
    state: Mutex<State>,
    /// What writes need not ask the snapshots about.
    pub(super) free: Free,
    desks: Box<[Desk]>,
    item: OnceLock<WorkItem>,
    /// Serialises the switching of snapshots.
    pub(super) switching: Mutex<()>,
    last_busy: AtomicU64,
}

/// Every origin that a target has. In different domains nothing is shared.
static ORIGINS: Mutex<Vec<Weak<Origin>>> = Mutex::new(Vec::new());

impl Origin {
    /// The origin that `dev` is. May block briefly.
    pub(super) fn of(domain: &Domain, dev: Arc<dyn BlockDevice>) -> std::io::Result<Arc<Self>> {
        let mut origins = lock(&ORIGINS);
        origins.retain(|o| o.strong_count() > 0);
        let same = |o: &Arc<Self>| o.domain == *domain && o.dev.id() == dev.id();
        let known: Vec<Arc<Self>> = origins.iter().filter_map(Weak::upgrade).collect();
        if let Some(origin) = known.iter().find(|o| same(o)) {
            return Ok(origin.clone());
        }
        let copies = Line::new(domain, 32 << 20)?;
        let zeroes = Line::new(domain, 4096)?;
        let origin = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            domain: domain.clone(),
            free: Free::new(dev.sectors()),
            dev,
            copies,
            zeroes,
            state: Mutex::new(State::default()),
            desks: (0..MAX_CHANNELS).map(|_| Desk::default()).collect(),
            item: OnceLock::new(),
            switching: Mutex::new(()),
            last_busy: AtomicU64::new(0),
        });
        let work: Weak<dyn Work> = origin.this.clone();
        let _ = origin.item.set(WorkItem::new(domain, work)?);
        origins.push(Arc::downgrade(&origin));
        drop(origins);
        // Outside the lock: an origin's end takes it.
        drop(known);
        Ok(origin)
    }

    pub(super) fn is(&self, id: DeviceId) -> bool {
        self.dev.id() == id
    }

    pub(super) fn arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("who calls holds it")
    }

    /// Has the workqueue look at it.
    pub(super) fn kick(&self) {
        if let Some(item) = self.item.get() {
            item.kick();
        }
    }

    /// Has the workqueue go on with it at once.
    pub(super) fn kick_now(&self) {
        if let Some(item) = self.item.get() {
            item.kick_now();
        }
    }

    /// Looks at the state without doing anything.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut lock(&self.state))
    }

    /// Changes the state, and does what follows from it.
    pub(super) fn with_state<T>(&self, cx: &Cx<'_>, change: impl FnOnce(&mut State, &mut Todo) -> T) -> T {
        let mut todo = Todo::default();
        let mut state = lock(&self.state);
        let out = change(&mut state, &mut todo);
        let busy = state.is_busy();
        drop(state);
        if busy {
            self.kick();
        }
        self.carry_out(cx, todo);
        out
    }

    /// As [`with_state`](Self::with_state) from a control path, which has no channel: the workqueue does what follows.
    pub(super) fn with_state_outside<T>(&self, change: impl FnOnce(&mut State, &mut Todo) -> T) -> T {
        let mut todo = Todo::default();
        let mut state = lock(&self.state);
        let out = change(&mut state, &mut todo);
        let events = std::mem::take(&mut todo.events);
        state.later.append(todo);
        drop(state);
        raise(events);
        self.kick_now();
        out
    }

    /// Without the lock. Devices that answer at once lead back here: then it is left to the one further up the stack.
    fn carry_out(&self, cx: &Cx<'_>, todo: Todo) {
        if todo.is_empty() {
            return;
        }
        let desk = &self.desks[cx.id()].0;
        let mut next = {
            let mut desk = lock(desk);
            desk.1.append(todo);
            if std::mem::replace(&mut desk.0, true) {
                return;
            }
            std::mem::take(&mut desk.1)
        };
        loop {
            self.do_all(cx, next);
            let mut desk = lock(desk);
            if desk.1.is_empty() {
                desk.0 = false;
                return;
            }
            next = std::mem::take(&mut desk.1);
        }
    }

    fn do_all(&self, cx: &Cx<'_>, todo: Todo) {
        let Todo { bios, ends, ios, copies, zeroes, events } = todo;
        bios.into_iter().for_each(|bio| cx.forward(bio));
        for io in ios {
            self.send(cx, io);
        }
        if !copies.is_empty() || !zeroes.is_empty() {
            let me = self.arc();
            self.copies.ask(cx, copies, &me);
            self.zeroes.ask(cx, zeroes, &me);
        }
        ends.into_iter().for_each(|(bio, status)| bio.end(status));
        raise(events);
    }

    fn send(&self, cx: &Cx<'_>, io: Outgoing) {
        if let Err(io) = cx.submit_internal_io(io, self.arc()) {
            let level = Cx::internal_level(&*io.dev);
            lock(&self.state).later.ios.push(io);
            if !cx.when_internal(level, self.arc()) {
                self.kick_now();
            }
        }
    }

    /// What had to wait is tried again, and whatever can go on goes on.
    fn go_on(&self, cx: &Cx<'_>) {
        self.with_state(cx, |state, todo| {
            todo.append(std::mem::take(&mut state.later));
            state.go_on(self, todo);
        });
    }

    /// A write to the origin, whose sector is there already: gives it back if it may go, else keeps it until it may.
    #[inline]
    pub(super) fn write(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        if self.free.has(bio.sector(), bio.sectors()) {
            return Some(bio);
        }
        self.ask(cx, bio)
    }

    /// Asks the snapshots whether a write may go.
    #[cold]
    fn ask(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        self.with_state(cx, |state, todo| {
            if state.free_up(self, bio.sector(), bio.sectors()) {
                return Some(bio);
            }
            flight::point(&mut bio, &*self.dev);
            state.origin_write(self, bio, todo);
            None
        })
    }

    /// What comes back by way of [`flight::watch`].
    pub(super) fn landed(&self, cx: &Cx<'_>, bio: Bio, landed: Landed) -> Option<Bio> {
        match landed {
            Landed::Full(part) => {
                self.with_state(cx, |state, todo| state.full_written(self, part, bio, todo));
                None
            }
            Landed::Merging(snapshot, chunk) => {
                self.with_state(cx, |state, todo| state.merging_written(self, snapshot, chunk, todo));
                Some(bio)
            }
        }
    }

    /// What the copier did.
    pub(super) fn copy_stats(&self) -> CopyStats {
        self.copies.stats()
    }
}

fn raise(events: Vec<Weak<MappedDevice>>) {
    for md in events.iter().filter_map(Weak::upgrade) {
        md.event();
    }
}

impl Copied for Origin {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        self.with_state(cx, |state, todo| state.copied(&self, &job, todo));
        self.copies.go_on(cx, &self);
        self.zeroes.go_on(cx, &self);
    }
}

impl InternalIoOwner<Option<AlignedBuf>> for Origin {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Outgoing, status: Status) {
        self.with_state(cx, |state, todo| state.internal_io_done(&self, &io, status, todo));
    }
}

impl InternalWaiter for Origin {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        self.go_on(cx);
    }
}

impl Work for Origin {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.go_on(cx);
        let now = cx.now();
        if lock(&self.state).is_busy() {
            self.last_busy.store(now.0, SeqCst);
            return Some(now.after(ATTENTION_NS));
        }
        let idle = now.since(Nanos(self.last_busy.load(SeqCst)));
        (idle < LINGER_NS).then(|| now.after(ATTENTION_NS))
    }

    fn waits_for_others(&self) -> bool {
        // Exceptions wait for clients' writes of whole chunks and for reads of the origin, whoever has sent them.
        lock(&self.state).is_busy()
    }
}

/// By chunk.
pub(super) type ByChunk<T> = HashMap<u64, T>;
