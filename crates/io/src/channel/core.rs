//! The part of a channel that other threads may touch, and the lock that makes it one thread's.
//!
//! # The biased lock
//! The owner enters by a store and leaves by two; it never does an atomic read-modify-write. A thief (a
//! control thread that drains a device while the owner sleeps elsewhere) announces itself, makes every thread
//! of the process pass a barrier (membarrier(2)), and only then looks whether the owner is inside. Either the
//! owner sees the thief or the thief sees the owner. The same marks serve as a read-side section: what a
//! channel found through a lock-free pointer stays until the channel has left (see `Domain::synchronize`).
//!
//! # Memory
//! Cores belong to their domain and are used again by later channels, never freed before it: who mails a bio may
//! still look at the core after the bio has been taken out.

use super::slab::Slab;
use super::timers::Timers;
use super::{Completion, Cx, LEVELS, Source};
use crate::bio::{Bio, FrameFn, Record};
use crate::domain::Shared;
use crate::{BlockDevice, Clock, Op};
use rustix::fd::OwnedFd;
use std::any::TypeId;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};

/// A number that no other living thread has.
#[inline]
pub(crate) fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|t| ptr::from_ref(t) as usize)
}

#[repr(C, align(128))]
pub(crate) struct ChannelCore {
    inside: AtomicUsize,
    thief: AtomicUsize,
    generation: AtomicU64,
    asymmetric: bool,
    orphan: AtomicBool,
    pub(crate) id: usize,
    pub(crate) clock: Arc<dyn Clock>,
    /// Only touched inside.
    inner: UnsafeCell<Inner>,
    /// Bios that were ended elsewhere, last first. Written by other threads: a line of its own.
    mailbox: Mailbox,
}

#[repr(align(128))]
struct Mailbox {
    head: AtomicPtr<Record>,
    sleeping: AtomicBool,
    wake: Option<OwnedFd>,
}

pub(crate) struct Inner {
    pub(crate) slabs: [Slab; LEVELS],
    pub(crate) parked: [VecDeque<Parked>; LEVELS],
    pub(crate) parked_count: usize,
    pub(crate) pending_head: *mut Record,
    pub(crate) pending_tail: *mut Record,
    pub(crate) submitting: bool,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) timers: Timers,
    pub(crate) sources: Vec<(TypeId, Box<dyn Source>)>,
    pub(crate) attached: Vec<Option<Arc<dyn BlockDevice>>>,
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

impl ChannelCore {
    pub(crate) fn new(id: usize, clock: Arc<dyn Clock>, asymmetric: bool, wake: Option<OwnedFd>) -> Self {
        Self {
            inside: AtomicUsize::new(0),
            thief: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            asymmetric,
            orphan: AtomicBool::new(false),
            id,
            clock,
            inner: UnsafeCell::new(Inner {
                slabs: std::array::from_fn(|level| Slab::new(level as u8, 256)),
                parked: std::array::from_fn(|_| VecDeque::new()),
                parked_count: 0,
                pending_head: ptr::null_mut(),
                pending_tail: ptr::null_mut(),
                submitting: false,
                completions: VecDeque::new(),
                timers: Timers::default(),
                sources: Vec::new(),
                attached: Vec::new(),
                keep: None,
            }),
            mailbox: Mailbox { head: AtomicPtr::new(ptr::null_mut()), sleeping: AtomicBool::new(false), wake },
        }
    }

