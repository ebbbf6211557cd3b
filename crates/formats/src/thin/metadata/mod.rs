//! A pool's metadata: what `drivers/md/dm-thin-metadata.c` (6.12) does, on top of [`udm_pdata`].
//!
//! One owner, `&mut self` everywhere: the pool's worker, a tool or a test. Nothing here knows of bios or threads. A
//! future that is dropped half-way leaves the open transaction in doubt, as one that failed: abort it.
//!
//! # Durability
//! What a call changes is in memory only until [`Metadata::commit`], which makes it durable all at once. The caller
//! flushes the *data* device before it commits, so that no mapping becomes durable before the data it leads to.
//!
//! # The two levels
//! A device's root is kept in memory and written to the upper tree as soon as it moves, which is once a transaction.
//! Before the first change of a transaction the way to the device in the upper tree is made the transaction's own,
//! although nothing there changes yet: if a metadata snapshot shares that way, only copying it counts the references to
//! the roots beneath ([`Metadata::own`]).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use udm_base::Sectors;
use udm_pdata::{BlockIo, Store};

use super::error::Error;
use super::superblock::{NEEDS_CHECK, Superblock};
use super::values::{BlockTime, Details};

mod deletion;
mod devices;
mod mappings;
mod open;
mod space;
mod transaction;

pub use deletion::{Deletion, REMAINS};
pub use space::Change;

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

/// What the open transaction makes of the superblock's fields.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Open {
    root: u64,
    details_root: u64,
    time: u32,
    trans_id: u64,
    held_root: u64,
}

impl Open {
    fn of(superblock: &Superblock) -> Self {
        let disk = superblock.disk();
        Self {
            root: disk.data_mapping_root.get(),
            details_root: disk.device_details_root.get(),
            time: disk.time.get(),
            trans_id: disk.trans_id.get(),
            held_root: disk.held_root.get(),
        }
    }
}

/// A device in memory.
#[derive(Clone, Copy)]
struct Device {
    details: Details,
    root: u64,
    /// The transaction in which the way to it in the upper tree was made the transaction's own.
    owned_in: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Good,
    /// An operation failed, was given up half-way, or is under way.
    Doubt,
    /// Not even an abort helped.
    Failed,
}

/// A pool's metadata, open. The module has the rules.
pub struct Metadata {
    io: Arc<dyn BlockIo>,
    options: Options,
    store: Store,
    /// The superblock on disk.
    committed: Superblock,
    open: Open,
    /// The number of the open transaction, from 1 on; in memory only.
    transaction: u64,
    dirty: bool,
    /// One of the space maps has grown since the last commit.
    grown: bool,
    /// The caller wants no changes.
    no_changes: bool,
    health: Health,
    devices: HashMap<u32, Device>,
    /// Those of them that differ from what was committed: a commit costs nothing for the others.
    changed: BTreeSet<u32>,
    aborted: HashSet<u32>,
    /// Entries of a leaf; kept for its memory.
    scratch: Vec<(u64, BlockTime)>,
}

impl Metadata {
    /// The pool's block size.
    pub fn data_block(&self) -> Sectors {
        self.committed.data_block()
    }

    /// The pool's clock: how many snapshots it has taken.
    pub fn time(&self) -> u32 {
        self.open.time
    }

    /// The transaction id, which belongs to user space.
    pub fn transaction_id(&self) -> u64 {
        self.open.trans_id
    }

    /// Sets the transaction id to `new` if it is `current`.
    ///
    /// # Errors
    /// [`Error::TransactionId`].
    pub fn set_transaction_id(&mut self, current: u64, new: u64) -> Result<(), Error> {
        let last = self.begin()?;
        if self.open.trans_id != current {
            return self.end(last, Err(Error::TransactionId { found: self.open.trans_id, expected: current }));
        }
        self.open.trans_id = new;
        self.end(last, Ok(()))
    }

    /// Whether the `needs_check` flag is set. If it is, the metadata are read-only until a tool has cleared it.
    pub fn needs_check(&self) -> bool {
        self.committed.disk().flags.get() & NEEDS_CHECK != 0
    }

    /// Whether changes and commits are refused.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.no_changes || self.needs_check()
    }

    /// Refuses changes and commits from now on, or lets them again. What was opened read-only, or needs a check, stays
    /// so.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.no_changes = read_only;
    }

    /// Whether an abort failed: every call that can fail says [`Error::Failed`].
    pub fn is_failed(&self) -> bool {
        self.health == Health::Failed
    }

    /// Whether an operation failed, so that everything fails until [`abort`](Self::abort). A look-up may have: to make
    /// room for what it reads, changed blocks are written.
    pub fn is_in_doubt(&self) -> bool {
        self.health != Health::Good || self.store.is_poisoned()
    }

    /// Whether there is anything to commit.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The block of the metadata snapshot.
    pub fn snap_root(&self) -> Option<u64> {
        Some(self.open.held_root).filter(|root| *root != 0)
    }

    /// Whether `dev` changed since the last commit.
    pub fn changed_since_commit(&self, dev: u32) -> bool {
        self.changed.contains(&dev)
    }

    /// Whether changes to `dev` were lost in an abort. It stays so until [`close_device`](Self::close_device).
    pub fn aborted(&self, dev: u32) -> bool {
        self.aborted.contains(&dev)
    }

    /// Asserts that operations may be asked for.
    fn check(&self) -> Result<(), Error> {
        match self.health {
            Health::Good => Ok(()),
            Health::Doubt => Err(Error::Data(udm_pdata::Error::Poisoned)),
            Health::Failed => Err(Error::Failed),
        }
    }

    /// Begins a change: until [`end`](Self::end) the transaction is in doubt, so that a future that is dropped leaves
    /// it so. Whether it was dirty before.
    fn begin(&mut self) -> Result<bool, Error> {
        self.check()?;
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.health = Health::Doubt;
        Ok(std::mem::replace(&mut self.dirty, true))
    }

    /// Ends a change that [`begin`](Self::begin) began.
    fn end<T>(&mut self, was_dirty: bool, done: Result<T, Error>) -> Result<T, Error> {
        match &done {
            Ok(_) => self.health = Health::Good,
            Err(error) if error.is_refusal() => {
                self.health = Health::Good;
                self.dirty = was_dirty;
            }
            Err(_) => {}
        }
        done
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata")
            .field("committed", &self.committed)
            .field("health", &self.health)
            .field("dirty", &self.dirty)
            .finish_non_exhaustive()
    }
}
