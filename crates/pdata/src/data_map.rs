//! The space map that counts the references to data blocks. Its bitmaps are found by a tree of [`IndexEntry`].
//!
//! A data block is given out when its count is zero now *and* was zero at the last commit: until the commit, the state
//! that a crash brings back refers to it. Entries of the index that changed are kept in memory and reach the tree when
//! the transaction is committed. (`dm-space-map-disk.c`, `dm-space-map-common.c`, 6.12.)

use crate::btree;
use crate::cache::{Attempt, NumberMap, Slot, Stop};
use crate::error::{Error, Kind};
use crate::layout::{ENTRIES_PER_BITMAP, IndexEntry, SpaceMapRoot, WORDS_PER_BITMAP, bitmap_get, bitmap_set};
use crate::metadata_map::{bitmap_word, zero_pairs};
use crate::overflow::Overflow;
use crate::transaction::Transaction;

#[derive(Clone, Copy)]
struct Entry {
    now: IndexEntry,
    /// Where the bitmap of the last commit lies, unless there was none.
    committed: Option<u64>,
    dirty: bool,
}

/// Which blocks of one bitmap can be given out.
struct Window {
    index: u64,
    /// One bit in two for each block.
    free: [u64; WORDS_PER_BITMAP],
}

/// See the module.
pub(crate) struct DataMap {
    nr_blocks: u64,
    nr_allocated: u64,
    /// Blocks that are in use now or were at the last commit, or somewhat more.
    unavailable: u64,
    index: u64,
    pub(crate) overflow: Overflow,
    entries: NumberMap<Entry>,
    dirty: usize,
    window: Option<Box<Window>>,
    cursor: u64,
    committed: Option<SpaceMapRoot>,
}

/// Entries that are kept at most from one transaction to the next.
const KEPT: usize = 1 << 15;

impl DataMap {
    /// An empty map: `index` and `counts` are roots of empty trees.
    pub(crate) fn create(index: u64, counts: u64) -> Self {
        Self {
            nr_blocks: 0,
            nr_allocated: 0,
            unavailable: 0,
            index,
            overflow: Overflow::new(counts),
            entries: NumberMap::default(),
            dirty: 0,
            window: None,
            cursor: 0,
            committed: None,
        }
    }

    /// The map that `root` describes.
    pub(crate) fn open(root: &SpaceMapRoot) -> Result<Self, Error> {
        let (nr_blocks, nr_allocated) = (root.nr_blocks.get(), root.nr_allocated.get());
        if nr_allocated > nr_blocks {
            let expected = format!("at most {nr_blocks}, its nr_blocks");
            return Err(Error::damage(0, Kind::SpaceMapRoot, "data nr_allocated", nr_allocated, expected));
        }
        let mut map = Self::create(root.bitmap_root.get(), root.ref_count_root.get());
        map.nr_blocks = nr_blocks;
        map.nr_allocated = nr_allocated;
        map.unavailable = nr_allocated;
        map.committed = Some(*root);
        Ok(map)
    }

    pub(crate) fn root(&self) -> SpaceMapRoot {
        SpaceMapRoot::new(self.nr_blocks, self.nr_allocated, self.index, self.overflow.root)
    }

    pub(crate) fn nr_blocks(&self) -> u64 {
        self.nr_blocks
    }

    /// Blocks that nobody refers to now.
    pub(crate) fn nr_free(&self) -> u64 {
        self.nr_blocks - self.nr_allocated
    }

    /// Blocks that can be given out before the next commit.
    pub(crate) fn available(&self) -> u64 {
        self.nr_blocks.saturating_sub(self.unavailable)
    }

    /// Blocks that somebody refers to now.
    pub(crate) fn nr_allocated(&self) -> u64 {
        self.nr_allocated
    }

