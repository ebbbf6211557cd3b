//! Direct access to devices that are memory, for copies between them: one copy instead of a read, a buffer and a write.

use crate::{Memory, Op};
use std::marker::PhantomData;
use std::ptr;
use udm_base::{Sector, Sectors};

/// A device's counters for direct access to its memory.
pub trait IoAccounting {
    /// Counts a read or write of this many sectors.
    fn note(&self, op: Op, sectors: Sectors);
}

/// The memory of a range of a device, valid during a section of a channel. An access is like a bio that ends at once:
/// waiting for sections waits for it too, and others may read and write the range at the same time, as with bios.
pub struct DirectAccess<'a> {
    at: *mut u8,
    sectors: Sectors,
    op: Op,
    accounting: Option<&'a dyn IoAccounting>,
    memory: PhantomData<&'a Memory>,
}

impl Memory {
    /// Gives access to a range for reading or writing; `None` when there is no such range.
    pub fn direct_access(&self, op: Op, sector: Sector, sectors: Sectors) -> Option<DirectAccess<'_>> {
        let end = sector.checked_add(sectors).filter(|end| *end <= self.sectors().from_start())?;
        debug_assert!(end >= sector && op.has_payload());
        let at = self.as_ptr().wrapping_add(sector.bytes() as usize);
        Some(DirectAccess { at, sectors, op, accounting: None, memory: PhantomData })
    }
}

impl<'a> DirectAccess<'a> {
    /// The same, counted in `accounting` when it is used.
    #[must_use]
    pub fn accounted_in(self, accounting: &'a dyn IoAccounting) -> Self {
        Self { accounting: Some(accounting), ..self }
    }

    /// Reads and writes: copies this range to `to`, which begins `skip` sectors into it.
    ///
    /// # Panics
    /// When `to` is not for writing, or goes past the end of the range to be read.
    pub fn copy_to(&self, to: &Self, skip: Sectors) {
        assert!(self.op == Op::Read && to.op == Op::Write, "lent to be read, and to be written");
        assert!(skip.checked_add(to.sectors).is_some_and(|end| end <= self.sectors), "a part of it");
        // SAFETY: both are parts of memory that stays as long as the access is valid; they may overlap. Concurrent bios
        // access this memory by address too, as all bios do.
        unsafe { ptr::copy(self.at.add(skip.as_len()), to.at, to.sectors.as_len()) };
        to.used();
    }

    /// Counts the use with its device.
    pub fn used(&self) {
        if let Some(accounting) = self.accounting {
            accounting.note(self.op, self.sectors);
        }
    }
}
