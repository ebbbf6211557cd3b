//! Requests by io_uring (`fs/fuse/dev_uring.c`, 6.14): what the kernel has for us is there when a system call for other
//! things returns, and an answer takes the next request with it.
//!
//! # How it goes
//! The kernel has a queue of each connection for each possible CPU, and takes that of the CPU on which a request was
//! made. A worker serves some of the queues, through one ring for all connections. Each queue has entries: memory for
//! one request's headers and one for its payload, which the kernel was told of once. An entry is with the kernel until
//! a completion says that it holds a request, and with us until its answer is submitted. A device reads and writes the
//! payload where it lies.
//!
//! FORGET, INTERRUPT and INIT still come from the descriptor, and so does everything until all queues have an entry.
//!
//! # Invariants
//! - The kernel may touch an entry's memory until it has completed the entry's last command, or the thread that has
//!   registered it has ended: it is freed after that ([`Remains`]).

use super::wire::{InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeader};
use crate::slots::Slots;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::io;
use udm_base::{AlignedBuf, Errno};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Requests of one queue that can be under way, where there are few queues.
const DEPTH: usize = 32;
/// Entries of a worker, beyond which queues have fewer.
const ENTRIES: usize = 128;
/// The least that a queue has.
const DEPTH_LEAST: usize = 2;
/// More queues than that are not served: the kernel then goes on with the descriptor.
const QUEUES_MAX: usize = 1024;
/// Where a submission has the length of its list (`struct io_uring_sqe`).
const LEN_AT: usize = 24;

/// Whether the kernel offers it: who administrates it must have allowed it.
pub(super) fn is_allowed() -> bool {
    std::fs::read("/sys/module/fuse/parameters/enable_uring").is_ok_and(|text| text.starts_with(b"Y"))
}

/// How many queues the kernel has: one for each CPU that there may ever be.
///
/// # Errors
/// It cannot be told.
pub(super) fn queues() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_cpu(&text).map(|last| last + 1).filter(|count| *count <= QUEUES_MAX).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("CPUs {:?}: expected ranges below {QUEUES_MAX}", text.trim()),
        )
    })
}

/// Of a list such as `0-3,8-11`.
fn last_cpu(text: &str) -> Option<usize> {
    text.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// Completions that the ring has room for, and so the most entries of a worker.
const COMPLETIONS: u32 = 1 << 14;
/// Submissions that it has room for; with more it submits in between.
const SUBMISSIONS: u32 = 256;

/// Room for one request.
struct Entry {
    link: u32,
    fuse: RawFd,
    queue: u16,
    header: Box<RingHeader>,
    /// Not here while a device uses it.
    payload: Option<AlignedBuf>,
    /// The kernel may touch its memory.
    with_kernel: bool,
    /// Its connection has ended.
    ended: bool,
}

/// What stays of a ring: memory that the kernel may touch until the thread has ended.
pub(super) struct Remains {
    _entries: Slots<Entry>,
}

/// A request that has come.
pub(super) struct Came {
    pub(super) entry: u32,
    /// By which connection.
    pub(super) link: u32,
    pub(super) header: InHeader,
    /// The bytes of its payload.
    pub(super) payload: usize,
}

/// How many entries a queue has, of which a worker serves so many.
fn depth(queues: usize) -> usize {
    (ENTRIES / queues.max(1)).clamp(DEPTH_LEAST, DEPTH)
}

/// How many connections a worker's ring has room for.
pub(super) fn most_connections(queues: usize, workers: usize) -> usize {
    let mine = queues.div_ceil(workers.max(1));
    COMPLETIONS as usize / (mine * depth(mine)).max(1)
}

/// A worker's ring and entries.
pub(super) struct Uring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Slots<Entry>,
    /// The queues of each connection that are served here.
    queues: Vec<usize>,
    /// Bytes of each payload.
    payload: usize,
    unsubmitted: usize,
    /// Connections of which the kernel refuses entries.
    refused: Vec<u32>,
}