    /// How many entries the index has to be told.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty
    }

    /// How many counts and entries the trees have to be told.
    pub(crate) fn remembered(&self) -> usize {
        self.dirty + self.overflow.remembered()
    }

    pub(crate) fn committed(&mut self) {
        self.unavailable = self.nr_allocated;
        self.overflow.forget();
        if self.entries.len() > KEPT {
            self.entries.clear();
        }
        for entry in self.entries.values_mut() {
            entry.committed = Some(entry.now.blocknr.get());
        }
        self.committed = Some(self.root());
    }

    /// Back to the last commit, if there was one.
    pub(crate) fn abort(self) -> Option<Self> {
        let root = self.committed?;
        let (cursor, leaves) = (self.cursor, self.overflow.leaves);
        let mut map = Self::open(&root).expect("what was committed was open");
        // It may have grown meanwhile, and with that be overestimated.
        map.overflow.leaves = leaves;
        map.cursor = cursor.min(map.nr_blocks);
        Some(map)
    }

    fn in_window(&mut self, block: u64) -> Option<(&mut u64, u64)> {
        let window = self.window.as_mut().filter(|window| window.index == block / ENTRIES_PER_BITMAP)?;
        let entry = block % ENTRIES_PER_BITMAP;
        Some((&mut window.free[(entry / 32) as usize], 1 << (entry % 32 * 2)))
    }

    /// The first block of the window, at or after the cursor, that can be given out.
    fn next(&mut self) -> Option<u64> {
        let window = self.window.as_mut()?;
        let start = self.cursor.checked_sub(window.index * ENTRIES_PER_BITMAP)?;
        for w in (start / 32) as usize..WORDS_PER_BITMAP {
            let mut free = window.free[w];
            if w as u64 == start / 32 {
                free &= u64::MAX << (start % 32 * 2);
            }
            if free != 0 {
                let block = window.index * ENTRIES_PER_BITMAP + w as u64 * 32 + u64::from(free.trailing_zeros() / 2);
                return (block < self.nr_blocks).then_some(block);
            }
        }
        None
    }
}

impl Transaction {
    fn data_map(&mut self) -> Result<&mut DataMap, Error> {
        self.data.as_mut().ok_or_else(|| Error::Refused("this metadata counts no data blocks".into()))
    }

    /// Whether `block` is a data block.
    pub(crate) fn check_data(&mut self, block: u64, from: u64, kind: Kind) -> Result<(), Error> {
        let most = self.data_map()?.nr_blocks;
        if block >= most {
            let expected = format!("less than {most}");
            return Err(Error::damage(from, kind, "a data block that it refers to", block, expected));
        }
        Ok(())
    }

    fn entry(&mut self, index: u64) -> Attempt<IndexEntry> {
        let map = self.data_map()?;
        if let Some(entry) = map.entries.get(&index) {
            return Ok(entry.now);
        }
        let root = map.index;
        let Some(now) = btree::attempt_lookup::<IndexEntry>(self, root, index)? else {
            let field = "the data space map's index";
            return Err(Error::damage(root, Kind::Node, field, format!("no entry {index}"), "one").into());
        };
        self.check_metadata(now.blocknr.get(), root, Kind::Node)?;
        let entry = Entry { now, committed: Some(now.blocknr.get()), dirty: false };
        self.data_map()?.entries.insert(index, entry);
        Ok(now)
    }

    /// The two bits of a data block, which exists. `bitmap` remembers from block to block which bitmap was looked at:
    /// blocks that are counted together lie together.
    pub(crate) fn data_bits(&mut self, block: u64, bitmap: &mut Option<(u64, Slot)>) -> Attempt<u32> {
        let index = block / ENTRIES_PER_BITMAP;
        let slot = match *bitmap {
            Some((known, slot)) if known == index => slot,
            _ => {
                let entry = self.entry(index)?;
                self.cache.find(entry.blocknr.get(), Kind::Bitmap)?
            }
        };
        *bitmap = Some((index, slot));
        Ok(bitmap_get(self.cache.block(slot), block % ENTRIES_PER_BITMAP))
    }

