//! What an origin's worker has to itself: exceptions in the making, and who waits for them.

use super::body::{Body, Dropped, Keep, Run};
use super::flight;
use super::free::GRAIN;
use super::shared::{COPIES, Event, Shared, Snapshot, ZEROES};
use super::slab::Slab;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors};
use udm_core::MappedDevice;
use udm_io::{Bio, BlockDevice, Op, Status};
use udm_kcopyd::{CopyFrom, CopyJob, CopyTo};
use udm_worker::{Events, Worker};

/// What waits until no snapshot needs the origin's chunks any more.
pub(super) enum Held {
    /// A write.
    Bio(Bio),
    /// A snapshot that is merged into them.
    Merge(u64),
}

/// A wait, and for how many things.
struct Hold {
    held: Held,
    waits: usize,
}

/// A run of exceptions that a copy brings.
#[derive(Clone, Copy)]
pub(super) struct Part {
    snapshot: u64,
    run: usize,
    chunks: u64,
}

/// What a copy is for.
enum CopyOf {
    /// Exceptions, for each place.
    Exceptions(Vec<Part>),
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
pub(super) struct State {
    pub(super) worker: Arc<Worker<Shared>>,
    pub(super) bodies: Vec<Body>,
    pub(super) claims: Vec<Claim>,
    /// Devices with a snapshot-origin target of it that are resumed, by target.
    pub(super) origins: Vec<(u64, Weak<MappedDevice>)>,
    holds: Slab<Hold>,
    copies: Slab<CopyOf>,
}

/// A range of the origin to be copied to a snapshot.
struct Need {
    sector: Sector,
    sectors: Sectors,
    /// Where to.
    place: Sector,
    /// What may be zeroed behind that.
    gap: Sectors,
    cow: Arc<dyn BlockDevice>,
    part: Part,
}

impl Need {
    /// What has to be copied for a run: as far as the origin goes.
    fn of(body: &Body, at: usize) -> Option<Self> {
        let (it, run) = (&body.snapshot, body.pending.get(at)?);
        let sector = it.chunk.start(run.chunk);
        let left = it.origin.dev.sectors().from_start().checked_since(sector).unwrap_or(Sectors::ZERO);
        let whole = Sectors::new(it.chunk.sectors().get() * run.count);
        let sectors = whole.min(left);
        let gap = if sectors == whole { run.gap } else { Sectors::ZERO };
        let part = Part { snapshot: it.id, run: at, chunks: run.count };
        Some(Self { sector, sectors, place: it.chunk.start(run.new), gap, cow: it.cow.clone(), part })
    }

    fn end(&self) -> Sector {
        self.sector + self.sectors
    }
}

impl State {
    pub(super) fn new(worker: Arc<Worker<Shared>>) -> Self {
        let (bodies, claims, origins) = Default::default();
        Self { worker, bodies, claims, origins, holds: Slab::default(), copies: Slab::default() }
    }

    /// Serves the origin until the last target has let go of it.
    pub(super) async fn run(mut self, mut events: Events<Event>) {
        loop {
            while let Some(event) = events.next() {
                self.handle(event);
            }
            self.worker.busy.store(self.bodies.iter().any(Body::is_busy), SeqCst);
            events.idle(None).await;
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Write(bio) => self.origin_write(bio),
            Event::SnapshotWrite(id, bio) => self.snapshot_write(id, bio),
            Event::MergeWrite(id, bio) => self.merge_write(id, bio),
            Event::Discard { id, new, bio, pass } => self.discard(id, new, bio, pass),
            Event::Read(id) => self.settle(id),
            Event::Written(part, bio) => self.full_written(part, bio),
            Event::MergingWritten(id, chunk) => self.merging_written(id, chunk),
            Event::Copied(job) => self.copied(&job),
            Event::Committed(id, good) => self.committed(id, good),
            Event::Loaded(id, area) => self.merge_loaded(id, area),
            Event::Flushed(id, status) => self.merge_flushed(id, status),
            Event::Control(work) => work(self),
        }
    }

    pub(super) fn body(&mut self, id: u64) -> Option<&mut Body> {
        self.bodies.iter_mut().find(|b| b.snapshot.id == id)
    }

