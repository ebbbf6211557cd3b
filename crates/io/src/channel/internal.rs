//! Internal bios: what a worker reads and writes that is no part of any bio it was given.
//!
//! # Why they cannot deadlock
//! They come from a reserve for each level of a stack, apart from the clones'. One that goes to a device of level `n`
//! is taken from the reserve of `n + 1`, and waits for nothing but levels up to `n`. Who finds the reserve empty is
//! refused, and called when something of it has come home ([`Cx::when_internal`]).
//!
//! # When the channel ends
//! A channel that is being dropped gives no more of them, tells those who wait, and stays until the last has come home;
//! or, when a device beneath keeps some for long, leaves its place to the background work. So a worker's I/O never
//! fails because the thread that happened to run it went away; who is refused for this reason
//! ([`Cx::can_submit_internal`]) leaves its work to another channel.

use super::attached::LEVELS;
use super::bio::Bio;
use super::core::ChannelCore;
use super::cx::Cx;
use super::device::BlockDevice;
use super::record::Record;
use super::slab::Slab;
use crate::Nanos;
use crate::bio::{Op, OpFlags, Segment, Status};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};

/// How long a channel that is dropped waits for its internal bios.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Internal bios that each level of a channel can have out.
pub const INTERNAL_MAX: usize = 256;

