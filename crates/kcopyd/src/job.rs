//! Jobs: the source, the destinations, and the results.

use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Cx, Op, OpFlags, Status};

/// Where a job that finds too few pages goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requeue {
    /// It stays first.
    Head,
    /// It goes behind all others, as the kernel once did.
    Tail,
}

/// Options of a [`Kcopyd`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyOptions {
    /// Memory for data that is read and not written yet, in bytes; rounded up to whole pages. Default 16 MiB.
    pub pool: usize,
    /// The longest single read or write, in bytes. Default 1 MiB. Never more than the pool.
    pub piece: usize,
    /// The most pieces out at a time. Default 64.
    pub pieces: usize,
    /// The most waiting jobs. Default 65536.
    pub jobs: usize,
    /// Where a job that finds too few pages goes. Default [`Requeue::Head`].
    pub requeue: Requeue,
    /// Whether neighbouring jobs are joined. Default true.
    pub merge: bool,
}

impl CopyOptions {
    /// The options of the snapshots of Linux 2.6.27: 1 MiB of pages per snapshot (`SNAPSHOT_PAGES`,
    /// `drivers/md/dm-snap.c`), pieces of 64 KiB (`SUB_JOB_SIZE`, `drivers/md/dm-kcopyd.c`), and no job merged with
    /// another. With [`Requeue::Tail`] it is that kernel, with [`Requeue::Head`] the one with the fix.
    pub const fn linux_2_6_27(requeue: Requeue) -> Self {
        Self { pool: 1 << 20, piece: 64 << 10, pieces: usize::MAX, jobs: usize::MAX, requeue, merge: false }
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { pool: 16 << 20, piece: 1 << 20, pieces: 64, jobs: 1 << 16, requeue: Requeue::Head, merge: true }
    }
}

/// The source of a job.
#[derive(Clone)]
pub enum CopyFrom {
    /// The content of a device from a sector on.
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
    /// How many sectors of the copy to skip before this place's part.
    pub skip: Sectors,
    /// The most sectors for this place.
    pub take: Sectors,
    /// Zeroes that may be written behind this place's part, if one write can be that long: to fill a gap before the
    /// next place. The caller must not depend on them.
    pub pad: Sectors,
    /// The status of the write, once the job is done. Unchanged when the read failed.
    pub status: Status,
}

impl CopyTo {
    /// A place for the whole copy.
    pub fn new(dev: Arc<dyn BlockDevice>, sector: Sector) -> Self {
        Self::part(dev, sector, Sectors::ZERO, Sectors::new(u64::MAX))
    }

    /// A place for `take` sectors of it, without the first `skip`.
    pub fn part(dev: Arc<dyn BlockDevice>, sector: Sector, skip: Sectors, take: Sectors) -> Self {
        Self { dev, sector, skip, take, pad: Sectors::ZERO, status: Status::Ok }
    }

    /// The zeroes behind this place's part of `sectors` from `at`, if the part ends there.
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

    /// The part of `sectors` from `at` that goes to this place: where it begins in the job, and its length.
    pub(crate) fn overlap(&self, at: Sectors, sectors: Sectors) -> Option<(Sectors, Sectors)> {
        let end = |from: Sectors, len: Sectors| from.get().saturating_add(len.get());
        let start = at.max(self.skip);
        let end = end(at, sectors).min(end(self.skip, self.take));
        (end > start.get()).then(|| (start, Sectors::new(end - start.get())))
    }
}

/// One copy. The devices must be held elsewhere too as long as it is out, so that the last reference is not dropped
/// inside a channel.
pub struct CopyJob {
    /// The source.
    pub from: CopyFrom,
    /// The length. 0 is done at once.
    pub sectors: Sectors,
    /// The destinations. A part that no place takes is read all the same.
    pub to: Vec<CopyTo>,
    /// Flags of the writes, as [`OpFlags::FUA`].
    pub flags: OpFlags,
    /// The status of the read, once the job is done.
    pub read: Status,
    /// For the asker's use.
    pub token: u64,
    pub(crate) progress: Progress,
}

impl CopyJob {
    /// A job; boxes that come back can be reused.
    pub fn new(from: CopyFrom, sectors: Sectors, to: Vec<CopyTo>) -> Box<Self> {
        let progress = Progress::default();
        Box::new(Self { from, sectors, to, flags: OpFlags::NONE, read: Status::Ok, token: 0, progress })
    }

    /// Whether every place gets the whole copy.
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

/// A requester of copies.
pub trait Copied: Send + Sync {
    /// A job is done, or has failed. Called once for each job, inside a channel, perhaps before [`Kcopyd::copy`] has
    /// returned; in the order in which jobs ended. May request more jobs. Must not block.
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>);
}

/// The statistics of a [`Kcopyd`] since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyStats {
    /// Jobs that were requested.
    pub jobs: u64,
    /// How many of them were joined with the one before.
    pub merged: u64,
    /// Jobs that are done or have failed.
    pub done: u64,
    /// Jobs with an error.
    pub failed: u64,
    /// Jobs that began after one that was requested later.
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
    /// The most bytes of the pool in use.
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

/// The progress of a job.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) asker: Option<Arc<dyn Copied>>,
    /// The number of the job in the order of requests, from 1.
    pub(crate) number: u64,
    /// Sectors of which copying has begun.
    pub(crate) begun: Sectors,
    /// Pieces that are out.
    pub(crate) out: usize,
    /// The longest piece that its devices take.
    pub(crate) most: Sectors,
    /// It failed when it was joined with others.
    pub(crate) alone: bool,
    /// Zeroes have to be written as data, because a device does not support WRITE ZEROES.
    pub(crate) write_out: bool,
}
