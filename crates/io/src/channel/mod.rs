//! Channels: where a thread's bios live, are submitted and complete.
//!
//! What cannot be had without a channel lies in this folder too: the bio, which is of a channel's slab; the device,
//! which gets both; and what a domain's channels share. These files import each other; nothing else of the crate is in
//! a circle.

mod attached;
mod background;
mod bio;
mod core;
mod cpu_work;
mod cx;
mod device;
mod inspect;
mod internal;
pub(crate) mod lock;
mod mailbox;
#[cfg(all(test, loom))]
mod models;
mod record;
#[cfg(debug_assertions)]
mod rounds;
mod shared;
mod slab;
mod source;
mod timers;
mod wait;

pub(crate) use self::core::ChannelCore;
pub use attached::{Attached, Completion, LEVELS};
pub use background::Background;
pub use bio::Bio;
pub use cpu_work::CpuWorkFn;
pub(crate) use cpu_work::cpu_pool;
pub use cx::Cx;
pub use device::{BlockDevice, DeviceId, Outstanding};
pub use inspect::{BioReport, ChannelContent, ChannelReport};
pub use internal::{INTERNAL_MAX, InternalDone, InternalWaiter};
pub use record::FrameFn;
pub(crate) use record::Record;
pub use shared::{CHANNELS, Domain, MAX_CHANNELS};
pub(crate) use shared::{CONTROL, Free, IdleFn, SOON, Shared, none_left, pause};
pub use source::{Sleep, Source};
pub use wait::{Waker, Woken};

use self::core::{Holding, covers};
use crate::polling::{Cookie, Polled, Polls};
use crate::{Nanos, Op, OpFlags, Segment, Status};
use attached::ATTACHED_BITS;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{Sector, Sectors};

/// One thread's way to submit bios. It cannot leave its thread.
///
/// Dropping it waits for what its own rings and timers still hold, and for bios that a worker submitted on it for
/// itself ([`Cx::submit_internal`]), wherever they are: those that do not come within seconds, because a device beneath
/// is suspended, are left to the domain's [`Background`](crate::Background), with whom the channel ends. The
/// submitter's bios that a device keeps elsewhere are left behind safely, and are forgotten when they come home.
pub struct Channel {
    core: NonNull<ChannelCore>,
    shared: Arc<Shared>,
    waiter: RefCell<wait::Waiter>,
    /// Polls in a row that brought nothing while polled bios were out.
    empty: Cell<u32>,
    adaptive: wait::Adaptive,
    _not_send: PhantomData<*const ()>,
}

impl Channel {
    pub(crate) fn new(shared: Arc<Shared>, core: &Arc<ChannelCore>) -> Self {
        ChannelCore::open(core);
        let core = NonNull::new(Arc::as_ptr(core).cast_mut()).expect("an Arc is not null");
        Self {
            core,
            shared,
            waiter: RefCell::default(),
            empty: Cell::new(0),
            adaptive: wait::Adaptive::default(),
            _not_send: PhantomData,
        }
    }

    #[inline]
    fn core(&self) -> &ChannelCore {
        // SAFETY: the core belongs to the domain, which `shared` keeps.
        unsafe { self.core.as_ref() }
    }

