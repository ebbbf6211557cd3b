//! A pool: what its tables, its volumes and its worker share.
//!
//! # No wake-up is lost
//! Who has something for the worker leaves it (in the inbox, in a slot) and *kicks*: sets `again`, and tries the
//! lock. Who has the lock clears `again` before it polls, and looks at it after it has let go of the lock. So either the kicker gets the
//! lock, or the holder sees `again`: both by a read-modify-write, of which one comes first, and the later sees what was before the
//! earlier. The worker, which may have spent the kick on something that it awaited, looks into the inbox
//! between that and the pause in which it is idle.

use super::inflight::{Drains, Inflight, Ticket};
use super::mapping::MappingCache;
use super::outbox::Outgoing;
use super::worker::{Command, Event};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use udm_base::{Divisor, Sector, Sectors};
use udm_core::MappedDevice;
use udm_io::{BlockDevice, Cx, Domain, InternalWaiter, Nanos};
use udm_kcopyd::{CopyOptions, Kcopyd};
use udm_kcopyd::{Work, WorkItem};

/// What the mapping cache of a pool may use, in bytes.
const MAPPING_BYTES: usize = 64 << 20;
/// How long the worker's I/O may be out before the workqueue looks after it.
const PATIENCE_NS: u64 = 10_000_000;
/// How often one section polls the worker: what others leave meanwhile may be as much again and again, and who waits for sections
/// waits for this one.
const POLLS: usize = 512;
/// How long a pool that was busy is looked at without being kicked.
const LINGER_NS: u64 = 1_000_000_000;

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

/// What a run of the worker has left.
enum Left {
    Nothing,
    /// What this channel has no more bios for.
    ToSend,
    /// More to do, for another section.
    More,
}

type Worker = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A pool that is open.
pub(super) struct Pool {
    this: Weak<Pool>,
    pub(super) domain: Domain,
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
    pub(super) inflight: Inflight,
    mode: AtomicU8,
    gate: AtomicU8,
    /// How long writes wait for space, in nanoseconds; 0 for ever.
    pub(super) no_space_timeout: AtomicU64,
    drains: Mutex<Drains>,
    inbox: Mutex<Vec<Event>>,
    outbox: Mutex<VecDeque<Outgoing>>,
    worker: Mutex<Option<Worker>>,
    again: AtomicBool,
    /// Operations of the worker's own that are out.
    out: AtomicUsize,
    /// Clients' bios that fill blocks, and come back to the worker: on whatever channel they are out, others may wait for them.
    pub(super) detours: AtomicUsize,
    /// When the worker has something to do that no event brings; `u64::MAX` never.
    deadline: AtomicU64,
    /// When the workqueue may stop looking, and wait until it is kicked.
    linger: AtomicU64,
    /// When the workqueue is to look next; `u64::MAX` when it is kicked.
    attention: AtomicU64,
    ended: AtomicBool,
    item: OnceLock<WorkItem>,
    copier: Kcopyd,
    /// Whoever polls the worker has nothing else to do, so that it may go on with what takes long.
    patient: AtomicBool,
}