    /// After anything about a snapshot has changed.
    pub(super) fn advance(&mut self, id: u64) {
        self.start_commit(id);
        self.merge_on(id);
    }

    /// Whether no snapshot needs what the origin has in a range: then that is noted of the finest chunks around it.
    pub(super) fn free_up(&self, sector: Sector, sectors: Sectors) -> bool {
        let active = || self.bodies.iter().map(|body| &*body.snapshot).filter(|it| it.active.load(SeqCst));
        let is_past = |sector, sectors| active().all(|it| it.is_past(sector, sectors));
        let grain = active().map(|it| it.chunk.sectors()).min().unwrap_or(GRAIN).max(GRAIN).get();
        let start = Sector::new(sector.get() / grain * grain);
        let end = (sector + sectors).get().checked_next_multiple_of(grain);
        if let Some(end) = end
            && is_past(start, Sector::new(end) - start)
        {
            self.worker.free.note(start, Sector::new(end) - start);
            return true;
        }
        is_past(sector, sectors)
    }

    /// Writes to the origin are to ask about a snapshot that has joined, or is another's now.
    pub(super) fn joined(&self) {
        self.worker.free.forget();
        self.left();
    }

    /// They need not ask about one any more.
    pub(super) fn left(&self) {
        if !self.bodies.iter().any(|body| body.snapshot.active.load(SeqCst)) {
            self.worker.free.set_all();
        }
    }

    /// A write to the origin that some snapshot has to be asked about. It points there.
    pub(super) fn origin_write(&mut self, bio: Bio) {
        let (sector, sectors) = (bio.sector(), bio.sectors());
        if self.free_up(sector, sectors) {
            return self.worker.forward(bio);
        }
        self.require(sector, sectors, Held::Bio(bio));
    }