    #[inline(always)]
    fn inside<T>(&self, work: impl FnOnce(&ChannelCore, &Cx<'_>) -> T) -> T {
        let core = self.core();
        core.lock.enter();
        let out = work(core, &Cx::new(core));
        core.lock.exit();
        out
    }

    /// Runs `work` inside, for workers that have a channel of their own. Must not block.
    pub fn with_cx<T>(&self, work: impl FnOnce(&Cx<'_>) -> T) -> T {
        self.inside(|_, cx| work(cx))
    }

    /// Holds `dev`, so that bios can be submitted to it.
    ///
    /// # Panics
    /// When the device is of another domain, whose grace periods know nothing of this channel.
    pub fn attach(&self, dev: Arc<dyn BlockDevice>) -> Attached {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        assert!(dev.is_for(&Domain::of(&self.shared)), "{} is of another domain", dev.name());
        let (serial, sectors) = (NEXT.fetch_add(1, Ordering::Relaxed), dev.sectors());
        self.inside(|core, _| {
            // SAFETY: inside; the reference ends with the block.
            let attached = &mut unsafe { core.inner() }.attached;
            let index = attached.iter().position(Option::is_none).unwrap_or(attached.len());
            assert!(index < 1 << ATTACHED_BITS, "a channel holds at most 65536 devices");
            if index == attached.len() {
                attached.push(None);
            }
            let id = serial << ATTACHED_BITS | index as u64;
            attached[index] = Some(Holding::new(id, dev));
            Attached { id, sectors }
        })
    }

    /// Lets go of a device. Every bio that was submitted to it must have completed.
    ///
    /// # Panics
    /// When bios that were submitted are out (then the device could vanish beneath them), or the channel does not hold
    /// the device.
    pub fn detach(&self, dev: Attached) {
        let held = self.inside(|core, _| {
            // SAFETY: inside; the reference ends with the block.
            let inner = unsafe { core.inner() };
            // Not the clones: those of a submitted bio are home before it is, and those of a worker's internal bio are
            // not the caller's.
            assert_eq!(inner.slabs[0].out(), 0, "a device is detached while bios are out");
            inner.let_go(dev)
        });
        // Outside: a device's drop may use channels of its own.
        drop(held);
    }

    /// As [`detach`](Self::detach), while bios to other devices are out.
    ///
    /// # Safety
    /// Every bio that was submitted to `dev` must have completed: the device may be freed here.
    pub unsafe fn detach_idle(&self, dev: Attached) {
        // SAFETY: inside; the reference ends with the expression.
        let held = self.inside(|core, _| unsafe { core.inner() }.let_go(dev));
        // Outside: a device's drop may use channels of its own.
        drop(held);
    }

    /// How many bios the submitter may have out at a time; 256 unless set.
    pub fn set_depth(&self, depth: usize) {
        // SAFETY: inside; the reference ends with the expression.
        self.inside(|core, _| unsafe { core.inner() }.slabs[0].set_limit(depth));
    }

    /// Submits one bio with one segment. False when as many are out as the channel has slots for: poll first.
    ///
    /// # Safety
    /// As [`Segment::new`]: the memory is the device's until the completion with `token` has been taken.
    #[inline]
    pub unsafe fn submit(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        memory: &mut [u8],
        token: u64,
    ) -> bool {
        // SAFETY: the caller's promise.
        let seg = unsafe { Segment::new(memory.as_mut_ptr(), memory.len()) };
        self.start(dev, op, flags, sector, Sectors::in_bytes(memory.len() as u64), token, |record| {
            record.seg0 = seg;
            &raw const record.seg0
        })
    }

    /// As [`submit`](Self::submit), with memory that is named by its address, as another process's is.
    ///
    /// # Safety
    /// As [`Segment::new`], until the completion with `token` has been taken.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub unsafe fn submit_at(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        (memory, bytes): (*mut u8, usize),
        token: u64,
    ) -> bool {
        // SAFETY: the caller's promise.
        let seg = unsafe { Segment::new(memory, bytes) };
        self.start(dev, op, flags, sector, Sectors::in_bytes(bytes as u64), token, |record| {
            record.seg0 = seg;
            &raw const record.seg0
        })
    }

    /// As [`submit`](Self::submit), polled for: gives the cookie by which [`poll_for`](Self::poll_for) finds it. `None`
    /// when as many bios are out as the channel has slots for.
    ///
    /// # Safety
    /// As [`submit`](Self::submit).
    #[inline]
    pub unsafe fn submit_polled(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        memory: &mut [u8],
        token: u64,
    ) -> Option<Cookie> {
        let mut at = std::ptr::null_mut::<Record>();
        // SAFETY: the caller's promise.
        let seg = unsafe { Segment::new(memory.as_mut_ptr(), memory.len()) };
        let (flags, sectors) = (flags.with(OpFlags::HIPRI), Sectors::in_bytes(memory.len() as u64));
        let taken = self.start(dev, op, flags, sector, sectors, token, |record| {
            at = record;
            record.seg0 = seg;
            &raw const record.seg0
        });
        // SAFETY: inside. Slots stay as long as the channel, and only who is inside writes this field; a bio that has
        // completed meanwhile has left what names no bio any more.
        let cookie = || self.inside(|_, _| (!at.is_null()).then(|| unsafe { (&raw const (*at).polled.cookie).read() }));
        taken.then(|| cookie().unwrap_or_default())
    }

    /// Submits one bio whose memory is a list of segments. False as [`submit`](Self::submit). The list is not
    /// copied: like the memory, it must stay until the completion. A list shorter than the range fails with EINVAL.
    ///
    /// # Safety
    /// As [`Segment::new`], and `segs` stays where it is until the completion has been taken.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn submit_vectored(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        sectors: Sectors,
        segs: &[Segment],
        token: u64,
    ) -> bool {
        if !sectors.checked_bytes().is_some_and(|bytes| covers(op, segs, bytes)) {
            return self.refuse(token);
        }
        self.start(dev, op, flags, sector, sectors, token, |_| segs.as_ptr())
    }

