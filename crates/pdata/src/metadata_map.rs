//! The space map that counts the references to metadata blocks, among them to the blocks that it consists of itself.
//!
//! Its bitmaps are in memory, all of them: at most 255, or 1 MiB, beside those of the last commit as far as they
//! differ. So to count is to change bits, and the circle (a changed bitmap lies in a new block, whose count is in a
//! bitmap, …) is only gone round once, at the commit, by [`MetadataMap::place`]. A block is given out when its count is
//! zero now and was zero at the last commit; so nothing that the committed superblock can reach is ever written over.
//! (`dm-space-map-metadata.c`, `dm-space-map-common.c`, 6.12.)

use crate::block::Block;
use crate::error::{Error, Kind, Space};
use crate::layout::{
    ENTRIES_PER_BITMAP, IndexEntry, MAX_METADATA_BLOCKS, MetadataIndex, SpaceMapRoot, WORDS_PER_BITMAP, bitmap_get,
    bitmap_set, word,
};
use crate::overflow::Overflow;

/// The low bit of each pair in a word.
const PAIRS: u64 = 0x5555_5555_5555_5555;

/// The pairs of a word that are zero, one bit for each, the lower.
pub(crate) fn zero_pairs(word: u64) -> u64 {
    !(word | word >> 1) & PAIRS
}

/// Word `i` of a bitmap.
pub(crate) fn bitmap_word(block: &Block, i: usize) -> u64 {
    word(block, 16 + i * 8)
}

/// How many of the first `entries` of a bitmap are zero.
fn zeroes(block: &Block, entries: u64) -> u64 {
    (0..WORDS_PER_BITMAP)
        .map(|i| {
            let left = entries.saturating_sub(i as u64 * 32).min(32);
            let mask = if left == 32 { u64::MAX } else { (1 << (left * 2)) - 1 };
            u64::from((zero_pairs(bitmap_word(block, i)) & mask).count_ones())
        })
        .sum()
}

struct Map {
    now: Box<Block>,
    entry: IndexEntry,
    /// What was committed, when it differs.
    before: Option<(Box<Block>, IndexEntry)>,
}

/// What the last commit left.
#[derive(Clone, Copy)]
struct Committed {
    nr_blocks: u64,
    nr_allocated: u64,
    index: u64,
    counts: u64,
}

/// See the module.
pub(crate) struct MetadataMap {
    maps: Vec<Map>,
    nr_blocks: u64,
    nr_allocated: u64,
    /// Blocks that are in use now or were at the last commit.
    unavailable: u64,
    cursor: u64,
    index: u64,
    pub(crate) overflow: Overflow,
    committed: Option<Committed>,
}

impl MetadataMap {
    /// A map of `nr_blocks` of which the first `reserved` are in use, and that lies in the next ones: the index, the
    /// root of the tree of counts (which the caller makes), the bitmaps.
    pub(crate) fn create(nr_blocks: u64, reserved: u64) -> Result<Self, Error> {
        let nr_blocks = nr_blocks.min(MAX_METADATA_BLOCKS);
        let nr_maps = nr_blocks.div_ceil(ENTRIES_PER_BITMAP);
        let used = reserved.saturating_add(2 + nr_maps);
        if used > nr_blocks {
            return Err(Error::NoSpace(Space::Metadata));
        }
        let mut new = Self {
            maps: Vec::new(),
            nr_blocks,
            nr_allocated: 0,
            unavailable: 0,
            cursor: 0,
            index: reserved,
            overflow: Overflow::new(reserved + 1),
            committed: None,
        };
        new.add_maps(nr_maps);
        for (i, map) in new.maps.iter_mut().enumerate() {
            map.entry.blocknr = (reserved + 2 + i as u64).into();
        }
        for block in 0..used {
            new.set_bits(block, 1);
        }
        Ok(new)
    }

