//! A queue from the driver's side.
//!
//! # Layout of its memory
//! Descriptor table, available ring and used ring, each on a border of 64 bytes; then for each request a slot of
//! [`SLOT`] bytes: an indirect table of [`PARTS`] descriptors, the head, the status.

use super::memory::SharedMemory;
use crate::vhost_user::blk::{HEAD, kind};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::Duration;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESC: u64 = 16;
/// Descriptors of a request at most.
pub const PARTS: usize = 12;
const SLOT: u64 = 256;
const HEAD_AT: u64 = DESC * PARTS as u64;
const STATUS_AT: u64 = HEAD_AT + HEAD as u64;

const _: () = assert!(STATUS_AT < SLOT, "a slot has room for all of it");

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Makes durable what was written.
    Flush,
    /// Asks for the name.
    Id,
    /// Discards the ranges that its data lists.
    Discard,
    /// Zeroes the ranges that its data lists.
    WriteZeroes,
    /// A number that may mean nothing.
    Other(u32),
}

impl Kind {
    const fn number(self) -> u32 {
        match self {
            Self::Read => kind::IN,
            Self::Write => kind::OUT,
            Self::Flush => kind::FLUSH,
            Self::Id => kind::GET_ID,
            Self::Discard => kind::DISCARD,
            Self::WriteZeroes => kind::WRITE_ZEROES,
            Self::Other(n) => n,
        }
    }

    const fn writes_memory(self) -> bool {
        matches!(self, Self::Read | Self::Id)
    }
}

/// A part of the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its address in the guest.
    pub guest: u64,
    /// Bytes.
    pub len: u32,
}

/// A descriptor, for those who write nonsense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RawDesc {
    /// An address in the guest.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// 1: goes on at `next`; 2: the device writes; 4: an indirect table.
    pub flags: u16,
    /// The next one.
    pub next: u16,
}

/// A request that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// What it was submitted with.
    pub token: u64,
    /// 0 when it went well, 1 on an error, 2 when the device does not know it.
    pub status: u8,
    /// Bytes that were written to memory, the status included.
    pub written: u32,
}

/// How a queue is to be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) size: u16,
    /// Where its memory begins.
    pub(super) offset: u64,
    pub(super) indirect: bool,
    pub(super) event_idx: bool,
    /// Who uses it looks for what is done, and is not to be told.
    pub(super) polled: bool,
}

impl Shape {
    /// Requests at a time: without indirect tables each takes three descriptors.
    pub(super) fn depth(&self) -> u16 {
        if self.indirect { self.size } else { self.size / 3 }
    }

    fn avail(&self) -> u64 {
        self.offset + DESC * u64::from(self.size)
    }

    fn used(&self) -> u64 {
        (self.avail() + 6 + 2 * u64::from(self.size)).next_multiple_of(64)
    }

    fn slots(&self) -> u64 {
        (self.used() + 6 + 8 * u64::from(self.size)).next_multiple_of(64)
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        (self.slots() - self.offset + SLOT * u64::from(self.depth())).next_multiple_of(4096)
    }
}

/// The driver's side of a queue. It may be used on any thread.
pub struct FrontQueue {
    memory: Arc<SharedMemory>,
    shape: Shape,
    free: Vec<u16>,
    tokens: Box<[u64]>,
    /// The next index of the available ring, and how far the device was told.
    avail: u16,
    told: u16,
    /// The next used element.
    seen: u16,
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: Arc<OwnedFd>,
}

impl FrontQueue {
    pub(super) fn new(memory: Arc<SharedMemory>, shape: Shape) -> io::Result<Self> {
        let bell = || Ok::<_, io::Error>(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        let depth = shape.depth();
        let this = Self {
            memory,
            shape,
            free: (0..depth).rev().collect(),
            tokens: vec![0; depth.into()].into(),
            avail: 0,
            told: 0,
            seen: 0,
            kick: bell()?,
            call: bell()?,
        };
        if shape.polled && !shape.event_idx {
            this.word(shape.avail(), 0).store(1, Ordering::Relaxed);
        }
        Ok(this)
    }

    /// Addresses of the descriptor table, the available and the used ring in this process.
    pub(super) fn addresses(&self) -> [u64; 3] {
        [self.shape.offset, self.shape.avail(), self.shape.used()].map(|offset| self.memory.user() + offset)
    }

    /// Requests that can be out at a time.
    pub fn depth(&self) -> usize {
        self.tokens.len()
    }

    /// Requests that are out.
    pub fn out(&self) -> usize {
        self.depth() - self.free.len()
    }

    /// The memory that it shares.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    fn word(&self, part: u64, index: u64) -> &AtomicU16 {
        let at = self.memory.at(part + 2 * index, 2).cast::<u16>();
        // SAFETY: within the mapping, which `memory` keeps; aligned, as every part of a queue is.
        unsafe { AtomicU16::from_ptr(at) }
    }

    /// Writes the descriptor at an offset of the memory.
    #[inline(always)]
    fn set_desc(&self, offset: u64, desc: RawDesc) {
        let at = self.memory.at(offset, DESC);
        let RawDesc { addr, len, flags, next } = desc;
        let word = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        let (at, wanted) = (at.cast::<[u64; 2]>(), [addr.to_le(), word.to_le()]);
        // A line that both sides only read stays in both caches.
        // SAFETY: within the mapping and aligned to 8.
        unsafe {
            if at.read_volatile() != wanted {
                at.write_volatile(wanted);
            }
        }
    }

