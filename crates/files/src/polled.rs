//! Rings that are polled (`IORING_SETUP_IOPOLL`): where the driver beneath has queues without interrupts.
//!
//! Whether it has is found out by one read when the file is opened: EOPNOTSUPP, from the file system or the driver,
//! means interrupt mode. Older kernels do not tell: they take REQ_POLLED off a bio that the queue cannot poll and have
//! it complete by interrupt (`submit_bio_noacct`, `block/blk-core.c`: 6.6 does so, 6.12 answers EOPNOTSUPP). So the
//! queue's `io_poll` in sysfs has the last word, where the file's device has one. A ring is a device queue: several
//! channels may share it, each submits and asks when it holds the queue, so that it does without SINGLE_ISSUER. One
//! system call starts what is queued and asks the driver for what is done.
//!
//! EAGAIN, the driver's tags are used up, is asked for again and never reaches a submitter. EOPNOTSUPP later means that
//! polling was switched off beneath: the bio goes on by interrupt, and so do all that follow.
//!
//! Flushes go by the channel's own ring, as the kernel has them complete by interrupt: a ring that is polled takes no
//! fsync (`io_issue_defs`, `io_uring/opdef.c`, 6.12), a request of the flush machinery is made without REQ_POLLED
//! (`blk_kick_flush`, `block/blk-flush.c`), and device mapper polls for normal I/O only (`__split_and_process_bio`,
//! `drivers/md/dm.c`). So do writes with FUA: a disk that does FUA itself could be polled for them, but a file's, and
//! those to a disk that does not, are a write and then a flush that the kernel waits for elsewhere.

use crate::transfers::{Advance, Progress, SLOTS, Target, Transfers};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::FileType;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::{fs, io};
use udm_base::AlignedBuf;
use udm_io::polling::{Batch, Driver, QueueSet, again_by_interrupt};
use udm_io::{Bio, Nanos, Status};

/// Submissions that a ring holds.
const ENTRIES: u32 = 256;
/// Transfers in flight at most: as many completions as a ring holds.
const IN_FLIGHT: usize = SLOTS;
/// How often the read that finds out is tried when the driver has no room.
const TRIES: usize = 1000;

/// The polled side of a file.
pub(crate) struct Polled {
    queues: Arc<QueueSet>,
    works: Arc<AtomicBool>,
}

impl Polled {
    /// Reads once, and says whether the file can be polled. Blocks until the read is done.
    pub(crate) fn find_out(target: Target) -> Option<Self> {
        if !reads(target).unwrap_or(false) || !queue_polls(target.fd).unwrap_or(true) {
            return None;
        }
        // A ring for each CPU: the driver has at most as many queues, and chooses among them by CPU.
        let len = available_parallelism().map_or(1, usize::from) as u32;
        Some(Self::with_rings(target, len, || ring(ENTRIES)))
    }

    fn with_rings(target: Target, len: u32, ring: fn() -> io::Result<IoUring>) -> Self {
        let works = Arc::new(AtomicBool::new(true));
        let make = {
            let works = works.clone();
            move || Ok(RingQueue::over(ring()?, target, works.clone()))
        };
        Self { queues: QueueSet::new(len, make), works }
    }

    #[inline]
    pub(crate) fn queues(&self) -> &Arc<QueueSet> {
        &self.queues
    }

    /// Whether the driver has not refused since.
    #[inline]
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }
}

fn ring(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_clamp().setup_iopoll();
    if entries == ENTRIES {
        builder.setup_cqsize(IN_FLIGHT as u32);
    }
    builder.build(entries)
}

