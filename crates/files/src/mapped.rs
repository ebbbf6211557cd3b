//! Files in memory (tmpfs, ramfs): copies to and from a mapping, without a system call.
//!
//! - The mapping is only touched where the file has pages: to read a hole through it would fill the hole, and to
//!   write one could end in SIGBUS when the file system is full. What is known to have pages is kept in a bit for each
//!   64 KiB; everything else goes through preadv2 and pwritev2, which leave holes alone and give ENOSPC.
//! - Bits are learned by mincore(2), which looks at a few granules, where SEEK_HOLE may scan the whole file.
//! - A file that is cut off below faults in [`guard`], and is then asked by system calls, which know the error. Within
//!   the page that the file now ends in, nothing faults: reads give zeroes there, and writes are lost.
//! - FLUSH does nothing: these files are gone with the system, and outlive this process without help. (On a disk it
//!   would be fdatasync, which writes pages that were changed through mappings as msync does: both end in the file
//!   system's fsync.) Files on disks are never mapped, because a fault cannot be asked not to block.

use crate::backing::Backing;
use crate::worker::Serve;
use crate::{guard, sync};
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use udm_io::{Bio, Op, OpFlags, Status};

/// Bytes that one bit stands for.
const GRANULE: usize = 64 << 10;
/// Granules that are learned at a time: a divisor of 64.
const TOGETHER: usize = 8;
/// The smallest page there is; a granule has no more pages than this gives.
const MIN_PAGE: usize = 4096;
/// The longest file that is mapped: an eighth of the address space, and 32 MiB of bits.
const LONGEST: u64 = 16 << 40;
/// The longest range that is given back or zeroed in the submitter's time.
const AT_ONCE: u64 = 1 << 20;

/// A mapped file.
pub(crate) struct Mapped {
    pub(crate) backing: Backing,
    base: NonNull<u8>,
    len: usize,
    page: usize,
    /// Whether mincore tells this process the truth.
    learns: bool,
    present: Box<[AtomicU64]>,
    /// How many times pages were about to be given back, and have been.
    punching: AtomicU64,
    punched: AtomicU64,
}