    /// The bitmap with `index`, which is in memory, to be changed.
    fn own_bitmap(&mut self, index: u64) -> Result<Slot, Error> {
        let entry = self.data_map()?.entries[&index];
        let at = entry.now.blocknr.get();
        let slot = match self.cache.find(at, Kind::Bitmap) {
            Ok(slot) => slot,
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Need(..)) => {
                // It was looked at before, so that its block was given out since.
                let field = "the reference count of this block";
                return Err(Error::damage(at, Kind::Bitmap, field, 0, "at least 1: it is a bitmap of data"));
            }
        };
        if self.metadata.is_fresh(at) {
            return Ok(slot);
        }
        let bits = self.metadata.bits(at);
        if bits != 1 {
            return Err(Error::damage(at, Kind::Bitmap, "the reference count of this block", bits, 1));
        }
        let new = self.alloc()?;
        let copy = self.cache.insert_copy(new, Kind::Bitmap, slot);
        self.metadata.add(at, false)?;
        self.replaced.push(at);
        let map = self.data_map()?;
        let entry = map.entries.get_mut(&index).expect("seen above");
        entry.now.blocknr = new.into();
        map.dirty += usize::from(!std::mem::replace(&mut entry.dirty, true));
        Ok(copy)
    }

    /// One reference more or less for a data block whose count is known. `bitmap` remembers which one is the
    /// transaction's own.
    pub(crate) fn count_data(&mut self, block: u64, more: bool, bitmap: &mut Option<(u64, Slot)>) -> Result<(), Error> {
        let (index, place) = (block / ENTRIES_PER_BITMAP, block % ENTRIES_PER_BITMAP);
        let slot = match *bitmap {
            Some((known, slot)) if known == index => slot,
            _ => self.own_bitmap(index)?,
        };
        *bitmap = Some((index, slot));
        let bits = bitmap_get(self.cache.block(slot), place);
        let map = self.data.as_mut().expect("own_bitmap saw it");
        let old = if bits == 3 { map.overflow.get(block).expect("the caller has looked it up") } else { bits };
        let new = if more { old.checked_add(1) } else { old.checked_sub(1) };
        let Some(new) = new else {
            let expected = if more { "less than 2^32 - 1" } else { "at least 1" };
            let field = "the reference count of a data block";
            let at = self.cache.at(slot);
            return Err(Error::damage(at, Kind::Bitmap, field, format!("{old} (block {block})"), expected));
        };
        if new.min(3) != bits {
            bitmap_set(self.cache.block_mut(slot), place, new.min(3));
        }
        if old > 2 || new > 2 {
            map.overflow.set(block, new);
        }
        if old != 0 && new != 0 {
            return Ok(());
        }
        let entry = map.entries.get_mut(&index).expect("own_bitmap saw it");
        map.dirty += usize::from(!std::mem::replace(&mut entry.dirty, true));
        let (free, before) = (entry.now.nr_free.get(), entry.now.none_free_before.get());
        let place = place as u32;
        if old == 0 {
            entry.now.nr_free = free.saturating_sub(1).into();
            if before == place {
                entry.now.none_free_before = (place + 1).into();
            }
            map.nr_allocated += 1;
            map.unavailable += 1;
            if let Some((word, bit)) = map.in_window(block) {
                *word &= !bit;
            }
        } else {
            // Until the commit it stays unavailable, also if it was given out in this transaction.
            entry.now.nr_free = free.saturating_add(1).into();
            entry.now.none_free_before = before.min(place).into();
            map.nr_allocated = map.nr_allocated.saturating_sub(1);
        }
        Ok(())
    }

    /// A data block that is free, with one reference from now on; `None` when no block is free that also was at the
    /// last commit.
    pub(crate) fn alloc_data(&mut self) -> Attempt<Option<u64>> {
        let map = self.data_map()?;
        if map.available() == 0 {
            return Ok(None);
        }
        if map.cursor >= map.nr_blocks {
            map.cursor = 0;
        }
        let maps = map.nr_blocks.div_ceil(ENTRIES_PER_BITMAP);
        // Every bitmap once, and that of the cursor twice: before it and after it.
        for _ in 0..=maps {
            let map = self.data_map()?;
            let index = map.cursor / ENTRIES_PER_BITMAP;
            if map.window.as_ref().is_none_or(|window| window.index != index) {
                self.open_window(index)?;
            }
            let map = self.data_map()?;
            if let Some(block) = map.next() {
                let entry = self.entry(index)?;
                self.cache.find(entry.blocknr.get(), Kind::Bitmap)?;
                self.count_data(block, true, &mut None)?;
                self.data_map()?.cursor = block + 1;
                return Ok(Some(block));
            }
            map.window = None;
            map.cursor = (index + 1) * ENTRIES_PER_BITMAP;
            if map.cursor >= map.nr_blocks {
                map.cursor = 0;
            }
        }
        Ok(None)
    }

    fn open_window(&mut self, index: u64) -> Attempt<()> {
        let entry = self.entry(index)?;
        let map = self.data_map()?;
        let committed = map.entries[&index].committed;
        let mut window = Box::new(Window { index, free: [0; WORDS_PER_BITMAP] });
        if entry.nr_free.get() != 0 {
            let at = entry.blocknr.get();
            let now = self.cache.find(at, Kind::Bitmap)?;
            for (w, free) in window.free.iter_mut().enumerate() {
                *free = zero_pairs(bitmap_word(self.cache.block(now), w));
            }
            if let Some(before) = committed.filter(|before| *before != at) {
                let before = self.cache.find(before, Kind::Bitmap)?;
                for (w, free) in window.free.iter_mut().enumerate() {
                    *free &= zero_pairs(bitmap_word(self.cache.block(before), w));
                }
            }
        }
        self.data_map()?.window = Some(window);
        Ok(())
    }

    /// Adds one bitmap, or what the last one still counts, towards `nr_blocks`; whether that is reached.
    pub(crate) fn extend_data(&mut self, nr_blocks: u64) -> Attempt<bool> {
        let map = self.data_map()?;
        if map.nr_blocks >= nr_blocks {
            return Ok(true);
        }
        let whole = map.nr_blocks.next_multiple_of(ENTRIES_PER_BITMAP);
        if map.nr_blocks < whole {
            // Whoever wrote the last entry may have counted only the blocks that existed as free.
            let index = map.nr_blocks / ENTRIES_PER_BITMAP;
            let entry = self.entry(index)?;
            let slot = self.cache.find(entry.blocknr.get(), Kind::Bitmap)?;
            let block = self.cache.block(slot);
            let free: u32 = (0..WORDS_PER_BITMAP).map(|w| zero_pairs(bitmap_word(block, w)).count_ones()).sum();
            let map = self.data_map()?;
            map.nr_blocks = whole.min(nr_blocks);
            let entry = map.entries.get_mut(&index).expect("seen above");
            entry.now.nr_free = free.into();
            map.dirty += usize::from(!std::mem::replace(&mut entry.dirty, true));
            map.window = None;
            return Ok(map.nr_blocks == nr_blocks);
        }
        let index = map.nr_blocks / ENTRIES_PER_BITMAP;
        let slot = self.new_block(Kind::Bitmap)?;
        let now = IndexEntry {
            blocknr: self.cache.at(slot).into(),
            nr_free: (ENTRIES_PER_BITMAP as u32).into(),
            none_free_before: 0.into(),
        };
        let map = self.data_map()?;
        map.entries.insert(index, Entry { now, committed: None, dirty: true });
        map.dirty += 1;
        map.nr_blocks = nr_blocks.min(map.nr_blocks + ENTRIES_PER_BITMAP);
        Ok(map.nr_blocks == nr_blocks)
    }

    /// Writes the changed entries to the tree.
    pub(crate) fn settle_index(&mut self) -> Attempt<()> {
        let map = self.data_map()?;
        if map.dirty == 0 {
            return Ok(());
        }
        let mut changed: Vec<_> =
            map.entries.iter().filter(|(_, e)| e.dirty).map(|(index, e)| (*index, e.now)).collect();
        changed.sort_unstable_by_key(|(index, _)| *index);
        let mut root = map.index;
        for (index, entry) in changed {
            let done = btree::attempt_insert(self, &mut root, index, &entry).map(|_| ());
            let map = self.data_map()?;
            map.index = root;
            done?;
            map.entries.get_mut(&index).expect("seen above").dirty = false;
            map.dirty -= 1;
        }
        Ok(())
    }
}
