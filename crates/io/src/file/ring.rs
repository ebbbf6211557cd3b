//! A channel's io_uring: one for all files that the channel does direct I/O on.
//!
//! # How a transfer goes
//! Its completion carries the bio itself (8 bytes) as user data. The bio's free word says how far it has come: the
//! bytes done, and the slot where its list of segments or its bounce buffer lies, if it needs one. So the common case,
//! one aligned segment done in one go, touches nothing but the bio and the ring. What comes back short goes on from
//! there; what finds the ring, the slots or the buffers used up waits in order.
//!
//! # Who may use the ring
//! Whoever is inside the channel, be it a thief: so it does without SINGLE_ISSUER and DEFER_TASKRUN. COOP_TASKRUN does:
//! completions wait for the submitting thread's next entry to the kernel, which a flag in the ring asks for.

use super::FileDevice;
use super::limits::DirectAlign;
use crate::bio::Bio;
use crate::{Cx, Op, OpFlags, Source, Status};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use udm_base::AlignedBuf;

/// Submissions that one system call starts at most.
const ENTRIES: u32 = 256;
/// Transfers in flight at most: as many completions as the ring holds.
const IN_FLIGHT: usize = 1024;
/// Bytes of a bounce buffer, and how many a channel has; made when first needed.
const BOUNCE: usize = 256 << 10;
const BOUNCES: usize = 16;
/// Segments that one request takes (UIO_MAXIOV).
const IOVECS: usize = 1024;

/// What a transfer needs beside its bio.
#[derive(Default)]
struct Slot {
    iov: Vec<libc::iovec>,
    bounce: Option<AlignedBuf>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u16>,
    bounces: Vec<AlignedBuf>,
    bounces_made: usize,
    waiting: VecDeque<Bio>,
    in_flight: usize,
}

/// The ring as a source of its channel.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    state: RefCell<State>,
    /// Changes with every batch that is submitted.
    batch: Cell<u64>,
}

/// Progress, as a bio's free word: bytes done, and the slot plus one or 0.
#[derive(Clone, Copy)]
struct Progress {
    done: usize,
    slot: Option<u16>,
}

impl Progress {
    const START: Self = Self { done: 0, slot: None };

    fn of(bio: &Bio) -> Self {
        let word = bio.word();
        Self { done: (word >> 16) as usize, slot: (word as u16).checked_sub(1) }
    }

    fn store(self, bio: &mut Bio) {
        bio.set_word((self.done as u64) << 16 | self.slot.map_or(0, |s| u64::from(s) + 1));
    }
}

/// Where direct I/O goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) fd: RawFd,
    pub(super) align: DirectAlign,
}

