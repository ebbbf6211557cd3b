//! Memory that devices lend to who copies between them: one copy in place of a read, a buffer and a write.

use crate::{Memory, Op};
use std::marker::PhantomData;
use std::ptr;
use udm_base::{Sector, Sectors};

/// Where a device counts what was done with memory that it has lent.
pub trait IoAccounting {
    /// A read or write of so many sectors was done.
    fn note(&self, op: Op, sectors: Sectors);
}

/// Memory that is a range of a device, lent for as long as a section of a channel. What is done with it is like a bio
/// that ends at once: whoever waits for sections has waited for it, and others may read and write the range at the same
/// time as ever.
pub struct DirectAccess<'a> {
    at: *mut u8,
    sectors: Sectors,
    op: Op,
    accounting: Option<&'a dyn IoAccounting>,
    memory: PhantomData<&'a Memory>,
}

impl Memory {
    /// Lends a range to be read or written, or nothing when there is no such range.
    pub fn direct_access(&self, op: Op, sector: Sector, sectors: Sectors) -> Option<DirectAccess<'_>> {
        let end = sector.checked_add(sectors).filter(|end| *end <= self.sectors().from_start())?;
        debug_assert!(end >= sector && op.has_payload());
        let at = self.as_ptr().wrapping_add(sector.bytes() as usize);
        Some(DirectAccess { at, sectors, op, accounting: None, memory: PhantomData })
    }
}

impl<'a> DirectAccess<'a> {
    /// The same, which is noted in `accounting` when it is used.
    #[must_use]
    pub fn accounted_in(self, accounting: &'a dyn IoAccounting) -> Self {
        Self { accounting: Some(accounting), ..self }
    }

    /// Reads and writes: copies what was lent to be read to a part of it elsewhere, `skip` sectors from its beginning.
    ///
    /// # Panics
    /// When `to` was not lent to be written, or goes past the end of what there is to be read.
    pub fn copy_to(&self, to: &Self, skip: Sectors) {
        assert!(self.op == Op::Read && to.op == Op::Write, "lent to be read, and to be written");
        assert!(skip.checked_add(to.sectors).is_some_and(|end| end <= self.sectors), "a part of it");
        // SAFETY: both are parts of memory that stays as long as it is lent; they may overlap. Bios of others that meet
        // the copy in this memory do so by address, as all bios do.
        unsafe { ptr::copy(self.at.add(skip.as_len()), to.at, to.sectors.as_len()) };
        to.used();
    }

    /// Has its device count that it was used.
    pub fn used(&self) {
        if let Some(accounting) = self.accounting {
            accounting.note(self.op, self.sectors);
        }
    }
}