impl Uring {
    /// A ring for queues `first`, `first + step` and so on of each connection; payloads have `payload` bytes.
    ///
    /// # Errors
    /// The kernel has no io_uring for us.
    pub(super) fn new((first, step): (usize, usize), queues: usize, payload: usize) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // The thread takes requests in when it is in the kernel anyway, and is woken only from sleep.
        builder.dontfork().setup_clamp().setup_coop_taskrun().setup_taskrun_flag().setup_cqsize(COMPLETIONS);
        let ring = builder.build(SUBMISSIONS)?;
        let queues = (first..queues).step_by(step).collect();
        let (entries, refused) = (Slots::default(), Vec::new());
        Ok(Self { ring, entries, queues, payload, unsubmitted: 0, refused })
    }

    /// Readable when requests have come.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as the borrow lasts.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// A connection of which the kernel has refused entries: it goes on with the descriptor.
    pub(super) fn refused(&mut self) -> Option<u32> {
        self.refused.pop()
    }

    /// Offers entries of a connection to the kernel: `fuse`, which stays open until [`end`](Self::end).
    pub(super) fn register(&mut self, link: u32, fuse: BorrowedFd<'_>) {
        let depth = depth(self.queues.len());
        for at in 0..self.queues.len() * depth {
            let entry = Entry {
                link,
                fuse: fuse.as_raw_fd(),
                // Below QUEUES_MAX.
                queue: self.queues[at / depth] as u16,
                header: Box::new(RingHeader::new_zeroed()),
                payload: Some(AlignedBuf::zeroed(self.payload)),
                with_kernel: true,
                ended: false,
            };
            let number = self.entries.insert(entry);
            let entry = &mut self.entries[number];
            let payload = entry.payload.as_mut().expect("nothing is under way");
            let (header, payload) = (entry.header.as_mut_bytes(), &mut payload[..]);
            // Read by the kernel during the submission, which is before it goes out of scope.
            let list = [
                libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
                libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
            ];
            let submission = self.command(number, RING_REGISTER, 0, list.as_ptr() as u64, list.len() as u32);
            self.push(submission);
            self.submit();
        }
    }

    /// The connection has ended: what is with us is freed, what the kernel has when it comes back. Nothing more is said
    /// of it.
    pub(super) fn end(&mut self, link: u32) {
        // What waits to be submitted names its descriptor.
        self.submit();
        for number in self.entries.numbers() {
            if let Some(entry) = self.entries.get_mut(number).filter(|entry| entry.link == link) {
                entry.ended = true;
                self.free_if_over(number);
            }
        }
    }

    fn free_if_over(&mut self, number: u32) {
        let is_over = |entry: &Entry| entry.ended && !entry.with_kernel && entry.payload.is_some();
        if self.entries.get(number).is_some_and(is_over) {
            self.entries.remove(number);
        }
    }

    fn command(&self, number: u32, command: u32, commit_id: u64, list: u64, len: u32) -> squeue::Entry128 {
        let Entry { fuse, queue, .. } = self.entries[number];
        let asked = RingCommand { flags: 0, commit_id, queue, pad: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(asked.as_bytes());
        let submission = opcode::UringCmd80::new(Fd(fuse), command).cmd(bytes).addr(Some(list)).build();
        let mut submission = submission.user_data(number.into());
        const { assert!(size_of::<squeue::Entry128>() == 128 && LEN_AT.is_multiple_of(4)) };
        // SAFETY: a submission is the kernel's `struct io_uring_sqe`, plain memory of 128 bytes, whose `len` is here.
        unsafe { (&raw mut submission).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(len) };
        submission
    }

    fn push(&mut self, submission: squeue::Entry128) {
        // SAFETY: the entry's memory stays while the kernel has it, or until the thread has ended.
        while unsafe { self.ring.submission().push(&submission) }.is_err() {
            let before = self.unsubmitted;
            self.submit();
            assert!(self.unsubmitted < before, "the kernel takes none of {before} submissions");
        }
        self.unsubmitted += 1;
    }

    /// Submits what waits, and takes in what the kernel has for the thread. Whether requests have come.
    pub(super) fn submit(&mut self) -> bool {
        while self.unsubmitted > 0 || self.ring.submission().taskrun() {
            match self.ring.submit() {
                // It takes at least one, or says why not; whatever it does, this ends.
                Ok(0) if self.unsubmitted > 0 => break,
                Ok(count) => self.unsubmitted = self.unsubmitted.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It is asked again with the next answer, or when the thread wakes.
                Err(error) => {
                    tracing::warn!("answers to requests to nodes wait: {error}");
                    break;
                }
            }
        }
        self.has_come()
    }

    /// Whether there are submissions that the kernel has not taken.
    pub(super) fn has_unsubmitted(&self) -> bool {
        self.unsubmitted > 0
    }

    /// Whether requests have come.
    pub(super) fn has_come(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The next request that has come.
    pub(super) fn next(&mut self) -> Option<Came> {
        loop {
            let done = self.ring.completion().next()?;
            let number = done.user_data() as u32;
            let Some(entry) = self.entries.get_mut(number) else { continue };
            entry.with_kernel = false;
            let (link, ended) = (entry.link, entry.ended);
            if done.result() < 0 || ended {
                // It is not used any more. When the connection has ended its descriptor tells.
                let expected = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENODEV];
                if !ended && !expected.contains(&-done.result()) {
                    tracing::warn!("requests to nodes by io_uring: {}", io::Error::from_raw_os_error(-done.result()));
                    self.refused.push(link);
                }
                entry.ended = true;
                self.free_if_over(number);
                continue;
            }
            let payload = entry.header.payload as usize;
            let Ok((header, _)) = InHeader::read_from_prefix(&entry.header.in_out) else { continue };
            return Some(Came { entry: number, link, header, payload });
        }
    }

    /// The operation's struct of a request that has come.
    pub(super) fn operation(&self, entry: u32) -> &[u8] {
        &self.entries[entry].header.op_in
    }

    /// The payload, unless it is taken.
    pub(super) fn payload(&self, entry: u32) -> &[u8] {
        self.entries[entry].payload.as_deref().unwrap_or_default()
    }

    /// Takes the payload's memory, for a device.
    pub(super) fn take(&mut self, entry: u32) -> Option<AlignedBuf> {
        self.entries[entry].payload.take()
    }

    /// Gives the payload's memory back.
    pub(super) fn give(&mut self, entry: u32, payload: AlignedBuf) {
        self.entries[entry].payload = Some(payload);
    }

    /// Answers with bytes, which are copied.
    pub(super) fn answer(&mut self, entry: u32, unique: u64, error: Option<Errno>, data: &[u8]) {
        if let Some(payload) = &mut self.entries[entry].payload {
            payload[..data.len()].copy_from_slice(data);
        }
        self.commit(entry, unique, error, data.len());
    }

    /// Answers with the first bytes of the payload.
    pub(super) fn commit(&mut self, number: u32, unique: u64, error: Option<Errno>, len: usize) {
        let entry = &mut self.entries[number];
        if entry.ended {
            // Nobody waits for it.
            return self.free_if_over(number);
        }
        let header = &mut entry.header;
        // A payload has at most MAX_TRANSFER bytes.
        let total = (size_of::<OutHeader>() + len) as u32;
        let out = OutHeader { len: total, error: error.map_or(0, |error| -error.get()), unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header.payload = len as u32;
        let id = header.commit_id;
        entry.with_kernel = true;
        let submission = self.command(number, RING_COMMIT_AND_FETCH, id, 0, 0);
        self.push(submission);
    }

    /// Closes the ring. What is left is to be dropped when the thread has ended.
    pub(super) fn close(self) -> Remains {
        Remains { _entries: self.entries }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus() {
        for (text, last) in [("0\n", 0), ("0-1\n", 1), ("0-3,8-11", 11), ("0,2", 2)] {
            assert_eq!(last_cpu(text), Some(last));
        }
        for text in ["", "0-", "x"] {
            assert_eq!(last_cpu(text), None);
        }
        assert!(queues().unwrap() >= 1);
    }

    #[test]
    fn entries_are_bounded_however_many_queues() {
        for (queues, workers, expect) in [(1, 1, 32), (2, 2, 32), (4, 1, 128), (100, 4, 125), (1024, 4, 512)] {
            let mine = queues / workers;
            assert_eq!(mine * depth(mine), expect, "{queues} by {workers}");
            assert_eq!(most_connections(queues, workers), (1 << 14) / expect);
        }
    }
}
