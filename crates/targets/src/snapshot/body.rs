//! A snapshot, as far as it changes: its store, and its exceptions in the making.

use super::commit::Commit;
use super::merge::Merging;
use super::shared::{COPIES, Snapshot};
use super::slab::Slab;
use super::table::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors};
use udm_core::MappedDevice;
use udm_formats::snapshot::{Exception, Full, Store, Transient, Usage};
use udm_io::Bio;

/// A run ends where the origin's sectors come to a multiple of this, so that the runs of all snapshots end at the same
/// places, and a long write does not wait for all its chunks before the first becomes true.
const RUN: Sectors = Sectors::in_bytes(1 << 20);

/// The store of a snapshot.
pub(super) enum Keep {
    Persistent(Store),
    Transient(Transient),
}

impl Keep {
    fn allocate(&mut self) -> Result<u64, Full> {
        match self {
            Self::Persistent(store) => store.allocate(),
            Self::Transient(store) => store.allocate(),
        }
    }

    /// How much lies between the chunk that was given away last and the next.
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

/// Exceptions in the making, that are brought by one copy: of chunks that are neighbours on the origin and on the COW
/// device.
#[derive(Default)]
pub(super) struct Run {
    /// The first chunk.
    pub(super) chunk: u64,
    /// Its place.
    pub(super) new: u64,
    pub(super) count: u64,
    /// Between its places and those of the next run: an area, if not nothing.
    pub(super) gap: Sectors,
    /// Its data is at its new place.
    pub(super) copied: bool,
    /// Writes to the snapshot's chunks that wait, in order.
    pub(super) bios: Vec<Bio>,
    /// The write that brought a whole chunk, done.
    pub(super) full: Option<Bio>,
    /// Who waits to write the origin's chunks.
    pub(super) holds: Vec<usize>,
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
    /// It is to.
    Wanted,
    /// It does, or it could not be written.
    Done,
}

/// What came of [`Body::wait_for`].
#[derive(Default)]
pub(super) struct Waits {
    /// How many runs are waited for.
    pub(super) waits: usize,
    /// Those that are to be sent for.
    pub(super) begun: Vec<usize>,
    /// There is no room for more.
    pub(super) full: bool,
}

fn percent(usage: Usage) -> u64 {
    usage.allocated.get().saturating_mul(100) / usage.total.get().max(1)
}

/// A snapshot, as far as it changes.
pub(super) struct Body {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) keep: Keep,
    /// Its table of exceptions says of a chunk which run has it.
    pub(super) pending: Slab<Run>,
    /// Runs of a persistent store that are in no batch yet, in the order of their places.
    order: VecDeque<usize>,
    /// How many of them from the first on have been copied, and how many chunks these are.
    ready: usize,
    ready_chunks: u64,
    /// Chunks of copies and whole writes that are out.
    pub(super) copies: u64,
    pub(super) commit: Option<Commit>,
    pub(super) dropped: Dropped,
    /// Who waits for the header to say that the snapshot is invalid.
    pub(super) drop_holds: Vec<usize>,
    /// Runs that are true, and wait for reads of the origin's chunks.
    pub(super) unsettled: Vec<Run>,
    pub(super) merging: Merging,
    /// The device of the target that has it.
    pub(super) md: Weak<MappedDevice>,
    /// Percentages of use at which there is an event, and how many of them have been passed.
    levels: Vec<u64>,
    passed: usize,
    /// Exceptions of the list whose chunks lie past the end of the origin and of the snapshot, by chunk. Both may grow.
    beyond: BTreeMap<u64, u64>,
}

