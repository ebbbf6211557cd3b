//! What drives a copier: one at a time takes the turn, begins what can be begun, and submits what is ready.
//!
//! The state's lock is held for bookkeeping only; nothing is submitted and nobody is called under it.

use crate::job::{Copied, CopyFrom, CopyJob, CopyOptions, CopyStats, CopyTo, Progress};
use crate::pages::{PAGE, Pages};
use crate::piece::Piece;
use crate::queue::Queue;
use crate::slots::Slots;
use crate::throttle::Throttle;
use crate::workqueue::WorkItem;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Cx, Memory, Nanos, Op, OpFlags, Segment, Status};

/// Reads and writes that one section submits at most, so that others get their turn while devices answer at once.
const BUDGET: u32 = 256;
/// How long the workqueue waits for somebody to come by while something is out.
const ATTENTION_NS: u64 = 10_000_000;
/// How long the workqueue goes on looking when nothing is out any more.
const LINGER_NS: u64 = 500_000_000;

/// Zeroes to be written out.
#[repr(align(4096))]
struct Zeroes([u8; 65536]);
static ZEROES: Zeroes = Zeroes([0; 65536]);

pub(super) struct Inner {
    options: CopyOptions,
    /// The longest piece, in whole pages.
    piece: Sectors,
    /// Who has increased it from 0 runs; others leave it to that one.
    turn: AtomicUsize,
    state: Mutex<State>,
    /// Takes pages of the system only as they are used.
    memory: Memory,
    item: OnceLock<WorkItem>,
}

struct State {
    queue: Queue,
    /// Jobs of which pieces are out or are still to begin.
    under_way: Slots<Box<CopyJob>>,
    /// The job under way of which more pieces are to begin.
    current: Option<usize>,
    /// Zeroes that a device has turned out not to make: to be written out.
    redo: VecDeque<(usize, Sectors, Sectors)>,
    pieces: Slots<Box<Piece>>,
    ready: VecDeque<Io>,
    done: VecDeque<Box<CopyJob>>,
    pages: Pages,
    /// Of earlier reads and writes, to be used again.
    #[expect(clippy::vec_box, reason = "own bios point at their landings")]
    spare: Vec<Box<Landing>>,
    #[expect(clippy::vec_box, reason = "moved as boxes, in and out")]
    spare_pieces: Vec<Box<Piece>>,
    throttle: Throttle,
    stats: CopyStats,
    /// The highest number of a job that has begun.
    begun: u64,
    last_busy: Nanos,
    /// The section that the budget is for, and what it has used.
    section: (usize, u64),
    used: u32,
}

/// A read (0) or a write (from 1) of a piece.
#[derive(Clone, Copy)]
struct Io {
    piece: usize,
    which: usize,
}

/// What an internal bio's completion gets.
struct Landing {
    inner: Option<Arc<Inner>>,
    io: Io,
}

/// A read or write, ready to be submitted.
struct Departure {
    dev: Arc<dyn BlockDevice>,
    op: Op,
    flags: OpFlags,
    range: (Sector, Sectors),
    segs: *const [Segment],
    landing: Box<Landing>,
}

/// Where a part of a piece goes.
struct Place {
    dev: Arc<dyn BlockDevice>,
    range: (Sector, Sectors),
    /// How much of the piece comes before it.
    skip: Sectors,
}

impl Inner {
    pub(super) fn new(options: CopyOptions) -> std::io::Result<Self> {
        let pages = u32::try_from(options.pool.div_ceil(PAGE)).unwrap_or(u32::MAX).max(1);
        let piece = (options.piece / PAGE).clamp(1, pages as usize);
        let state = State {
            queue: Queue { jobs: VecDeque::new() },
            under_way: Slots::new(),
            current: None,
            redo: VecDeque::new(),
            pieces: Slots::new(),
            ready: VecDeque::new(),
            done: VecDeque::new(),
            pages: Pages::new(pages),
            spare: Vec::new(),
            spare_pieces: Vec::new(),
            throttle: Throttle::new(),
            stats: CopyStats::default(),
            begun: 0,
            last_busy: Nanos(0),
            section: (usize::MAX, 0),
            used: 0,
        };
        Ok(Self {
            options,
            piece: Sectors::in_bytes((piece * PAGE) as u64),
            turn: AtomicUsize::new(0),
            state: Mutex::new(state),
            memory: Memory::new(Sectors::in_bytes(u64::from(pages) * PAGE as u64))?,
            item: OnceLock::new(),
        })
    }

