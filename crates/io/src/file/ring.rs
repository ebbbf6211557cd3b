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
use crate::{Cx, Op, OpFlags, Sleep, Source, Status};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;
use udm_base::AlignedBuf;

/// Submissions that the ring holds.
const ENTRIES: u32 = 256;
/// Submissions that are not held back for the next poll. Longer batches save system calls and lose more: the disk
/// idles while they gather, and answers in bursts, which then gather the next (4K random reads at depth 32: batches of
/// 1, 2, 4, 8 and any length give 106, 106, 114, 112 and 94 thousand a second).
const BATCH: usize = 4;
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

// SAFETY: its addresses are of memory that bios lend to whoever is inside their channel.
unsafe impl Send for Slot {}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u16>,
    bounces: Vec<AlignedBuf>,
    bounces_made: usize,
    waiting: VecDeque<Bio>,
    in_flight: usize,
    /// Completions that were taken out of the ring and are to be looked at.
    reaped: VecDeque<cqueue::Entry>,
    watch: Watch,
}

/// What is known of the descriptor that stands for all else that the channel waits for.
#[derive(Default)]
struct Watch {
    fd: Option<RawFd>,
    /// A request of the ring waits for it.
    armed: bool,
    /// It was seen to be readable.
    fired: bool,
    /// The channel's thread sleeps, or is about to.
    sleeping: bool,
}

/// The user data of the request that watches it: no bio is at 0.
const WATCH: u64 = 0;

/// The ring as a source of its channel.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    /// Whether the kernel sleeps in the ring with a timeout (5.11).
    sleeps: bool,
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
        let sleeps = ring.params().is_feature_ext_arg();
        Ok(Self { ring: RefCell::new(ring), sleeps, state: RefCell::default(), batch })
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
        let mut queue = ring.submission();
        // SAFETY: the bio is in flight until its completion is taken in, and its memory, its slot and its file stay
        // until then (contracts of Segment::new and BlockDevice).
        let pushed = unsafe { queue.push(&entry) }.is_ok();
        let queued = queue.len();
        drop(queue);
        if queued >= BATCH {
            self.enter(&ring);
        }
        // SAFETY: as above. Full is the ring only where the kernel takes nothing in now.
        if !pushed && unsafe { ring.submission().push(&entry) }.is_err() {
            let mut bio = Bio::from_record(record);
            state.release(&mut bio);
            return Err(bio);
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

    /// Takes completions out of the ring, all at once: a bio that ends may submit the next, which needs the ring.
    fn reap(&self) {
        let mut ring = self.ring.borrow_mut();
        let State { reaped, watch, .. } = &mut *self.state.borrow_mut();
        for entry in ring.completion() {
            if entry.user_data() == WATCH {
                watch.armed = false;
                watch.fired = true;
            } else {
                reaped.push_back(entry);
            }
        }
    }

    /// Asks the ring to complete something when all else that the channel waits for has something. False when the
    /// ring is full.
    fn arm(&self) -> bool {
        let watch = &mut self.state.borrow_mut().watch;
        let Some(fd) = watch.fd.filter(|_| !watch.armed) else { return true };
        let entry = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build().user_data(WATCH);
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the request refers to no memory; the kernel holds the file that the descriptor stands for.
        watch.armed = unsafe { ring.submission().push(&entry) }.is_ok();
        watch.armed
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
        self.reap();
        loop {
            let Some(entry) = self.state.borrow_mut().reaped.pop_front() else { break };
            self.finish(&entry);
            moved += 1;
        }
        if !self.state.borrow().waiting.is_empty() {
            self.start_waiting();
        }
        let state = self.state.borrow();
        if state.watch.sleeping && !state.watch.armed {
            // A thief took the completion that was to wake the owner: there has to be another.
            drop(state);
            self.arm();
            self.enter(&self.ring.borrow());
        }
        moved
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        if self.sleeps {
            return None;
        }
        let raw = self.ring.borrow().as_raw_fd();
        // SAFETY: the ring keeps its descriptor as long as it lives, and is never replaced.
        Some(unsafe { BorrowedFd::borrow_raw(raw) })
    }

    fn is_busy(&self) -> bool {
        let state = self.state.borrow();
        state.in_flight > 0 || !state.waiting.is_empty()
    }

    /// With requests that the kernel has not seen, or completions that nobody has looked at: that is for `poll`.
    fn must_poll(&self) -> bool {
        !self.state.borrow().reaped.is_empty() || !self.ring.borrow_mut().submission().is_empty()
    }

    fn prepare_sleep(&self, others: BorrowedFd<'_>) -> Option<Sleep> {
        if !self.sleeps {
            return None;
        }
        self.state.borrow_mut().watch.fd = Some(others.as_raw_fd());
        let armed = self.arm();
        let mut ring = self.ring.borrow_mut();
        let (fd, queued) = (ring.as_raw_fd(), ring.submission().len() as u32);
        self.state.borrow_mut().watch.sleeping = true;
        // Unarmed, it would not hear the others: it does not sleep, and the ring is emptied by the next poll.
        Some(Sleep { fd, queued, sleep: if armed { sleep } else { |_, _, _| Ok(()) } })
    }

    fn after_sleep(&self) -> bool {
        self.reap();
        let watch = &mut self.state.borrow_mut().watch;
        watch.sleeping = false;
        std::mem::take(&mut watch.fired)
    }
}

/// Starts what is queued and sleeps until a completion is there, in one system call. Touches nothing of the ring's
/// memory, which a thief may be using. The kernel does not sleep when it finds fewer requests than it is told of: then
/// a thief was here.
fn sleep(ring: RawFd, queued: u32, timeout: Option<Duration>) -> io::Result<()> {
    const GETEVENTS: u32 = 1 << 0;
    const EXT_ARG: u32 = 1 << 3;
    /// `struct io_uring_getevents_arg` (`include/uapi/linux/io_uring.h`, 6.12).
    #[repr(C)]
    struct Arg {
        sigmask: u64,
        sigmask_sz: u32,
        min_wait_usec: u32,
        ts: u64,
    }
    let timeout = timeout.map(|t| [t.as_secs().min(i64::MAX as u64), u64::from(t.subsec_nanos())]);
    let ts = timeout.as_ref().map_or(0, |ts| ts.as_ptr() as u64);
    let arg = Arg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts };
    // SAFETY: the descriptor is a ring's; the argument and the time it points at live until the call returns.
    let result = unsafe {
        let (flags, size) = (GETEVENTS | EXT_ARG, size_of::<Arg>());
        libc::syscall(libc::SYS_io_uring_enter, ring, queued, 1u32, flags, &raw const arg, size)
    };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // What was not started stays queued, and is started by the next poll.
        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
        _ => Err(error),
    }
}
