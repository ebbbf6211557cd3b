//! What of a log is not written yet: what is on its way, what waits for a flush, and in which order it is logged.
//!
//! # The order
//! That of the kernel. A write counts from its completion. A flush takes with it, when it is *sent*, all that has
//! completed since the last one was sent, and when it *completes* these are logged, and then it. A FUA write is logged
//! when it completes, before what waits for a flush. A discard is as a write.
//!
//! So what the log has before a flush was complete before the flush was sent: a file system that does not wait for its
//! writes is found by it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_core::Held;
use udm_formats::log_writes::{BlockSize, Entry, Flags, Layout};
use udm_io::{Bio, BlockDevice, Op, OpFlags, Status};
use udm_worker::{Reply, Service, Worker};

/// Bytes that wait for the log device before writes wait, too; they go on at half of it.
const BEHIND: u64 = 64 << 20;
/// Bytes in all, those that wait for a flush included, before logging ends.
const MOST: u64 = 1 << 30;
/// What the writer is left.
pub(super) enum Event {
    /// Blocks to be logged, in this order.
    Log(Vec<Block>),
    /// A write that stands for one with FUA has reached the device: flush that, then it is done.
    FlushAfter(u64, Bio),
    /// A device that has no FUA is flushed.
    Flushed(u64, Bio, Status),
    /// Tell when all that was left before is on the log device.
    Settled(Reply<()>),
}

/// An entry, with the memory that its sector and its data are written from.
pub(super) struct Block {
    pub(super) entry: Entry,
    /// A sector for the entry, then the data.
    pub(super) memory: AlignedBuf,
}

impl Block {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }
}

/// What a bio will be in the log, as soon as it is done.
struct Pending {
    block: Block,
    /// Of a flush: what is logged before it.
    before: Vec<Block>,
}

/// What bios share.
#[derive(Default)]
struct Order {
    numbers: u64,
    under_way: HashMap<u64, Pending>,
    /// What has completed since the last flush was sent.
    unflushed: Vec<Block>,
}

/// What the log's worker shares with bios on their way.
pub(super) struct Shared {
    /// The device whose writes are logged.
    pub(super) dev: Arc<dyn BlockDevice>,
    /// The log device.
    pub(super) log: Arc<dyn BlockDevice>,
    pub(super) block: BlockSize,
    order: Mutex<Order>,
    enabled: AtomicBool,
    /// Bytes of all blocks that there are.
    memory: AtomicU64,
    /// Bytes of those that the worker has.
    queued: AtomicU64,
    /// A device is being suspended: no bio is to be kept.
    holds_nothing: AtomicBool,
    /// Bios that wait for the log device.
    pub(super) behind: Held,
    entries: AtomicU64,
    next: AtomicU64,
}

impl Service for Shared {
    type Event = Event;
    const NAME: &'static str = "log";
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// For a log of `dev` on `log`.
    pub(super) fn new(dev: Arc<dyn BlockDevice>, log: Arc<dyn BlockDevice>, layout: &Layout) -> Self {
        Self {
            dev,
            log,
            block: layout.block(),
            order: Mutex::default(),
            enabled: AtomicBool::new(true),
            memory: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            holds_nothing: AtomicBool::new(false),
            behind: Held::default(),
            entries: AtomicU64::new(0),
            next: AtomicU64::new(layout.next().get()),
        }
    }

    /// Whether the log device is so far behind that a write has to wait.
    pub(super) fn is_behind(&self) -> bool {
        self.queued.load(SeqCst) > BEHIND && !self.holds_nothing.load(SeqCst)
    }

    /// Begins, or ceases, to let all bios go on.
    pub(super) fn hold_nothing(&self, on: bool) {
        self.holds_nothing.store(on, SeqCst);
        if on {
            self.behind.release_all();
        }
    }

    /// A write, a discard or a flush is sent: its number, 0 when it is not logged. Its sector is the device's.
    pub(super) fn begin(&self, bio: &Bio) -> u64 {
        let Some(block) = self.block_of(bio) else { return 0 };
        let mut order = lock(&self.order);
        let before = match bio.op() {
            Op::Flush => std::mem::take(&mut order.unflushed),
            _ => Vec::new(),
        };
        order.numbers += 1;
        let number = order.numbers;
        order.under_way.insert(number, Pending { block, before });
        number
    }

