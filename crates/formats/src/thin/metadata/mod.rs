//! A pool's metadata: what `drivers/md/dm-thin-metadata.c` (6.12) does, on top of [`udm_pdata`].
//!
//! One owner, `&mut self` everywhere: the pool's worker, a tool or a test. Nothing here knows of bios or threads. A future
//! that is dropped half-way leaves the open transaction in doubt: abort it.
//!
//! # Durability
//! What a call changes is in memory only until [`Metadata::commit`], which makes it durable all at once. The caller flushes the
//! *data* device before it commits, so that no mapping becomes durable before the data it leads to.

use std::ops::Range;
use std::sync::Arc;

use udm_base::Sectors;
use udm_pdata::BlockIo;

use super::error::Error;
use super::values::Details;

/// The highest thin device id (`MAX_DEV_ID`, `drivers/md/dm-thin.c`, 6.12).
pub const MAX_DEVICE: u32 = (1 << 24) - 1;

/// What a table says about a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The block size: [`is_data_block_size`](super::superblock::is_data_block_size).
    pub data_block: Sectors,
    /// How many whole blocks the data device has.
    pub data_blocks: u64,
}

/// How metadata are opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Nothing is ever written: changes and commits are refused with [`Error::ReadOnly`].
    pub read_only: bool,
    /// Memory for metadata blocks, in bytes.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { read_only: false, cache_bytes: 16 << 20 }
    }
}

/// Where a virtual block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The data block.
    pub data: u64,
    /// Whether a snapshot or the origin may refer to it too, so that it has to be copied before it is written.
    pub shared: bool,
}

/// Virtual blocks that lie one after the other on the data device, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first virtual block.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// The data block of `from`.
    pub data: u64,
    /// As [`Mapping::shared`], of them all.
    pub shared: bool,
}

/// A pool's metadata, open. The module has the rules.
pub struct Metadata {
    io: Arc<dyn BlockIo>,
}

impl Metadata {
    /// Makes new metadata and commits them, as the kernel does when it finds block 0 all zeroes. Whether it is, the caller has
    /// asked [`open_or_format`](Self::open_or_format), or does not care: nothing is checked here.
    ///
    /// # Errors
    /// I/O; a device too small or too large.
    pub async fn format(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        let _ = (geometry, options);
        Ok(Self { io })
    }

    /// Opens metadata. Writes nothing. A few blocks are read, however many mappings there are.
    ///
    /// # Errors
    /// The superblock's, [`Error::Unformatted`], [`Error::CutShort`], damage to the space maps' roots.
    pub async fn open(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        let _ = (geometry, options);
        Ok(Self { io })
    }

    /// The kernel's rule: formats when block 0 is all zeroes (and `options` let it), else opens.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`format`](Self::format).
    pub async fn open_or_format(io: Arc<dyn BlockIo>, geometry: &Geometry, options: Options) -> Result<Self, Error> {
        Self::open(io, geometry, options).await
    }

    // What is known without I/O.

