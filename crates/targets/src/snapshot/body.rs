//! The changing state of a snapshot: its store, and its exceptions in the making.

use super::commit::Commit;
use super::merge::Merging;
use super::shared::{COPIES, Snapshot};
use super::table::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors, Slots};
use udm_core::MappedDevice;
use udm_formats::snapshot::{Exception, Full, Store, Transient, Usage};
use udm_io::Bio;

/// A run ends at a multiple of this on the origin. So the runs of all snapshots end at the same places, and the first
/// chunks of a long write need not wait for the last ones.
const RUN: Sectors = Sectors::in_bytes(1 << 20);

/// The store of a snapshot.
pub(super) enum CowStore {
    Persistent(Store),
    Transient(Transient),
}

impl CowStore {
    fn allocate(&mut self) -> Result<u64, Full> {
        match self {
            Self::Persistent(store) => store.allocate(),
            Self::Transient(store) => store.allocate(),
        }
    }

    /// The distance between the chunk that was allocated last and the next one.
    fn gap(&self) -> Sectors {
        match self {
            Self::Persistent(store) => store.area_behind().unwrap_or(Sectors::ZERO),
            Self::Transient(_) => Sectors::ZERO,
        }
    }

    fn grow(&mut self, device: Sectors) {
        match self {
            Self::Persistent(store) => store.grow(device),
            Self::Transient(store) => store.grow(device),
        }
    }

    fn usage(&self) -> Usage {
        match self {
            Self::Persistent(store) => store.usage(),
            Self::Transient(store) => store.usage(),
        }
    }
}

/// Exceptions in the making that one copy fills: their chunks are neighbours on the origin and on the COW device.
#[derive(Default)]
pub(super) struct Run {
    /// The first chunk.
    pub(super) chunk: u64,
    /// The first chunk's place on the COW device.
    pub(super) new: u64,
    pub(super) count: u64,
    /// The gap between its places and those of the next run: an area of metadata, or nothing.
    pub(super) gap: Sectors,
    /// Its data has been copied.
    pub(super) copied: bool,
    /// Writes to the snapshot's chunks that wait, in order.
    pub(super) bios: Vec<Bio>,
    /// The write that filled a whole chunk, done.
    pub(super) full: Option<Bio>,
    /// The waits of writers to the origin's chunks.
    pub(super) holds: Vec<u32>,
}

impl Run {
    pub(super) fn chunks(&self) -> Range<u64> {
        self.chunk..self.chunk + self.count
    }

    /// The place of one of its chunks.
    pub(super) fn place(&self, chunk: u64) -> u64 {
        self.new + (chunk - self.chunk)
    }
}

/// Whether the header says that a snapshot is invalid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    No,
    /// The header is to say so.
    Wanted,
    /// The header says so, or could not be written.
    Done,
}

/// The result of [`Body::wait_for`].
#[derive(Default)]
pub(super) struct Waits {
    /// How many runs are waited for.
    pub(super) waits: usize,
    /// The runs that have to be copied.
    pub(super) begun: Vec<u32>,
    /// There is no room for more.
    pub(super) full: bool,
}

fn percent(usage: Usage) -> u64 {
    usage.allocated.get().saturating_mul(100) / usage.total.get().max(1)
}

/// A snapshot, as far as it changes.
pub(super) struct Body {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) cow_store: CowStore,
    /// The table of exceptions says which run a chunk belongs to.
    pub(super) pending: Slots<Run>,
    /// Runs of a persistent store that are in no batch yet, in the order of their places.
    order: VecDeque<u32>,
    /// How many of them from the first on have been copied, and how many chunks these are.
    ready: usize,
    ready_chunks: u64,
    /// Chunks of copies and whole writes that are out.
    pub(super) copies: u64,
    pub(super) commit: Option<Commit>,
    pub(super) dropped: Dropped,
    /// The waits for the header to say that the snapshot is invalid.
    pub(super) drop_holds: Vec<u32>,
    /// Runs that are committed, and wait for reads of the origin's chunks.
    pub(super) unsettled: Vec<Run>,
    pub(super) merging: Merging,
    /// The device of the target that owns it.
    pub(super) md: Weak<MappedDevice>,
    /// Percentages of use at which there is an event, and how many of them have been passed.
    levels: Vec<u64>,
    passed: usize,
    /// Exceptions of the list whose chunks lie past the end of the origin and of the snapshot, by chunk. Both may grow.
    beyond: BTreeMap<u64, u64>,
}

