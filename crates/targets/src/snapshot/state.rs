//! What an origin's lock guards: exceptions in the making, and who waits for them.

use super::commit::Commit;
use super::flight;
use super::free::GRAIN;
use super::merge::Merging;
use super::shared::{ByChunk, Landed, Origin, Snapshot};
use super::table::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_core::MappedDevice;
use udm_formats::snapshot::{Full, Store, Transient, Usage};
use udm_io::kcopyd::{CopyFrom, CopyJob, CopyTo};
use udm_io::{Bio, Errand, Op, Status};

/// An operation of a snapshot's own, in the box in which it goes and comes back.
pub(super) type Outgoing = Box<Errand<Option<AlignedBuf>>>;

/// A copy, likewise.
type Copy = Box<CopyJob>;

/// What is to be done when the lock is free.
#[derive(Default)]
pub(super) struct Todo {
    /// To be submitted to where they point.
    pub(super) bios: Vec<Bio>,
    pub(super) ends: Vec<(Bio, Status)>,
    pub(super) errands: Vec<Outgoing>,
    pub(super) copies: Vec<Copy>,
    pub(super) zeroes: Vec<Copy>,
    pub(super) events: Vec<Weak<MappedDevice>>,
}

impl Todo {
    pub(super) fn append(&mut self, mut more: Self) {
        self.bios.append(&mut more.bios);
        self.ends.append(&mut more.ends);
        self.errands.append(&mut more.errands);
        self.copies.append(&mut more.copies);
        self.zeroes.append(&mut more.zeroes);
        self.events.append(&mut more.events);
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { bios, ends, errands, copies, zeroes, events } = self;
        let jobs = copies.is_empty() && zeroes.is_empty();
        bios.is_empty() && ends.is_empty() && errands.is_empty() && jobs && events.is_empty()
    }

    pub(super) fn put(&mut self, job: Box<CopyJob>) {
        match job.from {
            CopyFrom::Zeroes => self.zeroes.push(job),
            CopyFrom::Device(..) => self.copies.push(job),
        }
    }
}

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

    pub(super) fn usage(&self) -> Usage {
        match self {
            Self::Persistent(store) => store.usage(),
            Self::Transient(store) => store.usage(),
        }
    }
}

/// An exception in the making.
pub(super) struct Pending {
    pub(super) new: u64,
    /// Its data is at its new place.
    pub(super) copied: bool,
    /// Writes to the snapshot's chunk that wait, in order.
    bios: Vec<Bio>,
    /// The write that brought the whole chunk, done.
    full: Option<Bio>,
    /// Who waits to write the origin's chunk.
    holds: Vec<u64>,
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

/// A snapshot, as far as it changes.
pub(super) struct Body {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) keep: Keep,
    pub(super) pending: ByChunk<Pending>,
    /// Chunks that were given a place, and are in no batch yet, in that order.
    pub(super) order: VecDeque<u64>,
    /// Copies and whole writes that are out.
    pub(super) copies: usize,
    pub(super) commit: Option<Commit>,
    pub(super) dropped: Dropped,
    /// Who waits for the header to say that the snapshot is invalid.
    drop_holds: Vec<u64>,
    /// Exceptions that wait for reads of the origin's chunk, and who waits for those.
    unsettled: ByChunk<Vec<u64>>,
    pub(super) merging: Merging,
    /// The device of the target that has it.
    pub(super) md: Weak<MappedDevice>,
    /// Percentages of use at which there is an event, and how many of them have been passed.
    pub(super) levels: Vec<u64>,
    pub(super) passed: usize,
}