    /// The channel's own state.
    ///
    /// # Safety
    /// The thread is inside, and no reference from an earlier call is alive: callers keep it for one
    /// expression or one block that calls nothing of a device, frame or source.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn inner(&self) -> &mut Inner {
        debug_assert!(self.is_inside());
        // SAFETY: per the contract the only reference.
        unsafe { &mut *self.inner.get() }
    }

    /// Whether this thread is inside the channel, as its owner or as a thief.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        let me = thread_token();
        self.inside.load(Ordering::Relaxed) == me || self.thief.load(Ordering::Relaxed) == me
    }

    /// Enters as the owner.
    #[inline]
    pub(crate) fn enter(&self) -> Cx<'_> {
        let me = thread_token();
        loop {
            self.inside.store(me, Ordering::Relaxed);
            if self.asymmetric {
                compiler_fence(Ordering::SeqCst)
            } else {
                fence(Ordering::SeqCst)
            }
            if self.thief.load(Ordering::Acquire) == 0 {
                return Cx::new(self);
            }
            self.inside.store(0, Ordering::Release);
            while self.thief.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Leaves as the owner.
    #[inline]
    pub(crate) fn exit(&self) {
        self.generation.store(self.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.inside.store(0, Ordering::Release);
    }

    /// What a grace period has to see change, or `None` if the owner is not inside.
    pub(crate) fn section(&self) -> Option<u64> {
        let generation = self.generation.load(Ordering::Acquire);
        (self.inside.load(Ordering::Acquire) != 0).then_some(generation)
    }

    /// Whether the section that `section` saw has ended.
    pub(crate) fn section_over(&self, seen: u64) -> bool {
        self.inside.load(Ordering::Acquire) == 0 || self.generation.load(Ordering::Acquire) != seen
    }

    /// Runs `work` inside in the owner's place, if the owner is outside and no other thief is there. `barrier`
    /// makes every thread pass a full barrier.
    pub(crate) fn steal<T>(&self, barrier: impl FnOnce(), work: impl FnOnce(&Cx<'_>) -> T) -> Option<T> {
        let me = thread_token();
        if self.thief.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return None;
        }
        barrier();
        let out = (self.inside.load(Ordering::Acquire) == 0).then(|| work(&Cx::new(self)));
        self.thief.store(0, Ordering::Release);
        out
    }

    /// Polls in the owner's place, if it is outside, and wakes it if it sleeps and something moved.
    pub(crate) fn poll_for_owner(&self, barrier: impl FnOnce()) {
        let moved = self.steal(barrier, |_| self.poll());
        if moved.is_some_and(|n| n > 0) && self.mailbox.sleeping.load(Ordering::SeqCst) {
            self.wake();
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
        // SAFETY: cores live as long as their domain, which bios that are out keep alive.
        let core = unsafe { this.as_ref() };
        let mut record = bio.into_record();
        let mut head = core.mailbox.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the record is this thread's until the exchange succeeds.
            unsafe { record.as_mut() }.next = head;
            match core.mailbox.head.compare_exchange_weak(head, record.as_ptr(), Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if core.mailbox.sleeping.load(Ordering::SeqCst) {
            core.wake();
        }
        if core.orphan.load(Ordering::SeqCst) {
            core.settle();
        }
    }

    /// Wakes the owner if it sleeps in `Channel::wait`.
    pub(crate) fn wake(&self) {
        if let Some(fd) = &self.mailbox.wake {
            // A full counter means that a wake-up is already due.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn wake_fd(&self) -> Option<&OwnedFd> {
        self.mailbox.wake.as_ref()
    }

    /// Announces that the owner is about to sleep. From here on mail, and a thief that moved something, wake it; what came
    /// before is for the owner to look at once more.
    pub(crate) fn prepare_sleep(&self) {
        self.mailbox.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn has_mail(&self) -> bool {
        !self.mailbox.head.load(Ordering::Acquire).is_null()
    }

    pub(crate) fn awake(&self) {
        self.mailbox.sleeping.store(false, Ordering::Relaxed);
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

    fn read_mail(&self) -> usize {
        let mut moved = 0;
        let mut last = self.mailbox.head.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut first: *mut Record = ptr::null_mut();
        while let Some(mut record) = NonNull::new(last) {
            // SAFETY: the list is this thread's since the swap.
            let r = unsafe { record.as_mut() };
            last = std::mem::replace(&mut r.next, first);
            first = record.as_ptr();
        }
        while let Some(mut record) = NonNull::new(first) {
            // SAFETY: as above.
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

    /// Makes the core an orphan: its channel is gone, its bios are not.
    pub(crate) fn abandon(&self, keep: Arc<Shared>) {
        self.steal(
            || (),
            |_| {
                // SAFETY: inside as a thief.
                unsafe { self.inner() }.keep = Some(keep);
            },
        );
        self.orphan.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// Takes in an orphan's mail, and gives its core back to the domain once the last bio is home.
    #[cold]
    fn settle(&self) {
        loop {
            let home = self.steal(
                || (),
                |_| {
                    if !self.orphan.load(Ordering::SeqCst) {
                        return None;
                    }
                    self.poll();
                    // SAFETY: inside as a thief; nothing is called in between.
                    let inner = unsafe { self.inner() };
                    inner.completions.clear();
                    if inner.out() > 0 {
                        return None;
                    }
                    self.orphan.store(false, Ordering::SeqCst);
                    inner.attached.clear();
                    inner.keep.take()
                },
            );
            match home {
                Some(Some(shared)) => return shared.free(self.id),
                // Another thief is in; it looks at the mail once more after it has left.
                None if self.orphan.load(Ordering::SeqCst) => std::thread::yield_now(),
                _ if self.orphan.load(Ordering::SeqCst) && self.has_mail() => {}
                _ => return,
            }
        }
    }
}

/// The mark of a bio in a mailbox that wants to be submitted again rather than completed.
pub(crate) const RESUBMIT: usize = usize::MAX;

impl Inner {
    /// Bios that are out, of every level.
    pub(crate) fn out(&self) -> usize {
        self.slabs.iter().map(Slab::out).sum()
    }
}

/// Whether the payload that a bio's list holds covers its length.
pub(crate) fn covers(op: Op, segs: &[crate::Segment], bytes: u64) -> bool {
    !op.has_payload() || segs.iter().map(|s| s.len() as u64).sum::<u64>() >= bytes
}
