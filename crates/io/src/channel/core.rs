//! The part of a channel that other threads may touch.
//!
//! # Memory
//! Cores belong to their domain and are used again by later channels, never freed before it; who mails a bio holds the
//! core beside, because the bio may be taken out, and the domain end, before it has looked whether someone is to be
//! woken.
//!
//! # Orphans
//! A channel that is gone while bios are out leaves its core as an orphan. Whoever brings a bio home takes it in. An
//! orphan submits nothing any more: what would go on, or waits for its time, ends with EIO, since nobody polls for it.

use super::attached::{Attached, Completion, LEVELS};
use super::bio::Bio;
use super::cx::Cx;
use super::device::BlockDevice;
use super::internal::Reserves;
use super::lock::BiasedLock;
use super::mailbox::Mailbox;
use super::record::{FrameFn, Record};
use super::shared::Shared;
use super::slab::Slab;
use super::source::Source;
use super::timers::Timers;
use crate::bio::{Op, Status};
use crate::polling::{Policy, PollCounts};
use crate::sync::{AtomicBool, Ordering, in_total_order};
use crate::{Clock, Nanos};
use rustix::fd::OwnedFd;
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::Arc;

#[repr(C, align(128))]
pub(crate) struct ChannelCore {
    pub(crate) lock: BiasedLock,
    orphan: AtomicBool,
    /// It is nobody's channel any more, and ends when its internal bios are home.
    left: AtomicBool,
    /// So small a type, because arrays of [`MAX_CHANNELS`](crate::MAX_CHANNELS) then need no check of it.
    number: u8,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: Arc<Policy>,
    /// What the channel's polls came to. Written inside.
    pub(crate) polls: PollCounts,
    /// Only touched inside.
    inner: UnsafeCell<Inner>,
    /// Internal bios that are out, for who looks from outside. Written inside.
    pub(super) internal_out: std::sync::atomic::AtomicUsize,
    mailbox: Mailbox,
    wake: Option<OwnedFd>,
    /// For the models, which have no descriptors.
    #[cfg(loom)]
    pub(super) wakes: std::sync::atomic::AtomicUsize,
}

pub(crate) struct Inner {
    pub(crate) slabs: [Slab; LEVELS],
    pub(crate) parked: [VecDeque<Parked>; LEVELS],
    pub(crate) parked_count: usize,
    /// Levels, a bit each, of which slots have come free for those who are parked.
    pub(crate) freed: u32,
    /// Somebody lets those who are parked go on.
    pub(crate) unparking: bool,
    pub(super) internal: Reserves,
    pub(crate) pending_head: *mut Record,
    pub(crate) pending_tail: *mut Record,
    pub(crate) submitting: bool,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) timers: Timers,
    pub(crate) sources: Vec<(TypeId, Box<dyn Source>)>,
    /// The one of `sources` that polls device queues, once there is one: every polled bio asks for it. What it is,
    /// `polling::source` knows.
    pub(crate) polls: Option<NonNull<()>>,
    pub(crate) attached: Vec<Option<Holding>>,
    /// Keeps the domain while bios of a channel that is gone are still out.
    keep: Option<Arc<Shared>>,
}

/// A parent that waits for a clone of its level.
pub(crate) struct Parked {
    pub(crate) bio: Bio,
    pub(crate) resume: FrameFn,
    pub(crate) word: *const (),
}

// SAFETY: `inner` is only touched by the thread that is inside; the rest is atomic or never changes.
unsafe impl Sync for ChannelCore {}
// SAFETY: as above; the raw pointers of `inner` lead to records that it owns.
unsafe impl Send for ChannelCore {}

impl AsRef<BiasedLock> for ChannelCore {
    fn as_ref(&self) -> &BiasedLock {
        &self.lock
    }
}

impl ChannelCore {
    pub(crate) fn new(
        id: usize,
        clock: Arc<dyn Clock>,
        policy: Arc<Policy>,
        asymmetric: bool,
        wake: Option<OwnedFd>,
    ) -> Self {
        Self {
            lock: BiasedLock::new(asymmetric),
            orphan: AtomicBool::new(false),
            left: AtomicBool::new(false),
            number: u8::try_from(id).expect("a channel's number is below MAX_CHANNELS"),
            clock,
            policy,
            polls: PollCounts::default(),
            inner: UnsafeCell::new(Inner {
                slabs: std::array::from_fn(|level| Slab::new(level as u8, 256)),
                parked: std::array::from_fn(|_| VecDeque::new()),
                parked_count: 0,
                freed: 0,
                unparking: false,
                internal: Reserves::new(),
                pending_head: ptr::null_mut(),
                pending_tail: ptr::null_mut(),
                submitting: false,
                completions: VecDeque::new(),
                timers: Timers::default(),
                sources: Vec::new(),
                polls: None,
                attached: Vec::new(),
                keep: None,
            }),
            internal_out: std::sync::atomic::AtomicUsize::new(0),
            mailbox: Mailbox::new(),
            wake,
            #[cfg(loom)]
            wakes: Default::default(),
        }
    }