/// Whether a read through a ring that is polled works.
fn reads(target: Target) -> io::Result<bool> {
    let mut ring = ring(1)?;
    let mut page = AlignedBuf::zeroed(4096);
    for _ in 0..TRIES {
        let read = opcode::Read::new(Fd(target.fd), page.as_mut_ptr(), 4096).offset(0).build();
        // SAFETY: the page and the file stay until the read is done, which is waited for.
        if unsafe { ring.submission().push(&read) }.is_err() {
            return Ok(false);
        }
        let done = loop {
            match ring.submit_and_wait(1) {
                Err(e) if !is_passing(&e) => return Err(e),
                _ => {}
            }
            if let Some(done) = ring.completion().next() {
                break done.result();
            }
        };
        if done != -libc::EAGAIN {
            return Ok(done >= 0);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// What sysfs says of the queue beneath a file; `None` where the file's device is none that sysfs knows.
fn queue_polls(fd: RawFd) -> Option<bool> {
    // SAFETY: the file stays open until this returns.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let dev = if is_block { stat.st_rdev } else { stat.st_dev };
    let dev = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    // A partition's queue is its disk's.
    let found =
        ["queue/io_poll", "../queue/io_poll"].iter().find_map(|at| fs::read_to_string(format!("{dev}/{at}")).ok());
    Some(found?.trim() != "0")
}

/// What the call may say when it is only to be made again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR))
}

/// A ring and its bios.
struct RingQueue {
    ring: IoUring,
    target: Target,
    works: Arc<AtomicBool>,
    transfers: Transfers,
    /// Not with the kernel: for want of room, or to be asked for again.
    waiting: VecDeque<Bio>,
    in_flight: usize,
}

impl RingQueue {
    fn over(ring: IoUring, target: Target, works: Arc<AtomicBool>) -> Self {
        let (transfers, waiting) = (Transfers::default(), VecDeque::with_capacity(ENTRIES as usize));
        Self { ring, target, works, transfers, waiting, in_flight: 0 }
    }

    /// Queues what waits, as far as there is room.
    fn start(&mut self) {
        while self.in_flight < IN_FLIGHT {
            let Some(mut bio) = self.waiting.pop_front() else { return };
            let Some(entry) = self.transfers.request(&mut bio, self.target) else {
                return self.waiting.push_front(bio);
            };
            let raw = bio.into_raw();
            let entry = entry.user_data(raw.as_ptr() as u64);
            // SAFETY: the bio is in flight until its completion is taken in, and its memory, its slot and its file stay
            // until then (contracts of Segment::new and BlockDevice).
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                // SAFETY: the kernel has not taken it.
                let mut bio = unsafe { Bio::from_raw(raw) };
                self.transfers.release(&mut bio);
                return self.waiting.push_front(bio);
            }
            self.in_flight += 1;
        }
    }

    /// Takes in a completion. `None` when the bio goes on.
    #[inline]
    fn finish(&mut self, mut bio: Bio, result: i32) -> Option<Bio> {
        if bio.word() == 0 && result >= 0 && result as usize == bio.segments().bytes() {
            return Some(bio);
        }
        if result < 0 {
            self.transfers.release(&mut bio);
            match -result {
                // Without room, or taken back as the thread that submitted it has ended.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => {
                    self.waiting.push_back(bio);
                    return None;
                }
                libc::EOPNOTSUPP => {
                    self.works.store(false, Ordering::Relaxed);
                    again_by_interrupt(&mut bio);
                }
                errno => bio.fail(Status::of_errno(errno)),
            }
            return Some(bio);
        }
        match self.transfers.advance(&mut bio, result as usize, self.target.align.block) {
            Advance::Done(status) => {
                if !status.is_ok() {
                    bio.fail(status);
                }
                Some(bio)
            }
            Advance::More => {
                self.waiting.push_back(bio);
                None
            }
        }
    }
}

impl Driver for RingQueue {
    fn take_in(&mut self, bio: Bio) {
        debug_assert_eq!(Progress::of(&bio).done, 0, "from its start");
        self.waiting.push_back(bio);
    }