    /// Submits a request with the data at these parts of the guest's memory, [`PARTS`] - 2 at most. False when as many
    /// are out as there is room for. [`kick`](Self::kick) tells the device.
    #[inline]
    pub fn submit(&mut self, what: Kind, sector: u64, data: &[Part], token: u64) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        self.tokens[usize::from(slot)] = token;
        let at = self.shape.slots() + SLOT * u64::from(slot);
        let guest = self.memory.guest() + at;
        // SAFETY: within the mapping and aligned: slots have 256 bytes each.
        unsafe {
            let head = self.memory.at(at + HEAD_AT, 16).cast::<u64>();
            head.write_volatile(u64::from(what.number()).to_le());
            head.add(1).write_volatile(sector.to_le());
            self.memory.at(at + STATUS_AT, 1).write_volatile(0xff);
        }
        let flags = if what.writes_memory() { WRITE } else { 0 };
        let (table, first) = match self.shape.indirect {
            true => (at, 0),
            false => (self.shape.offset, slot * 3),
        };
        assert!(data.len() <= if self.shape.indirect { PARTS - 2 } else { 1 }, "{} parts of data", data.len());
        let mut next = first;
        let mut put = |addr: u64, len: u32, flags: u16| {
            let desc = RawDesc { addr, len, flags, next: next + 1 };
            self.set_desc(table + DESC * u64::from(next), desc);
            next += 1;
        };
        put(guest + HEAD_AT, HEAD as u32, NEXT);
        data.iter().for_each(|part| put(part.guest, part.len, flags | NEXT));
        put(guest + STATUS_AT, 1, WRITE);
        if self.shape.indirect {
            let len = u32::from(next) * DESC as u32;
            let desc = RawDesc { addr: guest, len, flags: INDIRECT, next: 0 };
            self.set_desc(self.shape.offset + DESC * u64::from(slot), desc);
            self.offer(slot);
        } else {
            self.offer(first);
        }
        true
    }

    /// Submits a request whose data is memory of this process that it shares: see [`submit`](Self::submit).
    #[inline]
    pub fn submit_at(&mut self, what: Kind, sector: u64, data: &mut [u8], token: u64) -> bool {
        let guest = self.memory.guest_of(data.as_ptr(), data.len());
        self.submit(what, sector, &[Part { guest, len: data.len() as u32 }], token)
    }

    fn offer(&mut self, head: u16) {
        let at = 2 + u64::from(self.avail & (self.shape.size - 1));
        self.word(self.shape.avail(), at).store(head, Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
        self.word(self.shape.avail(), 1).store(self.avail, Ordering::Release);
    }

    /// Writes a descriptor of the ring's own table, whatever it says. For tests of nonsense.
    pub fn write_desc(&self, index: u16, desc: RawDesc) {
        self.set_desc(self.shape.offset + DESC * u64::from(index % self.shape.size), desc);
    }

    /// Makes a head available, whatever it is. For tests of nonsense.
    pub fn offer_raw(&mut self, head: u16) {
        self.offer(head);
    }

    /// Says that so many more chains are available than there are. For tests of nonsense.
    pub fn skip_available(&mut self, more: u16) {
        self.avail = self.avail.wrapping_add(more);
        self.word(self.shape.avail(), 1).store(self.avail, Ordering::Release);
    }

    /// Tells the device of what was submitted, if it wants to be told. Whether it did.
    #[inline]
    pub fn kick(&mut self) -> bool {
        let (old, new) = (self.told, self.avail);
        if old == new {
            return false;
        }
        self.told = new;
        fence(Ordering::SeqCst);
        let wants = if self.shape.event_idx {
            let event = self.word(self.shape.used(), 2 + 4 * u64::from(self.shape.size)).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.word(self.shape.used(), 0).load(Ordering::Relaxed) & 1 == 0
        };
        if wants {
            self.ring();
        }
        wants
    }

    /// Rings, whatever the device wants.
    pub fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Whether a request is done.
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.word(self.shape.used(), 1).load(Ordering::Acquire) != self.seen
    }

    /// The next request that is done.
    #[inline]
    pub fn completed(&mut self) -> Option<Done> {
        let idx = self.word(self.shape.used(), 1).load(Ordering::Acquire);
        if idx == self.seen {
            return None;
        }
        let at = self.shape.used() + 4 + 8 * u64::from(self.seen & (self.shape.size - 1));
        // SAFETY: within the mapping, aligned to 4.
        let (id, written) = unsafe {
            let at = self.memory.at(at, 8).cast::<u32>();
            (at.read_volatile(), at.add(1).read_volatile())
        };
        self.seen = self.seen.wrapping_add(1);
        let slot = if self.shape.indirect { id } else { id / 3 };
        let slot = u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < self.tokens.len())?;
        let status_at = self.shape.slots() + SLOT * u64::from(slot) + STATUS_AT;
        // SAFETY: within the mapping.
        let status = unsafe { self.memory.at(status_at, 1).read_volatile() };
        self.free.push(slot);
        Some(Done { token: self.tokens[usize::from(slot)], status, written })
    }

    /// Sleeps until the device says that something is done, or for `most`. Returns at once when something is, or when
    /// the queue is polled.
    pub fn wait(&self, most: Duration) -> io::Result<()> {
        if self.shape.polled {
            // Nobody rings.
            std::thread::yield_now();
            return Ok(());
        }
        if self.shape.event_idx {
            // vring_used_event: to be told of the next one.
            self.word(self.shape.avail(), 2 + u64::from(self.shape.size)).store(self.seen, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        if self.word(self.shape.used(), 1).load(Ordering::Acquire) != self.seen {
            return Ok(());
        }
        let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut polled = [PollFd::new(&*self.call, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => drop(rustix::io::read(&*self.call, &mut [0u8; 8])),
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}