    /// Lets `held` go when every snapshot has its exceptions for the range of the origin, but those that are merged.
    pub(super) fn require(&mut self, sector: Sector, sectors: Sectors, held: Held) {
        // One for itself, so that it does not go before all are asked.
        let hold = self.holds.put(Hold { held, waits: 1 });
        let mut needs = Vec::new();
        let mut broken = Vec::new();
        let mut waits = 0;
        for body in &mut self.bodies {
            let it = body.snapshot.clone();
            if it.merging.load(SeqCst) || !it.active.load(SeqCst) {
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
            let first = it.chunk.of(sector);
            let found = body.wait_for(first..it.chunk.of(end - Sectors::new(1)) + 1, hold);
            waits += found.waits;
            needs.extend(found.begun.into_iter().filter_map(|run| Need::of(body, run)));
            if found.full {
                broken.push(it.id);
            }
        }
        if let Some(hold) = self.holds.get_mut(hold) {
            hold.waits += waits;
        }
        for id in broken {
            if let Some(body) = self.body(id) {
                body.drop_holds.push(hold);
            }
            if let Some(hold) = self.holds.get_mut(hold) {
                hold.waits += 1;
            }
            self.invalidate(id);
        }
        self.copy(needs);
        self.release(hold);
    }

    /// Asks for copies: one read for all snapshots that need something of the same range.
    fn copy(&mut self, mut needs: Vec<Need>) {
        needs.sort_by_key(|need| need.sector);
        let mut needs = needs.into_iter().peekable();
        while let Some(first) = needs.next() {
            let (sector, mut end) = (first.sector, first.end());
            let (mut places, mut of) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(need) = next {
                end = end.max(need.end());
                of.push(need.part);
                let to = CopyTo::part(need.cow, need.place, need.sector - sector, need.sectors);
                places.push(CopyTo { pad: need.gap, ..to });
                next = needs.next_if(|need| need.sector < end);
            }
            let job = CopyJob::new(CopyFrom::Device(self.worker.dev.clone(), sector), end - sector, places);
            self.send(job, CopyOf::Exceptions(of));
        }
    }

    /// One read could not serve all: each reads for itself, so that nobody suffers from what it does not need.
    fn copy_apart(&mut self, job: &CopyJob, of: &[Part]) {
        let CopyFrom::Device(dev, sector) = &job.from else { return };
        for (to, part) in job.to.iter().zip(of) {
            let to_all = CopyTo { pad: to.pad, ..CopyTo::new(to.dev.clone(), to.sector) };
            let job = CopyJob::new(CopyFrom::Device(dev.clone(), *sector + to.skip), to.take, vec![to_all]);
            self.send(job, CopyOf::Exceptions(vec![*part]));
        }
    }

    fn send(&mut self, mut job: Box<CopyJob>, of: CopyOf) {
        let by = if matches!(job.from, CopyFrom::Zeroes) { ZEROES } else { COPIES };
        job.token = self.copies.put(of) as u64;
        self.worker.copy(by, job);
    }

    /// Chunks of a snapshot are to go back to the origin.
    pub(super) fn copy_back(&mut self, id: u64, from: CopyFrom, sectors: Sectors, to: CopyTo) {
        let job = CopyJob::new(from, sectors, vec![to]);
        self.send(job, CopyOf::Merge(id));
    }

    /// A discard of a whole chunk of a snapshot, that has its place: that is zeroed.
    pub(super) fn discard(&mut self, id: u64, new: u64, bio: Bio, pass: bool) {
        let Some(body) = self.body(id) else { return bio.end(Status::Io) };
        let it = &body.snapshot;
        let to = CopyTo::new(it.cow.clone(), it.chunk.start(new));
        let job = CopyJob::new(CopyFrom::Zeroes, it.chunk.sectors(), vec![to]);
        self.send(job, CopyOf::Discard(bio, pass));
    }

    /// A copy is done.
    pub(super) fn copied(&mut self, job: &CopyJob) {
        let status = job.status();
        match self.copies.take(job.token as usize) {
            Some(CopyOf::Exceptions(of)) if !job.read.is_ok() && !job.is_whole() => self.copy_apart(job, &of),
            Some(CopyOf::Exceptions(of)) => {
                for (part, to) in of.iter().zip(&job.to) {
                    self.brought(*part, job.read.is_ok() && to.status.is_ok(), None);
                }
                // Once all have been noted: so they can go together.
                of.iter().for_each(|part| self.advance(part.snapshot));
            }
            Some(CopyOf::Merge(id)) => self.merge_copied(id, status),
            Some(CopyOf::Discard(bio, true)) if status.is_ok() => self.worker.forward(bio),
            Some(CopyOf::Discard(bio, _)) => bio.end(status),
            None => {}
        }
    }

    /// A write of a whole chunk is done.
    pub(super) fn full_written(&mut self, part: Part, bio: Bio) {
        let good = bio.status().is_ok();
        self.brought(part, good, Some(bio));
        self.advance(part.snapshot);
    }

    /// A run's data has been brought to its place, or could not be.
    fn brought(&mut self, part: Part, good: bool, full: Option<Bio>) {
        let Part { snapshot: id, run: at, chunks } = part;
        let Some(body) = self.body(id) else {
            return full.into_iter().for_each(|bio| bio.end(Status::Io));
        };
        body.copies -= chunks;
        let Some(run) = body.pending.get_mut(at) else {
            // The snapshot has become invalid meanwhile.
            return full.into_iter().for_each(|bio| bio.end(Status::Io));
        };
        run.full = full;
        if !good {
            // Nobody knows what is at the new place, and the chunks after it cannot become true before it.
            self.invalidate(id);
        } else if !body.has_copied(at) {
            self.complete(id, at);
        }
    }

    /// Exceptions are true: reads and writes of the snapshot go to their places from now on, those first that wait.
    pub(super) fn complete(&mut self, id: u64, at: usize) {
        let Some(body) = self.body(id) else { return };
        let Some(mut run) = body.pending.take(at) else { return };
        let it = body.snapshot.clone();
        body.set(&run, false);
        run.full.take().into_iter().for_each(|bio| bio.end(Status::Ok));
        let bios = std::mem::take(&mut run.bios);
        for bio in bios {
            it.origin.forward(to_cow(&it, run.place(it.chunk.of(bio.sector())), bio));
        }
        // First it is said that somebody waits, then it is looked.
        it.unsettled.fetch_add(1, SeqCst);
        match run.chunks().any(|chunk| it.is_read(chunk)) {
            true => body.unsettled.push(run),
            false => self.settle_run(id, run),
        }
    }

    /// Looks at all exceptions of a snapshot that wait for reads.
    pub(super) fn settle(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let it = body.snapshot.clone();
        let free = |run: &mut Run| !run.chunks().any(|chunk| it.is_read(chunk));
        let runs: Vec<Run> = body.unsettled.extract_if(.., free).collect();
        runs.into_iter().for_each(|run| self.settle_run(id, run));
    }

    /// No read of the origin's chunks is on its way any more: they may be written.
    fn settle_run(&mut self, id: u64, run: Run) {
        let Some(body) = self.body(id) else { return };
        body.set(&run, true);
        body.snapshot.unsettled.fetch_sub(1, SeqCst);
        run.holds.into_iter().for_each(|hold| self.release(hold));
    }

    /// One thing less that a hold waits for.
    fn release(&mut self, number: usize) {
        let Some(hold) = self.holds.get_mut(number) else { return };
        hold.waits -= 1;
        if hold.waits > 0 {
            return;
        }
        match self.holds.take(number).map(|hold| hold.held) {
            Some(Held::Bio(bio)) => {
                self.free_up(bio.sector(), bio.sectors());
                self.worker.forward(bio);
            }
            Some(Held::Merge(id)) => self.merge_free(id),
            None => {}
        }
    }

    /// Makes a snapshot invalid, for ever. The origin's writers wait until its header says so.
    pub(super) fn invalidate(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let persistent = matches!(body.keep, Keep::Persistent(_));
        if body.snapshot.valid.swap(false, SeqCst) {
            body.event();
            body.dropped = if persistent { Dropped::Wanted } else { Dropped::Done };
        }
        for run in body.give_up() {
            run.bios.into_iter().chain(run.full).for_each(|bio| bio.end(Status::Io));
            body.drop_holds.extend(run.holds);
        }
        for run in body.unsettled.drain(..) {
            body.snapshot.unsettled.fetch_sub(1, SeqCst);
            body.drop_holds.extend(run.holds);
        }
        if body.dropped == Dropped::Done {
            self.has_dropped(id);
        }
        self.start_commit(id);
    }

    /// The header says that a snapshot is invalid, or cannot.
    pub(super) fn has_dropped(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        body.dropped = Dropped::Done;
        body.snapshot.dropped.store(true, SeqCst);
        let holds = std::mem::take(&mut body.drop_holds);
        holds.into_iter().for_each(|hold| self.release(hold));
    }

    /// A write to a snapshot, whose chunk had no exception a moment ago.
    pub(super) fn snapshot_write(&mut self, id: u64, mut bio: Bio) {
        let Some(body) = self.body(id) else { return bio.end(Status::Io) };
        let it = body.snapshot.clone();
        let chunk = it.chunk.of(bio.sector());
        if !it.valid.load(SeqCst) || it.overflowed.load(SeqCst) {
            return bio.end(Status::Io);
        }
        if let Some(entry) = it.exceptions.get(chunk) {
            return self.worker.forward(to_cow(&it, entry.new, bio));
        }
        if let Some(run) = it.exceptions.pending(chunk).and_then(|at| body.pending.get_mut(at)) {
            return run.bios.push(bio);
        }
        let Ok(at) = body.begin(chunk, None) else {
            bio.end(Status::Io);
            return match it.may_overflow.load(SeqCst) {
                true => {
                    it.overflowed.store(true, SeqCst);
                    body.event();
                }
                false => self.invalidate(id),
            };
        };
        let Some(need) = Need::of(body, at) else { return bio.end(Status::Io) };
        if bio.op() == Op::Write && bio.sectors() == it.chunk.sectors() {
            bio.set_sector(need.place);
            self.worker.watch(&mut bio, move |bio| (Event::Written(need.part, bio), None));
            flight::point(&mut bio, &*it.cow);
            return self.worker.forward(bio);
        }
        if let Some(run) = body.pending.get_mut(at) {
            run.bios.push(bio);
        }
        self.copy(vec![need]);
    }
}

/// Sends a bio of a snapshot to its chunk's place.
pub(super) fn to_cow(it: &Snapshot, new: u64, mut bio: Bio) -> Bio {
    bio.set_sector(it.place(new, bio.sector()));
    flight::point(&mut bio, &*it.cow);
    bio
}