/// What a pool is made of.
pub(super) struct Parts {
    pub(super) domain: Domain,
    pub(super) owner: Weak<MappedDevice>,
    pub(super) metadata: Arc<dyn BlockDevice>,
    pub(super) data: Arc<dyn BlockDevice>,
    pub(super) block: Sectors,
    pub(super) discards: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool without a worker yet: see [`start`](Self::start).
    pub(super) fn new(parts: Parts) -> std::io::Result<Arc<Self>> {
        let Parts { domain, owner, metadata, data, block, discards } = parts;
        let copier = Kcopyd::new(&domain, CopyOptions::default())?;
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            domain,
            owner,
            metadata,
            data,
            block: Divisor::new(block.get()),
            discards,
            unmaps: AtomicBool::new(false),
            cache: MappingCache::new(MAPPING_BYTES),
            inflight: Inflight::new(),
            mode: AtomicU8::new(PoolMode::Write as u8),
            gate: AtomicU8::new(SUSPENDED),
            no_space_timeout: AtomicU64::new(60_000_000_000),
            drains: Mutex::default(),
            inbox: Mutex::default(),
            outbox: Mutex::default(),
            worker: Mutex::default(),
            again: AtomicBool::new(false),
            out: AtomicUsize::new(0),
            detours: AtomicUsize::new(0),
            deadline: AtomicU64::new(u64::MAX),
            linger: AtomicU64::new(0),
            attention: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            item: OnceLock::new(),
            copier,
            patient: AtomicBool::new(false),
        }))
    }

    /// Gives the pool its worker, and a workqueue to look after it.
    pub(super) fn start(self: &Arc<Self>, worker: Worker) -> std::io::Result<()> {
        *lock(&self.worker) = Some(worker);
        let work: Weak<dyn Work> = self.this.clone();
        let item = WorkItem::new(&self.domain, work)?;
        let _ = self.item.set(item);
        Ok(())
    }

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

    /// From here on bios are kept. Who waits for sections afterwards has waited for all that passed the gate before: they are counted
    /// in flight, or left to the worker, who sees the gate as they do.
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

    /// Leaves something for the worker. Kick it afterwards.
    pub(super) fn push(&self, event: Event) {
        lock(&self.inbox).push(event);
    }

    /// Drops questions that nobody will look at any more: who asked is told that nothing is known.
    pub(super) fn forget_questions(&self) {
        let mut inbox = lock(&self.inbox);
        let forgotten: Vec<_> = inbox.extract_if(.., |e| matches!(e, Event::Command(Command::Extent { .. }))).collect();
        drop(inbox);
        drop(forgotten);
    }

    /// Takes what has been left.
    pub(super) fn take_events(&self, into: &mut VecDeque<Event>) {
        into.extend(lock(&self.inbox).drain(..));
    }

    pub(super) fn put(&self, outgoing: Outgoing) {
        if !matches!(outgoing, Outgoing::Bio(_) | Outgoing::Again(..)) {
            self.out.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.outbox).push_back(outgoing);
    }

    /// An operation of the worker's own has come back.
    pub(super) fn returned(&self) {
        self.out.fetch_sub(1, Ordering::AcqRel);
    }

    /// When the worker wants to be polled though nothing happens.
    pub(super) fn set_deadline(&self, at: Option<Nanos>) {
        self.deadline.store(at.map_or(u64::MAX, |at| at.0), Ordering::Relaxed);
    }

    /// Whether the worker has ended; then nothing is answered any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Asks for everything in flight that may have found what the mapping cache said until now.
    pub(super) fn ask_drain(&self) -> Ticket {
        lock(&self.drains).ask()
    }

    pub(super) fn is_drained(&self, ticket: Ticket) -> bool {
        lock(&self.drains).is_over(ticket)
    }

    /// Has the worker polled once more before it counts as idle.
    pub(super) fn poll_again(&self) {
        self.again.store(true, Ordering::SeqCst);
    }

    /// What it has under way, for people.
    pub(super) fn inspect(&self) -> Vec<(&'static str, String)> {
        let count = |n: Option<usize>| n.map_or_else(|| "locked".to_owned(), |n| n.to_string());
        // Not by trying its lock: who kicks the worker meanwhile would believe that it runs.
        let is_wanted = self.again.load(Ordering::SeqCst);
        let gate = match self.gate() {
            Gate::Open => "open",
            Gate::Suspended => "suspended",
            Gate::Failed => "failed",
        };
        let drains = self.drains.try_lock().map_or("locked", |d| if d.is_waiting() { "waited for" } else { "none" });
        let deadline = match self.deadline.load(Ordering::Relaxed) {
            u64::MAX => "none".to_owned(),
            at => format!("in {} ms", Nanos(at).since(self.domain.clock().now()) / 1_000_000),
        };
        vec![
            ("worker", if is_wanted { "wanted".into() } else { "idle".into() }),
            ("gate", gate.into()),
            ("inbox", count(self.inbox.try_lock().ok().map(|inbox| inbox.len()))),
            ("outbox", count(self.outbox.try_lock().ok().map(|outbox| outbox.len()))),
            ("own operations out", self.out.load(Ordering::Acquire).to_string()),
            ("bios on detours", self.detours.load(Ordering::Acquire).to_string()),
            ("bios in flight", self.inflight.count().to_string()),
            ("drains", drains.into()),
            ("deadline", deadline),
        ]
    }

    /// Runs the worker, if nobody does, until it has nothing more to do, and has the workqueue look after what it waits for then. Never
    /// blocks.
    pub(super) fn kick(&self, cx: &Cx<'_>) {
        if self.drive(cx) && (self.is_busy() || self.deadline.load(Ordering::Relaxed) != u64::MAX) {
            self.kick_later();
        }
    }

    /// Runs the worker, if nobody does. Whether it did, and the workqueue does not go on with it at once.
    fn drive(&self, cx: &Cx<'_>) -> bool {
        self.again.swap(true, Ordering::AcqRel);
        if !cx.can_submit_internal() {
            // A channel that ends: its thread goes, and with it who would look after what is sent.
            self.kick_later();
            return false;
        }
        loop {
            let Ok(mut worker) = self.worker.try_lock() else { return false };
            let left = self.run(cx, &mut worker);
            drop(worker);
            match left {
                // A read-modify-write: see the module.
                Left::Nothing if !self.again.swap(false, Ordering::AcqRel) => break,
                // Another may have the lock by now, and has missed what was taken here.
                Left::Nothing => _ = self.again.swap(true, Ordering::AcqRel),
                Left::ToSend => break,
                Left::More => {
                    self.kick_now();
                    return false;
                }
            }
        }
        true
    }

    /// Whether something is out that the worker, or a drain, waits for.
    fn is_busy(&self) -> bool {
        self.out.load(Ordering::Acquire) > 0 || self.waits_for_others()
    }

    /// As [`kick`](Self::kick), from one who has nothing else to do.
    pub(super) fn kick_patiently(&self, cx: &Cx<'_>) {
        self.patient.store(true, Ordering::Relaxed);
        self.kick(cx);
        self.patient.store(false, Ordering::Relaxed);
    }

    /// Whether the worker may go on with what takes long.
    pub(super) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    fn kick_later(&self) {
        if let Some(item) = self.item.get() {
            item.kick();
        }
    }

    fn kick_now(&self) {
        if let Some(item) = self.item.get() {
            item.kick_now();
        }
    }

    /// Polls the worker until nothing is left for it, or it has been polled often enough for one section.
    fn run(&self, cx: &Cx<'_>, worker: &mut Option<Worker>) -> Left {
        for _ in 0..POLLS {
            self.again.store(false, Ordering::SeqCst);
            let Some(future) = worker else { return Left::Nothing };
            if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                *worker = None;
                self.ended.store(true, Ordering::Release);
                return Left::Nothing;
            }
            if !self.send_all(cx) {
                return Left::ToSend;
            }
            let drained = lock(&self.drains).advance(&self.inflight, &self.domain, cx);
            if !drained && !self.again.load(Ordering::SeqCst) {
                return Left::Nothing;
            }
        }
        Left::More
    }

    /// Sends what is in the outbox. False when the channel has no more bios for it.
    fn send_all(&self, cx: &Cx<'_>) -> bool {
        loop {
            let Some(next) = lock(&self.outbox).pop_front() else { return true };
            let io = match next {
                Outgoing::Bio(bio) => {
                    cx.forward(bio);
                    continue;
                }
                Outgoing::Again(volume, bio) => {
                    volume.go_on(cx, bio);
                    continue;
                }
                Outgoing::InternalIo(io) => io,
                Outgoing::Copy(job) => {
                    let Some(me) = self.this.upgrade() else { return true };
                    if let Err(job) = self.copier.copy(cx, job, me) {
                        // So many wait that one of them will come back and have the worker run again.
                        lock(&self.outbox).push_front(Outgoing::Copy(job));
                        return false;
                    }
                    continue;
                }
            };
            let Some(me) = self.this.upgrade() else { return true };
            if let Err(io) = cx.submit_internal_io(io, me.clone()) {
                let level = Cx::internal_level(&*io.dev);
                lock(&self.outbox).push_front(Outgoing::InternalIo(io));
                if !cx.when_internal(level, me) {
                    self.kick_later();
                }
                return false;
            }
        }
    }
}

