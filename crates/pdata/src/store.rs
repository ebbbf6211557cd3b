//! The metadata of one device: what is on disk, what is in memory, and the transaction that is open.

use std::sync::Arc;

use crate::block::{Block, BlockIo};
use crate::btree;
use crate::cache::{Attempt, Cache, Stop};
use crate::data_map::DataMap;
use crate::error::{Error, Kind, Space};
use crate::layout;
use crate::metadata_map::MetadataMap;
use crate::transaction::{Roots, Transaction};
use crate::value::Ref;

/// How to open a [`Store`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Memory for blocks, in bytes; half a MiB is a sensible minimum. Space map bitmaps of the metadata come on top: 4
    /// KiB for each 64 MiB of metadata.
    pub cache_bytes: usize,
    /// Refuse everything that changes something.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache_bytes: 16 << 20, read_only: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Good,
    /// A change or a write failed, or was given up half-way: [`Store::abort`] helps.
    Torn,
    /// Nobody knows which superblock is on disk: only opening again helps.
    Lost,
}

/// See the module. One owner uses it; every operation takes it by `&mut`. To drop the future of a change while it waits
/// is as if the change had failed: the transaction has to be aborted.
pub struct Store {
    io: Arc<dyn BlockIo>,
    t: Transaction,
    health: Health,
    read_only: bool,
    /// Whether the space maps' roots are final for a commit.
    prepared: bool,
    changed: bool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("health", &self.health).field("roots", &self.t.roots()).finish_non_exhaustive()
    }
}

impl Store {
    /// New metadata on the whole of `io`, of which blocks `0..reserved` are the caller's (a superblock). Nothing of
    /// what was there is looked at, and nothing is on disk before the first commit.
    ///
    /// # Errors
    /// When the device is too small.
    pub fn create(io: Arc<dyn BlockIo>, reserved: u64, options: Options) -> Result<Self, Error> {
        let metadata = MetadataMap::create(io.blocks(), reserved)?;
        let mut t = Transaction::new(Cache::new(options.cache_bytes), metadata);
        // The map has counted this root already, as the block after its index.
        let slot = t.cache.insert_zeroed(t.metadata.overflow.root, Kind::Node);
        crate::node::init(t.cache.block_mut(slot), true, 4);
        Ok(Self::new(io, t, options))
    }

    fn new(io: Arc<dyn BlockIo>, t: Transaction, options: Options) -> Self {
        Self { io, t, health: Health::Good, read_only: options.read_only, prepared: false, changed: false }
    }

    /// Opens what a commit left: `roots` are from its superblock. Reads the metadata space map's index and bitmaps (at
    /// most 256 blocks), looks how large the trees of large counts are, and writes nothing.
    ///
    /// # Errors
    /// When a block cannot be read or is damaged, or the roots do not fit the device.
    pub async fn open(io: Arc<dyn BlockIo>, roots: &Roots, options: Options) -> Result<Self, Error> {
        let mut metadata = MetadataMap::open(&roots.metadata, io.blocks())?;
        let index = load(&*io, metadata.index_block(), Kind::Index, Block::zeroed()).await?;
        while let Some(entry) = metadata.to_load(layout::index(&index))? {
            let bitmap = load(&*io, entry.blocknr.get(), Kind::Bitmap, Block::zeroed()).await?;
            metadata.add_loaded(entry, bitmap);
        }
        metadata.count_loaded();
        let mut t = Transaction::new(Cache::new(options.cache_bytes), metadata);
        if let Some(root) = &roots.data {
            t.data = Some(DataMap::open(root)?);
        }
        let mut store = Self::new(io, t, options);
        store.measure().await;
        Ok(store)
    }

    pub(crate) fn transaction(&self) -> &Transaction {
        &self.t
    }

    pub(crate) fn transaction_mut(&mut self) -> &mut Transaction {
        &mut self.t
    }

    /// Runs an attempt that changes nothing, until it needs nothing more.
    pub(crate) async fn read<T>(&mut self, attempt: impl FnMut(&mut Transaction) -> Attempt<T>) -> Result<T, Error> {
        // Blocks of the open transaction may be gone: what the disk has in their place is older, or another's.
        self.check_health()?;
        self.run(attempt).await
    }