    /// The channel's number in its domain.
    #[inline]
    pub(crate) const fn id(&self) -> usize {
        self.number as usize
    }

    /// The channel's own state.
    ///
    /// # Safety
    /// The thread is inside, and no reference from an earlier call is alive: callers keep it for one
    /// expression or one block that calls nothing of a device, frame or source.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn inner(&self) -> &mut Inner {
        debug_assert!(self.lock.is_inside());
        // SAFETY: per the contract the only reference.
        unsafe { &mut *self.inner.get() }
    }

    /// Polls in the owner's place, if it is outside, and wakes it if it sleeps and something moved. Whether something
    /// has.
    pub(crate) fn poll_remotely(&self) -> bool {
        let moved = self.lock.enter_remotely(|| self.poll()).is_some_and(|n| n > 0);
        self.after_visit(moved);
        moved
    }

    /// Outside again, after something was done in the owner's place: what follows from it.
    fn after_visit(&self, moved: bool) {
        if moved && self.mailbox.is_sleeping() {
            self.wake();
        }
        if self.orphan.load(Ordering::SeqCst) {
            self.settle();
        }
        if self.is_left() {
            self.end_left();
        }
    }

    /// Completes a bio of this channel, inside: runs its frames, then hands it to the submitter.
    #[inline]
    pub(crate) fn complete(&self, mut bio: Bio) {
        let cx = Cx::new(self);
        loop {
            match bio.pop_frame() {
                // SAFETY: inside; the word is the one that was pushed along.
                Some(frame) => match unsafe { (frame.func)(&cx, bio, frame.word) } {
                    Some(next) => bio = next,
                    None => return,
                },
                None => return self.finish(bio),
            }
        }
    }

    #[inline]
    fn finish(&self, bio: Bio) {
        // SAFETY: inside; nothing is called in between.
        let inner = unsafe { self.inner() };
        let completion = Completion { token: bio.record().token, status: bio.status() };
        inner.slabs[0].give(bio);
        inner.completions.push_back(completion);
    }

    /// Sends a bio home, from any thread.
    pub(crate) fn mail(this: NonNull<Self>, bio: Bio) {
        // SAFETY: records have the pointer from Arc::as_ptr, and the core is there as long as the bio is out: now.
        let core = unsafe {
            Arc::increment_strong_count(this.as_ptr());
            Arc::from_raw(this.as_ptr())
        };
        if core.mailbox.push(bio.into_record()) {
            core.wake();
        }
        if core.orphan.load(Ordering::SeqCst) {
            core.settle();
        }
    }

    /// Wakes the owner if it sleeps in `Channel::wait`.
    pub(crate) fn wake(&self) {
        #[cfg(loom)]
        self.wakes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Some(fd) = &self.wake {
            // A full counter means that a wake-up is already due.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn wake_fd(&self) -> Option<&OwnedFd> {
        self.wake.as_ref()
    }

    /// See [`Mailbox::prepare_sleep`].
    pub(crate) fn prepare_sleep(&self) {
        self.mailbox.prepare_sleep();
    }

    pub(crate) fn is_sleeping(&self) -> bool {
        self.mailbox.is_sleeping()
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::SeqCst)
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.mailbox.is_empty()
    }

    pub(crate) fn awake(&self) {
        self.mailbox.awake();
    }

    /// Inside: takes in the mail, asks the sources, runs the timers that are due. Returns how many bios moved.
    pub(crate) fn poll(&self) -> usize {
        let mut moved = 0;
        if self.has_mail() {
            moved += self.read_mail();
        }
        let cx = Cx::new(self);
        let mut i = 0;
        // SAFETY: inside; the reference ends with the expression. A source's box stays where it is: sources are
        // only added while the channel lives.
        while let Some(source) = unsafe { self.inner() }.sources.get(i).map(|(_, s)| ptr::from_ref::<dyn Source>(&**s))
        {
            // SAFETY: as above.
            moved += unsafe { &*source }.poll(&cx);
            i += 1;
        }
        // SAFETY: inside; the reference ends with the expression.
        if unsafe { self.inner() }.timers.next().is_some() {
            moved += self.run_timers(&cx);
        }
        moved
    }

    pub(crate) fn read_mail(&self) -> usize {
        let mut moved = 0;
        let mut first = self.mailbox.take();
        while let Some(mut record) = NonNull::new(first) {
            // SAFETY: the list is this thread's.
            let r = unsafe { record.as_mut() };
            first = std::mem::replace(&mut r.next, ptr::null_mut());
            moved += 1;
            let resubmit = std::mem::replace(&mut r.children, 0) == RESUBMIT;
            let bio = Bio::from_record(record);
            if resubmit { Cx::new(self).submit(bio) } else { self.complete(bio) }
        }
        moved
    }

    fn run_timers(&self, cx: &Cx<'_>) -> usize {
        let now = self.clock.now();
        let mut moved = 0;
        // SAFETY: inside; the reference ends with the expression.
        while let Some((bio, func)) = unsafe { self.inner() }.timers.due(now) {
            func(cx, bio);
            moved += 1;
        }
        moved
    }

    /// Runs an owner's timers, due or not. Waits while somebody is inside. Not from inside a channel.
    pub(crate) fn expire(&self, owner: usize) {
        let run = || {
            let cx = Cx::new(self);
            // SAFETY: inside; the reference ends with the expression.
            let taken = unsafe { self.inner() }.timers.take_of(owner);
            let count = taken.len();
            taken.into_iter().for_each(|(bio, func)| func(&cx, bio));
            count
        };
        let moved = loop {
            match self.lock.enter_remotely(run) {
                Some(moved) => break moved,
                None => std::thread::yield_now(),
            }
        };
        self.after_visit(moved > 0);
    }

    /// Whether it waits for its internal bios, and nobody has it.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// Outside: nobody's channel any more, but internal bios are out on it. The domain's background work serves it as
    /// long as they are, and with the last it ends. Until then the number stays taken, and the domain there.
    #[cold]
    pub(super) fn leave_behind(&self, keep: Arc<Shared>) {
        let shared = keep.clone();
        self.lock.enter();
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.inner() }.keep = Some(keep);
        self.lock.exit();
        self.left.store(true, Ordering::SeqCst);
        shared.leave_behind();
        // The last may have come home before it was marked.
        self.end_left();
    }

    /// Ends a channel that was left, if nothing is under way on it. Who finds someone inside leaves that to the one,
    /// who comes here after it has left.
    #[cold]
    fn end_left(&self) {
        let ended = self.lock.enter_remotely(|| {
            if !self.is_left() || self.is_under_way() || self.has_internal_out() {
                return None;
            }
            self.left.store(false, Ordering::SeqCst);
            // SAFETY: inside; the reference ends with the expression.
            let keep = unsafe { self.inner() }.keep.take().expect("set when it was left");
            Some((self.take_apart(&keep), keep))
        });
        if let Some(Some((remains, keep))) = ended {
            self.give_back(remains, &keep);
        }
    }

    /// Inside: whether something is to come that only who looks after the channel brings: of a ring, a queue, or at its
    /// time. What targets delay does not count.
    pub(super) fn is_under_way(&self) -> bool {
        // SAFETY: inside; a source's flag does not reach the channel.
        let inner = unsafe { self.inner() };
        inner.timers.has_others() || inner.sources.iter().any(|(_, source)| source.is_busy())
    }

    /// Inside: whether internal bios are out.
    pub(super) fn has_internal_out(&self) -> bool {
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.inner() }.internal.out() > 0
    }

    /// Inside, with nothing under way, as the last deed of who has the channel. What of its bios is out, devices keep
    /// elsewhere.
    pub(super) fn take_apart(&self, keep: &Arc<Shared>) -> Remains {
        // SAFETY: inside; the reference ends with the function.
        let inner = unsafe { self.inner() };
        inner.completions.clear();
        inner.slabs[0].set_limit(256);
        let home = inner.out() == 0;
        let attached = if home { std::mem::take(&mut inner.attached) } else { Vec::new() };
        let sources = inner.take_sources();
        if !home {
            inner.keep = Some(keep.clone());
            // What is submitted while something is being submitted waits in line; here for good.
            inner.submitting = true;
        }
        Remains { home, sources, attached }
    }

    /// Outside, since a device's drop may wait for grace periods: gives the number back, or leaves that to the last
    /// bio.
    pub(super) fn give_back(&self, remains: Remains, shared: &Shared) {
        drop((remains.sources, remains.attached));
        if remains.home { shared.free(self.id()) } else { self.abandon() }
    }

    /// Makes a core that submits nothing any more an orphan.
    fn abandon(&self) {
        self.orphan.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// Takes in an orphan's mail, and gives its core back to the domain once the last bio is home. Who finds someone
    /// inside, be it itself further up its stack, leaves that to the one, who comes here after it has left.
    #[cold]
    fn settle(&self) {
        in_total_order();
        while self.orphan.load(Ordering::SeqCst) {
            match self.lock.enter_remotely(|| self.bring_home()) {
                Some(Some(rest)) => {
                    // Outside: a device's drop may wait for grace periods.
                    drop((rest.sources, rest.attached));
                    return rest.shared.free(self.id());
                }
                Some(None) if self.has_mail() => {}
                _ => return,
            }
        }
    }

    /// Inside an orphan: ends what can be ended. Gives what is left of the channel when the last bio is home.
    fn bring_home(&self) -> Option<Rest> {
        if !self.orphan.load(Ordering::SeqCst) {
            return None;
        }
        loop {
            self.read_mail();
            // SAFETY: inside; the reference ends with the block.
            let inner = unsafe { self.inner() };
            let Some(bio) = inner.next_pending().or_else(|| Some(inner.timers.due(Nanos(u64::MAX))?.0)) else { break };
            bio.end(Status::Io);
        }
        // SAFETY: inside; nothing is called in between.
        let inner = unsafe { self.inner() };
        inner.completions.clear();
        if inner.out() > 0 {
            return None;
        }
        inner.submitting = false;
        self.orphan.store(false, Ordering::SeqCst);
        let (sources, attached) = (inner.take_sources(), std::mem::take(&mut inner.attached));
        Some(Rest { sources, attached, shared: inner.keep.take().expect("set when it was taken apart") })
    }
}