// SAFETY: the mapping is owned; its bytes are only touched by copies through raw pointers, as a device's are.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a file in memory. Gives the file back where that cannot be done.
    pub(crate) fn new(backing: Backing) -> Result<Self, Backing> {
        let len = backing.bytes();
        if !guard::SUPPORTED || len == 0 || len > LONGEST || guard::prepare().is_err() {
            return Err(backing);
        }
        let len = len as usize;
        let write = if backing.read_only { ProtFlags::empty() } else { ProtFlags::WRITE };
        let (access, fd) = (ProtFlags::READ | write, backing.fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let Ok(base) = (unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd.as_fd(), 0) }) else {
            return Err(backing);
        };
        let base = NonNull::new(base.cast()).expect("mmap gives no null");
        let page = rustix::param::page_size();
        // To others mincore says that everything is there (can_do_mincore, mm/mincore.c, 6.12).
        let owner = rustix::fs::fstat(backing.fd()).map(|s| s.st_uid);
        let learns = page <= GRANULE && (!backing.read_only || owner == Ok(rustix::process::geteuid().as_raw()));
        let bits = len.div_ceil(GRANULE).div_ceil(64);
        let present = vec![0u64; bits].into_iter().map(AtomicU64::new).collect();
        let (punching, punched) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { backing, base, len, page, learns, present, punching, punched })
    }

    /// Serves a bio now; gives it back when it may take long.
    #[inline]
    pub(crate) fn submit(&self, bio: Bio) -> Option<Bio> {
        let status = match bio.op() {
            Op::Read | Op::Write => self.transfer(&bio),
            Op::Flush => Status::Ok,
            _ if bio.sectors().bytes() > AT_ONCE => return Some(bio),
            _ => self.clear(&bio),
        };
        bio.end(status);
        None
    }

    #[inline]
    fn transfer(&self, bio: &Bio) -> Status {
        let (start, len) = (bio.sector().bytes() as usize, bio.sectors().as_len());
        if start + len > self.len {
            // Beyond what was mapped: the file has grown since.
            return sync::serve(&self.backing, bio, 0);
        }
        let mut done = 0;
        while done < len {
            let at = start + done;
            let n = (len - done).min(GRANULE - at % GRANULE);
            let there = self.is_present(at / GRANULE) || self.learn(at / GRANULE);
            if !(there && self.copy(bio, done, at, n)) {
                match self.by_call(bio, done, at, n) {
                    Status::Ok => {}
                    failed => return failed,
                }
            }
            done += n;
        }
        Status::Ok
    }

    /// Copies `n` bytes of a bio, from its byte `done`, to or from the mapping at `at`. False after a fault.
    #[inline]
    fn copy(&self, bio: &Bio, done: usize, at: usize, n: usize) -> bool {
        // SAFETY: at + n lies within the mapping.
        let mut mem = unsafe { self.base.as_ptr().add(at) };
        let mut left = n;
        for seg in bio.segments().skip_bytes(done) {
            let n = seg.len().min(left);
            // SAFETY: the segment is valid for n bytes (contract of Segment::new), the mapping for as many; a file
            // that has been cut off ends in a fault, which the copy reports.
            let copied = unsafe {
                match bio.op() {
                    Op::Read => guard::copy(seg.as_ptr(), mem, n),
                    _ => guard::copy(mem, seg.as_ptr(), n),
                }
            };
            if !copied {
                return false;
            }
            left -= n;
            mem = mem.wrapping_add(n);
            if left == 0 {
                break;
            }
        }
        true
    }

    /// The same by system calls: for holes, and for errors.
    #[cold]
    fn by_call(&self, bio: &Bio, done: usize, at: usize, n: usize) -> Status {
        if bio.op() == Op::Write && !self.backing.holds((at + n) as u64) {
            return Status::Io;
        }
        let mut moved = 0;
        while moved < n {
            let segs = bio.segments().skip_bytes(done + moved).take_bytes(n - moved);
            match sync::transfer(&self.backing, bio.op(), segs, (at + moved) as u64, 0) {
                // The file was cut off below.
                Ok(0) => return Status::Io,
                Ok(more) => moved += more,
                Err(e) => return sync::status_of(&e),
            }
        }
        Status::Ok
    }

    #[inline]
    fn is_present(&self, granule: usize) -> bool {
        self.present[granule / 64].load(Ordering::Relaxed) & 1 << (granule % 64) != 0
    }

    /// Asks whether every page of a granule is there, and notes it, of its neighbours too. What is there gets its
    /// entries in the page tables, all at once, which costs less than a fault for each few.
    #[cold]
    fn learn(&self, granule: usize) -> bool {
        let before = self.punching.load(Ordering::SeqCst);
        if !self.learns || before != self.punched.load(Ordering::SeqCst) {
            return false;
        }
        let first = granule - granule % TOGETHER;
        let start = first * GRANULE;
        let len = (self.len - start).min(TOGETHER * GRANULE);
        let mut pages = [0u8; TOGETHER * GRANULE / MIN_PAGE];
        // SAFETY: a range of the mapping, and room for a byte for each of its pages.
        let asked = unsafe { libc::mincore(self.base.as_ptr().add(start).cast(), len, pages.as_mut_ptr()) };
        if asked != 0 {
            return false;
        }
        let whole = |pages: &[u8]| pages.iter().all(|page| page & 1 != 0);
        let pages = pages[..len.div_ceil(self.page)].chunks(GRANULE / self.page);
        let there: u64 = pages.enumerate().map(|(i, pages)| u64::from(whole(pages)) << i).sum();
        self.map_in(start, len, there);
        let (word, bits) = (&self.present[first / 64], there << (first % 64));
        word.fetch_or(bits, Ordering::SeqCst);
        // Pages were given back meanwhile: perhaps these. To forget a bit is always right.
        if self.punching.load(Ordering::SeqCst) != before {
            word.fetch_and(!bits, Ordering::SeqCst);
            return false;
        }
        there & 1 << (granule - first) != 0
    }

    /// Has the kernel enter the pages of those granules from `start` on that are `there` into the page tables. Waits
    /// for nothing, as they are in memory; one that was given back since comes as zeroes, which it is. Kernels before
    /// 5.14 do not know how, and fault.
    fn map_in(&self, start: usize, len: usize, there: u64) {
        let mut at = 0;
        while at < TOGETHER {
            let run = (there >> at).trailing_ones() as usize;
            if run == 0 {
                at += 1;
                continue;
            }
            let (from, to) = (at * GRANULE, ((at + run) * GRANULE).min(len));
            // SAFETY: a range of the mapping; its contents stay as they are.
            let _ =
                unsafe { madvise(self.base.as_ptr().add(start + from).cast(), to - from, Advice::LinuxPopulateRead) };
            at += run;
        }
    }

    /// Discards or zeroes a range.
    fn clear(&self, bio: &Bio) -> Status {
        let keeps = bio.op() == Op::WriteZeroes && bio.flags().contains(OpFlags::NO_UNMAP);
        if keeps {
            return sync::serve(&self.backing, bio, 0);
        }
        self.punching.fetch_add(1, Ordering::SeqCst);
        let (start, end) = (bio.sector().bytes() as usize, bio.end_sector().bytes() as usize);
        for granule in start / GRANULE..end.min(self.len).div_ceil(GRANULE) {
            self.present[granule / 64].fetch_and(!(1 << (granule % 64)), Ordering::SeqCst);
        }
        let status = sync::serve(&self.backing, bio, 0);
        self.punched.fetch_add(1, Ordering::SeqCst);
        status
    }
}

impl Serve for Mapped {
    fn serve(&self, bio: &Bio) -> Status {
        self.clear(bio)
    }

    fn backing(&self) -> &Backing {
        &self.backing
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing refers to it any more.
        let unmapped: io::Result<()> = unsafe { munmap(self.base.as_ptr().cast(), self.len) }.map_err(Into::into);
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}
