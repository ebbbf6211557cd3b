//! What a bio asks for.

/// The operation of a bio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make durable everything whose write has completed. No range, no payload.
    Flush,
    /// Give the range back; what it reads afterwards is undefined until written. No payload.
    Discard,
    /// Make the range read as zeroes. No payload.
    WriteZeroes,
}

impl Op {
    /// Whether memory segments belong to the operation.
    #[inline]
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether the operation changes what the device holds.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

/// How an operation is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpFlags(u8);

impl OpFlags {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// Force unit access: durable before it completes (`REQ_FUA`).
    pub const FUA: Self = Self(1);
    /// The submitter polls for this bio (`REQ_POLLED`).
    pub const HIPRI: Self = Self(2);
    /// Write zeroes must leave the range provisioned (`REQ_NOUNMAP`, NBD's NO_HOLE).
    pub const NO_UNMAP: Self = Self(4);
    /// The memory of this read holds nothing that its reader may not see: a device that has nothing to say may leave it
    /// as it is, as null_blk does. Without it such a device clears the memory. A load generator's flag.
    pub const SCRATCH: Self = Self(8);

    /// Whether all of `flags` are set.
    #[inline]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Operation and flags as one number, which a mask can be held against: the operation's below, the flags above.
    #[inline]
    pub const fn asked_with(self, op: Op) -> u16 {
        op as u16 | (self.0 as u16) << u8::BITS
    }

    /// Both sets together.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// This set less `flags`.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}
