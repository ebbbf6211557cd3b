//! What can go wrong with a pool's metadata.

use std::fmt;

/// A field of the superblock, by the kernel's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `blocknr`.
    BlockNumber,
    /// `magic`.
    Magic,
    /// `csum`.
    Checksum,
    /// `version`.
    Version,
    /// `metadata_block_size`.
    MetadataBlockSize,
    /// `data_block_size`.
    DataBlockSize,
    /// `incompat_flags`.
    IncompatFlags,
    /// `compat_ro_flags`.
    CompatRoFlags,
    /// `time`.
    Time,
    /// `held_root`.
    HeldRoot,
    /// `data_space_map_root`.
    DataSpaceMap,
    /// `metadata_space_map_root`.
    MetadataSpaceMap,
    /// `data_mapping_root`.
    MappingRoot,
    /// `device_details_root`.
    DetailsRoot,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BlockNumber => "blocknr",
            Self::Magic => "magic",
            Self::Checksum => "csum",
            Self::Version => "version",
            Self::MetadataBlockSize => "metadata_block_size",
            Self::DataBlockSize => "data_block_size",
            Self::IncompatFlags => "incompat_flags",
            Self::CompatRoFlags => "compat_ro_flags",
            Self::Time => "time",
            Self::HeldRoot => "held_root",
            Self::DataSpaceMap => "data_space_map_root",
            Self::MetadataSpaceMap => "metadata_space_map_root",
            Self::MappingRoot => "data_mapping_root",
            Self::DetailsRoot => "device_details_root",
        })
    }
}

/// Why an operation on a pool's metadata was refused or failed.
///
/// Those for which [`is_refusal`](Self::is_refusal) holds changed nothing. After any other the open transaction is in
/// doubt: abort it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of a superblock is not what it has to be.
    #[error("thin metadata, block {block}, superblock: {field} is {found}, expected {expected}")]
    Superblock {
        /// The block.
        block: u64,
        /// The field.
        field: Field,
        /// What stands there.
        found: String,
        /// What has to stand there.
        expected: String,
    },
    /// Something beneath: a node, a space map, the device.
    #[error(transparent)]
    Data(#[from] udm_pdata::Error),
    /// The superblock is all zeroes and the caller did not ask to format.
    #[error("thin metadata, block 0: all zeroes, so there is no pool here; format it first")]
    Unformatted,
    /// The device has fewer blocks than the metadata say.
    #[error(
        "the {what} device has {found} blocks, but its metadata were made for {recorded}: it was cut short, or it is another pool's"
    )]
    CutShort {
        /// `data` or `metadata`.
        what: &'static str,
        /// Blocks the device has.
        found: u64,
        /// Blocks in the space map.
        recorded: u64,
    },
    /// No such device.
    #[error("there is no thin device {0} in this pool")]
    NoDevice(u32),
    /// The id is taken.
    #[error("thin device {0} is there already")]
    DeviceExists(u32),
    /// The id does not fit (`MAX_DEV_ID`, `drivers/md/dm-thin.c`, 6.12).
    #[error("thin device id {0} is over 16777215")]
    DeviceId(u64),
    /// A device's mapping names a data block that is not there.
    #[error(
        "thin device {dev}, block {block}: mapped to data block {data}, but the pool has {blocks}; run thin_check on the metadata"
    )]
    Mapping {
        /// The device.
        dev: u32,
        /// The virtual block.
        block: u64,
        /// Where it is said to lie.
        data: u64,
        /// Data blocks in the pool.
        blocks: u64,
    },
    /// A device's details do not add up with its mappings.
    #[error("thin device {dev}: {what}; run thin_check on the metadata")]
    Details {
        /// The device.
        dev: u32,
        /// What is wrong.
        what: String,
    },
    /// A data block that is not there was named by the caller.
    #[error("data block {block} lies past the pool's end at {blocks}")]
    NoDataBlock {
        /// The block.
        block: u64,
        /// Data blocks in the pool.
        blocks: u64,
    },
    /// The transaction id is another one than the caller believes.
    #[error("the pool's transaction id is {found}, not {expected}")]
    TransactionId {
        /// The pool's.
        found: u64,
        /// The caller's.
        expected: u64,
    },
    /// The pool's clock has no more ticks (24 bits).
    #[error("this pool has taken 16777215 snapshots, as many as its format can tell apart")]
    Clock,
    /// A metadata snapshot is held already.
    #[error("there is a metadata snapshot already, in block {0}: release it before taking another")]
    SnapHeld(u64),
    /// No metadata snapshot is held.
    #[error("there is no metadata snapshot to release")]
    NoSnap,
    /// Space maps only grow.
    #[error("the {what} device cannot shrink from {from} to {to} blocks")]
    Shrink {
        /// `data` or `metadata`.
        what: &'static str,
        /// Blocks now.
        from: u64,
        /// Blocks wanted.
        to: u64,
    },
    /// More blocks than the format can number.
    #[error("the {what} device has {found} blocks; this format numbers {most} at most")]
    TooLarge {
        /// `data` or `metadata`.
        what: &'static str,
        /// Blocks wanted.
        found: u64,
        /// Blocks possible.
        most: u64,
    },
    /// Opened read-only, or made so.
    #[error("the pool's metadata are read-only")]
    ReadOnly,
    /// An abort failed, or a commit failed and was not aborted: what is in memory is worth nothing.
    #[error("the pool's metadata failed; close the pool and check it")]
    Failed,
}

impl Error {
    pub(super) fn superblock(block: u64, field: Field, found: &dyn fmt::Display, expected: &dyn fmt::Display) -> Self {
        Self::Superblock { block, field, found: found.to_string(), expected: expected.to_string() }
    }

    /// Whether the operation was refused before it changed anything: the open transaction goes on as if it had not been
    /// asked for.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NoDevice(_)
                | Self::DeviceExists(_)
                | Self::DeviceId(_)
                | Self::NoDataBlock { .. }
                | Self::TransactionId { .. }
                | Self::Clock
                | Self::SnapHeld(_)
                | Self::NoSnap
                | Self::Shrink { .. }
                | Self::TooLarge { .. }
                | Self::ReadOnly
        )
    }
}