    /// The map that `root` describes, as yet without bitmaps: [`add_loaded`](Self::add_loaded) takes them one by one.
    pub(crate) fn open(root: &SpaceMapRoot, device: u64) -> Result<Self, Error> {
        let bad =
            |field, found: u64, expected: String| Err(Error::damage(0, Kind::SpaceMapRoot, field, found, expected));
        let (nr_blocks, nr_allocated) = (root.nr_blocks.get(), root.nr_allocated.get());
        let most = device.min(MAX_METADATA_BLOCKS);
        if nr_blocks == 0 || nr_blocks > most {
            return bad("metadata nr_blocks", nr_blocks, format!("1 to {most}, the size of the device in blocks"));
        }
        let (index, counts) = (root.bitmap_root.get(), root.ref_count_root.get());
        if index >= nr_blocks {
            return bad("metadata bitmap_root", index, format!("less than {nr_blocks}"));
        }
        if counts >= nr_blocks {
            return bad("metadata ref_count_root", counts, format!("less than {nr_blocks}"));
        }
        Ok(Self {
            maps: Vec::new(),
            nr_blocks,
            nr_allocated,
            unavailable: nr_allocated,
            cursor: 0,
            index,
            overflow: Overflow::new(counts),
            committed: Some(Committed { nr_blocks, nr_allocated, index, counts }),
        })
    }

    /// Where bitmap number `i` lies, by `index`, or `None` after the last.
    pub(crate) fn to_load(&self, index: &MetadataIndex) -> Result<Option<IndexEntry>, Error> {
        let i = self.maps.len();
        if i as u64 == self.nr_blocks.div_ceil(ENTRIES_PER_BITMAP) {
            return Ok(None);
        }
        let entry = index.index[i];
        if entry.blocknr.get() >= self.nr_blocks {
            let expected = format!("less than {}", self.nr_blocks);
            return Err(Error::damage(self.index, Kind::Index, "the block of a bitmap", entry.blocknr, expected));
        }
        Ok(Some(entry))
    }

    pub(crate) fn add_loaded(&mut self, entry: IndexEntry, now: Box<Block>) {
        self.maps.push(Map { now, entry, before: None });
    }

    /// After the last bitmap: counts what they say. The sums that are on disk beside them may be off (`thin_restore`
    /// 0.9.0 counts one block too many), and the kernel carries such an error on for ever; the next commit writes what
    /// was counted.
    pub(crate) fn count_loaded(&mut self) {
        let mut left = self.nr_blocks;
        let mut free = 0;
        for map in &mut self.maps {
            free += zeroes(&map.now, left.min(ENTRIES_PER_BITMAP));
            left = left.saturating_sub(ENTRIES_PER_BITMAP);
            map.entry.nr_free = (zeroes(&map.now, ENTRIES_PER_BITMAP) as u32).into();
            let first = (0..WORDS_PER_BITMAP).find_map(|w| {
                let zero = zero_pairs(bitmap_word(&map.now, w));
                (zero != 0).then(|| w as u32 * 32 + zero.trailing_zeros() / 2)
            });
            map.entry.none_free_before = first.unwrap_or(ENTRIES_PER_BITMAP as u32).into();
        }
        self.nr_allocated = self.nr_blocks - free;
        self.unavailable = self.nr_allocated;
        if let Some(committed) = &mut self.committed {
            committed.nr_allocated = self.nr_allocated;
        }
    }

    fn add_maps(&mut self, count: u64) {
        let entry = IndexEntry {
            blocknr: 0.into(),
            nr_free: u32::try_from(ENTRIES_PER_BITMAP).expect("small").into(),
            none_free_before: 0.into(),
        };
        for _ in 0..count {
            self.maps.push(Map { now: Block::zeroed(), entry, before: Some((Block::zeroed(), entry)) });
        }
    }

    /// Counts `nr_blocks` blocks from now on, which are no fewer than now.
    pub(crate) fn extend(&mut self, nr_blocks: u64) {
        let nr_blocks = nr_blocks.min(MAX_METADATA_BLOCKS);
        let Some(last) = self.maps.len().checked_sub(1) else { return };
        if nr_blocks <= self.nr_blocks {
            return;
        }
        // Whoever wrote the last entry may have counted only the blocks that existed as free.
        self.keep(last);
        let map = &mut self.maps[last];
        map.entry.nr_free = (zeroes(&map.now, ENTRIES_PER_BITMAP) as u32).into();
        let known = self.maps.len() as u64;
        self.add_maps(nr_blocks.div_ceil(ENTRIES_PER_BITMAP).saturating_sub(known));
        self.nr_blocks = nr_blocks;
    }

    pub(crate) fn nr_blocks(&self) -> u64 {
        self.nr_blocks
    }

    pub(crate) fn index_block(&self) -> u64 {
        self.index
    }

