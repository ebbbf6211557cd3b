//! What devices and frames see of the channel that they run in.

use super::attached::LEVELS;
use super::bio::Bio;
use super::core::{ChannelCore, Parked, RESUBMIT};
use super::record::{FrameFn, Record};
use super::source::Source;
use crate::Nanos;
use crate::bio::{Op, Segment, Status};
use crate::polling::{Policy, PollCounts};
use std::any::{Any, TypeId};
use std::marker::PhantomData;
use std::ptr::NonNull;
use udm_base::{Sector, Sectors};

/// Proof that the thread is inside a channel, and the way to its services. It does not leave the thread.
///
/// A bio of this channel that is ended now completes now.
pub struct Cx<'a>(&'a ChannelCore, PhantomData<*const ()>);

impl<'a> Cx<'a> {
    #[inline]
    pub(crate) const fn new(core: &'a ChannelCore) -> Self {
        Self(core, PhantomData)
    }

    #[inline]
    pub(crate) const fn core(&self) -> &'a ChannelCore {
        self.0
    }

    /// The channel's number, below [`MAX_CHANNELS`](crate::MAX_CHANNELS): no other channel of the domain has it at
    /// the same time, so that counters indexed by it need no atomic read-modify-write.
    #[inline]
    pub const fn id(&self) -> usize {
        self.0.id()
    }

    /// A number for the section that the thread is in: no other of this channel has had it. For workers that bound what
    /// they do in one.
    pub fn section(&self) -> u64 {
        self.0.lock.section()
    }

    /// Whether the thread is the channel's own, and none that serves it in its owner's place.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.0.lock.is_owner()
    }

    /// How the domain polls.
    #[inline]
    pub(crate) fn policy(&self) -> &'a Policy {
        &self.0.policy
    }

    /// What the channel's polls came to.
    #[inline]
    pub(crate) fn poll_counts(&self) -> &'a PollCounts {
        &self.0.polls
    }

    /// The time now.
    pub fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    /// Submits a bio to its device: at once, or after the one that is being submitted, in order.
    #[inline]
    pub fn submit(&self, bio: Bio) {
        // SAFETY: inside; the reference ends before a device is called.
        let inner = unsafe { self.0.inner() };
        if inner.submitting {
            let record = bio.into_record();
            match NonNull::new(inner.pending_tail) {
                // SAFETY: the pending list owns its records.
                Some(mut tail) => unsafe { tail.as_mut() }.next = record.as_ptr(),
                None => inner.pending_head = record.as_ptr(),
            }
            inner.pending_tail = record.as_ptr();
        } else {
            inner.submitting = true;
            self.run(bio);
        }
    }

    /// Submits a bio of any channel to the device it is for: here if it is of this channel, else on its own, which gets
    /// it by mail. For a worker that sends a bio on to a device beneath; where it has been, it goes again by
    /// [`Bio::resubmit`] only, so that no section goes on for as long as a worker and a bio disagree.
    pub fn forward(&self, bio: Bio) {
        if self.is_home(&bio) { self.submit(bio) } else { bio.resubmit() }
    }

    /// Whether a bio is of this channel.
    #[inline]
    pub(crate) fn is_home(&self, bio: &Bio) -> bool {
        std::ptr::eq(bio.record().channel.as_ptr(), self.0)
    }

    #[inline]
    fn run(&self, bio: Bio) {
        let mut next = Some(bio);
        loop {
            while let Some(bio) = next {
                #[cfg(debug_assertions)]
                let bio = self.counted(bio);
                // SAFETY: who submitted the bio keeps its device until it has completed.
                next = unsafe { bio.device().as_ref() }.submit(self, bio);
            }
            // SAFETY: inside; the reference ends with the block.
            let inner = unsafe { self.0.inner() };
            next = inner.next_pending();
            if next.is_none() {
                inner.submitting = false;
                return;
            }
        }
    }

    /// Counts that a bio comes to its device: see [`rounds`](super::rounds).
    #[cfg(debug_assertions)]
    fn counted(&self, mut bio: Bio) -> Bio {
        if !bio.record_mut().rounds.count(self.section()) {
            // SAFETY: who submitted the bio keeps its device until it has completed.
            let name = unsafe { bio.device().as_ref() }.name();
            panic!("a bio goes round within one section, by way of {name}: have it look again by mail");
        }
        bio
    }

    /// Does `func` with the bio at `at` or soon after, inside the channel.
    pub fn at(&self, at: Nanos, bio: Bio, func: fn(&Cx<'_>, Bio)) {
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.0.inner() }.timers.set(at, 0, bio, func);
    }

    /// As [`at`](Self::at), for an owner that may have all of its timers run early, by
    /// [`Domain::expire`](crate::Domain::expire). Owners are told apart by an address of theirs.
    pub fn at_for(&self, owner: usize, at: Nanos, bio: Bio, func: fn(&Cx<'_>, Bio)) {
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.0.inner() }.timers.set(at, owner, bio, func);
    }

    /// The channel's source of type `T`, made by `make` on first use. A source lives as long as its channel.
    pub fn source<T: Source + Any, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&'a T, E> {
        let id = TypeId::of::<T>();
        // SAFETY: inside; the reference ends with the block. A boxed source stays where it is while the channel lives,
        // and nothing takes it out as long as a Cx exists.
        if let Some((_, source)) = unsafe { self.0.inner() }.sources.iter().find(|(t, _)| *t == id) {
            // SAFETY: found by its type.
            return Ok(unsafe { &*std::ptr::from_ref(&**source).cast::<T>() });
        }
        let source = Box::new(make()?);
        let at: *const T = &*source;
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.0.inner() }.sources.push((id, source));
        // SAFETY: as for a source that was found.
        Ok(unsafe { &*at })
    }

    /// Makes a clone of `len` sectors of `parent`, from `offset` sectors after its start, with its operation, flags
    /// and device. `None` when the reserve of `level` is used up: see [`park`](Self::park).
    ///
    /// The clone's completion is counted in the parent. If any clone ends with [`Status::Requeue`], the parent goes to
    /// [`BlockDevice::take_back`] of the device that it is for; else it completes with the first error.
    ///
    /// # Safety
    /// The parent is of this channel and [held](Self::hold), and only goes to [`unhold`](Self::unhold) or `park` from
    /// then on; the part lies within it.
    pub unsafe fn clone_part(&self, parent: &mut Bio, level: usize, offset: Sectors, len: Sectors) -> Option<Bio> {
        debug_assert!(level > 0 && level < LEVELS, "level 0 is the submitter's");
        // SAFETY: inside; the reference ends with the expression.
        let mut clone = unsafe { self.0.inner() }.slabs[level].take(parent.record().channel)?;
        let payload = parent.segments().skip_bytes(if parent.op().has_payload() { offset.as_len() } else { 0 });
        let (segs, skip) = payload.raw();
        let from = parent.record_mut();
        from.children += 1;
        let record = clone.record_mut();
        record.dev = from.dev;
        record.op = from.op;
        record.flags = from.flags;
        record.sector = from.sector + offset;
        record.sectors = len;
        record.segs = segs;
        record.skip = skip;
        record.parent = from;
        record.children = 0;
        // SAFETY: child_done ignores its word.
        let pushed = unsafe { clone.push_frame(child_done, std::ptr::null()) };
        debug_assert!(pushed, "a fresh record has room");
        Some(clone)
    }

    /// As [`clone_part`](Self::clone_part), but another operation, on memory of the caller's that lives for ever: how
    /// a device writes zeroes that the one beneath cannot make itself, or sends a flush of its own.
    ///
    /// # Safety
    /// As [`clone_part`](Self::clone_part), and the memory covers the range and allows what the operation does with it.
    pub unsafe fn clone_as(
        &self,
        parent: &mut Bio,
        level: usize,
        op: Op,
        (sector, sectors): (Sector, Sectors),
        memory: &'static [Segment],
    ) -> Option<Bio> {
        debug_assert!(super::core::covers(op, memory, sectors.bytes()), "the memory covers the range");
        // SAFETY: the caller's promise; an empty part lies within any bio.
        let mut clone = unsafe { self.clone_part(parent, level, Sectors::ZERO, Sectors::ZERO) }?;
        let record = clone.record_mut();
        record.op = op;
        record.sector = sector;
        record.sectors = sectors;
        record.segs = memory.as_ptr();
        record.skip = 0;
        Some(clone)
    }

    /// Begins to clone `parent`: until [`unhold`](Self::unhold) it does not complete, however many clones do.
    pub fn hold(&self, parent: &mut Bio) {
        parent.record_mut().children = 1;
    }

    /// Ends cloning: the parent completes when its clones have, at once if they all have already.
    pub fn unhold(&self, parent: Bio) {
        if let Some(parent) = Self::one_less(parent.into_record()) {
            self.0.complete(parent);
        }
    }

    fn one_less(mut parent: NonNull<Record>) -> Option<Bio> {
        // SAFETY: a parent that is held is owned by its clones together, which all are of this channel.
        let record = unsafe { parent.as_mut() };
        record.children -= 1;
        if record.children > 0 {
            return None;
        }
        let requeued = record.status == Status::Requeue;
        let parent = Bio::from_record(parent);
        if requeued { Self::take_back(parent) } else { Some(parent) }
    }

    /// Before its frames run: they are those of the devices above, which have nothing to do with it.
    #[cold]
    fn take_back(parent: Bio) -> Option<Bio> {
        let dev = parent.device();
        // SAFETY: who submitted the bio keeps its device until it has completed.
        unsafe { dev.as_ref() }.take_back(parent)
    }

    /// Lets a bio wait until a clone of `level` has come back; then `resume` gets it with `word`.
    ///
    /// # Safety
    /// `word` must be what `resume` expects, and stay valid until it has been called.
    pub unsafe fn park(&self, level: usize, bio: Bio, resume: FrameFn, word: *const ()) {
        // SAFETY: inside; the reference ends with the block.
        let inner = unsafe { self.0.inner() };
        inner.parked[level].push_back(Parked { bio, resume, word });
        inner.parked_count += 1;
    }

    /// Gives a clone's slot back.
    fn release(&self, clone: Bio) {
        let level = clone.record().level as usize;
        // SAFETY: inside; the reference ends with the block.
        let inner = unsafe { self.0.inner() };
        inner.slabs[level].give(clone);
        if inner.parked_count > 0 {
            self.unpark(level);
        }
    }

    /// A slot of `level` is free: those go on that wait for one. Their clones may end at once, which frees slots again.
    /// That is left to the call that is at it, so that no number of those who wait makes calls within calls.
    #[cold]
    fn unpark(&self, level: usize) {
        // SAFETY: inside; the reference ends with the block.
        let inner = unsafe { self.0.inner() };
        inner.freed |= 1 << level;
        if std::mem::replace(&mut inner.unparking, true) {
            return;
        }
        // SAFETY: inside; the reference ends with the expression.
        while let Some(parked) = unsafe { self.0.inner() }.next_parked() {
            // SAFETY: the contract of `park`.
            if let Some(bio) = unsafe { (parked.resume)(self, parked.bio, parked.word) } {
                self.0.complete(bio);
            }
        }
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.0.inner() }.unparking = false;
    }

    /// How many clones of `level` are out.
    pub fn clones_out(&self, level: usize) -> usize {
        // SAFETY: inside; the reference ends with the expression.
        unsafe { self.0.inner() }.slabs[level].out()
    }

    /// Ends a bio of any channel with the status that it has noted: as [`Bio::end`], quicker for one of this channel.
    #[inline]
    pub(crate) fn end_noted(&self, bio: Bio) {
        if self.is_home(&bio) { self.0.complete(bio) } else { bio.end(Status::Ok) }
    }

    /// Ends a bio of this channel: as [`Bio::end`], without looking where it belongs.
    ///
    /// # Panics
    /// In debug builds, when it is of another channel.
    #[inline]
    pub fn end(&self, bio: Bio, status: Status) {
        let mut bio = bio;
        debug_assert!(self.is_home(&bio), "a bio of another channel");
        if !status.is_ok() {
            bio.fail(status);
        }
        self.0.complete(bio);
    }
}

/// The last frame of every clone: its status goes to the parent, its slot home.
///
/// # Safety
/// The bio is a clone, and this runs inside its channel.
unsafe fn child_done(cx: &Cx<'_>, clone: Bio, _: *const ()) -> Option<Bio> {
    let status = clone.status();
    let mut parent = NonNull::new(clone.record().parent).expect("a clone has a parent");
    if !status.is_ok() {
        // SAFETY: the parent is held by its clones, all of this channel.
        let record = unsafe { parent.as_mut() };
        // An error waits for the next time, as in the kernel (`dm_io_set_error`, `drivers/md/dm.c`, 6.12).
        if record.status.is_ok() || status == Status::Requeue {
            record.status = status;
        }
    }
    let done = Cx::one_less(parent);
    cx.release(clone);
    done
}

impl Bio {
    /// Sends the bio to its own channel to be submitted again to the device it is for now, from any thread: how a
    /// device lets go of bios that it queued. Also from inside its channel it is a later section that submits it.
    pub fn resubmit(mut self) {
        let record = self.record_mut();
        record.children = RESUBMIT;
        let channel = record.channel;
        ChannelCore::mail(channel, self);
    }
}
