//! What a submitter knows of its channel's devices and bios.

use crate::Status;
use udm_base::Sectors;

/// How deep devices can be stacked, the submitter's level included.
pub const LEVELS: usize = 32;

/// What a submitter learns of a bio that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The token that the bio was submitted with.
    pub token: u64,
    /// How it ended.
    pub status: Status,
}

/// A device that a channel submits to. The channel holds the device. Used with another channel, or after it was
/// detached, it is refused.
#[derive(Clone, Copy)]
pub struct Attached {
    /// Of this attachment and no other of the process; its low bits are the place in the channel's list.
    pub(super) id: u64,
    pub(super) sectors: Sectors,
}

/// How many devices a channel can hold at a time.
pub(super) const ATTACHED_BITS: u32 = 16;

impl Attached {
    #[inline]
    pub(super) const fn index(self) -> usize {
        (self.id & ((1 << ATTACHED_BITS) - 1)) as usize
    }

    /// The device's size when it was attached.
    pub fn sectors(&self) -> Sectors {
        self.sectors
    }
}