    async fn run<T>(&mut self, mut attempt: impl FnMut(&mut Transaction) -> Attempt<T>) -> Result<T, Error> {
        if self.t.cache.is_crowded() {
            self.make_room().await?;
        }
        loop {
            match attempt(&mut self.t) {
                Ok(done) => return Ok(done),
                Err(Stop::Need(at, kind)) => self.fetch(at, kind).await?,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    /// Runs an attempt that changes something, until it needs nothing more.
    pub(crate) async fn change<T>(&mut self, attempt: impl FnMut(&mut Transaction) -> Attempt<T>) -> Result<T, Error> {
        self.check_writable()?;
        if self.t.is_crowded() {
            self.change_uncrowded(Transaction::settle).await?;
        }
        self.change_uncrowded(attempt).await
    }

    /// Whether an operation failed, or was given up half-way: everything fails until [`abort`](Self::abort). A read can
    /// have done that too, when blocks had to be written to make room for what it read.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.health != Health::Good
    }

    fn check_health(&self) -> Result<(), Error> {
        if self.is_poisoned() { Err(Error::Poisoned) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<(), Error> {
        self.check_health()?;
        if self.read_only {
            return Err(Error::Refused("the metadata was opened for reading only".into()));
        }
        Ok(())
    }

    async fn change_uncrowded<T>(&mut self, attempt: impl FnMut(&mut Transaction) -> Attempt<T>) -> Result<T, Error> {
        self.prepared = false;
        self.changed = true;
        // Who drops this future half-way may have been in the middle of several changes that belong together.
        self.health = Health::Torn;
        let done = self.run(attempt).await;
        if matches!(&done, Ok(_) | Err(Error::Refused(_))) {
            self.health = Health::Good;
        }
        done
    }

    async fn fetch(&mut self, at: u64, kind: Kind) -> Result<(), Error> {
        let memory = self.t.cache.memory();
        let block = load(&*self.io, at, kind, memory).await?;
        self.t.cache.insert(at, kind, block, false);
        Ok(())
    }

    /// Evicts, and writes what has to be written for that: blocks of the open transaction, which nobody else can reach.
    async fn make_room(&mut self) -> Result<(), Error> {
        loop {
            let write = self.t.cache.room();
            if write.is_empty() {
                return Ok(());
            }
            self.write(write, false).await?;
        }
    }

    /// Writes blocks that were taken out of the cache, and puts them back as clean or lets them go.
    async fn write(&mut self, blocks: Vec<(u64, Kind, Box<Block>)>, keep: bool) -> Result<(), Error> {
        let health = self.health;
        self.health = Health::Torn;
        let mut kinds = Vec::with_capacity(blocks.len());
        let mut write = Vec::with_capacity(blocks.len());
        for (at, kind, mut block) in blocks {
            assert!(self.t.metadata.is_fresh(at), "only blocks that were free at the last commit are written");
            layout::seal(&mut block, kind, at);
            kinds.push(kind);
            write.push((at, block));
        }
        let written = self.io.write(write).await.map_err(Error::Write)?;
        for ((at, block), kind) in written.into_iter().zip(kinds) {
            if keep {
                self.t.cache.insert(at, kind, block, false);
            } else {
                self.t.cache.give_back(block);
            }
        }
        self.health = health;
        Ok(())
    }

    /// Whether anything has changed since the last commit.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.changed || self.t.metadata.is_dirty()
    }

    /// Makes the space maps final, and returns the roots that belong into the superblock. Any change after it makes
    /// them void.
    ///
    /// # Errors
    /// When a block cannot be read, is damaged, or none is free; the transaction has to be aborted then.
    pub async fn prepare_commit(&mut self) -> Result<Roots, Error> {
        self.check_writable()?;
        self.change_uncrowded(|t| {
            t.settle()?;
            Ok(t.metadata.place()?)
        })
        .await?;
        self.prepared = true;
        Ok(self.t.roots())
    }

    /// Commits: writes all that changed, flushes, and then writes `superblock`, sealed by the caller, to `at`, durable
    /// when this returns. Until then a crash leaves the last commit, afterwards this one.
    ///
    /// # Errors
    /// When writing failed. If that was before the superblock, [`abort`](Self::abort) goes back to the last commit; if
    /// it was the superblock, nobody knows which one is on disk, and everything fails with [`Error::Poisoned`] until
    /// the store is opened again.
    pub async fn commit(&mut self, at: u64, superblock: Box<Block>) -> Result<(), Error> {
        self.check_writable()?;
        if !std::mem::take(&mut self.prepared) {
            return Err(Error::Refused("a commit has to be prepared, and nothing changed afterwards".into()));
        }
        let mut write = self.t.metadata.changed();
        while !write.is_empty() {
            let rest = write.split_off(write.len().min(256));
            self.write(write, false).await?;
            write = rest;
        }
        loop {
            let write = self.t.cache.take_dirty();
            if write.is_empty() {
                break;
            }
            self.write(write, true).await?;
        }
        let health = std::mem::replace(&mut self.health, Health::Torn);
        self.io.flush().await.map_err(Error::Write)?;
        self.health = Health::Lost;
        self.io.write_fua(at, superblock).await.map_err(Error::Write)?;
        self.health = health;
        self.t.committed();
        self.changed = false;
        Ok(())
    }

    /// Drops everything since the last commit.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when nothing was ever committed, or nobody knows what was.
    pub fn abort(&mut self) -> Result<(), Error> {
        if self.health == Health::Lost || !self.t.metadata.abort() {
            self.health = Health::Lost;
            return Err(Error::Poisoned);
        }
        // Also blocks that were written early are not what they were; they are in nobody's use.
        self.t.cache.drop_all();
        self.t.replaced.clear();
        self.t.data = self.t.data.take().and_then(DataMap::abort);
        self.health = Health::Good;
        self.prepared = false;
        self.changed = false;
        Ok(())
    }

    /// Adds a reference to a metadata block: when a tree is cloned, to its root.
    ///
    /// # Errors
    /// As [`btree::insert`].
    pub async fn inc(&mut self, block: u64) -> Result<(), Error> {
        self.count(Ref::Metadata(block), true).await
    }

    /// Drops a reference to a metadata block. What the block refers to stays counted: see [`btree::Deletion`].
    ///
    /// # Errors
    /// As [`btree::insert`].
    pub async fn dec(&mut self, block: u64) -> Result<(), Error> {
        self.count(Ref::Metadata(block), false).await
    }

    async fn count(&mut self, one: Ref, more: bool) -> Result<(), Error> {
        self.check_given(one)?;
        self.change(|t| {
            t.touch(&[one], 0, Kind::SpaceMapRoot)?;
            Ok(t.count(&[one], more)?)
        })
        .await
    }

    fn check_given(&self, one: Ref) -> Result<(), Error> {
        let (what, block, most) = match one {
            Ref::Uncounted => return Ok(()),
            Ref::Metadata(block) => ("metadata", block, self.nr_blocks()),
            Ref::Data(block) => ("data", block, self.data_nr_blocks()),
        };
        if block < most {
            return Ok(());
        }
        Err(Error::Refused(format!("{what} block {block} does not exist: there are {most}")))
    }

    /// How many references there are to a metadata block.
    ///
    /// # Errors
    /// When a block cannot be read or is damaged.
    pub async fn ref_count(&mut self, block: u64) -> Result<u32, Error> {
        self.check_given(Ref::Metadata(block))?;
        self.read(|t| t.peek_count(Space::Metadata, block)).await
    }

    /// Metadata blocks there are.
    #[must_use]
    pub fn nr_blocks(&self) -> u64 {
        self.t.metadata.nr_blocks()
    }

    /// Metadata blocks that can be allocated before the next commit; some of them are kept for the commit itself.
    #[must_use]
    pub fn nr_free(&self) -> u64 {
        self.t.metadata.available()
    }

    /// How many of [`nr_free`](Self::nr_free) nobody but a commit gets.
    #[must_use]
    pub fn nr_reserved(&self) -> u64 {
        self.t.metadata.reserve()
    }

    /// Lets the metadata grow to `nr_blocks` (or the most that a space map can count); the device has that many.
    ///
    /// # Errors
    /// [`Error::Refused`] when that is fewer than now.
    pub async fn extend(&mut self, nr_blocks: u64) -> Result<(), Error> {
        if nr_blocks < self.nr_blocks() {
            let now = self.nr_blocks();
            return Err(Error::Refused(format!("metadata cannot shrink from {now} to {nr_blocks} blocks")));
        }
        self.change(|t| {
            t.metadata.extend(nr_blocks);
            Ok(())
        })
        .await
    }

    /// Begins to count data blocks: `nr_blocks` of them, all free.
    ///
    /// # Errors
    /// As [`btree::insert`]; and when data blocks are counted already.
    pub async fn create_data(&mut self, nr_blocks: u64) -> Result<(), Error> {
        if self.t.data.is_some() {
            return Err(Error::Refused("data blocks are counted already".into()));
        }
        let index = btree::empty::<layout::IndexEntry>(self).await?;
        let counts = btree::empty::<u32>(self).await?;
        self.t.data = Some(DataMap::create(index, counts));
        self.data_extend(nr_blocks).await
    }

    /// Counts `nr_blocks` data blocks from now on. Reads and changes 4 KiB for each 16,320 new blocks.
    ///
    /// # Errors
    /// As [`btree::insert`]; [`Error::Refused`] when that is fewer than now.
    pub async fn data_extend(&mut self, nr_blocks: u64) -> Result<(), Error> {
        let now = self.data_nr_blocks();
        if nr_blocks < now {
            return Err(Error::Refused(format!("data cannot shrink from {now} to {nr_blocks} blocks")));
        }
        while !self.change(|t| t.extend_data(nr_blocks)).await? {}
        Ok(())
    }

    /// A free data block, with one reference, which is the caller's; `None` when there is none that was also free at
    /// the last commit: then a commit may help. About 50 ns.
    ///
    /// # Errors
    /// As [`btree::insert`].
    pub async fn data_alloc(&mut self) -> Result<Option<u64>, Error> {
        self.change(Transaction::alloc_data).await
    }

    /// One reference more for each data block of `blocks`.
    ///
    /// # Errors
    /// As [`btree::insert`].
    pub async fn data_inc(&mut self, blocks: std::ops::Range<u64>) -> Result<(), Error> {
        self.data_count_range(blocks, true).await
    }

    /// One reference less for each data block of `blocks`. One that loses its last is not given out before the next
    /// commit.
    ///
    /// # Errors
    /// As [`btree::insert`].
    pub async fn data_dec(&mut self, blocks: std::ops::Range<u64>) -> Result<(), Error> {
        self.data_count_range(blocks, false).await
    }

    async fn data_count_range(&mut self, mut blocks: std::ops::Range<u64>, more: bool) -> Result<(), Error> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.check_given(Ref::Data(blocks.end - 1))?;
        while !blocks.is_empty() {
            // Some at a time, so that the cache keeps its bound.
            let some = blocks.start..blocks.end.min(blocks.start.saturating_add(4096));
            blocks.start = some.end;
            let mut next = some.start;
            self.change(|t| {
                while next < some.end {
                    let one = [Ref::Data(next)];
                    t.touch(&one, 0, Kind::SpaceMapRoot)?;
                    t.count(&one, more)?;
                    next += 1;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// How many references there are to a data block.
    ///
    /// # Errors
    /// When a block cannot be read or is damaged.
    pub async fn data_ref_count(&mut self, block: u64) -> Result<u32, Error> {
        self.check_given(Ref::Data(block))?;
        self.read(|t| t.peek_count(Space::Data, block)).await
    }

    /// Data blocks there are.
    #[must_use]
    pub fn data_nr_blocks(&self) -> u64 {
        self.t.data.as_ref().map_or(0, DataMap::nr_blocks)
    }

    /// Data blocks that nobody refers to.
    #[must_use]
    pub fn data_nr_free(&self) -> u64 {
        self.t.data.as_ref().map_or(0, DataMap::nr_free)
    }

    /// Data blocks that can be given out before the next commit: at most [`data_nr_free`](Self::data_nr_free).
    #[must_use]
    pub fn data_available(&self) -> u64 {
        self.t.data.as_ref().map_or(0, DataMap::available)
    }
}

/// Reads a block and checks it.
async fn load(io: &dyn BlockIo, at: u64, kind: Kind, memory: Box<Block>) -> Result<Box<Block>, Error> {
    let block = io.read(at, memory).await.map_err(|error| Error::Read { block: at, error })?;
    layout::check(&block, kind, at)?;
    Ok(block)
}