impl Ring {
    /// A ring. Fails where io_uring is missing or forbidden, or no descriptor is left.
    pub(super) fn new(channel: usize) -> io::Result<Self> {
        let build = |coop: bool| {
            let mut builder = IoUring::builder();
            builder.dontfork().setup_clamp().setup_cqsize(IN_FLIGHT as u32);
            if coop {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            builder.build(ENTRIES)
        };
        // COOP_TASKRUN and its flag are of 5.19; before that the kernel interrupts the thread.
        let ring =
            build(true).or_else(|e| if e.raw_os_error() == Some(libc::EINVAL) { build(false) } else { Err(e) })?;
        let batch = Cell::new((channel as u64) << 48);
        Ok(Self { ring: RefCell::new(ring), state: RefCell::default(), batch })
    }

    /// Whether io_uring is there for this process, with the operations that files need.
    pub(super) fn is_available() -> bool {
        static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *ANSWER.get_or_init(|| {
            let mut probe = io_uring::Probe::new();
            let asked = IoUring::new(2).and_then(|ring| ring.submitter().register_probe(&mut probe));
            let needed = [opcode::Read::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
            asked.is_ok() && needed.into_iter().all(|op| probe.is_supported(op))
        })
    }

    /// A mark that stays the same until the next batch is submitted, and that no other ring of the domain has.
    pub(super) fn batch(&self) -> u64 {
        self.batch.get()
    }

    /// Starts a bio, or lets it wait for room.
    #[inline]
    pub(super) fn start(&self, mut bio: Bio, target: Target) {
        Progress::START.store(&mut bio);
        if self.state.borrow().waiting.is_empty() {
            if let Err(bio) = self.try_start(bio, target) {
                self.state.borrow_mut().waiting.push_back(bio);
            }
        } else {
            self.state.borrow_mut().waiting.push_back(bio);
        }
    }

    /// Queues the next request of a bio. Gives it back when there is no room now.
    #[inline]
    fn try_start(&self, mut bio: Bio, target: Target) -> Result<(), Bio> {
        let mut state = self.state.borrow_mut();
        if state.in_flight == IN_FLIGHT {
            return Err(bio);
        }
        let Some(entry) = state.entry(&mut bio, target) else { return Err(bio) };
        // A record's address: not null, and aligned, which is all that is asked of user data.
        let record = bio.into_record();
        let entry = entry.user_data(record.as_ptr() as u64);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the bio is in flight until its completion is taken in, and its memory, its slot and its file stay
        // until then (contracts of Segment::new and BlockDevice).
        if unsafe { ring.submission().push(&entry) }.is_err() {
            self.enter(&ring);
            // SAFETY: as above.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                let mut bio = Bio::from_record(record);
                state.release(&mut bio);
                return Err(bio);
            }
        }
        state.in_flight += 1;
        Ok(())
    }

    /// Has the kernel take in what is queued, and run the completions that wait for it.
    fn enter(&self, ring: &IoUring) {
        self.batch.set(self.batch.get() + 1);
        if let Err(error) = ring.submit() {
            // What was not taken in stays queued, and goes with the next call.
            let usual = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR));
            if !usual {
                tracing::error!(%error, "io_uring_enter");
            }
        }
    }

    /// Takes in a completion. `None` when the bio goes on, or waits.
    #[inline]
    fn finish(&self, entry: &cqueue::Entry) {
        let record = NonNull::new(entry.user_data() as *mut _).expect("every request carries a bio");
        // The record of a bio that was given to the kernel, which gives it back once.
        let bio = Bio::from_record(record);
        self.state.borrow_mut().in_flight -= 1;
        let result = entry.result();
        if bio.word() == 0 && result >= 0 && result as usize == bio.segments().bytes() {
            return bio.end(Status::Ok);
        }
        self.go_on(bio, result);
    }

    /// What did not end in one go: errors, short transfers, slots.
    #[cold]
    fn go_on(&self, mut bio: Bio, result: i32) {
        // SAFETY: the file's submitter holds it until the bio has ended.
        let device = unsafe { bio.device().as_ref() };
        let file: &FileDevice = device.as_any().downcast_ref().expect("only files use the ring");
        let target = file.target();
        let total = bio.segments().bytes();
        if result < 0 {
            self.state.borrow_mut().release(&mut bio);
            match -result {
                // Taken back by the kernel, as when the thread that submitted it has ended.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => self.state.borrow_mut().waiting.push_back(bio),
                libc::EOPNOTSUPP | libc::EINVAL if bio.op() == Op::WriteZeroes => file.hand_over(bio),
                errno => bio.end(Status::of_errno(errno)),
            }
            return;
        }
        let mut progress = Progress::of(&bio);
        let mut moved = result as usize;
        if progress.done + moved < total {
            // Direct I/O goes on at a block's border only.
            moved -= moved % target.align.block as usize;
        }
        self.state.borrow_mut().copy_out(&bio, moved);
        self.state.borrow_mut().release(&mut bio);
        progress.done += moved;
        progress.slot = None;
        progress.store(&mut bio);
        if progress.done >= total {
            bio.end(Status::Ok);
        } else if moved == 0 {
            // The file was cut off below.
            bio.end(Status::Io);
        } else if let Err(bio) = self.try_start(bio, target) {
            self.state.borrow_mut().waiting.push_back(bio);
        }
    }

    fn start_waiting(&self) {
        loop {
            let Some(bio) = self.state.borrow_mut().waiting.pop_front() else { return };
            // SAFETY: as in go_on.
            let device = unsafe { bio.device().as_ref() };
            let file: &FileDevice = device.as_any().downcast_ref().expect("only files use the ring");
            if let Err(bio) = self.try_start(bio, file.target()) {
                return self.state.borrow_mut().waiting.push_front(bio);
            }
        }
    }
}

impl State {
    /// The request for what is left of a bio, or `None` when a slot or buffer is missing.
    #[inline]
    fn entry(&mut self, bio: &mut Bio, target: Target) -> Option<squeue::Entry> {
        let (fd, offset) = (Fd(target.fd), bio.sector().bytes());
        match bio.op() {
            Op::Read | Op::Write => self.transfer(bio, target),
            Op::Flush => Some(opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()),
            op => {
                let keeps = op == Op::WriteZeroes && bio.flags().contains(OpFlags::NO_UNMAP);
                let mode = if keeps { libc::FALLOC_FL_ZERO_RANGE } else { libc::FALLOC_FL_PUNCH_HOLE };
                let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
                Some(opcode::Fallocate::new(fd, bio.sectors().bytes()).offset(offset).mode(mode).build())
            }
        }
    }