    pub(super) fn keep(&self, item: WorkItem) {
        let first = self.item.set(item);
        debug_assert!(first.is_ok(), "item once");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn item(&self) -> &WorkItem {
        self.item.get().expect("set when it was made")
    }

    pub(super) const fn options(&self) -> &CopyOptions {
        &self.options
    }

    pub(super) fn set_throttle(&self, percent: u32) {
        self.lock().throttle.percent = percent;
        self.item().kick_now();
    }

    /// One more that is in a hurry.
    pub(super) fn hurry(&self) {
        self.lock().throttle.hurries += 1;
        self.item().kick_now();
    }

    pub(super) fn no_hurry(&self) {
        self.lock().throttle.hurries -= 1;
    }

    pub(super) fn stats(&self) -> CopyStats {
        let state = self.lock();
        let outstanding = state.outstanding() as u64;
        CopyStats { pool_peak: u64::from(state.pages.peak()) * PAGE as u64, outstanding, ..state.stats }
    }

    pub(super) fn add(&self, mut job: Box<CopyJob>, asker: Arc<dyn Copied>) -> Result<(), Box<CopyJob>> {
        // Outside the lock: a mapped device looks into its table.
        job.progress = Progress { asker: Some(asker), most: self.longest(&job, false), ..Default::default() };
        job.read = Status::Ok;
        if job.is_whole() {
            // Also of what it goes together with.
            job.to.iter_mut().for_each(|to| to.take = Sectors::new(u64::MAX));
        }
        job.to.iter_mut().for_each(|to| to.status = Status::Ok);
        let mut state = self.lock();
        if state.queue.jobs.len() >= self.options.jobs {
            job.progress.asker = None;
            return Err(job);
        }
        state.stats.jobs += 1;
        job.progress.number = state.stats.jobs;
        if job.sectors.is_zero() {
            state.done.push_back(job);
        } else {
            state.queue.jobs.push_back(job);
        }
        drop(state);
        self.item().kick();
        Ok(())
    }

    /// The longest piece that the devices of a job take, in whole pages if that can be.
    fn longest(&self, job: &CopyJob, write_out: bool) -> Sectors {
        let zeroes = matches!(job.from, CopyFrom::Zeroes);
        let mut most = if zeroes && !write_out { Sectors::MAX } else { self.piece };
        if let CopyFrom::Device(dev, _) = &job.from {
            most = most.min(dev.limits().max_sectors);
        }
        for to in &job.to {
            let limits = to.dev.limits();
            most = match limits.max_write_zeroes {
                longest if zeroes && !write_out && !longest.is_zero() => most.min(longest),
                _ => most.min(limits.max_sectors).min(self.piece),
            };
        }
        let pages = Sectors::new(most.get() & !7);
        if pages.is_zero() { most.max(Sectors::new(1)) } else { pages }
    }

    /// When the workqueue is to look again.
    pub(super) fn next_attention(&self, now: Nanos) -> Option<Nanos> {
        let mut state = self.lock();
        if state.outstanding() > 0 {
            state.last_busy = now;
            let soon = now.after(ATTENTION_NS);
            let waits = !state.queue.jobs.is_empty() || state.current.is_some();
            let throttled = state.throttle.not_before(now).filter(|_| waits && state.pieces.len() == 0);
            return Some(throttled.unwrap_or(soon));
        }
        (now.since(state.last_busy) < LINGER_NS).then(|| now.after(ATTENTION_NS))
    }

    /// Does what can be done, if nobody else is at it: then that one does it.
    pub(super) fn run(self: &Arc<Self>, cx: &Cx<'_>) {
        if !cx.can_submit_internal() {
            return self.item().kick_now();
        }
        if self.turn.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        loop {
            let seen = self.turn.load(Ordering::Acquire);
            if !self.work(cx) {
                // Somebody will come back, whatever others have brought meanwhile.
                self.turn.store(0, Ordering::Release);
                return;
            }
            if self.turn.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }

    /// Until nothing is left that can be done. False when this section is to do no more: somebody will come back.
    fn work(self: &Arc<Self>, cx: &Cx<'_>) -> bool {
        loop {
            let mut state = self.lock();
            state.note(cx);
            if state.used >= BUDGET {
                drop(state);
                self.item().kick_now();
                return false;
            }
            if let Some(io) = state.ready.pop_front() {
                state.used += 1;
                let departure = state.departure(self, io);
                drop(state);
                if let Some(left) = self.copy_at_once(cx, departure)
                    && !self.depart(cx, left)
                {
                    return false;
                }
            } else if let Some(mut job) = state.done.pop_front() {
                state.used += 1;
                state.stats.done += 1;
                state.stats.failed += u64::from(!job.status().is_ok());
                drop(state);
                let asker = job.progress.asker.take().expect("a job that is out has an asker");
                asker.copied(cx, job);
            } else if state.throttle.not_before(cx.now()).is_some() || !state.begin(self) {
                return true;
            }
        }
    }

    /// Does a whole piece in place of its read, if its devices lend their memory: else gives the read back.
    fn copy_at_once(&self, cx: &Cx<'_>, departure: Departure) -> Option<Departure> {
        let (sector, sectors) = departure.range;
        let piece = departure.landing.io.piece;
        if departure.op != Op::Read {
            return Some(departure);
        }
        let Some(from) = departure.dev.direct_access(cx, Op::Read, sector, sectors) else { return Some(departure) };
        let Some(places) = self.lock().places(piece) else { return Some(departure) };
        let lent: Option<Vec<_>> =
            places.iter().map(|p| p.dev.direct_access(cx, Op::Write, p.range.0, p.range.1)).collect();
        let Some(lent) = lent else { return Some(departure) };
        for (place, to) in places.iter().zip(&lent) {
            from.copy_to(to, place.skip);
        }
        from.used();
        let mut state = self.lock();
        state.used += places.len() as u32;
        for place in &places {
            state.count(Op::Write, place.range.1);
        }
        state.pieces.get_mut(piece).left = 0;
        state.finish(piece, self);
        state.spare.push(departure.landing.emptied());
        None
    }

    /// Submits a read or write. False when the channel has no bio for it: it waits for one.
    fn depart(self: &Arc<Self>, cx: &Cx<'_>, departure: Departure) -> bool {
        let Departure { dev, op, flags, range, segs, landing } = departure;
        let level = Cx::internal_level(&*dev);
        let io = landing.io;
        let word = Box::into_raw(landing);
        // SAFETY: the job under way holds the device; the piece's list, and the pages that are its own, stay until it
        // has landed; the word is a landing.
        let submitted =
            unsafe { cx.submit_internal(level, &*dev, op, flags, range, &*segs, landed, word.cast_const().cast()) };
        if submitted {
            return true;
        }
        // SAFETY: not submitted, so that it is ours still.
        let landing = unsafe { Box::from_raw(word) };
        let mut state = self.lock();
        state.spare.push(landing.emptied());
        // It is counted when it goes.
        let (count, sum) = state.stats.of(op);
        (*count, *sum) = (*count - 1, sum.saturating_sub(range.1.checked_bytes().unwrap_or(u64::MAX)));
        state.ready.push_front(io);
        drop(state);
        if !cx.when_internal(level, self.clone()) {
            self.item().kick_now();
        }
        false
    }

    /// A read or write is done.
    fn land(&self, io: Io, status: Status, landing: Box<Landing>) {
        let mut state = self.lock();
        state.spare.push(landing);
        let piece = state.pieces.get_mut(io.piece);
        piece.left -= 1;
        match io.which {
            0 => {
                piece.read = status;
                if status.is_ok() {
                    state.write(io.piece);
                }
            }
            n => piece.writes[n - 1] = status,
        }
        if state.pieces.get(io.piece).left == 0 {
            state.finish(io.piece, self);
        }
    }
}

impl Landing {
    fn emptied(mut self: Box<Self>) -> Box<Self> {
        self.inner = None;
        self
    }
}

/// # Safety
/// `word` is a landing that nobody else knows.
unsafe fn landed(cx: &Cx<'_>, status: Status, word: *const ()) {
    // SAFETY: the contract.
    let mut landing = unsafe { Box::from_raw(word.cast_mut().cast::<Landing>()) };
    let inner = landing.inner.take().expect("a landing that is out leads to its copier");
    inner.land(landing.io, status, landing);
    inner.run(cx);
}

impl State {
    fn outstanding(&self) -> usize {
        self.queue.jobs.len() + self.under_way.len() + self.done.len()
    }

    /// The time has passed; another section may have begun.
    fn note(&mut self, cx: &Cx<'_>) {
        let section = (cx.id(), cx.section());
        if section != self.section {
            (self.section, self.used) = (section, 0);
        }
        if self.throttle.percent < 100 {
            let busy = self.pieces.len() > 0;
            self.throttle.note(cx.now(), busy);
        }
    }

    /// Begins the next piece, if one can begin.
    fn begin(&mut self, inner: &Inner) -> bool {
        if self.pieces.len() >= inner.options.pieces {
            return false;
        }
        if let Some((job, at, len)) = self.redo.pop_front() {
            let most = self.under_way.get(job).progress.most;
            let sectors = len.min(most);
            if sectors < len {
                self.under_way.get_mut(job).progress.out += 1;
                self.redo.push_front((job, at + sectors, len - sectors));
            }
            self.depart_piece(inner, &[job], at, sectors);
            return true;
        }
        if let Some(job) = self.current {
            return self.begin_part(inner, job);
        }
        let left = Sectors::in_bytes(u64::from(self.pages.left()) * PAGE as u64);
        let Some(first) = self.queue.jobs.front() else { return false };
        let zeroes = matches!(first.from, CopyFrom::Zeroes);
        let together = self.queue.together(&inner.options, if zeroes { Sectors::MAX } else { left });
        let count = together.map_or(1, |(count, _)| count);
        if together.is_none() && !zeroes && first.next_len() > left {
            self.stats.page_waits += 1;
            self.queue.requeue(&inner.options);
            return false;
        }
        let mut jobs = self.spare_jobs();
        for i in 0..count {
            let Some(job) = self.queue.jobs.pop_front() else { break };
            if job.progress.number < self.begun {
                self.stats.out_of_order += u64::from(!job.progress.alone);
            }
            self.begun = self.begun.max(job.progress.number);
            self.stats.merged += u64::from(i > 0);
            jobs.push(self.under_way.put(job));
        }
        match together {
            Some((_, len)) => {
                for &job in &jobs {
                    let job = self.under_way.get_mut(job);
                    job.progress.begun = job.sectors;
                    job.progress.out += 1;
                }
                self.depart_piece(inner, &jobs, Sectors::ZERO, len);
                true
            }
            None => {
                self.current = Some(jobs[0]);
                self.begin_part(inner, jobs[0])
            }
        }
    }

    /// An empty list.
    fn spare_jobs(&mut self) -> Vec<usize> {
        let mut jobs = self.spare_pieces.last_mut().map(|p| std::mem::take(&mut p.jobs)).unwrap_or_default();
        jobs.clear();
        jobs
    }

    /// Begins a part of a job that goes by itself.
    fn begin_part(&mut self, inner: &Inner, job: usize) -> bool {
        let it = self.under_way.get_mut(job);
        let (at, len) = (it.progress.begun, it.next_len());
        let zeroes = matches!(it.from, CopyFrom::Zeroes);
        if !zeroes && len.as_len().div_ceil(PAGE) > self.pages.left() as usize {
            self.stats.page_waits += 1;
            return false;
        }
        it.progress.begun += len;
        it.progress.out += 1;
        if it.progress.begun == it.sectors {
            self.current = None;
        }
        self.depart_piece(inner, &[job], at, len);
        true
    }

    /// Makes a piece of jobs under way, for which there are pages, and its first reads or writes ready.
    fn depart_piece(&mut self, inner: &Inner, jobs: &[usize], at: Sectors, sectors: Sectors) {
        let first = self.under_way.get(jobs[0]);
        let (zeroes, places, write_out) =
            (matches!(first.from, CopyFrom::Zeroes), first.to.len(), first.progress.write_out);
        let mut piece = self.spare_pieces.pop().unwrap_or_else(Piece::new);
        piece.jobs.clear();
        piece.jobs.extend_from_slice(jobs);
        (piece.at, piece.sectors, piece.write_out) = (at, sectors, write_out);
        piece.read = Status::Ok;
        piece.left = 0;
        piece.writes.clear();
        piece.writes.resize(places, Status::Ok);
        piece.segs.clear();
        let bytes = sectors.checked_bytes().unwrap_or(u64::MAX);
        if zeroes {
            // For those devices that make none themselves: these take a piece's length at most.
            let longest = inner.piece.bytes().min(bytes) as usize;
            for _ in 0..longest.div_ceil(ZEROES.0.len()) {
                // SAFETY: a device only reads the memory of a write.
                piece.segs.push(unsafe { Segment::new(ZEROES.0.as_ptr().cast_mut(), ZEROES.0.len()) });
            }
        } else {
            let pages = sectors.as_len().div_ceil(PAGE) as u32;
            let taken = self.pages.take(pages, &mut piece.runs);
            assert!(taken, "looked before");
            for &(page, count) in &piece.runs {
                let start = inner.memory.as_ptr().wrapping_add(page as usize * PAGE);
                // SAFETY: these pages are the piece's until it has given them back, after its last write.
                piece.segs.push(unsafe { Segment::new(start, count as usize * PAGE) });
            }
        }
        let number = self.pieces.put(piece);
        self.cut(number);
        if zeroes {
            self.write(number);
            if self.pieces.get(number).left == 0 {
                self.finish(number, inner);
            }
        } else {
            self.pieces.get_mut(number).left = 1;
            self.ready.push_back(Io { piece: number, which: 0 });
        }
    }

    /// Makes the lists of memory for places that get a part of a piece only, or zeroes too.
    fn cut(&mut self, number: usize) {
        let piece = self.pieces.get_mut(number);
        piece.cut.clear();
        piece.cuts.clear();
        piece.pads.clear();
        let last = self.under_way.get(*piece.jobs.last().expect("a piece is of jobs"));
        // Of jobs together the piece is all of each; of one it may be a part.
        let at = if piece.jobs.len() > 1 { (Sectors::ZERO, last.sectors) } else { (piece.at, piece.sectors) };
        let reads = matches!(last.from, CopyFrom::Device(..));
        let pad = |to: &CopyTo| if reads { to.pad_of(at.0, at.1, last.sectors) } else { Sectors::ZERO };
        piece.pads.extend(last.to.iter().map(pad));
        for (to, pad) in self.under_way.get(piece.jobs[0]).to.iter().zip(&piece.pads) {
            let begin = piece.cut.len();
            let part = to.overlap(piece.at, piece.sectors);
            if let Some((start, len)) = part.filter(|(_, len)| *len < piece.sectors || !pad.is_zero()) {
                let (mut skip, mut left) = ((start - piece.at).as_len(), len.as_len());
                for seg in &piece.segs {
                    let from = skip.min(seg.len());
                    let taken = (seg.len() - from).min(left);
                    if taken > 0 {
                        // SAFETY: a part of the segment, which may be used as long as that.
                        piece.cut.push(unsafe { Segment::new(seg.as_ptr().add(from), taken) });
                    }
                    (skip, left) = (skip - from, left - taken);
                }
                let mut left = pad.as_len();
                while left > 0 {
                    let taken = left.min(ZEROES.0.len());
                    // SAFETY: a device only reads the memory of a write.
                    piece.cut.push(unsafe { Segment::new(ZEROES.0.as_ptr().cast_mut(), taken) });
                    left -= taken;
                }
            }
            piece.cuts.push(begin..piece.cut.len());
        }
    }

    /// Makes the writes of a piece ready.
    fn write(&mut self, number: usize) {
        let piece = self.pieces.get_mut(number);
        let to = &self.under_way.get(piece.jobs[0]).to;
        let before = self.ready.len();
        // After those of earlier pieces, before whatever is to begin.
        let some = to.iter().enumerate().filter(|(_, to)| to.overlap(piece.at, piece.sectors).is_some());
        self.ready.extend(some.map(|(at, _)| Io { piece: number, which: at + 1 }));
        piece.left = self.ready.len() - before;
    }

    /// Where the parts of a piece go; none, if there is more to be written than that.
    fn places(&self, number: usize) -> Option<Vec<Place>> {
        let piece = self.pieces.get(number);
        if piece.pads.iter().any(|pad| !pad.is_zero()) {
            return None;
        }
        let place = |to: &CopyTo| {
            let (start, len) = to.overlap(piece.at, piece.sectors)?;
            let range = (to.sector + (start - to.skip), len);
            Some(Place { dev: to.dev.clone(), range, skip: start - piece.at })
        };
        Some(self.under_way.get(piece.jobs[0]).to.iter().filter_map(place).collect())
    }

    fn count(&mut self, op: Op, sectors: Sectors) {
        let (count, sum) = self.stats.of(op);
        (*count, *sum) = (*count + 1, sum.saturating_add(sectors.checked_bytes().unwrap_or(u64::MAX)));
    }

    fn departure(&mut self, inner: &Arc<Inner>, io: Io) -> Departure {
        let mut landing = self.spare.pop().unwrap_or_else(|| Box::new(Landing { inner: None, io }));
        landing.io = io;
        landing.inner = Some(inner.clone());
        let piece = self.pieces.get(io.piece);
        let job = self.under_way.get(piece.jobs[0]);
        let mut segs = &raw const *piece.segs;
        let (dev, range, op) = match (io.which, &job.from) {
            (0, CopyFrom::Device(dev, sector)) => (dev.clone(), (*sector + piece.at, piece.sectors), Op::Read),
            (0, CopyFrom::Zeroes) => unreachable!("zeroes are not read"),
            (n, from) => {
                let to = &job.to[n - 1];
                let zeroes = matches!(from, CopyFrom::Zeroes) && !piece.write_out;
                let makes = zeroes && !to.dev.limits().max_write_zeroes.is_zero();
                let (start, len) = to.overlap(piece.at, piece.sectors).expect("ready if it gets something");
                let pad = piece.pads[n - 1];
                if len < piece.sectors || !pad.is_zero() {
                    segs = &raw const piece.cut[piece.cuts[n - 1].clone()];
                }
                (
                    to.dev.clone(),
                    (to.sector + (start - to.skip), len + pad),
                    if makes { Op::WriteZeroes } else { Op::Write },
                )
            }
        };
        let flags = if op == Op::Read { OpFlags::NONE } else { job.flags };
        self.count(op, range.1);
        Departure { dev, op, flags, range, segs, landing }
    }

    /// The last of a piece has landed.
    fn finish(&mut self, number: usize, inner: &Inner) {
        let mut piece = self.pieces.take(number);
        self.pages.give(&mut piece.runs);
        let failed = !piece.read.is_ok() || piece.writes.iter().any(|s| !s.is_ok());
        let jobs = std::mem::take(&mut piece.jobs);
        if failed && jobs.len() > 1 {
            // Each by itself, so that each learns of its own error.
            for &job in jobs.iter().rev() {
                let mut job = self.under_way.take(job);
                job.progress.begun = Sectors::ZERO;
                job.progress.out = 0;
                job.progress.alone = true;
                self.queue.jobs.push_front(job);
            }
        } else if failed && self.must_write_out(&piece, jobs[0]) {
            let job = self.under_way.get_mut(jobs[0]);
            job.progress.write_out = true;
            job.progress.most = inner.longest(job, true);
            self.redo.push_back((jobs[0], piece.at, piece.sectors));
        } else {
            for &job in &jobs {
                self.finish_part(job, &piece);
            }
        }
        piece.jobs = jobs;
        self.spare_pieces.push(piece);
    }

    /// Whether all that failed is that a device does not make zeroes.
    fn must_write_out(&self, piece: &Piece, job: usize) -> bool {
        let zeroes = matches!(self.under_way.get(job).from, CopyFrom::Zeroes) && !piece.write_out;
        zeroes && piece.writes.iter().all(|s| matches!(s, Status::Ok | Status::NotSupported))
    }

    fn finish_part(&mut self, number: usize, piece: &Piece) {
        let job = self.under_way.get_mut(number);
        if job.read.is_ok() {
            job.read = piece.read;
        }
        for (to, status) in job.to.iter_mut().zip(&piece.writes) {
            if to.status.is_ok() {
                to.status = *status;
            }
        }
        job.progress.out -= 1;
        if job.progress.out == 0 && job.progress.begun == job.sectors {
            let job = self.under_way.take(number);
            self.done.push_back(job);
        }
    }
}

/// A copier that is let go of has nothing out: what is out holds it.
impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(
            state.pieces.len() == 0 || std::thread::panicking(),
            "a copier is dropped while its reads and writes are out"
        );
    }
}