impl Body {
    /// The state for a store. `exceptions` are committed.
    pub(super) fn new(snapshot: Arc<Snapshot>, cow_store: CowStore, exceptions: &[Exception]) -> Self {
        let mut body = Self {
            snapshot,
            cow_store,
            pending: Slots::default(),
            order: VecDeque::new(),
            ready: 0,
            ready_chunks: 0,
            copies: 0,
            commit: None,
            dropped: Dropped::No,
            drop_holds: Vec::new(),
            unsettled: Vec::new(),
            merging: Merging::default(),
            md: Weak::new(),
            levels: Vec::new(),
            passed: 0,
            beyond: exceptions.iter().map(|e| (e.old, e.new)).collect(),
        };
        body.reach(Sector::new(body.snapshot.sectors.load(SeqCst)));
        body.set_levels(vec![80, 95]);
        body
    }

    /// The snapshot, or the origin, has grown to `end`.
    pub(super) fn reach(&mut self, end: Sector) {
        let it = self.snapshot.clone();
        let end = end.max(it.origin.dev.sectors().from_start());
        let beyond = self.beyond.split_off(&it.chunk.covering(end - Sector::ZERO));
        for (old, new) in std::mem::replace(&mut self.beyond, beyond) {
            it.exceptions.set(old, Some(Entry { new, settled: true }));
        }
    }

    /// Removes an exception that is merged.
    pub(super) fn forget(&mut self, old: u64) {
        self.beyond.remove(&old);
        self.snapshot.exceptions.set(old, None);
    }

    /// The merge is over: the snapshot gets exceptions again, if it is valid.
    pub(super) fn stop_merging(&mut self) {
        if !self.snapshot.valid.load(SeqCst) {
            return;
        }
        let highest = self.beyond.values().copied().max().unwrap_or(0).max(self.snapshot.exceptions.highest());
        if let CowStore::Persistent(store) = &mut self.cow_store {
            store.stop_merging(highest);
        }
    }

    /// How full the COW device is, at its present size.
    pub(super) fn usage(&mut self) -> Usage {
        self.grow();
        self.cow_store.usage()
    }

    /// Sets the percentages of use at which there is an event, lowest first.
    pub(super) fn set_levels(&mut self, levels: Vec<u64>) {
        self.levels = levels;
        self.passed = self.count_passed();
    }

    fn count_passed(&self) -> usize {
        let percent = percent(self.cow_store.usage());
        self.levels.iter().filter(|level| percent >= **level).count()
    }

    /// Checks whether the COW device has grown. May ask the system.
    fn grow(&mut self) -> bool {
        let (before, now) = (self.cow_store.usage().total, self.snapshot.cow.sectors());
        if now <= before {
            return false;
        }
        self.cow_store.grow(now);
        self.passed = self.passed.min(self.count_passed());
        true
    }

    /// Counts an event of the device that owns it.
    pub(super) fn event(&self) {
        self.md.upgrade().into_iter().for_each(|md| md.event());
    }

    /// Whether an operation is out or something waits.
    pub(super) fn is_busy(&self) -> bool {
        let dropping = self.dropped == Dropped::Wanted;
        self.copies > 0
            || self.commit.is_some()
            || !self.pending.is_empty()
            || dropping
            || self.merging.is_running()
            || !self.unsettled.is_empty()
    }

    fn allocate(&mut self) -> Result<u64, Full> {
        let new = match self.cow_store.allocate() {
            Err(Full) if self.grow() => self.cow_store.allocate()?,
            given => given?,
        };
        let is_passed =
            |body: &Self| body.levels.get(body.passed).is_some_and(|level| percent(body.cow_store.usage()) >= *level);
        // The device's size is asked only when it matters.
        while is_passed(self) && (!self.grow() || is_passed(self)) {
            self.passed += 1;
            self.event();
        }
        Ok(new)
    }