/// What a channel leaves that ends.
pub(super) struct Remains {
    /// None of its bios is out.
    home: bool,
    sources: Vec<(TypeId, Box<dyn Source>)>,
    attached: Vec<Option<Holding>>,
}

/// What an orphan leaves.
struct Rest {
    sources: Vec<(TypeId, Box<dyn Source>)>,
    attached: Vec<Option<Holding>>,
    shared: Arc<Shared>,
}

/// The mark of a bio in a mailbox that wants to be submitted again rather than completed.
pub(crate) const RESUBMIT: u32 = u32::MAX;

/// An attachment that holds its device.
pub(crate) struct Holding {
    id: u64,
    dev: NonNull<dyn BlockDevice>,
    held: Arc<dyn BlockDevice>,
}

impl Holding {
    pub(super) fn device(&self) -> &dyn BlockDevice {
        &*self.held
    }

    pub(super) fn new(id: u64, dev: Arc<dyn BlockDevice>) -> Self {
        Self { id, dev: NonNull::from(&*dev), held: dev }
    }
}

impl Inner {
    /// Takes out the sources, none of which is used any more.
    fn take_sources(&mut self) -> Vec<(TypeId, Box<dyn Source>)> {
        self.polls = None;
        std::mem::take(&mut self.sources)
    }