    /// The pool's block size.
    pub fn data_block(&self) -> Sectors {
        Sectors::ZERO
    }
    /// The transaction id, which belongs to user space.
    pub fn transaction_id(&self) -> u64 {
        0
    }
    /// Sets the transaction id to `new` if it is `current`.
    ///
    /// # Errors
    /// [`Error::TransactionId`].
    pub fn set_transaction_id(&mut self, current: u64, new: u64) -> Result<(), Error> {
        let _ = (current, new);
        Err(Error::Failed)
    }
    /// Whether the `needs_check` flag is set.
    pub fn needs_check(&self) -> bool {
        false
    }
    /// Sets the `needs_check` flag in the superblock on disk, at once and durably. Nothing of the open transaction is written.
    ///
    /// # Errors
    /// I/O.
    pub async fn set_needs_check(&mut self) -> Result<(), Error> {
        Err(Error::Failed)
    }
    /// Whether changes and commits are refused.
    pub fn is_read_only(&self) -> bool {
        false
    }
    /// Refuses changes and commits from now on, or lets them again. What was opened read-only stays so.
    pub fn set_read_only(&mut self, read_only: bool) {
        let _ = read_only;
    }
    /// Whether an abort failed: every call but this says [`Error::Failed`].
    pub fn is_failed(&self) -> bool {
        false
    }
    /// Whether there is anything to commit.
    pub fn is_dirty(&self) -> bool {
        false
    }
    /// Data blocks in all.
    pub fn data_blocks(&self) -> u64 {
        0
    }
    /// Data blocks that nobody refers to. Those freed since the last commit are counted, but only allocated after it.
    pub fn data_free(&self) -> u64 {
        0
    }
    /// Metadata blocks in all.
    pub fn metadata_blocks(&self) -> u64 {
        0
    }
    /// Free metadata blocks less the reserve for a commit (a tenth, 4096 at most), as the kernel reports them.
    pub fn metadata_free(&self) -> u64 {
        0
    }
    /// Whether metadata run low: fewer free blocks (the reserve included) than the kernel's threshold, a quarter of the device or 1024.
    pub fn metadata_low(&self) -> bool {
        false
    }
    /// The block of the metadata snapshot.
    pub fn snap_root(&self) -> Option<u64> {
        None
    }
    /// Whether `dev` changed since the last commit.
    pub fn changed_since_commit(&self, dev: u32) -> bool {
        let _ = dev;
        false
    }
    /// Whether changes to `dev` were lost in an abort. It stays so until [`close_device`](Self::close_device).
    pub fn aborted(&self, dev: u32) -> bool {
        let _ = dev;
        false
    }
    /// Forgets what is kept in memory of a device that nobody uses any more; uncommitted changes are kept.
    pub fn close_device(&mut self, dev: u32) {
        let _ = dev;
    }

    // Space.