impl InternalWaiter for Pool {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        self.kick(cx);
    }
}

impl Work for Pool {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        // Without a kick: the workqueue is told below.
        self.patient.store(true, Ordering::Relaxed);
        self.drive(cx);
        self.patient.store(false, Ordering::Relaxed);
        let now = cx.now();
        let busy = self.is_busy();
        // Before its time: somebody has kicked it, and will again.
        if busy || now.0 < self.attention.load(Ordering::Relaxed) {
            self.linger.store(now.after(LINGER_NS).0, Ordering::Relaxed);
        }
        let lingers = busy || now.0 < self.linger.load(Ordering::Relaxed);
        let soon = now.after(PATIENCE_NS);
        let deadline = match self.deadline.load(Ordering::Relaxed) {
            u64::MAX => None,
            at => Some(Nanos(at).max(soon)),
        };
        let next = lingers.then_some(soon).or(deadline);
        self.attention.store(next.map_or(u64::MAX, |at| at.0), Ordering::Relaxed);
        next
    }

    fn waits_for_others(&self) -> bool {
        self.detours.load(Ordering::Acquire) > 0 || lock(&self.drains).is_waiting()
    }
}

/// Polls to pending once, so that what is in the outbox goes out first.
pub(super) struct Pause(bool);

pub(super) const fn pause() -> Pause {
    Pause(false)
}

impl Future for Pause {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}
