//! The slabs of a channel: one for its submitter's bios, one reserve of clones for each level of a stack.

use super::bio::Bio;
use super::core::ChannelCore;
use super::device::BlockDevice;
use super::record::Record;
use crate::bio::{Op, OpFlags, Segment, Status};
use crate::polling::Polled;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use udm_base::{Sector, Sectors};

/// Records that one growth adds: 16 KiB.
const CHUNK: usize = 64;

/// Slots for bios of one level. Grows by chunks up to its limit and never shrinks while its channel lives,
/// so that a steady load allocates nothing.
pub(crate) struct Slab {
    chunks: Vec<Box<[MaybeUninit<Record>]>>,
    free: *mut Record,
    out: usize,
    limit: usize,
    level: u8,
}

impl Slab {
    pub(crate) const fn new(level: u8, limit: usize) -> Self {
        Self { chunks: Vec::new(), free: ptr::null_mut(), out: 0, limit, level }
    }

    pub(crate) const fn out(&self) -> usize {
        self.out
    }

    /// Whether no more can be taken now.
    pub(crate) const fn is_full(&self) -> bool {
        self.out >= self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes a slot; its fields are those of its last use, but for frames, status and links.
    #[inline]
    pub(crate) fn take(&mut self, channel: NonNull<ChannelCore>) -> Option<Bio> {
        if self.free.is_null() {
            self.grow(channel);
        }
        let mut record = NonNull::new(self.free)?;
        if self.out == self.limit {
            return None;
        }
        self.out += 1;
        // SAFETY: a record in the free list is initialised and owned by the list.
        let r = unsafe { record.as_mut() };
        self.free = r.next;
        r.next = ptr::null_mut();
        r.frames = 0;
        r.status = Status::Ok;
        #[cfg(debug_assertions)]
        {
            r.rounds = super::rounds::Rounds::NONE;
        }
        Some(Bio::from_record(record))
    }

    /// Takes a slot back. The bio came from this slab.
    #[inline]
    pub(crate) fn give(&mut self, bio: Bio) {
        let mut record = bio.into_record();
        // SAFETY: the bio owned the record; now the free list does.
        unsafe { record.as_mut() }.next = self.free;
        self.free = record.as_ptr();
        self.out -= 1;
    }

    /// Every record, in use or not.
    pub(super) fn records(&self) -> impl Iterator<Item = NonNull<Record>> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        slots.map(|slot| NonNull::from(slot).cast::<Record>())
    }

    /// The records that are not in use.
    pub(super) fn free_records(&self) -> impl Iterator<Item = NonNull<Record>> {
        let first = NonNull::new(self.free);
        // SAFETY: a record in the free list is initialised and owned by the list.
        std::iter::successors(first, |record| NonNull::new(unsafe { record.as_ref() }.next))
    }

    #[cold]
    fn grow(&mut self, channel: NonNull<ChannelCore>) {
        if self.out >= self.limit {
            return;
        }
        let mut chunk: Box<[MaybeUninit<Record>]> = Box::new_uninit_slice(CHUNK);
        for slot in chunk.iter_mut().rev() {
            slot.write(Record {
                dev: None::<NonNull<dyn BlockDevice>>,
                sector: Sector::ZERO,
                sectors: Sectors::ZERO,
                segs: ptr::null(),
                skip: 0,
                op: Op::Read,
                flags: OpFlags::NONE,
                status: Status::Ok,
                frames: 0,
                level: self.level,
                token: 0,
                channel,
                next: self.free,
                seg0: Segment::EMPTY,
                children: 0,
                parent: ptr::null_mut(),
                word: 0,
                polled: Polled::NONE,
                #[cfg(debug_assertions)]
                rounds: super::rounds::Rounds::NONE,
                stack: [MaybeUninit::uninit(); _],
                note: 0,
            });
            self.free = slot.as_mut_ptr();
        }
        self.chunks.push(chunk);
    }
}
