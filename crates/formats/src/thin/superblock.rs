//! The superblock: block 0 of the metadata, and the copy of it that a metadata snapshot is (`struct
//! thin_disk_superblock`, `drivers/md/dm-thin-metadata.c`, 6.12). docs/formats/thin.md tells the layout.
//!
//! A [`Superblock`] keeps the whole block that was read. What udm changes, it changes in those bytes, so that the uuid,
//! the compat flags and every byte behind the last known field come through a commit as they were.

use std::fmt;

use udm_base::Sectors;
use udm_pdata::{BLOCK_SIZE, Block};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::{Error, Field};

/// Where the superblock lies.
pub const LOCATION: u64 = 0;
/// What tells thin metadata (`THIN_SUPERBLOCK_MAGIC`).
pub const MAGIC: u64 = 27_022_010;
/// The salt of the superblock's checksum (`SUPERBLOCK_CSUM_XOR`).
pub const SALT: u32 = 160_774;
/// What a freshly formatted superblock says (`THIN_VERSION`).
pub const VERSION: u32 = 2;
/// A failed metadata operation left the metadata in doubt (`THIN_METADATA_NEEDS_CHECK_FLAG`).
pub const NEEDS_CHECK: u32 = 1;
/// How many bytes a space map's root has in the superblock (`SPACE_MAP_ROOT_SIZE`); the root itself is shorter.
pub const ROOT_SIZE: usize = 128;
/// A metadata block in sectors, as `metadata_block_size` has it.
pub const METADATA_BLOCK: Sectors = Sectors::in_bytes(BLOCK_SIZE as u64);

/// The fields on disk, little-endian and packed.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Disk {
    /// crc32c of the block from `flags` to its end, salted with [`SALT`].
    pub csum: U32,
    /// [`NEEDS_CHECK`].
    pub flags: U32,
    /// This block's own number.
    pub blocknr: U64,
    /// Nobody sets it; carried through.
    pub uuid: [u8; 16],
    /// [`MAGIC`].
    pub magic: U64,
    /// 1 or 2.
    pub version: U32,
    /// How many snapshots the pool has taken: the clock that says which blocks are shared.
    pub time: U32,
    /// Set and compared by user space (lvm2), never by the kernel.
    pub trans_id: U64,
    /// The block of the metadata snapshot, or 0.
    pub held_root: U64,
    /// Root of the data space map.
    pub data_space_map_root: [u8; ROOT_SIZE],
    /// Root of the metadata space map.
    pub metadata_space_map_root: [u8; ROOT_SIZE],
    /// Root of the two-level tree (device, virtual block) → block and time.
    pub data_mapping_root: U64,
    /// Root of the tree device → details.
    pub device_details_root: U64,
    /// The pool's block size in sectors.
    pub data_block_size: U32,
    /// [`METADATA_BLOCK`].
    pub metadata_block_size: U32,
    /// The size of the metadata device when it was formatted, in blocks; it does not follow when the device grows.
    pub metadata_nr_blocks: U64,
    /// Features that nobody needs to know.
    pub compat_flags: U32,
    /// Features that a writer needs to know.
    pub compat_ro_flags: U32,
    /// Features that a reader needs to know.
    pub incompat_flags: U32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(Disk, flags) == 4);
    assert!(offset_of!(Disk, blocknr) == 8);
    assert!(offset_of!(Disk, uuid) == 16);
    assert!(offset_of!(Disk, magic) == 32);
    assert!(offset_of!(Disk, version) == 40);
    assert!(offset_of!(Disk, time) == 44);
    assert!(offset_of!(Disk, trans_id) == 48);
    assert!(offset_of!(Disk, held_root) == 56);
    assert!(offset_of!(Disk, data_space_map_root) == 64);
    assert!(offset_of!(Disk, metadata_space_map_root) == 192);
    assert!(offset_of!(Disk, data_mapping_root) == 320);
    assert!(offset_of!(Disk, device_details_root) == 328);
    assert!(offset_of!(Disk, data_block_size) == 336);
    assert!(offset_of!(Disk, metadata_block_size) == 340);
    assert!(offset_of!(Disk, metadata_nr_blocks) == 344);
    assert!(offset_of!(Disk, compat_flags) == 352);
    assert!(offset_of!(Disk, compat_ro_flags) == 356);
    assert!(offset_of!(Disk, incompat_flags) == 360);
    // A power cut may tear a block, not a sector: the kernel refuses to build if the fields outgrow one.
    assert!(size_of::<Disk>() == 364 && size_of::<Disk>() <= 512);
    // The smallest and largest pool block, in sectors.
    assert!(MIN_DATA_BLOCK.get() == 64 << 1 && MAX_DATA_BLOCK.get() == 1 << 21);
};