impl Body {
    pub(super) fn new(snapshot: Arc<Snapshot>, keep: Keep) -> Self {
        Self {
            snapshot,
            keep,
            pending: HashMap::new(),
            order: VecDeque::new(),
            copies: 0,
            commit: None,
            dropped: Dropped::No,
            drop_holds: Vec::new(),
            unsettled: HashMap::new(),
            merging: Merging::default(),
            md: Weak::new(),
            levels: vec![80, 95],
            passed: 0,
        }
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

    fn allocate(&mut self, todo: &mut Todo) -> Result<u64, Full> {
        let new = self.keep.allocate()?;
        let usage = self.keep.usage();
        let percent = usage.allocated.get().saturating_mul(100) / usage.total.get().max(1);
        while self.levels.get(self.passed).is_some_and(|level| percent >= *level) {
            self.passed += 1;
            todo.events.push(self.md.clone());
        }
        Ok(new)
    }

    /// Makes a place for a chunk. Its data is on the way.
    fn begin(&mut self, chunk: u64, todo: &mut Todo) -> Result<&mut Pending, Full> {
        let new = self.allocate(todo)?;
        self.copies += 1;
        self.order.push_back(chunk);
        let pending = Pending { new, copied: false, bios: Vec::new(), full: None, holds: Vec::new() };
        Ok(self.pending.entry(chunk).or_insert(pending))
    }
}

/// What waits until no snapshot needs the origin's chunks any more.
pub(super) enum Held {
    /// A write.
    Bio(Bio),
    /// A snapshot that is merged into them.
    Merge(u64),
}

/// A wait, and for how many things.
struct Hold {
    held: Option<Held>,
    waits: usize,
}

/// What a copy is for.
enum CopyOf {
    /// Exceptions: of each place, the snapshot and its chunk.
    Exceptions(Vec<(u64, u64)>),
    /// Zeroes in an area.
    Area(u64),
    /// Part of a merge.
    Merge(u64),
    /// A discard of a whole chunk, and whether it goes on to the origin, to which it points.
    Discard(Bio, bool),
}

/// A target's claim on a snapshot.
#[derive(Clone)]
pub(super) struct Claim {
    pub(super) target: u64,
    pub(super) snapshot: u64,
    pub(super) merge: bool,
    /// It was resumed.
    pub(super) active: bool,
    pub(super) md: Weak<MappedDevice>,
}

/// The state of an origin.
#[derive(Default)]
pub(super) struct State {
    pub(super) bodies: Vec<Body>,
    pub(super) claims: Vec<Claim>,
    /// Devices with a snapshot-origin target of it that are resumed, by target.
    pub(super) origins: Vec<(u64, Weak<MappedDevice>)>,
    holds: HashMap<u64, Hold>,
    copies: HashMap<u64, CopyOf>,
    next: u64,
    /// What could not be done yet.
    pub(super) later: Todo,
}

/// A chunk to be copied to a snapshot.
struct Need {
    sector: Sector,
    sectors: Sectors,
    snapshot: u64,
    chunk: u64,
    to: CopyTo,
}

impl State {
    pub(super) fn is_busy(&self) -> bool {
        self.bodies.iter().any(Body::is_busy) || !self.later.is_empty()
    }

