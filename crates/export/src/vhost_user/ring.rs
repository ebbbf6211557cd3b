//! A split ring in the memory of a guest, from the device's side (virtio 1.2, 2.7).
//!
//! # Invariants
//! - Whatever the guest writes there, an index or a length that it gives is checked before it is used; chains have an
//!   end, indirect tables are not followed into others. What is wrong breaks the ring, for good: [`Broken`] says why.
//! - Numbers are read once, by volatile or atomic loads.

use super::memory::{GuestMemory, Piece};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Descriptors in a chain at most, whatever the size of the ring: more than any driver uses.
pub(super) const MAX_CHAIN: usize = 2048;
/// The largest ring that there is.
pub(super) const MAX_SIZE: u16 = 32768;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// In `avail.flags`: the driver does not want to be rung.
const NO_INTERRUPT: u16 = 1;
/// In `used.flags`: the device does not want to be rung.
const NO_NOTIFY: u16 = 1;

/// Why a ring cannot be used any more: what its driver did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(pub(super) String);

fn broken<T>(text: impl Into<String>) -> Result<T, Broken> {
    Err(Broken(text.into()))
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Used {
    id: u32,
    len: u32,
}

const _: () = assert!(size_of::<Desc>() == 16 && size_of::<Used>() == 8, "as virtio lays them out");

/// Where a ring lies, in addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RingAddresses {
    pub(super) desc: u64,
    pub(super) avail: u64,
    pub(super) used: u64,
}

/// The memory of a chain, in its two directions.
#[derive(Default)]
pub(super) struct Chain {
    /// What the device reads.
    pub(super) readable: Vec<Piece>,
    /// What it writes.
    pub(super) writable: Vec<Piece>,
}

/// The device's side of a ring.
pub(super) struct Ring {
    /// Where it lies.
    memory: Arc<GuestMemory>,
    addresses: RingAddresses,
    desc: *const Desc,
    avail: *const u16,
    used: *mut u16,
    size: u16,
    /// The place in the available ring up to which chains were taken.
    taken: u16,
    /// The index of the used ring as it was published last.
    published: u16,
    /// Used elements that are written and not published.
    pending: u16,
    /// The index of the used ring up to which the driver was told, or does not want to be.
    told: u16,
    indirect: bool,
    event_idx: bool,
}

