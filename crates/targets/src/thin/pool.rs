//! A pool: what its tables, its volumes and its worker share.

use super::mapping::MappingCache;
use super::worker::{Command, Event};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use udm_base::{Divisor, Sector, Sectors};
use udm_core::MappedDevice;
use udm_io::{BlockDevice, Cx, Domain};
use udm_kcopyd::{CopyJob, CopyOptions};
use udm_worker::{Copies, Service, Worker};

/// What the mapping cache of a pool may use, in bytes.
const MAPPING_BYTES: usize = 64 << 20;

/// What a pool can do, from everything to nothing (`enum pool_mode`, `drivers/md/dm-thin.c`, 6.12).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum PoolMode {
    /// Metadata may be changed.
    Write,
    /// Metadata may be changed, but no data block can be had.
    OutOfDataSpace,
    /// Metadata may not be changed for want of metadata blocks.
    OutOfMetadataSpace,
    /// Metadata may not be changed.
    ReadOnly,
    /// All I/O fails.
    Fail,
}

impl PoolMode {
    const ALL: [Self; 5] = [Self::Write, Self::OutOfDataSpace, Self::OutOfMetadataSpace, Self::ReadOnly, Self::Fail];
}

/// Whether volumes may use what they know without asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    Open,
    /// Every bio goes to the worker, which keeps it until the pool is resumed: it looks at the gate, too.
    Suspended,
    /// Every bio fails.
    Failed,
}

/// Why a gate is not open. Of both, the worse counts.
const SUSPENDED: u8 = 1;
const FAILED: u8 = 2;

/// A pool that is open.
pub(super) type Pool = Worker<Shared>;

/// What is read by its volumes' bios on their way.
pub(super) struct Shared {
    /// The mapped device whose table makes the pool.
    pub(super) owner: Weak<MappedDevice>,
    pub(super) metadata: Arc<dyn BlockDevice>,
    pub(super) data: Arc<dyn BlockDevice>,
    /// The size of a data block in sectors.
    pub(super) block: Divisor,
    /// Whether the pool takes discards, which is settled when it is made.
    pub(super) discards: bool,
    /// Whether zeroes over a whole block are the worker's, who unmaps it.
    pub(super) unmaps: AtomicBool,
    pub(super) cache: Arc<MappingCache>,
    mode: AtomicU8,
    gate: AtomicU8,
    /// How long writes wait for space, in nanoseconds; 0 for ever.
    pub(super) no_space_timeout: AtomicU64,
}

impl Service for Shared {
    type Event = Event;
    const NAME: &'static str = "pool";
}

impl Copies for Shared {
    fn copied(job: Box<CopyJob>) -> Event {
        Event::Done(job.token, job.status())
    }
}

/// A pool whose worker has not begun yet.
pub(super) fn new_pool(
    domain: &Domain,
    owner: Weak<MappedDevice>,
    [metadata, data]: [Arc<dyn BlockDevice>; 2],
    block: Sectors,
    discards: bool,
) -> std::io::Result<Arc<Pool>> {
    let shared = Shared {
        owner,
        metadata,
        data,
        block: Divisor::new(block.get()),
        discards,
        unmaps: AtomicBool::new(false),
        cache: MappingCache::new(MAPPING_BYTES),
        mode: AtomicU8::new(PoolMode::Write as u8),
        gate: AtomicU8::new(SUSPENDED),
        no_space_timeout: AtomicU64::new(60_000_000_000),
    };
    Worker::new(domain, shared, &[CopyOptions::default()])
}

impl Shared {
    /// What the pool can do now.
    #[inline]
    pub(super) fn mode(&self) -> PoolMode {
        PoolMode::ALL[usize::from(self.mode.load(Ordering::Relaxed)).min(4)]
    }

    pub(super) fn set_mode(&self, mode: PoolMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn gate(&self) -> Gate {
        match self.gate.load(Ordering::Acquire) {
            0 => Gate::Open,
            SUSPENDED => Gate::Suspended,
            _ => Gate::Failed,
        }
    }

    /// From here on bios are kept. Who waits for sections afterwards has waited for all that passed the gate before:
    /// they are counted in flight, or left to the worker, who sees the gate as they do.
    pub(super) fn suspend_gate(&self) {
        self.gate.fetch_or(SUSPENDED, Ordering::AcqRel);
    }

    /// From here on bios are not kept any more.
    pub(super) fn resume_gate(&self) {
        self.gate.fetch_and(!SUSPENDED, Ordering::AcqRel);
    }

    /// From here on, for good, bios fail.
    pub(super) fn fail_gate(&self) {
        self.gate.fetch_or(FAILED, Ordering::AcqRel);
    }

    /// Where a data block begins on the data device.
    #[inline]
    pub(super) fn sector_of(&self, data: u64) -> Sector {
        Sector::new(data * self.block.get())
    }

    /// The size of a block.
    pub(super) fn block_len(&self) -> Sectors {
        Sectors::new(self.block.get())
    }

    /// Counts an event of the pool's device.
    pub(super) fn event(&self) {
        if let Some(md) = self.owner.upgrade() {
            md.event();
        }
    }
}

/// Asks the worker, whose answer comes by itself. Does not block.
pub(super) fn ask(pool: &Pool, cx: &Cx<'_>, command: Command) {
    pool.post(cx, Event::Command(command));
    if pool.has_ended() {
        // Who asked is told that nothing is known.
        pool.forget(|e| matches!(e, Event::Command(Command::Extent { .. })));
    }
}

/// What a pool has under way, for people.
pub(super) fn inspect(pool: &Pool) -> Vec<(&'static str, String)> {
    let gate = match pool.gate() {
        Gate::Open => "open",
        Gate::Suspended => "suspended",
        Gate::Failed => "failed",
    };
    let mut lines = pool.inspect();
    lines.insert(1, ("gate", gate.into()));
    lines
}