/// What is called when an internal bio has ended and its slot is free again: with how it went, and the word that was
/// given along. It may take the next one.
///
/// # Safety
/// Called once for each bio, inside its channel, with the word that was given along with it.
pub type InternalDone = unsafe fn(&Cx<'_>, Status, *const ());

/// Someone who was refused an internal bio.
pub trait InternalWaiter: Send + Sync {
    /// Some have come home, or the channel gives no more: see [`Cx::can_submit_internal`]. Called once for each
    /// [`Cx::when_internal`] that was true, inside the channel. Must not block.
    fn again(self: Arc<Self>, cx: &Cx<'_>);
}

/// The reserves of a channel, and who waits for them.
pub(crate) struct Reserves {
    /// One for each level; not within the core, which is moved about as a whole when it is made.
    slabs: Box<[Slab]>,
    waiting: Box<[VecDeque<Arc<dyn InternalWaiter>>]>,
    /// The core as records know it. Dangling until the first channel opens.
    channel: NonNull<ChannelCore>,
    /// The channel is being dropped.
    closed: bool,
}

impl Reserves {
    pub(super) fn new() -> Self {
        Self {
            slabs: (0..LEVELS).map(|level| Slab::new(level as u8, INTERNAL_MAX)).collect(),
            waiting: (0..LEVELS).map(|_| VecDeque::new()).collect(),
            channel: NonNull::dangling(),
            closed: true,
        }
    }

    /// How many are out, of every level.
    pub(super) fn out(&self) -> usize {
        self.slabs.iter().map(Slab::out).sum()
    }

    pub(super) fn slabs(&self) -> &[Slab] {
        &self.slabs
    }

    /// For the next owner of the core, which `channel` leads to with what it needs to be held by.
    pub(super) fn open(&mut self, channel: NonNull<ChannelCore>) {
        debug_assert_eq!(self.out(), 0, "a channel outlives its own bios");
        self.channel = channel;
        self.closed = false;
    }

    fn next_waiter(&mut self, level: usize) -> Option<Arc<dyn InternalWaiter>> {
        if self.slabs[level].out() == INTERNAL_MAX { None } else { self.waiting[level].pop_front() }
    }
}

impl ChannelCore {
    /// Outside: gives internal bios from now on.
    pub(crate) fn open(this: &Arc<Self>) {
        let channel = NonNull::new(Arc::as_ptr(this).cast_mut()).expect("an Arc is not null");
        this.lock.enter();
        // SAFETY: inside; the reference ends with the expression.
        unsafe { this.inner() }.internal.open(channel);
        this.lock.exit();
    }

    /// Whether internal bios were out a moment ago, or the channel was left with some and has not ended. From anywhere.
    pub(crate) fn has_internal(&self) -> bool {
        self.internal_out.load(Ordering::Relaxed) > 0 || self.is_left()
    }

    /// Inside: counts one out, or home.
    fn count_internal(&self, change: isize) {
        // Only written inside: no read-modify-write.
        let now = self.internal_out.load(Ordering::Relaxed).wrapping_add_signed(change);
        self.internal_out.store(now, Ordering::Relaxed);
    }

    /// Whether a channel that is dropped has waited long enough for its internal bios.
    pub(super) fn is_patience_over(&self, began: Nanos) -> bool {
        self.clock.now().since(began) > PATIENCE_NS
    }

    /// Inside, before the channel ends: gives no more internal bios, and tells those who wait for some.
    pub(super) fn close_internal(&self) {
        let cx = Cx::new(self);
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.inner() }.internal.closed = true;
        for level in 0..LEVELS {
            // SAFETY: as above.
            while let Some(waiter) = unsafe { self.inner() }.internal.waiting[level].pop_front() {
                waiter.again(&cx);
            }
        }
    }
}

impl Cx<'_> {
    /// Whether the channel gives internal bios at all. One that is being dropped, or whose last bios are brought home
    /// after that, does not: what a worker would do here is for another channel to do.
    #[inline]
    pub fn can_submit_internal(&self) -> bool {
        // SAFETY: inside; the reference ends with the expression.
        !unsafe { self.core().inner() }.internal.closed
    }

    /// The level whose reserve serves internal bios to `dev`.
    pub fn internal_level(dev: &dyn BlockDevice) -> usize {
        (dev.level() + 1).min(LEVELS - 1)
    }

    /// Submits an internal bio to `dev`, from the reserve of `level`, which is [`internal_level`](Self::internal_level)
    /// of the device. False when the reserve is used up or the channel gives none: nothing was submitted, and `done` is
    /// not called.
    ///
    /// `done` may be called before this returns. A range past the device's end, or memory that does not cover it, ends
    /// with [`Status::Invalid`]. Allocates nothing but the reserve's first growth. Does not block.
    ///
    /// # Safety
    /// Until `done` is called, `dev`, the list of segments and what `word` means to `done` must stay, and the memory
    /// must allow what the operation does with it, as [`Segment::new`] says.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn submit_internal(
        &self,
        level: usize,
        dev: &dyn BlockDevice,
        op: Op,
        flags: OpFlags,
        (sector, sectors): (Sector, Sectors),
        segs: &[Segment],
        done: InternalDone,
        word: *const (),
    ) -> bool {
        assert!(level > 0 && level < LEVELS, "level 0 is the submitter's");
        let core = self.core();
        // SAFETY: inside; the reference ends with the block.
        let own = &mut unsafe { core.inner() }.internal;
        if own.closed {
            return false;
        }
        let Some(mut bio) = own.slabs[level].take(own.channel) else { return false };
        core.count_internal(1);
        let record = bio.record_mut();
        record.op = op;
        // Nobody polls for it, and what it has as its parent is no bio.
        record.flags = flags.without(OpFlags::HIPRI);
        record.sector = sector;
        record.sectors = sectors;
        record.segs = segs.as_ptr();
        record.skip = 0;
        record.children = 0;
        record.token = 0;
        // Not a clone: what a clone has as its parent is the word here.
        record.parent = word.cast_mut().cast::<Record>();
        // SAFETY: internal_done gets what it expects: the function.
        let pushed = unsafe { bio.push_frame(internal_done, done as *const ()) };
        debug_assert!(pushed, "a fresh record has room");
        let within = sector.checked_add(sectors).is_some_and(|end| end <= dev.sectors().from_start());
        let covered = sectors.checked_bytes().is_some_and(|bytes| super::core::covers(op, segs, bytes));
        if within && covered {
            // SAFETY: the caller keeps the device.
            unsafe { bio.redirect(dev) };
            self.submit(bio);
        } else {
            self.end(bio, Status::Invalid);
        }
        true
    }

    /// Has `waiter` called once when the reserve of `level`, by which it was refused, may serve it again, in the order
    /// of asking. False when the channel gives no more at all: it will not be called.
    #[must_use]
    pub fn when_internal(&self, level: usize, waiter: Arc<dyn InternalWaiter>) -> bool {
        // SAFETY: inside; the reference ends with the block.
        let own = &mut unsafe { self.core().inner() }.internal;
        if own.closed {
            return false;
        }
        own.waiting[level].push_back(waiter);
        // Some may have come home since the refusal.
        self.call_waiting(level);
        true
    }

    /// How many internal bios of `level` are out.
    pub fn internal_out(&self, level: usize) -> usize {
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.core().inner() }.internal.slabs[level].out()
    }

    /// Calls those who wait, as long as there is something for them.
    fn call_waiting(&self, level: usize) {
        // SAFETY: inside; the reference ends with the expression.
        while let Some(waiter) = unsafe { self.core().inner() }.internal.next_waiter(level) {
            waiter.again(self);
        }
    }
}

/// The last frame of an internal bio: its slot goes home, then its owner learns of it, then those who wait.
///
/// # Safety
/// The bio came from [`Cx::submit_internal`], `func` is its function, and this runs inside its channel.
unsafe fn internal_done(cx: &Cx<'_>, mut bio: Bio, func: *const ()) -> Option<Bio> {
    let (status, level) = (bio.status(), bio.record().level as usize);
    let word = std::mem::replace(&mut bio.record_mut().parent, ptr::null_mut());
    // SAFETY: inside; the reference ends with the expression.
    unsafe { cx.core().inner() }.internal.slabs[level].give(bio);
    cx.core().count_internal(-1);
    // SAFETY: it was made from an InternalDone.
    let done = unsafe { std::mem::transmute::<*const (), InternalDone>(func) };
    // SAFETY: the contract of `submit_internal`.
    unsafe { done(cx, status, word.cast_const().cast()) };
    // SAFETY: inside; the reference ends with the expression.
    if !unsafe { cx.core().inner() }.internal.waiting[level].is_empty() {
        cx.call_waiting(level);
    }
    None
}