    /// Makes the data space map as large as the device has grown.
    ///
    /// # Errors
    /// [`Error::Shrink`], [`Error::TooLarge`], those beneath.
    pub async fn resize_data(&mut self, blocks: u64) -> Result<(), Error> {
        let _ = blocks;
        Err(Error::Failed)
    }
    /// Makes the metadata space map as large as the device has grown; what the format cannot number is left unused.
    ///
    /// # Errors
    /// [`Error::Shrink`], those beneath.
    pub async fn resize_metadata(&mut self, blocks: u64) -> Result<(), Error> {
        let _ = blocks;
        Err(Error::Failed)
    }
    /// A free data block, which now has one reference: [`insert`](Self::insert) takes it over. `None`: no block was free at the last commit
    /// that still is; if [`data_free`](Self::data_free) is not 0, commit and ask again.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn alloc_data_block(&mut self) -> Result<Option<u64>, Error> {
        Err(Error::Failed)
    }
    /// Takes one more reference to each of these data blocks.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath.
    pub async fn inc_data(&mut self, blocks: Range<u64>) -> Result<(), Error> {
        let _ = blocks;
        Err(Error::Failed)
    }
    /// Gives one reference to each of these data blocks back.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath (a count that is zero already).
    pub async fn dec_data(&mut self, blocks: Range<u64>) -> Result<(), Error> {
        let _ = blocks;
        Err(Error::Failed)
    }
    /// Whether more than one reference to this data block is held.
    ///
    /// # Errors
    /// [`Error::NoDataBlock`], those beneath.
    pub async fn is_shared(&mut self, block: u64) -> Result<bool, Error> {
        let _ = block;
        Err(Error::Failed)
    }

    // Devices.

    /// Makes an empty thin device.
    ///
    /// # Errors
    /// [`Error::DeviceExists`], [`Error::DeviceId`], those beneath.
    pub async fn create_thin(&mut self, dev: u32) -> Result<(), Error> {
        let _ = dev;
        Err(Error::Failed)
    }
    /// Makes `dev` a snapshot of `origin`. From here on every block that either has is shared.
    ///
    /// # Errors
    /// [`Error::DeviceExists`], [`Error::NoDevice`], [`Error::DeviceId`], [`Error::Clock`], those beneath.
    pub async fn create_snap(&mut self, dev: u32, origin: u32) -> Result<(), Error> {
        let _ = (dev, origin);
        Err(Error::Failed)
    }
    /// Begins to delete a device, which nobody uses any more. Nothing has changed before the first [`Deletion::step`].
    ///
    /// # Errors
    /// [`Error::NoDevice`], those beneath.
    pub async fn delete(&mut self, dev: u32) -> Result<Deletion, Error> {
        let _ = dev;
        Err(Error::Failed)
    }
    /// A device's details as they stand in the open transaction.
    ///
    /// # Errors
    /// [`Error::NoDevice`], those beneath.
    pub async fn details(&mut self, dev: u32) -> Result<Details, Error> {
        let _ = dev;
        Err(Error::Failed)
    }
    /// All devices, by id.
    ///
    /// # Errors
    /// Those beneath.
    pub async fn devices(&mut self) -> Result<Vec<(u32, Details)>, Error> {
        Err(Error::Failed)
    }

    // Mappings.

    /// Where a virtual block lies.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Mapping`], those beneath.
    pub async fn find(&mut self, dev: u32, block: u64) -> Result<Option<Mapping>, Error> {
        let _ = (dev, block);
        Err(Error::Failed)
    }
    /// Everything that the leaf around `block` says: appends its mappings to `into`, and returns the range of virtual blocks
    /// (`block` is in it) of which no others are mapped.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn leaf(&mut self, dev: u32, block: u64, into: &mut Vec<(u64, Mapping)>) -> Result<Range<u64>, Error> {
        let _ = (dev, block, into);
        Err(Error::Failed)
    }
    /// The first run of mapped blocks in `from..to`, which lie in a row on the data device, too, and are alike shared or not.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn mapped_range(&mut self, dev: u32, from: u64, to: u64) -> Result<Option<Run>, Error> {
        let _ = (dev, from, to);
        Err(Error::Failed)
    }
    /// The highest mapped block.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn highest_mapped(&mut self, dev: u32) -> Result<Option<u64>, Error> {
        let _ = dev;
        Err(Error::Failed)
    }
    /// Maps a virtual block to a data block, whose reference it takes over; the reference to where it lay before is given back.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::NoDataBlock`], those beneath.
    pub async fn insert(&mut self, dev: u32, block: u64, data: u64) -> Result<(), Error> {
        let _ = (dev, block, data);
        Err(Error::Failed)
    }
    /// Unmaps every block in `from..to` and gives their references back. Returns how many were mapped.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn remove_range(&mut self, dev: u32, from: u64, to: u64) -> Result<u64, Error> {
        let _ = (dev, from, to);
        Err(Error::Failed)
    }

    // Transactions.

    /// Makes every change since the last commit durable: writes what changed, flushes, writes the superblock with FUA. The caller
    /// has flushed the data device before. Writes nothing when nothing changed.
    ///
    /// # Errors
    /// After any the open transaction can only be aborted.
    pub async fn commit(&mut self) -> Result<(), Error> {
        Err(Error::Failed)
    }
    /// Drops every change since the last commit, and reads the superblock again.
    ///
    /// # Errors
    /// After any the metadata have failed: [`is_failed`](Self::is_failed).
    pub async fn abort(&mut self) -> Result<(), Error> {
        let _ = &self.io;
        Err(Error::Failed)
    }
    /// Commits, then takes a metadata snapshot: a copy of the superblock whose trees stay as they are now. Commit afterwards.
    ///
    /// # Errors
    /// [`Error::SnapHeld`], those of [`commit`](Self::commit).
    pub async fn reserve_snap(&mut self) -> Result<(), Error> {
        Err(Error::Failed)
    }
    /// Gives the metadata snapshot up. Commit afterwards.
    ///
    /// # Errors
    /// [`Error::NoSnap`], those beneath.
    pub async fn release_snap(&mut self) -> Result<(), Error> {
        Err(Error::Failed)
    }
}

/// A device being deleted, a part at a time, so that a big one does not hold everybody else up.
///
/// Between two steps the metadata are sound: the device is there with fewer mappings, and commits may come in between.
pub struct Deletion {
    dev: u32,
}

impl Deletion {
    /// Which device.
    pub fn device(&self) -> u32 {
        self.dev
    }
    /// Unmaps some thousand blocks, or does away with the device. `true` when it is gone (commit, then answer).
    ///
    /// # Errors
    /// Those beneath.
    pub async fn step(&mut self, metadata: &mut Metadata) -> Result<bool, Error> {
        let _ = metadata;
        Err(Error::Failed)
    }
    /// How many mappings are left to remove, and how many there were.
    pub fn progress(&self) -> (u64, u64) {
        (0, 0)
    }
}