    /// Blocks that are free now and were at the last commit.
    pub(crate) fn available(&self) -> u64 {
        self.nr_blocks - self.unavailable
    }

    pub(crate) fn nr_allocated(&self) -> u64 {
        self.nr_allocated
    }

    /// Blocks that [`place`](Self::place) takes at most.
    pub(crate) fn places(&self) -> u64 {
        self.maps.len() as u64 + 1
    }

    /// Blocks that are kept for the commit: every bitmap and the index move once, and what the transaction remembered
    /// has to reach its trees.
    pub(crate) fn reserve(&self) -> u64 {
        self.places() + (self.nr_blocks / 16).min(64)
    }

    /// The two bits of `block`, which exists.
    pub(crate) fn bits(&self, block: u64) -> u32 {
        bitmap_get(&self.maps[(block / ENTRIES_PER_BITMAP) as usize].now, block % ENTRIES_PER_BITMAP)
    }

    /// Whether `block` was free at the last commit, so that only the open transaction can refer to it.
    pub(crate) fn is_fresh(&self, block: u64) -> bool {
        let map = &self.maps[(block / ENTRIES_PER_BITMAP) as usize];
        let committed = map.before.as_ref().map_or(&map.now, |(before, _)| before);
        bitmap_get(committed, block % ENTRIES_PER_BITMAP) == 0
    }

    fn keep(&mut self, i: usize) {
        let map = &mut self.maps[i];
        if map.before.is_none() {
            map.before = Some((map.now.clone(), map.entry));
        }
    }

    fn set_bits(&mut self, block: u64, bits: u32) {
        let (i, entry) = ((block / ENTRIES_PER_BITMAP) as usize, block % ENTRIES_PER_BITMAP);
        self.keep(i);
        let fresh = self.is_fresh(block);
        let map = &mut self.maps[i];
        let old = bitmap_get(&map.now, entry);
        bitmap_set(&mut map.now, entry, bits);
        if (old == 0) == (bits == 0) {
            return;
        }
        let (free, before) = (map.entry.nr_free.get(), map.entry.none_free_before.get());
        let entry = entry as u32;
        if old == 0 {
            self.nr_allocated += 1;
            self.unavailable += u64::from(fresh);
            map.entry.nr_free = free.saturating_sub(1).into();
            if before == entry {
                map.entry.none_free_before = (entry + 1).into();
            }
        } else {
            self.nr_allocated -= 1;
            self.unavailable -= u64::from(fresh);
            map.entry.nr_free = free.saturating_add(1).into();
            map.entry.none_free_before = before.min(entry).into();
        }
    }

    /// One reference more or less; a count of three and more has to be known. The new count.
    pub(crate) fn add(&mut self, block: u64, more: bool) -> Result<u32, Error> {
        let bits = self.bits(block);
        let old = if bits == 3 { self.overflow.get(block).expect("the caller has looked it up") } else { bits };
        let new = if more { old.checked_add(1) } else { old.checked_sub(1) };
        let Some(new) = new else {
            let expected = if more { "less than 2^32 - 1" } else { "at least 1" };
            return Err(Error::damage(block, Kind::Bitmap, "the reference count of this block", old, expected));
        };
        self.set_bits(block, new.min(3));
        if old > 2 || new > 2 {
            self.overflow.set(block, new);
        }
        Ok(new)
    }

    /// A block that is free, with one reference from now on; out of the reserve if this is for the `commit`.
    pub(crate) fn alloc(&mut self, commit: bool) -> Result<u64, Error> {
        if !commit && self.available() <= self.reserve() {
            return Err(Error::NoSpace(Space::Metadata));
        }
        self.alloc_reserved()
    }

    fn alloc_reserved(&mut self) -> Result<u64, Error> {
        let found = self.find(self.cursor).or_else(|| self.find(0)).ok_or(Error::NoSpace(Space::Metadata))?;
        self.set_bits(found, 1);
        self.cursor = found + 1;
        Ok(found)
    }