    pub(super) fn body(&mut self, id: u64) -> Option<&mut Body> {
        self.bodies.iter_mut().find(|b| b.snapshot.id == id)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whatever can go on goes on.
    pub(super) fn go_on(&mut self, origin: &Origin, todo: &mut Todo) {
        for at in 0..self.bodies.len() {
            let id = self.bodies[at].snapshot.id;
            self.settle(id, todo);
            self.advance(origin, id, todo);
        }
    }

    /// After anything about a snapshot has changed.
    pub(super) fn advance(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        self.start_commit(origin, id, todo);
        self.merge_on(origin, id, todo);
    }

    /// Whether no snapshot needs what the origin has in a range: then that is noted of the finest chunks around it.
    pub(super) fn free_up(&self, origin: &Origin, sector: Sector, sectors: Sectors) -> bool {
        let active = || self.bodies.iter().map(|body| &*body.snapshot).filter(|it| it.active.load(SeqCst));
        let is_past = |sector, sectors| active().all(|it| it.is_past(sector, sectors));
        let grain = active().map(|it| it.chunk.sectors()).min().unwrap_or(GRAIN).max(GRAIN).get();
        let start = Sector::new(sector.get() / grain * grain);
        let end = (sector + sectors).get().checked_next_multiple_of(grain);
        if let Some(end) = end
            && is_past(start, Sector::new(end) - start)
        {
            origin.free.note(start, Sector::new(end) - start);
            return true;
        }
        is_past(sector, sectors)
    }

    /// Writes to the origin are to ask about a snapshot that has joined, or is another's now.
    pub(super) fn joined(&self, origin: &Origin) {
        origin.free.forget();
        self.left(origin);
    }

    /// They need not ask about one any more.
    pub(super) fn left(&self, origin: &Origin) {
        if !self.bodies.iter().any(|body| body.snapshot.active.load(SeqCst)) {
            origin.free.set_all();
        }
    }

    /// A write to the origin that some snapshot has to be asked about.
    pub(super) fn origin_write(&mut self, origin: &Origin, bio: Bio, todo: &mut Todo) {
        let (sector, sectors) = (bio.sector(), bio.sectors());
        self.require(origin, sector, sectors, Held::Bio(bio), None, todo);
    }

    /// Lets `held` go when every snapshot but `except` has its exceptions for the range of the origin.
    pub(super) fn require(
        &mut self,
        origin: &Origin,
        sector: Sector,
        sectors: Sectors,
        held: Held,
        except: Option<u64>,
        todo: &mut Todo,
    ) {
        let hold = self.number();
        // One for itself, so that it does not go before all are asked.
        self.holds.insert(hold, Hold { held: Some(held), waits: 1 });
        let mut needs = Vec::new();
        let mut broken = Vec::new();
        let mut waits = 0;
        for body in &mut self.bodies {
            let it = body.snapshot.clone();
            if Some(it.id) == except || it.merging.load(SeqCst) || !it.active.load(SeqCst) {
                continue;
            }
            if !it.valid.load(SeqCst) {
                if body.dropped == Dropped::Wanted {
                    body.drop_holds.push(hold);
                    waits += 1;
                }
                continue;
            }
            let end = (sector + sectors).min(Sector::new(it.sectors.load(SeqCst)));
            if sector >= end {
                continue;
            }
            for chunk in it.chunk.of(sector)..=it.chunk.of(end - Sectors::new(1)) {
                match it.exceptions.get(chunk) {
                    Some(Entry { settled: true, .. }) => continue,
                    Some(_) => body.unsettled.entry(chunk).or_default().push(hold),
                    None => {
                        if !body.pending.contains_key(&chunk) {
                            let Ok(pending) = body.begin(chunk, todo) else {
                                broken.push(it.id);
                                break;
                            };
                            needs.push(need(origin, &it, chunk, pending.new));
                        }
                        body.pending.get_mut(&chunk).expect("just made").holds.push(hold);
                    }
                }
                waits += 1;
            }
        }
        if let Some(hold) = self.holds.get_mut(&hold) {
            hold.waits += waits;
        }
        for id in broken {
            if let Some(body) = self.body(id) {
                body.drop_holds.push(hold);
            }
            if let Some(hold) = self.holds.get_mut(&hold) {
                hold.waits += 1;
            }
            self.invalidate(origin, id, todo);
        }
        self.copy(origin, needs, todo);
        self.release(origin, hold, todo);
    }

    /// Asks for copies: one read for all snapshots that need the same range.
    fn copy(&mut self, origin: &Origin, mut needs: Vec<Need>, todo: &mut Todo) {
        needs.sort_by_key(|need| (need.sector, need.sectors));
        let mut needs = needs.into_iter().peekable();
        while let Some(Need { sector, sectors, snapshot, chunk, to }) = needs.next() {
            let (mut places, mut of) = (vec![to], vec![(snapshot, chunk)]);
            while let Some(more) = needs.next_if(|more| (more.sector, more.sectors) == (sector, sectors)) {
                places.push(more.to);
                of.push((more.snapshot, more.chunk));
            }
            let mut job = CopyJob::new(CopyFrom::Device(origin.dev.clone(), sector), sectors, places);
            job.token = self.number();
            self.copies.insert(job.token, CopyOf::Exceptions(of));
            todo.copies.push(job);
        }
    }

    /// A snapshot's area is to be zero in a range.
    pub(super) fn zero(&mut self, id: u64, to: CopyTo, sectors: Sectors, todo: &mut Todo) {
        let mut job = CopyJob::new(CopyFrom::Zeroes, sectors, vec![to]);
        job.token = self.number();
        self.copies.insert(job.token, CopyOf::Area(id));
        todo.zeroes.push(job);
    }

    /// Chunks of a snapshot are to go back to the origin.
    pub(super) fn copy_back(&mut self, id: u64, from: CopyFrom, sectors: Sectors, to: CopyTo, todo: &mut Todo) {
        let mut job = CopyJob::new(from, sectors, vec![to]);
        job.token = self.number();
        self.copies.insert(job.token, CopyOf::Merge(id));
        todo.copies.push(job);
    }

    /// A discard of a whole chunk of a snapshot, that has its place: that is zeroed.
    pub(super) fn discard(&mut self, id: u64, new: u64, bio: Bio, pass: bool, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return todo.ends.push((bio, Status::Io)) };
        let it = &body.snapshot;
        let to = CopyTo::new(it.cow.clone(), it.chunk.start(new));
        let mut job = CopyJob::new(CopyFrom::Zeroes, it.chunk.sectors(), vec![to]);
        job.token = self.number();
        self.copies.insert(job.token, CopyOf::Discard(bio, pass));
        todo.zeroes.push(job);
    }