    /// Bios that are out, of every level.
    pub(crate) fn out(&self) -> usize {
        self.slabs.iter().map(Slab::out).sum()
    }

    /// The device, if `dev` is an attachment of this channel, and still is.
    #[inline]
    pub(super) fn device(&self, dev: Attached) -> Option<NonNull<dyn BlockDevice>> {
        match self.attached.get(dev.index()) {
            Some(Some(holding)) if holding.id == dev.id => Some(holding.dev),
            _ => None,
        }
    }

    /// Takes out what holds a device.
    pub(super) fn let_go(&mut self, dev: Attached) -> Option<Holding> {
        assert!(self.device(dev).is_some(), "a device is detached that the channel does not hold");
        self.attached[dev.index()].take()
    }

    /// The next parent that waits for a clone, and for which there is one.
    pub(super) fn next_parked(&mut self) -> Option<Parked> {
        const { assert!(LEVELS <= u32::BITS as usize, "a bit for each level") };
        while self.freed != 0 {
            let level = self.freed.trailing_zeros() as usize;
            let parked = if self.slabs[level].is_full() { None } else { self.parked[level].pop_front() };
            if parked.is_some() {
                self.parked_count -= 1;
                return parked;
            }
            self.freed &= !(1 << level);
        }
        None
    }

    /// The next bio that waits to be submitted.
    pub(super) fn next_pending(&mut self) -> Option<Bio> {
        let mut record = NonNull::new(self.pending_head)?;
        // SAFETY: the pending list owned the record.
        self.pending_head = std::mem::replace(unsafe { &mut record.as_mut().next }, ptr::null_mut());
        if self.pending_head.is_null() {
            self.pending_tail = ptr::null_mut();
        }
        Some(Bio::from_record(record))
    }
}

/// Whether the payload that a bio's list holds covers its length.
pub(crate) fn covers(op: Op, segs: &[crate::Segment], bytes: u64) -> bool {
    !op.has_payload() || segs.iter().map(|s| s.len() as u64).sum::<u64>() >= bytes
}