impl Body {
    /// With what a store has. `exceptions` are true.
    pub(super) fn new(snapshot: Arc<Snapshot>, keep: Keep, exceptions: &[Exception]) -> Self {
        let mut body = Self {
            snapshot,
            keep,
            pending: Slab::default(),
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

    /// The snapshot goes as far as `end` now, or the origin does.
    pub(super) fn reach(&mut self, end: Sector) {
        let it = self.snapshot.clone();
        let end = end.max(it.origin.dev.sectors().from_start());
        let beyond = self.beyond.split_off(&it.chunk.covering(end - Sector::ZERO));
        for (old, new) in std::mem::replace(&mut self.beyond, beyond) {
            it.exceptions.set(old, Some(Entry { new, settled: true }));
        }
    }

    /// An exception is merged, and gone.
    pub(super) fn forget(&mut self, old: u64) {
        self.beyond.remove(&old);
        self.snapshot.exceptions.set(old, None);
    }

    /// It is merged no further: it gets exceptions again, if it is valid.
    pub(super) fn stop_merging(&mut self) {
        if !self.snapshot.valid.load(SeqCst) {
            return;
        }
        let highest = self.beyond.values().copied().max().unwrap_or(0).max(self.snapshot.exceptions.highest());
        if let Keep::Persistent(store) = &mut self.keep {
            store.stop_merging(highest);
        }
    }

    /// How full the COW device is, of whatever size it is now.
    pub(super) fn usage(&mut self) -> Usage {
        self.grow();
        self.keep.usage()
    }

    /// Percentages of use at which there is to be an event, lowest first.
    pub(super) fn set_levels(&mut self, levels: Vec<u64>) {
        self.levels = levels;
        self.passed = self.count_passed();
    }

    fn count_passed(&self) -> usize {
        let percent = percent(self.keep.usage());
        self.levels.iter().filter(|level| percent >= **level).count()
    }

    /// Looks whether the COW device has grown. May ask the system.
    fn grow(&mut self) -> bool {
        let (before, now) = (self.keep.usage().total, self.snapshot.cow.sectors());
        if now <= before {
            return false;
        }
        self.keep.grow(now);
        self.passed = self.passed.min(self.count_passed());
        true
    }

    /// Counts an event of the device that has it.
    pub(super) fn event(&self) {
        self.md.upgrade().into_iter().for_each(|md| md.event());
    }

    /// Whether something is out or waits.
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
        let new = match self.keep.allocate() {
            Err(Full) if self.grow() => self.keep.allocate()?,
            given => given?,
        };
        let is_passed =
            |body: &Self| body.levels.get(body.passed).is_some_and(|level| percent(body.keep.usage()) >= *level);
        // Only when it matters it is asked how large the device is.
        while is_passed(self) && (!self.grow() || is_passed(self)) {
            self.passed += 1;
            self.event();
        }
        Ok(new)
    }

    /// Makes a place for a chunk, whose data is on the way: in the run `last`, which has not been sent for yet, if it
    /// goes on with that, else in one of its own. Says in which.
    pub(super) fn begin(&mut self, chunk: u64, last: Option<usize>) -> Result<usize, Full> {
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
                let at = self.pending.put(Run { chunk, new, count: 1, ..Run::default() });
                if matches!(self.keep, Keep::Persistent(_)) {
                    self.order.push_back(at);
                }
                at
            }
        };
        let gap = self.keep.gap();
        if let Some(run) = self.pending.get_mut(at) {
            run.gap = gap;
        }
        self.snapshot.exceptions.set_pending(chunk, at);
        Ok(at)
    }

    /// Has `hold` wait for all exceptions of `chunks` of the origin that are not settled, and begins those that there
    /// are not.
    pub(super) fn wait_for(&mut self, chunks: Range<u64>, hold: usize) -> Waits {
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

    /// The data of a run is at its place. False when it can become true at once.
    pub(super) fn has_copied(&mut self, at: usize) -> bool {
        let Some(run) = self.pending.get_mut(at) else { return true };
        run.copied = true;
        while let Some(run) = self.order.get(self.ready).and_then(|at| self.pending.get(*at)).filter(|run| run.copied) {
            self.ready += 1;
            self.ready_chunks += run.count;
        }
        matches!(self.keep, Keep::Persistent(_))
    }

    /// How many chunks could become true now.
    pub(super) fn ready_chunks(&self) -> u64 {
        self.ready_chunks
    }

    /// The runs that can become true now.
    pub(super) fn take_ready(&mut self) -> Vec<usize> {
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

    /// Makes exceptions of a run. `settled`: no read of the origin's chunks is on its way.
    pub(super) fn set(&self, run: &Run, settled: bool) {
        for chunk in run.chunks() {
            self.snapshot.exceptions.set(chunk, Some(Entry { new: run.place(chunk), settled }));
        }
    }
}