    #[inline]
    fn transfer(&mut self, bio: &mut Bio, target: Target) -> Option<squeue::Entry> {
        let progress = Progress::of(bio);
        let segs = bio.segments().skip_bytes(progress.done);
        let (memory, block) = (target.align.memory as usize - 1, target.align.block as usize - 1);
        if let Some(seg) = segs.peek().filter(|seg| seg.len() == segs.bytes()) {
            if seg.as_ptr() as usize & memory == 0 {
                return Some(rw(bio, target, progress, seg.as_ptr(), seg.len()));
            }
        } else if segs.clone().all(|seg| (seg.as_ptr() as usize & memory) | (seg.len() & block) == 0) {
            let slot = self.slot()?;
            let iov = &mut self.slots[slot as usize].iov;
            let pieces = segs.map(|s| libc::iovec { iov_base: s.as_ptr().cast(), iov_len: s.len() });
            iov.extend(pieces.take(IOVECS));
            let (ptr, n) = (iov.as_ptr(), iov.len() as u32);
            Progress { slot: Some(slot), ..progress }.store(bio);
            let (fd, at) = (Fd(target.fd), bio.sector().bytes() + progress.done as u64);
            return Some(match bio.op() {
                Op::Read => opcode::Readv::new(fd, ptr, n).offset(at).build(),
                _ => opcode::Writev::new(fd, ptr, n).offset(at).rw_flags(super::sync::write_flags(bio)).build(),
            });
        }
        self.through_bounce(bio, target, progress)
    }

    /// The same by way of a buffer of our own, since direct I/O does not take the memory as it lies.
    #[cold]
    fn through_bounce(&mut self, bio: &mut Bio, target: Target, progress: Progress) -> Option<squeue::Entry> {
        let mut buf = match self.bounces.pop() {
            Some(buf) => buf,
            None if self.bounces_made == BOUNCES => return None,
            None => {
                self.bounces_made += 1;
                AlignedBuf::zeroed(BOUNCE)
            }
        };
        let Some(slot) = self.slot() else {
            self.bounces.push(buf);
            return None;
        };
        let (ptr, len) = (buf.as_ptr(), (bio.segments().bytes() - progress.done).min(BOUNCE));
        if bio.op() == Op::Write {
            bio.copy_out(progress.done, &mut buf[..len]);
        }
        self.slots[slot as usize].bounce = Some(buf);
        let progress = Progress { slot: Some(slot), ..progress };
        progress.store(bio);
        Some(rw(bio, target, progress, ptr, len))
    }

    /// Brings what was read into a bounce buffer to where it belongs.
    fn copy_out(&self, bio: &Bio, moved: usize) {
        let progress = Progress::of(bio);
        let buf = progress.slot.and_then(|slot| self.slots[slot as usize].bounce.as_ref());
        if let Some(buf) = buf.filter(|_| bio.op() == Op::Read) {
            bio.copy_in(progress.done, &buf[..moved]);
        }
    }

    fn slot(&mut self) -> Option<u16> {
        if self.free.is_empty() && self.slots.len() < IN_FLIGHT {
            self.slots.push(Slot::default());
            return Some(self.slots.len() as u16 - 1);
        }
        self.free.pop()
    }

    /// Gives a bio's slot and buffer back.
    fn release(&mut self, bio: &mut Bio) {
        let mut progress = Progress::of(bio);
        let Some(index) = progress.slot.take() else { return };
        progress.store(bio);
        let slot = &mut self.slots[index as usize];
        slot.iov.clear();
        self.bounces.extend(slot.bounce.take());
        self.free.push(index);
    }
}

#[inline]
fn rw(bio: &Bio, target: Target, progress: Progress, ptr: *mut u8, len: usize) -> squeue::Entry {
    let (fd, at) = (Fd(target.fd), bio.sector().bytes() + progress.done as u64);
    // A request is of less than 2 GiB (MAX_RW_COUNT); it comes back short, and goes on.
    let len = len.min(1 << 30) as u32;
    match bio.op() {
        Op::Read => opcode::Read::new(fd, ptr, len).offset(at).build(),
        _ => opcode::Write::new(fd, ptr, len).offset(at).rw_flags(super::sync::write_flags(bio)).build(),
    }
}

impl Source for Ring {
    fn poll(&self, _: &Cx<'_>) -> usize {
        let mut moved = 0;
        {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            let (queued, asked) = (queue.len(), queue.taskrun() || queue.cq_overflow());
            drop(queue);
            if queued > 0 || asked {
                self.enter(&ring);
                moved += queued;
            }
        }
        loop {
            // Taken out in batches: a bio that ends may submit the next, which needs the ring.
            let mut batch = [const { MaybeUninit::<cqueue::Entry>::uninit() }; 32];
            let mut ring = self.ring.borrow_mut();
            let entries = ring.completion().fill(&mut batch);
            drop(ring);
            entries.iter().for_each(|entry| self.finish(entry));
            moved += entries.len();
            if entries.len() < 32 {
                break;
            }
        }
        if !self.state.borrow().waiting.is_empty() {
            self.start_waiting();
        }
        moved
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        let raw = self.ring.borrow().as_raw_fd();
        // SAFETY: the ring keeps its descriptor as long as it lives, and is never replaced.
        Some(unsafe { BorrowedFd::borrow_raw(raw) })
    }

    fn is_busy(&self) -> bool {
        let state = self.state.borrow();
        state.in_flight > 0 || !state.waiting.is_empty()
    }

    /// With requests that the kernel has not seen: only `poll` hands them over.
    fn must_poll(&self) -> bool {
        !self.ring.borrow_mut().submission().is_empty()
    }
}