    fn find(&self, from: u64) -> Option<u64> {
        let first = (from / ENTRIES_PER_BITMAP) as usize;
        for (i, map) in self.maps.iter().enumerate().skip(first) {
            let mut start = u64::from(map.entry.none_free_before.get()).min(ENTRIES_PER_BITMAP);
            if i == first {
                start = start.max(from % ENTRIES_PER_BITMAP);
            }
            for w in (start / 32) as usize..WORDS_PER_BITMAP {
                let mut free = zero_pairs(bitmap_word(&map.now, w));
                if let Some((before, _)) = &map.before {
                    free &= zero_pairs(bitmap_word(before, w));
                }
                if w as u64 == start / 32 {
                    free &= u64::MAX << (start % 32 * 2);
                }
                if free != 0 {
                    let entry = w as u64 * 32 + u64::from(free.trailing_zeros() / 2);
                    let block = i as u64 * ENTRIES_PER_BITMAP + entry;
                    return (block < self.nr_blocks).then_some(block);
                }
            }
        }
        None
    }

    /// Whether anything differs from the last commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.committed.is_none() || self.maps.iter().any(|map| map.before.is_some()) || self.overflow.is_dirty()
    }

    /// Gives every changed bitmap, and the index, a block that is not in use by the last commit. Afterwards counts and
    /// places are those of the commit: to move one bitmap may change others, so this goes on until none is left.
    pub(crate) fn place(&mut self) -> Result<(), Error> {
        if !self.maps.iter().any(|map| map.before.is_some()) {
            return Ok(());
        }
        if !self.is_fresh(self.index) {
            let new = self.alloc_reserved()?;
            self.free_own(self.index)?;
            self.index = new;
        }
        loop {
            let old = |map: &Map| map.entry.blocknr.get();
            let moves = |map: &Map| map.before.is_some() && (old(map) == 0 || !self.is_fresh(old(map)));
            let Some(i) = self.maps.iter().position(moves) else { return Ok(()) };
            let new = self.alloc_reserved()?;
            match old(&self.maps[i]) {
                0 => {}
                old => self.free_own(old)?,
            }
            self.maps[i].entry.blocknr = new.into();
        }
    }

    /// Frees a block of the map's own, which nobody else may refer to.
    fn free_own(&mut self, block: u64) -> Result<(), Error> {
        let bits = self.bits(block);
        if bits != 1 {
            let field = "the reference count of this block of the metadata space map";
            return Err(Error::damage(block, Kind::Bitmap, field, bits, 1));
        }
        self.set_bits(block, 0);
        Ok(())
    }

    /// The blocks that a commit has to write after [`place`](Self::place), not yet sealed.
    pub(crate) fn changed(&self) -> Vec<(u64, Kind, Box<Block>)> {
        let mut write: Vec<_> = (self.maps.iter().filter(|map| map.before.is_some()))
            .map(|map| (map.entry.blocknr.get(), Kind::Bitmap, map.now.clone()))
            .collect();
        if write.is_empty() {
            return write;
        }
        let mut index = Block::zeroed();
        for (i, map) in self.maps.iter().enumerate() {
            let at = 16 + i * 16;
            crate::value::Value::encode(&map.entry, &mut index.0[at..at + 16]);
        }
        write.push((self.index, Kind::Index, index));
        write
    }

    pub(crate) fn root(&self) -> SpaceMapRoot {
        SpaceMapRoot::new(self.nr_blocks, self.nr_allocated, self.index, self.overflow.root)
    }

    /// What is now is committed.
    pub(crate) fn committed(&mut self) {
        for map in &mut self.maps {
            map.before = None;
        }
        self.unavailable = self.nr_allocated;
        self.cursor = 0;
        self.overflow.forget();
        self.committed = Some(Committed {
            nr_blocks: self.nr_blocks,
            nr_allocated: self.nr_allocated,
            index: self.index,
            counts: self.overflow.root,
        });
    }

    /// Back to the last commit; `false` when there was none.
    pub(crate) fn abort(&mut self) -> bool {
        let Some(committed) = self.committed else { return false };
        self.nr_blocks = committed.nr_blocks;
        self.maps.truncate(committed.nr_blocks.div_ceil(ENTRIES_PER_BITMAP) as usize);
        for map in &mut self.maps {
            if let Some((before, entry)) = map.before.take() {
                map.now = before;
                map.entry = entry;
            }
        }
        self.nr_allocated = committed.nr_allocated;
        self.unavailable = committed.nr_allocated;
        self.cursor = 0;
        self.index = committed.index;
        let leaves = self.overflow.leaves;
        self.overflow = Overflow::new(committed.counts);
        self.overflow.leaves = leaves;
        true
    }
}