/// The smallest data block: 64 KiB (`DATA_DEV_BLOCK_SIZE_MIN_SECTORS`, `drivers/md/dm-thin.c`, 6.12).
pub const MIN_DATA_BLOCK: Sectors = Sectors::in_bytes(64 << 10);
/// The largest data block: 1 GiB (`DATA_DEV_BLOCK_SIZE_MAX_SECTORS`, `drivers/md/dm-thin.c`, 6.12).
pub const MAX_DATA_BLOCK: Sectors = Sectors::in_bytes(1 << 30);

/// Whether a pool may have blocks of this size: a multiple of 64 KiB from 64 KiB to 1 GiB (`drivers/md/dm-thin.c`,
/// 6.12).
pub const fn is_data_block_size(size: Sectors) -> bool {
    size.get() >= MIN_DATA_BLOCK.get()
        && size.get() <= MAX_DATA_BLOCK.get()
        && size.get().is_multiple_of(MIN_DATA_BLOCK.get())
}

/// A superblock that passed every check, with all the bytes of its block.
#[derive(Clone)]
pub struct Superblock(Box<Block>);

impl Superblock {
    /// A superblock for empty metadata of `blocks` blocks. Its roots are zero until the caller sets them.
    pub fn new(data_block: Sectors, blocks: u64) -> Self {
        let mut new = Self(Block::zeroed());
        let disk = new.disk_mut();
        disk.magic.set(MAGIC);
        disk.version.set(VERSION);
        disk.metadata_block_size.set(METADATA_BLOCK.get() as u32);
        disk.metadata_nr_blocks.set(blocks);
        disk.data_block_size.set(data_block.get() as u32);
        new
    }

    /// Takes the block that was read at `at`, and checks in the kernel's order: number, magic, checksum (`sb_check`);
    /// then what the kernel leaves to chance: the version, the size of a metadata block, and a size that no pool can
    /// have.
    ///
    /// # Errors
    /// [`Error::Superblock`] with the field, what was found and what was expected.
    pub fn read(block: Box<Block>, at: u64) -> Result<Self, Error> {
        let read = Self(block);
        let disk = read.disk();
        let bad = |field, found: &dyn fmt::Display, expected: &dyn fmt::Display| {
            Err(Error::superblock(at, field, found, expected))
        };
        if disk.blocknr.get() != at {
            return bad(Field::BlockNumber, &disk.blocknr, &at);
        }
        if disk.magic.get() != MAGIC {
            return bad(Field::Magic, &disk.magic, &MAGIC);
        }
        let sum = read.checksum();
        if disk.csum.get() != sum {
            return bad(Field::Checksum, &format_args!("{:#010x}", disk.csum.get()), &format_args!("{sum:#010x}"));
        }
        if !(1..=VERSION).contains(&disk.version.get()) {
            return bad(Field::Version, &disk.version, &"1 or 2");
        }
        if u64::from(disk.metadata_block_size.get()) != METADATA_BLOCK.get() {
            return bad(
                Field::MetadataBlockSize,
                &format_args!("{} sectors", disk.metadata_block_size),
                &format_args!("{} sectors", METADATA_BLOCK.get()),
            );
        }
        if !is_data_block_size(read.data_block()) {
            return bad(
                Field::DataBlockSize,
                &format_args!("{} sectors", disk.data_block_size),
                &"a multiple of 128 sectors from 128 to 2097152",
            );
        }
        Ok(read)
    }

    /// Whether a block is what an unformatted device has: zeroes all over.
    pub fn is_unformatted(block: &Block) -> bool {
        block.0.iter().all(|byte| *byte == 0)
    }

    /// The fields.
    pub fn disk(&self) -> &Disk {
        // The struct has no alignment and is shorter than the block: neither can fail.
        Disk::ref_from_prefix(&self.0.0).expect("a block holds a superblock").0
    }

    /// The fields, to be changed. [`sealed`](Self::sealed) makes the checksum right.
    pub fn disk_mut(&mut self) -> &mut Disk {
        Disk::mut_from_prefix(&mut self.0.0).expect("a block holds a superblock").0
    }

    /// The pool's block size.
    pub fn data_block(&self) -> Sectors {
        Sectors::new(u64::from(self.disk().data_block_size.get()))
    }

    /// The block as it goes to disk at `at`: its number and its checksum set.
    pub fn sealed(&self, at: u64) -> Box<Block> {
        let mut sealed = self.clone();
        sealed.disk_mut().blocknr.set(at);
        let sum = sealed.checksum();
        sealed.disk_mut().csum.set(sum);
        sealed.0
    }

    fn checksum(&self) -> u32 {
        udm_pdata::layout::checksum(&self.0, SALT)
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk();
        f.debug_struct("Superblock")
            .field("flags", &disk.flags.get())
            .field("time", &disk.time.get())
            .field("trans_id", &disk.trans_id.get())
            .field("held_root", &disk.held_root.get())
            .field("data_mapping_root", &disk.data_mapping_root.get())
            .field("device_details_root", &disk.device_details_root.get())
            .field("data_block_size", &disk.data_block_size.get())
            .finish_non_exhaustive()
    }
}
