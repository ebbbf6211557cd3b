//! A channel's io_uring: one for all files that the channel does direct I/O on.
//!
//! # How a transfer goes
//! Its completion carries the bio itself (8 bytes) as user data. The bio's free word says how far it has come: the
//! bytes done, and the slot where its list of segments or its bounce buffer lies, if it needs one. So the common case,
//! one aligned segment done in one go, touches nothing but the bio and the ring. What comes back short goes on from
//! there; what finds the ring, the slots or the buffers used up waits in order.
//!
//! # Who may use the ring
//! Whoever is inside the channel, be it a remote poller: so it does without SINGLE_ISSUER and DEFER_TASKRUN.
//! COOP_TASKRUN does: completions wait for the submitting thread's next entry to the kernel, which a flag in the ring
//! asks for.

use crate::transfers::{Advance, Progress, SLOTS, Target, Transfers};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::time::Duration;
use udm_io::{Bio, BlockDevice, Cx, Op, OpFlags, Sleep, Source, Status};

/// Submissions that the ring holds.
const ENTRIES: u32 = 256;
/// Submissions that are not held back for the next poll. Longer batches save system calls and lose more: the disk
/// idles while they gather, and answers in bursts, which then gather the next (4K random reads at depth 32: batches of
/// 1, 2, 4, 8 and any length give 106, 106, 114, 112 and 94 thousand a second).
const BATCH: usize = 4;
/// Transfers in flight at most: as many completions as the ring holds.
const IN_FLIGHT: usize = SLOTS;
#[derive(Default)]
struct State {
    transfers: Transfers,
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

/// A file whose I/O may go through the ring.
pub(crate) trait RingFile {
    /// Where the ring finds it.
    fn target(&self) -> Target;

    /// Does without the ring what the ring cannot.
    fn hand_over(&self, bio: Bio);
}

/// The ring as a source of its channel.
pub(crate) struct Ring {
    ring: RefCell<IoUring>,
    /// The file that a device is which uses the ring.
    file_of: fn(&dyn BlockDevice) -> &dyn RingFile,
    /// Whether the kernel sleeps in the ring with a timeout (5.11).
    sleeps: bool,
    state: RefCell<State>,
    /// Changes with every batch that is submitted.
    batch: Cell<u64>,
}

impl Ring {
    /// A ring. Fails where io_uring is missing or forbidden, or no descriptor is left.
    pub(crate) fn new(channel: usize, file_of: fn(&dyn BlockDevice) -> &dyn RingFile) -> io::Result<Self> {
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
        Ok(Self { ring: RefCell::new(ring), file_of, sleeps, state: RefCell::default(), batch })
    }

    /// Whether io_uring is there for this process, with the operations that files need.
    pub(crate) fn is_available() -> bool {
        static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if let Some(answer) = ANSWER.get() {
            return *answer;
        }
        let mut probe = io_uring::Probe::new();
        let asked = IoUring::new(2).and_then(|ring| ring.submitter().register_probe(&mut probe));
        let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM];
        if asked.as_ref().is_err_and(|e| e.raw_os_error().is_some_and(|errno| short.contains(&errno))) {
            // It says nothing of the kernel: a channel that finds no ring does without, and the next asks again.
            return true;
        }
        let needed = [opcode::Read::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        *ANSWER.get_or_init(|| asked.is_ok() && needed.into_iter().all(|op| probe.is_supported(op)))
    }

    /// A mark that stays the same until the next batch is submitted, and that no other ring of the domain has.
    pub(crate) fn batch(&self) -> u64 {
        self.batch.get()
    }

    /// Starts a bio, or lets it wait for room.
    #[inline]
    pub(crate) fn start(&self, mut bio: Bio, target: Target) {
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
        // Not null, which is all that is asked of user data.
        let raw = bio.into_raw();
        let entry = entry.user_data(raw.as_ptr() as u64);
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
            // SAFETY: the kernel has not taken it.
            let mut bio = unsafe { Bio::from_raw(raw) };
            state.transfers.release(&mut bio);
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
        let raw = NonNull::new(entry.user_data() as *mut _).expect("every request carries a bio");
        // SAFETY: a bio that was given to the kernel, which gives it back once.
        let bio = unsafe { Bio::from_raw(raw) };
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
        let file = (self.file_of)(unsafe { bio.device().as_ref() });
        let target = file.target();
        if result < 0 {
            self.state.borrow_mut().transfers.release(&mut bio);
            match -result {
                // Taken back by the kernel, as when the thread that submitted it has ended.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => self.state.borrow_mut().waiting.push_back(bio),
                libc::EOPNOTSUPP | libc::EINVAL if bio.op() == Op::WriteZeroes => file.hand_over(bio),
                errno => bio.end(Status::of_errno(errno)),
            }
            return;
        }
        let advance = self.state.borrow_mut().transfers.advance(&mut bio, result as usize, target.align.block);
        match advance {
            Advance::Done(status) => bio.end(status),
            Advance::More => {
                if let Err(bio) = self.try_start(bio, target) {
                    self.state.borrow_mut().waiting.push_back(bio);
                }
            }
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
            let file = (self.file_of)(unsafe { bio.device().as_ref() });
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
            Op::Read | Op::Write => self.transfers.request(bio, target),
            Op::Flush => Some(opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()),
            op => {
                let keeps = op == Op::WriteZeroes && bio.flags().contains(OpFlags::NO_UNMAP);
                let mode = if keeps { libc::FALLOC_FL_ZERO_RANGE } else { libc::FALLOC_FL_PUNCH_HOLE };
                let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
                Some(opcode::Fallocate::new(fd, bio.sectors().bytes()).offset(offset).mode(mode).build())
            }
        }
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
            // A remote poller took the completion that was to wake the owner: there has to be another.
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
/// memory, which a remote poller may be using. The kernel does not sleep when it finds fewer requests than it is told
/// of: then a remote poller was here.
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