    /// Submits an operation without payload. False as [`submit`](Self::submit).
    pub fn submit_range(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        sectors: Sectors,
        token: u64,
    ) -> bool {
        if op.has_payload() {
            return self.refuse(token);
        }
        self.start(dev, op, flags, sector, sectors, token, |_| std::ptr::null())
    }

    fn refuse(&self, token: u64) -> bool {
        self.inside(|core, _| {
            // SAFETY: inside; the reference ends with the expression.
            unsafe { core.inner() }.completions.push_back(Completion { token, status: Status::Invalid });
        });
        true
    }

    // Inlined, so that what it writes comes from registers: a segment passed by memory is written as two words and read
    // as one of sixteen bytes, which the CPU forwards from no store. The load then waits until every store before has
    // reached the cache, those of the copy before too, and two copies never overlap.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn start(
        &self,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        sectors: Sectors,
        token: u64,
        segs: impl FnOnce(&mut Record) -> *const Segment,
    ) -> bool {
        // Not by `inside`: what a closure captures goes by memory.
        let core = self.core();
        core.lock.enter();
        let started = self.start_inside(core, &Cx::new(core), dev, op, flags, sector, sectors, token, segs);
        core.lock.exit();
        started
    }

    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    fn start_inside(
        &self,
        core: &ChannelCore,
        cx: &Cx<'_>,
        dev: Attached,
        op: Op,
        flags: OpFlags,
        sector: Sector,
        sectors: Sectors,
        token: u64,
        segs: impl FnOnce(&mut Record) -> *const Segment,
    ) -> bool {
        // SAFETY: inside; the reference ends with the block.
        let inner = unsafe { core.inner() };
        let Some(device) = inner.device(dev) else {
            inner.completions.push_back(Completion { token, status: Status::Invalid });
            return true;
        };
        let Some(mut bio) = inner.slabs[0].take(self.core) else { return false };
        let record = bio.record_mut();
        record.dev = Some(device);
        record.op = op;
        record.flags = flags;
        record.sector = sector;
        record.sectors = sectors;
        record.skip = 0;
        record.children = 0;
        record.polled = Polled::NONE;
        record.token = token;
        record.segs = segs(record);
        if sector.checked_add(sectors).is_some_and(|end| end <= dev.sectors.from_start())
            || self.grown(device, sector, sectors)
        {
            cx.submit(bio);
        } else {
            bio.end(Status::Invalid);
        }
        true
    }

    /// A device may have grown since it was attached.
    #[cold]
    fn grown(&self, dev: NonNull<dyn BlockDevice>, sector: Sector, sectors: Sectors) -> bool {
        // SAFETY: the channel holds what is attached.
        let now = unsafe { dev.as_ref() }.sectors();
        sector.checked_add(sectors).is_some_and(|end| end <= now.from_start())
    }

    /// The next completion, in the order in which the bios completed. Does not poll.
    #[inline]
    pub fn completed(&self) -> Option<Completion> {
        // SAFETY: inside; the reference ends with the expression.
        self.inside(|core, _| unsafe { core.inner() }.completions.pop_front())
    }

    /// Starts what is queued and takes in what is done. Returns how many bios moved. Never blocks.
    ///
    /// While polled bios are out, it looks into the queues that their cookies ask for, and now and then gives the CPU
    /// to other threads when nothing is done ([`PollPolicy::yield_after`](crate::PollPolicy::yield_after)).
    pub fn poll(&self) -> usize {
        self.polled(ChannelCore::poll)
    }

    /// As [`poll`](Self::poll), for who waits for one polled bio: looks at what was handed over to this channel, and
    /// into the queues that the bio's cookie asks for: its one, or this channel's, or all. Rings and timers are left
    /// alone, unless the cookie says that no queue has it. A cookie that is stale or of another channel makes it look
    /// into all.
    pub fn poll_for(&self, cookie: Cookie) -> usize {
        self.polled(|core| core.poll_for(cookie))
    }

    /// Whether polled bios are out on queues: only [`poll`](Self::poll) completes them, and [`wait`](Self::wait) does
    /// not sleep.
    pub fn is_polled(&self) -> bool {
        self.inside(|_, cx| cx.find_polls().is_some_and(Polls::is_polled))
    }

    #[inline]
    fn polled(&self, poll: impl FnOnce(&ChannelCore) -> usize) -> usize {
        let (moved, yields) = self.inside(|core, cx| {
            let moved = poll(core);
            let spins = moved == 0 && cx.find_polls().is_some_and(Polls::is_polled);
            let empty = if spins { self.empty.get().saturating_add(1) } else { 0 };
            let after = if spins { core.policy.yield_after() } else { 0 };
            let yields = after > 0 && empty >= after;
            self.empty.set(if yields { 0 } else { empty });
            if yields {
                core.polls.yielded.add(1);
            }
            (moved, yields)
        });
        if self.shared.idle().is_some() {
            self.shared.simulate_background();
        } else if yields {
            std::thread::yield_now();
        }
        moved
    }

    /// How many of the submitter's bios are out.
    pub fn outstanding(&self) -> usize {
        // SAFETY: inside; the reference ends with the expression.
        self.inside(|core, _| unsafe { core.inner() }.slabs[0].out())
    }

    /// The time now, by the domain's clock.
    pub fn now(&self) -> Nanos {
        self.core().clock.now()
    }

    /// The domain's number for the channel.
    pub fn id(&self) -> usize {
        self.core().id()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.inside(|core, cx| {
            core.close_internal();
            // What targets delay goes on at once. If one delays it again, it ends with EIO.
            // SAFETY: inside; the reference ends with the expression.
            let delayed = unsafe { core.inner() }.timers.take_owned();
            delayed.into_iter().for_each(|(bio, func)| func(cx, bio));
        });
        let began = self.now();
        // What rings and other timers hold comes back by itself, soon. Looked at and left in one go: else a remote
        // poller could start something new on a ring in between.
        let mut rounds = 0u32;
        let remains = loop {
            let left = self.inside(|core, _| {
                core.poll();
                if core.is_under_way() {
                    return None;
                }
                if core.has_internal_out() {
                    return core.is_patience_over(began).then_some(None);
                }
                Some(Some(core.take_apart(&self.shared)))
            });
            match left {
                Some(Some(remains)) => break remains,
                // A device keeps them, maybe for as long as it is suspended.
                Some(None) => return self.core().leave_behind(self.shared.clone()),
                None => self.shared.idle_or(|| pause(rounds)),
            }
            rounds = rounds.saturating_add(1);
        };
        self.core().give_back(remains, &self.shared);
    }
}
