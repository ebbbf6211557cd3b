//! Jobs: what is copied, where to, and how it went.

use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Cx, Op, OpFlags, Status};

/// Where a job that finds too few pages goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requeue {
    /// It stays first.
    Head,
    /// Behind all others, as the kernel once did.
    Tail,
}

/// How a [`Kcopyd`] works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyOptions {
    /// Memory for what is read and not written yet, in bytes; rounded up to whole pages. 16 MiB unless set.
    pub pool: usize,
    /// The longest single read or write, in bytes. 1 MiB unless set. Never more than the pool.
    pub piece: usize,
    /// Pieces that are out at a time. 64 unless set.
    pub pieces: usize,
    /// Jobs that wait at a time. 65536 unless set.
    pub jobs: usize,
    /// Where a job that finds too few pages goes. [`Requeue::Head`] unless set.
    pub requeue: Requeue,
    /// Whether jobs next to each other go together. True unless set.
    pub merge: bool,
}

impl CopyOptions {
    /// As the snapshots of Linux 2.6.27 had it: 1 MiB of pages a snapshot (`SNAPSHOT_PAGES`, `drivers/md/dm-snap.c`),
    /// pieces of 64 KiB (`SUB_JOB_SIZE`, `drivers/md/dm-kcopyd.c`), and no job merged with another. With
    /// [`Requeue::Tail`] it is that kernel, with [`Requeue::Head`] the one that was mended.
    pub const fn linux_2_6_27(requeue: Requeue) -> Self {
        Self { pool: 1 << 20, piece: 64 << 10, pieces: usize::MAX, jobs: usize::MAX, requeue, merge: false }
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { pool: 16 << 20, piece: 1 << 20, pieces: 64, jobs: 1 << 16, requeue: Requeue::Head, merge: true }
    }
}

/// What a job copies.
#[derive(Clone)]
pub enum CopyFrom {
    /// What a device holds from a sector on.
    Device(Arc<dyn BlockDevice>, Sector),
    /// Nothing but zeroes, by WRITE ZEROES where the device has it.
    Zeroes,
}

/// A place to write to.
#[derive(Clone)]
pub struct CopyTo {
    /// The device.
    pub dev: Arc<dyn BlockDevice>,
    /// Where on it.
    pub sector: Sector,
    /// How much of what is copied goes elsewhere only, before what comes here.
    pub skip: Sectors,
    /// How much comes here at most.
    pub take: Sectors,
    /// Zeroes that are written behind what comes here, if one write can be that long: a gap before the next place, that
    /// may be filled as well as not.
    pub pad: Sectors,
    /// How the write went, once the job is done. Untouched when the read failed.
    pub status: Status,
}

impl CopyTo {
    /// A place for all that is copied.
    pub fn new(dev: Arc<dyn BlockDevice>, sector: Sector) -> Self {
        Self::part(dev, sector, Sectors::ZERO, Sectors::new(u64::MAX))
    }

    /// A place for `take` sectors of it, without the first `skip`.
    pub fn part(dev: Arc<dyn BlockDevice>, sector: Sector, skip: Sectors, take: Sectors) -> Self {
        Self { dev, sector, skip, take, pad: Sectors::ZERO, status: Status::Ok }
    }

    /// The zeroes behind what comes here of `sectors` from `at`, if it ends there.
    pub(crate) fn pad_of(&self, at: Sectors, sectors: Sectors, job: Sectors) -> Sectors {
        let end = self.skip.get().saturating_add(self.take.get()).min(job.get());
        let Some((start, len)) = self.overlap(at, sectors).filter(|_| !self.pad.is_zero()) else {
            return Sectors::ZERO;
        };
        let written = (start - self.skip).checked_add(len).and_then(|len| len.checked_add(self.pad));
        let behind = written.and_then(|len| self.sector.checked_add(len));
        let fits = behind.is_some_and(|behind| behind <= self.dev.sectors().from_start());
        let short = len.checked_add(self.pad).is_some_and(|len| len <= self.dev.limits().max_sectors);
        if start + len == Sectors::new(end) && fits && short { self.pad } else { Sectors::ZERO }
    }