    /// A copy is done.
    pub(super) fn copied(&mut self, origin: &Origin, job: &CopyJob, todo: &mut Todo) {
        let status = job.status();
        match self.copies.remove(&job.token) {
            Some(CopyOf::Exceptions(of)) => {
                for ((id, chunk), to) in of.iter().zip(&job.to) {
                    let good = job.read.is_ok() && to.status.is_ok();
                    self.brought(origin, *id, *chunk, good, None, todo);
                }
                // Once all have been noted: so they can go together.
                of.iter().for_each(|(id, _)| self.advance(origin, *id, todo));
            }
            Some(CopyOf::Area(id)) => self.commit_step(origin, id, status, todo),
            Some(CopyOf::Merge(id)) => self.merge_copied(origin, id, status, todo),
            Some(CopyOf::Discard(bio, true)) if status.is_ok() => todo.bios.push(bio),
            Some(CopyOf::Discard(bio, _)) => todo.ends.push((bio, status)),
            None => {}
        }
    }

    /// A write of a whole chunk is done.
    pub(super) fn full_written(&mut self, origin: &Origin, id: u64, chunk: u64, bio: Bio, todo: &mut Todo) {
        let good = bio.status().is_ok();
        self.brought(origin, id, chunk, good, Some(bio), todo);
        self.advance(origin, id, todo);
    }

    /// A chunk's data has been brought to its place, or could not be.
    fn brought(&mut self, origin: &Origin, id: u64, chunk: u64, good: bool, full: Option<Bio>, todo: &mut Todo) {
        let Some(body) = self.body(id) else {
            todo.ends.extend(full.map(|bio| (bio, Status::Io)));
            return;
        };
        body.copies -= 1;
        match body.pending.get_mut(&chunk) {
            Some(pending) => {
                pending.copied = true;
                pending.full = full;
                if !good {
                    // Nobody knows what is at the new place, and the chunks after it cannot become true before it.
                    self.invalidate(origin, id, todo);
                } else if matches!(body.keep, Keep::Transient(_)) {
                    body.order.retain(|c| *c != chunk);
                    self.complete(id, chunk, todo);
                }
            }
            // The snapshot has become invalid meanwhile.
            None => todo.ends.extend(full.map(|bio| (bio, Status::Io))),
        }
    }

    /// An exception is true: reads and writes of the snapshot go to its place from now on, those first that wait.
    pub(super) fn complete(&mut self, id: u64, chunk: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let Some(pending) = body.pending.remove(&chunk) else { return };
        let it = body.snapshot.clone();
        let Pending { new, bios, full, holds, .. } = pending;
        it.exceptions.set(chunk, Some(Entry { new, settled: false }));
        todo.ends.extend(full.map(|bio| (bio, Status::Ok)));
        todo.bios.extend(bios.into_iter().map(|bio| to_cow(&it, new, bio)));
        body.unsettled.insert(chunk, holds);
        it.unsettled.fetch_add(1, SeqCst);
        self.settle_one(id, chunk, todo);
    }

    /// Looks at all exceptions of a snapshot that wait for reads.
    pub(super) fn settle(&mut self, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let chunks: Vec<u64> = body.unsettled.keys().copied().collect();
        chunks.into_iter().for_each(|chunk| self.settle_one(id, chunk, todo));
    }

    fn settle_one(&mut self, id: u64, chunk: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let it = body.snapshot.clone();
        if it.is_read(chunk) {
            return;
        }
        let Some(holds) = body.unsettled.remove(&chunk) else { return };
        it.unsettled.fetch_sub(1, SeqCst);
        if let Some(Entry { new, .. }) = it.exceptions.get(chunk) {
            it.exceptions.set(chunk, Some(Entry { new, settled: true }));
        }
        let origin = it.origin.clone();
        holds.into_iter().for_each(|hold| self.release(&origin, hold, todo));
    }