    /// Allocates a place for a chunk whose data will be copied: in the run `last`, whose copy has not begun, if the
    /// chunk continues it, else in a new run. Returns the run.
    pub(super) fn begin(&mut self, chunk: u64, last: Option<u32>) -> Result<u32, Full> {
        let is_edge = self.snapshot.chunk.start(chunk).get().is_multiple_of(RUN.get());
        let alone = is_edge || !self.snapshot.origin.copier(COPIES).merges();
        let new = self.allocate()?;
        self.copies += 1;
        let last = last.filter(|_| !alone).and_then(|at| Some((at, self.pending.get_mut(at)?)));
        let at = match last {
            Some((at, run)) if run.chunks().end == chunk && run.new + run.count == new => {
                run.count += 1;
                at
            }
            _ => {
                let at = self.pending.insert(Run { chunk, new, count: 1, ..Run::default() });
                if matches!(self.cow_store, CowStore::Persistent(_)) {
                    self.order.push_back(at);
                }
                at
            }
        };
        let gap = self.cow_store.gap();
        if let Some(run) = self.pending.get_mut(at) {
            run.gap = gap;
        }
        self.snapshot.exceptions.set_pending(chunk, at);
        Ok(at)
    }

    /// Makes `hold` wait for all unsettled exceptions of `chunks` of the origin, and begins the missing ones.
    pub(super) fn wait_for(&mut self, chunks: Range<u64>, hold: u32) -> Waits {
        let mut found = Waits::default();
        let mut chunk = chunks.start;
        while chunk < chunks.end {
            let it = &self.snapshot;
            let run = if let Some(at) = it.exceptions.pending(chunk) {
                self.pending.get_mut(at)
            } else if let Some(entry) = it.exceptions.get(chunk) {
                let waiting = self.unsettled.iter_mut().filter(|_| !entry.settled);
                waiting.into_iter().find(|run| run.chunks().contains(&chunk))
            } else if let Ok(at) = self.begin(chunk, found.begun.last().copied()) {
                if found.begun.last() != Some(&at) {
                    found.begun.push(at);
                }
                self.pending.get_mut(at)
            } else {
                found.full = true;
                return found;
            };
            chunk += 1;
            if let Some(run) = run {
                chunk = run.chunks().end;
                if run.holds.last() != Some(&hold) {
                    run.holds.push(hold);
                    found.waits += 1;
                }
            }
        }
        found
    }

    /// The data of a run has been copied. False when it can be committed at once.
    pub(super) fn has_copied(&mut self, at: u32) -> bool {
        let Some(run) = self.pending.get_mut(at) else { return true };
        run.copied = true;
        while let Some(run) = self.order.get(self.ready).and_then(|at| self.pending.get(*at)).filter(|run| run.copied) {
            self.ready += 1;
            self.ready_chunks += run.count;
        }
        matches!(self.cow_store, CowStore::Persistent(_))
    }

    /// How many chunks could be committed now.
    pub(super) fn ready_chunks(&self) -> u64 {
        self.ready_chunks
    }

    /// The runs that can be committed now.
    pub(super) fn take_ready(&mut self) -> Vec<u32> {
        let ready = std::mem::take(&mut self.ready);
        self.ready_chunks = 0;
        self.order.drain(..ready).collect()
    }

    /// Gives up all exceptions in the making.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Run> + use<> {
        self.order.clear();
        (self.ready, self.ready_chunks) = (0, 0);
        let snapshot = self.snapshot.clone();
        self.pending.take_all().inspect(move |run| {
            run.chunks().for_each(|chunk| snapshot.exceptions.set(chunk, None));
        })
    }

    /// Makes exceptions of a run. Reads of the origin's chunks may be on their way.
    pub(super) fn set(&self, run: &Run) {
        for chunk in run.chunks() {
            self.snapshot.exceptions.set(chunk, Some(Entry { new: run.place(chunk), settled: false }));
        }
    }

    /// No reads of the origin's chunks are any more.
    pub(super) fn settle(&self, run: &Run) {
        run.chunks().for_each(|chunk| self.snapshot.exceptions.settle(chunk, run.place(chunk)));
    }
}