    fn reap(&mut self, _: Nanos, batch: &mut Batch) {
        self.start();
        if self.in_flight > 0
            // Also asks the driver, since the ring is one that is polled; without waiting.
            && let Err(error) = self.ring.submit()
            && !is_passing(&error)
        {
            // What was not taken in stays queued, and goes with the next call.
            tracing::error!(%error, "io_uring_enter, polled");
        }
        while !batch.is_full() {
            let Some(entry) = self.ring.completion().next() else { return };
            let raw = NonNull::new(entry.user_data() as *mut _).expect("every request carries a bio");
            self.in_flight -= 1;
            // SAFETY: a bio that was given to the kernel, which gives it back once.
            let bio = unsafe { Bio::from_raw(raw) };
            if let Some(bio) = self.finish(bio, entry.result()) {
                batch.push(bio);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Engine, FileDevice, FileOptions};
    use crate::ring::RingFile;
    use udm_base::{Sector, Sectors};
    use udm_io::{Attached, BlockDevice, Channel, Domain, Op, OpFlags, ThreadExecutor};

    /// A file whose queues are rings as they are everywhere: the same but for who finds what is done.
    fn file(folder: &tempfile::TempDir, bytes: usize) -> Option<FileDevice> {
        let path = folder.path().join("disk");
        std::fs::write(&path, (0..bytes).map(|i| (i / 512) as u8).collect::<Vec<_>>()).unwrap();
        let mut file = FileDevice::open(&path, FileOptions::default(), Arc::new(ThreadExecutor)).unwrap();
        match &mut file.engine {
            Engine::Direct { backing, align, polled, .. } => {
                let target = Target { fd: backing.raw(), align: *align };
                *polled = Some(Polled::with_rings(target, 1, || IoUring::new(ENTRIES)));
                Some(file)
            }
            _ => {
                println!("SKIP no direct I/O with io_uring in {}", folder.path().display());
                None
            }
        }
    }

    fn folder() -> tempfile::TempDir {
        // On a disk rather than in memory, as a rule.
        tempfile::TempDir::new_in("/var/tmp").or_else(|_| tempfile::TempDir::new()).unwrap()
    }

    fn finish(channel: &Channel) -> Status {
        loop {
            if let Some(done) = channel.completed() {
                return done.status;
            }
            channel.poll();
        }
    }

    fn transfer(channel: &Channel, on: Attached, op: Op, flags: OpFlags, sector: u64, memory: &mut [u8]) -> Status {
        // SAFETY: waited for before the memory goes.
        assert!(unsafe { channel.submit(on, op, flags.with(OpFlags::HIPRI), Sector::new(sector), memory, 0) });
        finish(channel)
    }

    #[test]
    fn what_is_read_and_written_is_right() {
        let folder = folder();
        let Some(file) = file(&folder, 1 << 20) else { return };
        assert!(file.can_poll());
        let file = Arc::new(file);
        let domain = Domain::default();
        let (channel, other) = (domain.channel().unwrap(), domain.channel().unwrap());
        let (on, other_on) = (channel.attach(file.clone()), other.attach(file.clone()));
        let mut memory = AlignedBuf::zeroed(64 << 10);
        for (skew, len) in [(0, 4096), (0, 64 << 10), (512, 8192), (1, 4096)] {
            let memory = &mut memory[skew..][..len.min((64 << 10) - skew)];
            let len = memory.len() / 4096 * 4096;
            let memory = &mut memory[..len];
            for sector in [0, 64, 1024] {
                assert_eq!(transfer(&channel, on, Op::Read, OpFlags::NONE, sector, memory), Status::Ok);
                let right = |(i, b): (usize, &u8)| *b == (sector as usize + i / 512) as u8;
                assert!(memory.iter().enumerate().all(right), "skew {skew}, {len} bytes at {sector}");
            }
            let sector = 1024;
            for flags in [OpFlags::NONE, OpFlags::FUA] {
                memory.iter_mut().enumerate().for_each(|(i, b)| *b = (sector + i / 512) as u8);
                assert_eq!(transfer(&other, other_on, Op::Write, flags, sector as u64, memory), Status::Ok);
            }
        }
        // What a polled ring does not do goes by the channel's own.
        assert!(channel.submit_range(on, Op::Flush, OpFlags::HIPRI, Sector::ZERO, Sectors::ZERO, 0));
        assert_eq!(finish(&channel), Status::Ok);
        assert!(domain.poll_totals().found > 10, "{:?}", domain.poll_totals());
    }

    #[test]
    fn a_file_that_was_cut_off_gives_an_error() {
        let folder = folder();
        let Some(file) = file(&folder, 1 << 20) else { return };
        let domain = Domain::default();
        let channel = domain.channel().unwrap();
        let on = channel.attach(Arc::new(file));
        std::fs::OpenOptions::new().write(true).open(folder.path().join("disk")).unwrap().set_len(8192).unwrap();
        let mut memory = AlignedBuf::zeroed(16384);
        assert_eq!(transfer(&channel, on, Op::Read, OpFlags::NONE, 0, &mut memory), Status::Io);
        assert_eq!(transfer(&channel, on, Op::Write, OpFlags::NONE, 1024, &mut memory), Status::Io);
        assert_eq!(transfer(&channel, on, Op::Read, OpFlags::NONE, 0, &mut memory[..8192]), Status::Ok);
    }

    /// A driver that answers as the kernel might, before it lets a ring do it.
    struct Moody(RingQueue, Vec<i32>);

    impl Driver for Moody {
        fn take_in(&mut self, bio: Bio) {
            self.0.take_in(bio);
        }

        fn reap(&mut self, now: Nanos, batch: &mut Batch) {
            if let Some(bio) = self.0.waiting.pop_front() {
                match self.1.pop() {
                    Some(answer) => {
                        if let Some(bio) = self.0.finish(bio, answer) {
                            batch.push(bio);
                        }
                        return;
                    }
                    None => self.0.waiting.push_front(bio),
                }
            }
            self.0.reap(now, batch);
        }
    }

    #[test]
    fn what_the_kernel_puts_off_is_asked_for_again() {
        let again = [libc::EAGAIN, libc::EINTR, libc::ECANCELED, libc::EAGAIN].map(|e| -e);
        for (answers, expect, polls_on) in [
            (again.to_vec(), Status::Ok, true),
            (vec![512, 1024], Status::Ok, true),
            (vec![-libc::EOPNOTSUPP, -libc::EAGAIN], Status::Ok, false),
            (vec![-libc::EIO], Status::Io, true),
            (vec![0], Status::Io, true),
        ] {
            let folder = folder();
            let Some(mut file) = file(&folder, 1 << 20) else { return };
            let target = file.target();
            let Engine::Direct { polled: Some(polled), .. } = &mut file.engine else { unreachable!() };
            let (works, said) = (polled.works.clone(), answers.clone());
            polled.queues = QueueSet::new(1, move || {
                Ok(Moody(RingQueue::over(IoUring::new(ENTRIES)?, target, works.clone()), said.clone()))
            });
            let file = Arc::new(file);
            let domain = Domain::default();
            let channel = domain.channel().unwrap();
            let on = channel.attach(file.clone());
            let mut memory = AlignedBuf::zeroed(4096);
            memory.fill(255);
            assert_eq!(transfer(&channel, on, Op::Read, OpFlags::NONE, 8, &mut memory), expect, "{answers:?}");
            // What was answered to be read was not: only what the ring read after it counts.
            let from = answers.iter().filter(|n| **n > 0).sum::<i32>() as usize / target.align.block as usize;
            let from = from * target.align.block as usize;
            let right = |(i, b): (usize, &u8)| *b == (8 + i / 512) as u8;
            assert!(expect != Status::Ok || memory.iter().enumerate().skip(from).all(right), "{answers:?}");
            assert_eq!(file.can_poll(), polls_on, "{answers:?}");
            assert!(!channel.is_polled());
        }
    }
}