    /// One thing less that a hold waits for.
    fn release(&mut self, origin: &Origin, number: u64, todo: &mut Todo) {
        let Some(hold) = self.holds.get_mut(&number) else { return };
        hold.waits -= 1;
        if hold.waits > 0 {
            return;
        }
        let held = self.holds.remove(&number).and_then(|hold| hold.held);
        match held {
            Some(Held::Bio(bio)) => {
                self.free_up(origin, bio.sector(), bio.sectors());
                todo.bios.push(bio);
            }
            Some(Held::Merge(id)) => self.merge_free(origin, id, todo),
            None => {}
        }
    }

    /// Makes a snapshot invalid, for ever. The origin's writers wait until its header says so.
    pub(super) fn invalidate(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let persistent = matches!(body.keep, Keep::Persistent(_));
        if body.snapshot.valid.swap(false, SeqCst) {
            todo.events.push(body.md.clone());
            body.dropped = if persistent { Dropped::Wanted } else { Dropped::Done };
        }
        body.order.clear();
        for (_, pending) in body.pending.drain() {
            todo.ends.extend(pending.bios.into_iter().chain(pending.full).map(|bio| (bio, Status::Io)));
            body.drop_holds.extend(pending.holds);
        }
        for (_, holds) in body.unsettled.drain() {
            body.snapshot.unsettled.fetch_sub(1, SeqCst);
            body.drop_holds.extend(holds);
        }
        if body.dropped == Dropped::Done {
            self.has_dropped(origin, id, todo);
        }
        self.start_commit(origin, id, todo);
    }

    /// The header says that a snapshot is invalid, or cannot.
    pub(super) fn has_dropped(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        body.dropped = Dropped::Done;
        body.snapshot.dropped.store(true, SeqCst);
        let holds = std::mem::take(&mut body.drop_holds);
        holds.into_iter().for_each(|hold| self.release(origin, hold, todo));
    }

    /// A write to a snapshot, whose chunk had no exception a moment ago.
    pub(super) fn snapshot_write(&mut self, origin: &Arc<Origin>, id: u64, mut bio: Bio, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return todo.ends.push((bio, Status::Io)) };
        let it = body.snapshot.clone();
        let chunk = it.chunk.of(bio.sector());
        if !it.valid.load(SeqCst) || it.overflowed.load(SeqCst) {
            return todo.ends.push((bio, Status::Io));
        }
        if let Some(entry) = it.exceptions.get(chunk) {
            return todo.bios.push(to_cow(&it, entry.new, bio));
        }
        if let Some(pending) = body.pending.get_mut(&chunk) {
            return pending.bios.push(bio);
        }
        let Ok(pending) = body.begin(chunk, todo) else {
            todo.ends.push((bio, Status::Io));
            return match it.may_overflow.load(SeqCst) {
                true => {
                    it.overflowed.store(true, SeqCst);
                    todo.events.push(body.md.clone());
                }
                false => self.invalidate(origin, id, todo),
            };
        };
        let new = pending.new;
        if bio.op() == Op::Write && bio.sectors() == it.chunk.sectors() {
            bio.set_sector(it.place(new, bio.sector()));
            flight::watch(&mut bio, origin, Landed::Full(id, chunk));
            flight::point(&mut bio, &*it.cow);
            return todo.bios.push(bio);
        }
        pending.bios.push(bio);
        let need = need(origin, &it, chunk, new);
        self.copy(origin, vec![need], todo);
    }
}

/// Sends a bio of a snapshot to its chunk's place.
pub(super) fn to_cow(it: &Snapshot, new: u64, mut bio: Bio) -> Bio {
    bio.set_sector(it.place(new, bio.sector()));
    flight::point(&mut bio, &*it.cow);
    bio
}

/// What has to be copied for a chunk: as far as the origin goes.
fn need(origin: &Origin, it: &Snapshot, chunk: u64, new: u64) -> Need {
    let sector = it.chunk.start(chunk);
    let left = origin.dev.sectors().from_start().checked_since(sector).unwrap_or(Sectors::ZERO);
    let to = CopyTo::new(it.cow.clone(), it.chunk.start(new));
    Need { sector, sectors: it.chunk.sectors().min(left), snapshot: it.id, chunk, to }
}
