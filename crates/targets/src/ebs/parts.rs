//! Reads and writes of parts of blocks: by way of memory that holds whole blocks.

use super::ranges::Ranges;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_core::Held;
use udm_io::{
    Bio, BlockDevice, Cx, InternalIo, InternalIoOwner, InternalWaiter, IoBuffer, IoMemory, Op, OpFlags, Status,
};

/// Does them, and keeps writes from each other.
pub(super) struct Parts {
    dev: Arc<dyn BlockDevice>,
    /// Sectors of a block.
    block: u64,
    ranges: Mutex<Ranges>,
    /// Writes that wait for others; the context of each is its number.
    pub(super) held: Held,
    releases: Mutex<Releases>,
    /// What a channel had no internal bio for, with the number of the channel.
    refused: Mutex<Vec<(usize, Box<InternalIo<Job>>)>>,
}

/// Writes that need not wait any more.
#[derive(Default)]
struct Releases {
    free: Vec<u64>,
    /// A thread is releasing them. Another call meanwhile, also one from within, leaves the work to it, so that many
    /// writes do not cause deep recursion.
    is_busy: bool,
}

/// A read or write of parts, and how far it is.
struct Job {
    bio: Option<Bio>,
    /// Of a write, which leaves when it is done.
    id: Option<u64>,
    /// Whole blocks, from a sector on.
    data: AlignedBuf,
    start: Sector,
    /// What of the data is being read or written.
    window: Range<usize>,
    step: Step,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// All blocks are read.
    Read,
    /// The first block is read, unless it is written whole.
    Head,
    /// The last one likewise.
    Tail,
    Write,
    Done,
}

impl IoMemory for Job {
    fn buffer(&mut self) -> IoBuffer<'_> {
        IoBuffer::In(&mut self.data[self.window.clone()])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Parts {
    pub(super) fn new(dev: Arc<dyn BlockDevice>, block: u64) -> Self {
        let (ranges, releases, refused) = Default::default();
        Self { dev, block, ranges, held: Held::default(), releases, refused }
    }

    /// A write has come, which has its place beneath. Returns its number.
    pub(super) fn enter(&self, bio: &Bio) -> u64 {
        let (first, end) = (bio.sector().get() / self.block, bio.end_sector().get().div_ceil(self.block));
        lock(&self.ranges).enter(first, end)
    }

    /// Whether a write has to wait for others.
    pub(super) fn waits(&self, id: u64) -> bool {
        lock(&self.ranges).waits(id)
    }

    /// A write is done: those go on that waited for it.
    pub(super) fn leave(&self, id: u64) {
        let free = lock(&self.ranges).leave(id);
        if free.is_empty() {
            return;
        }
        let mut releases = lock(&self.releases);
        releases.free.extend(free);
        if std::mem::replace(&mut releases.is_busy, true) {
            return;
        }
        while !releases.free.is_empty() {
            let free = std::mem::take(&mut releases.free);
            drop(releases);
            self.held.release(|id| free.contains(&id));
            releases = lock(&self.releases);
        }
        releases.is_busy = false;
    }

    /// Reads what a bio asks for, and ends it.
    pub(super) fn read(self: &Arc<Self>, cx: &Cx<'_>, bio: Bio) {
        self.begin(cx, bio, None, Step::Read);
    }

    /// Writes what a bio asks for, and ends it; then it leaves. No other write of its blocks is under way.
    pub(super) fn write(self: &Arc<Self>, cx: &Cx<'_>, bio: Bio, id: u64) {
        self.begin(cx, bio, Some(id), Step::Head);
    }

    fn begin(self: &Arc<Self>, cx: &Cx<'_>, bio: Bio, id: Option<u64>, step: Step) {
        let start = bio.sector().get() / self.block * self.block;
        // The last block may be cut off by the device's end.
        let end = bio.end_sector().get().next_multiple_of(self.block).min(self.dev.sectors().get());
        let len = Sectors::new(end.max(bio.end_sector().get()) - start);
        let data = AlignedBuf::zeroed(len.as_len());
        let job = Job { bio: Some(bio), id, data, start: Sector::new(start), window: 0..0, step };
        self.go_on(cx, InternalIo::new(self.dev.clone(), job), Status::Ok);
    }

    /// Does the next step, or ends the bio.
    fn go_on(self: &Arc<Self>, cx: &Cx<'_>, mut io: Box<InternalIo<Job>>, status: Status) {
        if !status.is_ok() || !io.memory.aim(self.block) {
            return self.finish(cx, io.memory, status);
        }
        let writes = io.memory.step == Step::Done && io.memory.id.is_some();
        let flags = io.memory.bio.as_ref().filter(|_| writes).map_or(OpFlags::NONE, Bio::flags);
        let window = &io.memory.window;
        let (skip, len) = (Sectors::in_bytes(window.start as u64), Sectors::in_bytes(window.len() as u64));
        (io.op, io.flags) = (if writes { Op::Write } else { Op::Read }, flags);
        (io.sector, io.sectors) = (io.memory.start + skip, len);
        self.send(cx, io);
    }

    fn send(self: &Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<Job>>) {
        let Err(io) = cx.submit_internal_io(io, self.clone()) else { return };
        if !cx.can_submit_internal() {
            // The channel ends, and nobody waits for its bios.
            return self.finish(cx, io.memory, Status::Io);
        }
        lock(&self.refused).push((cx.id(), io));
        // True, since the channel still gives some.
        let _ = cx.when_internal(Cx::internal_level(&*self.dev), self.clone());
    }

    fn finish(&self, cx: &Cx<'_>, job: Job, status: Status) {
        let Some(bio) = job.bio else { return };
        if status.is_ok() && bio.op() == Op::Read {
            bio.copy_in(0, &job.data[(bio.sector() - job.start).as_len()..]);
        }
        cx.end(bio, status);
        if let Some(id) = job.id {
            self.leave(id);
        }
    }
}

impl Job {
    /// Prepares the next read or write of its data; false when there is none.
    fn aim(&mut self, block: u64) -> bool {
        let block = Sectors::new(block).as_len();
        let Some(bio) = &self.bio else { return false };
        let own = (bio.sector() - self.start).as_len()..(bio.end_sector() - self.start).as_len();
        let last = (self.data.len() - 1) / block * block;
        loop {
            match self.step {
                Step::Read => (self.window, self.step) = (0..self.data.len(), Step::Done),
                Step::Head => {
                    self.step = Step::Tail;
                    if own.start == 0 {
                        continue;
                    }
                    self.window = 0..block.min(self.data.len());
                }
                Step::Tail => {
                    self.step = Step::Write;
                    let is_read = own.start > 0 && last == 0;
                    if own.end == self.data.len() || is_read {
                        continue;
                    }
                    self.window = last..self.data.len();
                }
                Step::Write => {
                    bio.copy_out(0, &mut self.data[own]);
                    (self.window, self.step) = (0..self.data.len(), Step::Done);
                }
                Step::Done => return false,
            }
            return true;
        }
    }
}

impl InternalIoOwner<Job> for Parts {
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<Job>>, status: Status) {
        self.go_on(cx, io, status);
    }
}

impl InternalWaiter for Parts {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        let mut refused = lock(&self.refused);
        let Some(at) = refused.iter().position(|(channel, _)| *channel == cx.id()) else { return };
        let (_, io) = refused.remove(at);
        drop(refused);
        self.send(cx, io);
    }
}