    /// Where in the job begins what comes here of `sectors` from `at`, and how much that is.
    pub(crate) fn overlap(&self, at: Sectors, sectors: Sectors) -> Option<(Sectors, Sectors)> {
        let end = |from: Sectors, len: Sectors| from.get().saturating_add(len.get());
        let start = at.max(self.skip);
        let end = end(at, sectors).min(end(self.skip, self.take));
        (end > start.get()).then(|| (start, Sectors::new(end - start.get())))
    }
}

/// One copy. The devices are held elsewhere too as long as it is out, so that the last hold is not let go of inside a
/// channel.
pub struct CopyJob {
    /// What is copied.
    pub from: CopyFrom,
    /// How much. 0 is done at once.
    pub sectors: Sectors,
    /// Where to. What no place takes is read all the same.
    pub to: Vec<CopyTo>,
    /// Flags of the writes, as [`OpFlags::FUA`].
    pub flags: OpFlags,
    /// How the read went, once the job is done.
    pub read: Status,
    /// The asker's own.
    pub token: u64,
    pub(crate) progress: Progress,
}

impl CopyJob {
    /// A job; boxes that come back can be used again.
    pub fn new(from: CopyFrom, sectors: Sectors, to: Vec<CopyTo>) -> Box<Self> {
        let progress = Progress::default();
        Box::new(Self { from, sectors, to, flags: OpFlags::NONE, read: Status::Ok, token: 0, progress })
    }

    /// Whether every place gets all that is copied.
    pub fn is_whole(&self) -> bool {
        self.to.iter().all(|to| to.skip.is_zero() && to.take >= self.sectors)
    }

    /// Whether no place has zeroes behind it.
    pub(crate) fn is_bare(&self) -> bool {
        self.to.iter().all(|to| to.pad.is_zero())
    }

    /// The first error that was met, of the read or of any write.
    pub fn status(&self) -> Status {
        let all = [self.read].into_iter().chain(self.to.iter().map(|to| to.status));
        all.into_iter().find(|s| !s.is_ok()).unwrap_or(Status::Ok)
    }
}

/// Who asks for copies.
pub trait Copied: Send + Sync {
    /// A job is done, or has failed. Called once for each job, inside a channel, maybe before [`Kcopyd::copy`] has
    /// returned; in the order in which they ended. More jobs may be asked for from here. Must not block.
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>);
}

/// What a [`Kcopyd`] did since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyStats {
    /// Jobs that were asked for.
    pub jobs: u64,
    /// Of those, how many went along with the one before.
    pub merged: u64,
    /// Jobs that are done or have failed.
    pub done: u64,
    /// Jobs with an error.
    pub failed: u64,
    /// Jobs that began after one that was asked for later.
    pub out_of_order: u64,
    /// How often the first job found too few pages.
    pub page_waits: u64,
    /// Reads that were started.
    pub reads: u64,
    /// Writes that were started, zeroes among them.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written, to all places.
    pub bytes_written: u64,
    /// Bytes of the pool in use at most.
    pub pool_peak: u64,
    /// Jobs that wait or are under way now.
    pub outstanding: u64,
}

impl CopyStats {
    /// How many of an operation were started, and their bytes.
    pub(crate) fn of(&mut self, op: Op) -> (&mut u64, &mut u64) {
        match op {
            Op::Read => (&mut self.reads, &mut self.bytes_read),
            _ => (&mut self.writes, &mut self.bytes_written),
        }
    }
}

/// How far a job has come.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) asker: Option<Arc<dyn Copied>>,
    /// The number of the job in the order of asking, from 1.
    pub(crate) number: u64,
    /// Sectors of which copying has begun.
    pub(crate) begun: Sectors,
    /// Pieces that are out.
    pub(crate) out: usize,
    /// The longest piece that its devices take.
    pub(crate) most: Sectors,
    /// It failed together with others.
    pub(crate) alone: bool,
    /// Zeroes are to be written out, because a device has turned out not to make them.
    pub(crate) write_out: bool,
}