impl Ring {
    /// A ring of `size` entries, a power of two. `taken` is where the available ring is to go on.
    pub(super) fn new(
        memory: &Arc<GuestMemory>,
        addresses: RingAddresses,
        size: u16,
        taken: u16,
        (indirect, event_idx): (bool, bool),
    ) -> Result<Self, Broken> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return broken(format!("a ring of {size} entries: expected a power of two up to {MAX_SIZE}"));
        }
        let (desc, avail, used) = find(memory, addresses, size)?;
        let mut ring = Self {
            memory: memory.clone(),
            addresses,
            desc,
            avail,
            used,
            size,
            taken,
            published: 0,
            pending: 0,
            told: 0,
            indirect,
            event_idx,
        };
        ring.published = ring.used_idx().load(Ordering::Acquire);
        ring.told = ring.published;
        Ok(ring)
    }

    /// Finds the ring again after the memory has changed.
    pub(super) fn move_to(&mut self, memory: &Arc<GuestMemory>) -> Result<(), Broken> {
        (self.desc, self.avail, self.used) = find(memory, self.addresses, self.size)?;
        self.memory = memory.clone();
        Ok(())
    }

    pub(super) fn size(&self) -> u16 {
        self.size
    }

    /// Where the available ring goes on.
    pub(super) fn taken(&self) -> u16 {
        self.taken
    }

    /// Goes on elsewhere.
    pub(super) fn set_taken(&mut self, taken: u16) {
        self.taken = taken;
    }

    /// The index of the used ring.
    pub(super) fn published(&self) -> u16 {
        self.published
    }

    /// A word of the available or used ring.
    #[inline(always)]
    fn word(&self, base: *const u16, index: usize) -> &AtomicU16 {
        // SAFETY: `find` has seen that all words of the ring lie in the memory that the ring holds, aligned.
        unsafe { AtomicU16::from_ptr(base.cast_mut().add(index)) }
    }

    fn avail_flags(&self) -> &AtomicU16 {
        self.word(self.avail, 0)
    }

    fn avail_idx(&self) -> &AtomicU16 {
        self.word(self.avail, 1)
    }

    fn used_event(&self) -> &AtomicU16 {
        self.word(self.avail, 2 + usize::from(self.size))
    }

    fn used_flags(&self) -> &AtomicU16 {
        self.word(self.used, 0)
    }

    fn used_idx(&self) -> &AtomicU16 {
        self.word(self.used, 1)
    }

    fn avail_event(&self) -> &AtomicU16 {
        self.word(self.used, 2 + 4 * usize::from(self.size))
    }

    /// How many chains wait.
    #[inline(always)]
    pub(super) fn waiting(&self) -> Result<u16, Broken> {
        let waiting = self.avail_idx().load(Ordering::Acquire).wrapping_sub(self.taken);
        if waiting > self.size {
            let text = format!("{waiting} chains are available at once in a ring of {} entries", self.size);
            return broken(text);
        }
        Ok(waiting)
    }

    /// Takes the head of the next chain; one must wait.
    #[inline(always)]
    pub(super) fn take_head(&mut self) -> Result<u16, Broken> {
        let at = 2 + usize::from(self.taken & (self.size - 1));
        let head = self.word(self.avail, at).load(Ordering::Relaxed);
        if head >= self.size {
            return broken(format!("descriptor {head} is made available in a ring of {} entries", self.size));
        }
        self.taken = self.taken.wrapping_add(1);
        Ok(head)
    }

    /// The heads of the chains that wait, `most` at most, without taking them.
    #[inline(always)]
    fn ahead(&self, most: u16) -> impl Iterator<Item = usize> {
        let waiting = self.avail_idx().load(Ordering::Acquire).wrapping_sub(self.taken);
        (0..waiting.min(self.size).min(most)).filter_map(|place| {
            let at = 2 + usize::from(self.taken.wrapping_add(place) & (self.size - 1));
            let head = self.word(self.avail, at).load(Ordering::Relaxed);
            (head < self.size).then_some(usize::from(head))
        })
    }

    /// Begins to bring the descriptors of chains near that are taken later, as [`ahead`](Self::ahead) counts them. This
    /// and the two that follow are hints: whatever is there, nothing comes of it.
    #[inline]
    pub(super) fn fetch_descs(&self, most: u16) {
        self.ahead(most).for_each(|head| fetch(self.desc.wrapping_add(head).cast()));
    }

    /// The same for what the descriptors lead to: indirect tables, or the heads of the requests.
    #[inline]
    pub(super) fn fetch_tables(&self, most: u16) {
        for head in self.ahead(most) {
            if let Some(at) = self.leads_to(self.desc.wrapping_add(head)) {
                fetch(at);
            }
        }
    }

    /// The same for the heads of the requests in indirect tables; their statuses, which are written, mostly lie beside.
    #[inline]
    pub(super) fn fetch_heads(&self, most: u16) {
        for head in self.ahead(most) {
            let desc = self.desc.wrapping_add(head);
            // SAFETY: within the table; read once.
            if unsafe { (&raw const (*desc).flags).read_volatile() } & INDIRECT == 0 {
                continue;
            }
            let table = self.leads_to(desc).filter(|at| (*at as usize).is_multiple_of(align_of::<Desc>()));
            if let Some(at) = table.and_then(|table| self.leads_to(table.cast())) {
                fetch_to_write(at);
            }
        }
    }

    /// Where the memory of a descriptor begins, one of the ring or an aligned one in the guest's memory.
    #[inline(always)]
    fn leads_to(&self, desc: *const Desc) -> Option<*const u8> {
        // SAFETY: the address begins a descriptor, and is its first word.
        let addr = unsafe { (&raw const (*desc).addr).read_volatile() };
        // All of a descriptor is there, so that it can be looked at.
        self.memory.at_guest(addr, size_of::<Desc>() as u64).map(<*mut u8>::cast_const)
    }

    /// Finds the memory of a chain.
    #[inline(always)]
    pub(super) fn chain(&self, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        let memory = &*self.memory;
        chain.readable.clear();
        chain.writable.clear();
        let (mut table, mut size, mut next) = (self.desc, self.size, head);
        let mut is_indirect = false;
        for _ in 0..MAX_CHAIN {
            // SAFETY: `next` is below `size`, checked when it was read; the table has as many entries in a mapping.
            let desc = unsafe { table.add(usize::from(next)).read_volatile() };
            if desc.flags & INDIRECT != 0 {
                if is_indirect || !self.indirect || desc.flags & (NEXT | WRITE) != 0 {
                    return broken(format!("descriptor {next} is indirect where it must not be"));
                }
                (table, size) = indirect_table(memory, desc)?;
                (is_indirect, next) = (true, 0);
                continue;
            }
            // An empty one stands for nothing.
            if desc.len > 0 {
                let writable = desc.flags & WRITE != 0;
                if !writable && !chain.writable.is_empty() {
                    return broken("memory to read comes after memory to write in a chain");
                }
                let list = if writable { &mut chain.writable } else { &mut chain.readable };
                if !memory.pieces(desc.addr, desc.len, |piece| list.push(piece)) {
                    let text = format!("a descriptor of {} bytes at {:#x} lies outside of memory", desc.len, desc.addr);
                    return broken(text);
                }
            }
            if desc.flags & NEXT == 0 {
                return Ok(());
            }
            next = desc.next;
            if next >= size {
                return broken(format!("a chain goes on at descriptor {next} of {size}"));
            }
        }
        broken(format!("a chain has a loop, or more than {MAX_CHAIN} descriptors"))
    }

    /// Writes that a chain is done, with `len` bytes written to it. [`publish`](Self::publish) shows it to the driver.
    #[inline(always)]
    pub(super) fn done(&mut self, head: u16, len: u32) {
        let at = usize::from(self.published.wrapping_add(self.pending) & (self.size - 1));
        // SAFETY: the used ring has `size` elements behind its two words, aligned to 4 (`find`).
        unsafe { self.used.add(2).cast::<Used>().add(at).write_volatile(Used { id: head.into(), len }) };
        self.pending += 1;
    }

    /// Chains that are done and not shown yet.
    #[inline(always)]
    pub(super) fn pending(&self) -> u16 {
        self.pending
    }

    /// Shows what is done to the driver, who may look for it. Whether it wants to be told is another question, which
    /// [`wants_to_be_told`](Self::wants_to_be_told) answers for all that was published since it was asked last.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        let new = self.published.wrapping_add(self.pending);
        self.used_idx().store(new, Ordering::Release);
        (self.published, self.pending) = (new, 0);
    }

    /// How much was published since it was asked last whether the driver wants to be told.
    #[inline(always)]
    pub(super) fn untold(&self) -> u16 {
        self.published.wrapping_sub(self.told)
    }

    /// Whether the driver wants to be told of what was published since this was asked last. Costs a fence, which waits
    /// until what was stored before is seen by all: the data of the requests, too.
    #[inline(always)]
    pub(super) fn wants_to_be_told(&mut self) -> bool {
        let (old, new) = (self.told, self.published);
        self.told = new;
        // The index is written before the driver's wish is read: else it goes to sleep on what was done in between.
        fence(Ordering::SeqCst);
        if self.event_idx {
            // vring_need_event(): whether its index lies in what was just published.
            let event = self.used_event().load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.avail_flags().load(Ordering::Relaxed) & NO_INTERRUPT == 0
        }
    }

    /// Asks the driver to ring for the next chain. Whether there is one already, so that it will not.
    pub(super) fn ask_for_kicks(&self) -> Result<bool, Broken> {
        if self.event_idx {
            self.avail_event().store(self.taken, Ordering::Relaxed);
        } else {
            self.used_flags().store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting()? > 0)
    }

    /// Tells the driver not to ring.
    pub(super) fn decline_kicks(&self) {
        // With event indices the one that was asked for stays behind, which is as good.
        if !self.event_idx {
            self.used_flags().store(NO_NOTIFY, Ordering::Relaxed);
        }
    }
}

