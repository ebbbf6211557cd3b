//! What the leaves of the two trees hold: a mapping's block and time in one word, and a device's details (`struct
//! disk_device_details`, `pack_block_time`, `drivers/md/dm-thin-metadata.c`, 6.12).

use udm_pdata::{Ref, Value};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The highest time that a mapping can carry: 24 bits. The kernel counts on past it and overwrites the block number.
pub const MAX_TIME: u32 = (1 << 24) - 1;
/// One past the highest data block that a mapping can name: 40 bits.
pub const MAX_DATA_BLOCKS: u64 = 1 << 40;

/// Where a virtual block lies, and the pool's time when it was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockTime {
    /// The data block.
    pub block: u64,
    /// The pool's time at the insertion.
    pub time: u32,
}

impl BlockTime {
    /// The value as the leaf has it: the block in the upper 40 bits, the time in the lower 24.
    pub const fn pack(self) -> u64 {
        assert!(self.block < MAX_DATA_BLOCKS && self.time <= MAX_TIME, "the caller has checked both");
        self.block << 24 | self.time as u64
    }

    /// The value apart. Any 64 bits are a value; whether the block exists, only the space map can say.
    pub const fn unpack(value: u64) -> Self {
        Self { block: value >> 24, time: value as u32 & MAX_TIME }
    }
}

impl Value for BlockTime {
    const SIZE: usize = 8;

    fn decode(bytes: &[u8]) -> Self {
        Self::unpack(u64::decode(bytes))
    }

    fn encode(&self, bytes: &mut [u8]) {
        self.pack().encode(bytes);
    }

    fn refers_to(&self) -> Ref {
        Ref::Data(self.block)
    }
}

/// A device's details on disk, little-endian and packed.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskDetails {
    /// How many virtual blocks are mapped.
    pub mapped_blocks: U64,
    /// The pool's transaction id when the device was made.
    pub transaction_id: U64,
    /// The pool's time when the device was made.
    pub creation_time: U32,
    /// The pool's time when the device was last snapshotted, or made as a snapshot.
    pub snapshotted_time: U32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(DiskDetails, transaction_id) == 8);
    assert!(offset_of!(DiskDetails, creation_time) == 16);
    assert!(offset_of!(DiskDetails, snapshotted_time) == 20);
    assert!(size_of::<DiskDetails>() == 24);
};

/// A device's details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Details {
    /// How many virtual blocks are mapped.
    pub mapped_blocks: u64,
    /// The pool's transaction id when the device was made.
    pub transaction_id: u64,
    /// The pool's time when the device was made.
    pub creation_time: u32,
    /// The pool's time when the device was last snapshotted, or made as a snapshot.
    pub snapshotted_time: u32,
}

impl Details {
    /// Whether a block mapped at `time` may be shared with a snapshot of this device, or with its origin: it was mapped
    /// before the last one was taken (`__snapshotted_since`).
    pub const fn shares(&self, time: u32) -> bool {
        self.snapshotted_time > time
    }
}

impl Value for DiskDetails {
    const SIZE: usize = size_of::<Self>();

    fn decode(bytes: &[u8]) -> Self {
        Self::read_from_bytes(bytes).expect("as long as SIZE says")
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self.as_bytes());
    }
}

impl From<DiskDetails> for Details {
    fn from(disk: DiskDetails) -> Self {
        Self {
            mapped_blocks: disk.mapped_blocks.get(),
            transaction_id: disk.transaction_id.get(),
            creation_time: disk.creation_time.get(),
            snapshotted_time: disk.snapshotted_time.get(),
        }
    }
}

impl From<Details> for DiskDetails {
    fn from(details: Details) -> Self {
        Self {
            mapped_blocks: U64::new(details.mapped_blocks),
            transaction_id: U64::new(details.transaction_id),
            creation_time: U32::new(details.creation_time),
            snapshotted_time: U32::new(details.snapshotted_time),
        }
    }
}
