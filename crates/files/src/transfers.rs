//! Reads and writes as requests of a ring: what of a bio is done, and what a request needs beside the bio's memory.
//!
//! A bio's free word says how far it has come: the bytes done, and the slot where its list of segments or its bounce
//! buffer lies, if it needs one. So the common case, one aligned segment done in one go, touches nothing but the bio
//! and the ring.

use crate::limits::DirectAlign;
use io_uring::types::Fd;
use io_uring::{opcode, squeue};
use rustix::fd::RawFd;
use udm_base::AlignedBuf;
use udm_io::{Bio, Op, Status};

/// Slots at most: as many as there can be transfers in flight.
pub(crate) const SLOTS: usize = 1024;
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

/// Progress, as a bio's free word: bytes done, and the slot plus one or 0.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    slot: Option<u16>,
}

impl Progress {
    pub(crate) const START: Self = Self { done: 0, slot: None };

    pub(crate) fn of(bio: &Bio) -> Self {
        let word = bio.word();
        Self { done: (word >> 16) as usize, slot: (word as u16).checked_sub(1) }
    }

    pub(crate) fn store(self, bio: &mut Bio) {
        bio.set_word((self.done as u64) << 16 | self.slot.map_or(0, |s| u64::from(s) + 1));
    }
}

/// Where direct I/O goes.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) fd: RawFd,
    pub(crate) align: DirectAlign,
}

/// The slots and buffers of a ring.
#[derive(Default)]
pub(crate) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<u16>,
    bounces: Vec<AlignedBuf>,
    bounces_made: usize,
}

/// What a bio comes to when a request of it has ended well.
pub(crate) enum Advance {
    /// It is done, with this status.
    Done(Status),
    /// The rest is to be asked for.
    More,
}

impl Transfers {
    /// Takes in that a request of `bio` has moved `moved` bytes.
    pub(crate) fn advance(&mut self, bio: &mut Bio, mut moved: usize, block: u32) -> Advance {
        let (mut progress, total) = (Progress::of(bio), bio.segments().bytes());
        if progress.done + moved < total {
            // Direct I/O goes on at a block's border only.
            moved -= moved % block as usize;
        }
        self.copy_out(bio, moved);
        self.release(bio);
        progress.done += moved;
        progress.slot = None;
        progress.store(bio);
        if progress.done >= total {
            Advance::Done(Status::Ok)
        } else if moved == 0 {
            // The file was cut off below.
            Advance::Done(Status::Io)
        } else {
            Advance::More
        }
    }

    /// The request for what is left of a read or write, or `None` when a slot or buffer is missing.
    #[inline]
    pub(crate) fn request(&mut self, bio: &mut Bio, target: Target) -> Option<squeue::Entry> {
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
        if self.free.is_empty() && self.slots.len() < SLOTS {
            self.slots.push(Slot::default());
            return Some(self.slots.len() as u16 - 1);
        }
        self.free.pop()
    }

    /// Gives a bio's slot and buffer back.
    pub(crate) fn release(&mut self, bio: &mut Bio) {
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
