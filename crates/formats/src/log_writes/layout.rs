//! Where the next entry of a log goes.

use super::superblock::BlockSize;
use udm_base::{Sector, Sectors};

/// The log device has no room for another entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("Ran out of space on the logdev")]
pub struct Full;

/// Where the entries of a log go, one after the other (`log_writes_kthread`).
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    block: BlockSize,
    next: Sector,
    end: Sector,
    entries: u64,
}

impl Layout {
    /// A log without entries on a device of `device` sectors: the first entry goes behind the superblock.
    pub const fn new(block: BlockSize, device: Sectors) -> Self {
        Self { block, next: block.sectors().from_start(), end: device.from_start(), entries: 0 }
    }

    /// The place of the next entry, of which `data` sectors follow it on the log.
    ///
    /// # Errors
    /// When it would reach the device's last sector, as the kernel has it. Nothing fits any more then: the place that
    /// the entry would have taken counts as taken, which is what the kernel's status shows.
    pub fn place(&mut self, data: Sectors) -> Result<Sector, Full> {
        let at = self.next;
        let next = at.checked_add(self.block.sectors()).and_then(|next| next.checked_add(data));
        self.next = next.unwrap_or(Sector::new(u64::MAX));
        if self.next >= self.end {
            return Err(Full);
        }
        self.entries += 1;
        Ok(at)
    }

    /// How many entries have been given a place.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Where the next entry would go.
    pub const fn next(&self) -> Sector {
        self.next
    }

    /// The unit of the log.
    pub const fn block(&self) -> BlockSize {
        self.block
    }
}