/// Begins to bring the line of an address near. Whatever the address, nothing else happens.
#[inline(always)]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which faults nowhere.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same for a line that will be written: who has it too gives it up at once, not when it is written.
#[inline(always)]
pub(super) fn fetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which faults nowhere, and does nothing on a CPU that does not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

type Parts = (*const Desc, *const u16, *mut u16);

/// The three parts of a ring in a memory.
fn find(memory: &GuestMemory, addresses: RingAddresses, size: u16) -> Result<Parts, Broken> {
    let n = u64::from(size);
    let part = |what: &str, at: u64, len: u64, align: usize| match memory.at_user(at, len) {
        Some(ptr) if (ptr as usize).is_multiple_of(align) => Ok(ptr),
        Some(_) => broken(format!("the {what} at {at:#x} is not aligned to {align} bytes")),
        None => broken(format!("the {what} of {len} bytes at {at:#x} of the front end lies outside of memory")),
    };
    Ok((
        part("descriptor table", addresses.desc, 16 * n, 16)?.cast_const().cast(),
        part("available ring", addresses.avail, 6 + 2 * n, 2)?.cast_const().cast(),
        part("used ring", addresses.used, 6 + 8 * n, 4)?.cast(),
    ))
}

/// Where an indirect table lies, and how many descriptors it has.
#[inline(always)]
fn indirect_table(memory: &GuestMemory, desc: Desc) -> Result<(*const Desc, u16), Broken> {
    let entries = desc.len as usize / size_of::<Desc>();
    if entries == 0 || entries > usize::from(MAX_SIZE) || !(desc.len as usize).is_multiple_of(size_of::<Desc>()) {
        return broken(format!("an indirect table has {} bytes", desc.len));
    }
    match memory.at_guest(desc.addr, u64::from(desc.len)) {
        // Tables need not be aligned; the copy below is read as bytes where they are not.
        Some(at) if (at as usize).is_multiple_of(align_of::<Desc>()) => Ok((at.cast(), entries as u16)),
        Some(_) => broken(format!("an indirect table at {:#x} is not aligned to 8 bytes", desc.addr)),
        None => broken(format!("an indirect table of {} bytes at {:#x} lies outside of memory", desc.len, desc.addr)),
    }
}