    fn block_of(&self, bio: &Bio) -> Option<Block> {
        if !self.is_enabled() {
            return None;
        }
        let is_fua = bio.flags().contains(OpFlags::FUA);
        let (flags, data) = match bio.op() {
            Op::Flush => (Flags::FLUSH, 0),
            Op::Discard => (Flags::DISCARD, 0),
            _ if is_fua => (Flags::FUA, bio.sectors().as_len()),
            _ => (Flags::NONE, bio.sectors().as_len()),
        };
        let sector = self.block.in_units(bio.sector() - Sector::ZERO);
        let entry = Entry { sector, nr_sectors: self.block.in_units(bio.sectors()), flags, mark: Vec::new() };
        let mut block = self.allocate(entry, data)?;
        if data > 0 {
            bio.copy_out(0, &mut block.memory[self.block.bytes() as usize..]);
        }
        Some(block)
    }

    /// A block with room for `data` bytes; `None` when there is too much already, which ends the log.
    pub(super) fn allocate(&self, entry: Entry, data: usize) -> Option<Block> {
        let bytes = self.block.bytes() as usize + data;
        if self.memory.fetch_add(bytes as u64, SeqCst) + bytes as u64 > MOST {
            self.memory.fetch_sub(bytes as u64, SeqCst);
            self.disable(&format!(
                "Error allocating pending block: {MOST} bytes wait for a flush or for the log device"
            ));
            return None;
        }
        Some(Block { entry, memory: AlignedBuf::zeroed(bytes) })
    }

    /// A bio is pushed back: it will come again.
    pub(super) fn not_done(&self, number: u64) {
        let mut order = lock(&self.order);
        let Some(Pending { block, mut before }) = order.under_way.remove(&number) else { return };
        before.append(&mut order.unflushed);
        order.unflushed = before;
        self.forget(&block);
    }

    /// What no flush has seen.
    pub(super) fn take_unflushed(&self) -> Vec<Block> {
        std::mem::take(&mut lock(&self.order).unflushed)
    }

    /// What `dmsetup status` shows.
    pub(super) fn status(&self) -> String {
        let (entries, next) = (self.entries.load(SeqCst), self.next.load(SeqCst));
        let disabled = if self.is_enabled() { "" } else { " logging_disabled" };
        format!("{entries} {}{disabled}", next.wrapping_sub(1))
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(SeqCst)
    }

    /// Ends the log, once.
    pub(super) fn disable(&self, why: &str) {
        if self.enabled.swap(false, SeqCst) {
            tracing::error!("log-writes: {}: {why}; from here on nothing is logged", self.log.name());
        }
    }

    /// The worker has given entries their places.
    pub(super) fn placed(&self, layout: &Layout) {
        self.entries.store(layout.entries(), SeqCst);
        self.next.store(layout.next().get(), SeqCst);
    }

    /// A block is no more.
    pub(super) fn forget(&self, block: &Block) {
        self.memory.fetch_sub(block.bytes(), SeqCst);
    }

    /// The worker has done with so many bytes.
    pub(super) fn written(&self, bytes: u64) {
        self.memory.fetch_sub(bytes, SeqCst);
        if self.queued.fetch_sub(bytes, SeqCst) - bytes <= BEHIND / 2 && !self.behind.is_empty() {
            self.behind.release_all();
        }
    }

    /// How much is written before the writer waits: a longer write of the log device would be refused.
    pub(super) fn longest(&self) -> Sectors {
        let most = self.log.limits().max_sectors;
        let whole = Sectors::new(most.get() / self.block.sectors().get() * self.block.sectors().get());
        whole.max(self.block.sectors())
    }
}

/// A bio is done: its block waits for a flush, or is left to the worker, which is to be kicked if so.
pub(super) fn complete(worker: &Worker<Shared>, number: u64) -> bool {
    let mut order = lock(&worker.order);
    let Some(Pending { block, mut before }) = order.under_way.remove(&number) else { return false };
    let is_logged = block.entry.flags.intersects(Flags::FLUSH.with(Flags::FUA));
    if is_logged {
        before.push(block);
        // Under the lock, so that the worker sees it in the order of completion.
        leave(worker, before);
    } else {
        order.unflushed.push(block);
    }
    is_logged
}

/// Leaves blocks to be logged.
pub(super) fn leave(worker: &Worker<Shared>, blocks: Vec<Block>) {
    worker.queued.fetch_add(blocks.iter().map(Block::bytes).sum(), SeqCst);
    worker.leave(Event::Log(blocks));
}
