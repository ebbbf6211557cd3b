//! The mapping cache: what a volume's blocks are mapped to, as far as it is known, read without a lock.
//!
//! Each volume has a tree over its blocks: a directory of *nodes* (512 leaves each), a node of *slots*, and *leaves*
//! (512 blocks each). The first nodes, of many a volume all, stand in the directory itself, others in *tops* of 512. A
//! leaf holds an entry for each block that differs from what it says of all others, *unmapped* or *unknown*: a hole
//! costs its slot, and a leaf with few entries a few cache lines. 4 million blocks, scattered over 16 TiB, take less
//! than 64 MiB. All volumes of a pool share one budget; what was not used lately makes room for what is (second chance,
//! page by page).
//!
//! # Invariants
//! - Forgetting is always allowed, and may come at once: who finds nothing asks the metadata, and uses what they say.
//!   So nothing here fails.
//! - Words only change under the pool's lock, but for the mark that something was used.
//! - No memory is freed while the cache is there, only used anew. A reader looks at its slots again after it has read
//!   the entry: each slot has a *stamp* that no other has, and it is changed before the memory behind it is.
//! - What a lookup says was true within the caller's section. Who changes a mapping lets the epochs drain
//!   ([`drain`](udm_worker::Worker::drain)) before relying on that nobody uses the old one.

mod arena;
mod image;
#[cfg(test)]
mod tests;

use arena::{Arena, DENSE, FAN, NODE, TOP, Words, class_for};
use image::{Image, probe};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Where a block's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The block of the data device; below 2^40, as the metadata format has it.
    pub(super) data: u64,
    /// Whether others refer to it too, so that a write has to break sharing.
    pub(super) shared: bool,
}

/// What is known of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Nothing: the metadata says.
    Unknown,
    /// It has no data of its own.
    Unmapped,
    /// Its data is there.
    At(Place),
}

/// Blocks that a node covers: 2^18.
const NODE_BLOCKS: u64 = (FAN * FAN) as u64;
/// Nodes in a directory itself: of a terabyte to 16 in blocks of 64 KiB.
const NEAR: std::ops::RangeInclusive<u64> = 64..=1024;
/// Blocks that a top covers: 2^27.
const TOP_BLOCKS: u64 = NODE_BLOCKS * FAN as u64;
/// Tops of a directory. What lies beyond is never known, and only slower.
const TOPS: std::ops::RangeInclusive<u64> = 64..=4096;
/// Leaves that one [`Mappings::fill`] writes at most.
const FILL: u64 = 64;
/// How often a lookup looks again when something moved beneath it.
const TRIES: usize = 3;

/// The bits of a slot: where a leaf or node is. 0 is nothing.
mod slot {
    /// Set in slots and in no entry.
    pub(super) const TAG: u64 = 1;
    const CLASS: u32 = 1;
    pub(super) const UNMAPPED: u64 = 1 << 5;
    pub(super) const USED: u64 = 1 << 6;
    const UNIT: u32 = 7;
    const STAMP: u32 = 35;
    pub(super) const UNITS: usize = 1 << (STAMP - UNIT);

    pub(super) const fn new(class: usize, unit: usize, stamp: u64, unmapped: bool) -> u64 {
        let unmapped = if unmapped { UNMAPPED } else { 0 };
        TAG | (class as u64) << CLASS | unmapped | (unit as u64) << UNIT | stamp << STAMP
    }

    pub(super) const fn class(slot: u64) -> usize {
        (slot >> CLASS & 15) as usize
    }

    pub(super) const fn unit(slot: u64) -> usize {
        (slot >> UNIT) as usize & (UNITS - 1)
    }
}

/// The bits of an entry. 0 is none: the leaf's own word counts.
mod entry {
    use super::FAN;

    pub(super) const UNMAPPED: u64 = 1 << 1;
    pub(super) const MAPPED: u64 = 2 << 1;
    pub(super) const UNKNOWN: u64 = 3 << 1;
    pub(super) const STATE: u64 = 3 << 1;
    const INDEX: u32 = 3;
    pub(super) const ERA: u32 = 12;
    pub(super) const ERAS: u64 = 1 << 12;
    pub(super) const DATA: u32 = 24;

    pub(super) const fn at(index: usize) -> u64 {
        (index as u64) << INDEX
    }

    pub(super) const fn index(entry: u64) -> usize {
        (entry >> INDEX) as usize & (FAN - 1)
    }
}

/// The directory of one volume. Some hundred bytes to 8 KiB (40 for the greatest), for as long as the volume is there.
struct Directory {
    near: Box<[AtomicU64]>,
    /// Made when it is first needed.
    tops: OnceLock<Box<[AtomicU64]>>,
    tops_len: usize,
    /// Blocks that were exclusive in an earlier era are shared.
    era: AtomicU64,
    /// How often something that was mapped has changed, or may have.
    changes: AtomicU64,
}

/// Empty slots.
fn slots(len: usize) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

impl Directory {
    /// The slot of the top that has a block's node.
    fn top(&self, block: u64) -> Option<&AtomicU64> {
        self.tops.get()?.get(usize::try_from(block / TOP_BLOCKS).ok()?)
    }

    /// The slot of a block's node, if there is a place for it now. Under the lock.
    fn node<'a>(&'a self, words: &'a Words, block: u64) -> Option<&'a AtomicU64> {
        let near = self.near.get(node_of(block));
        near.or_else(|| {
            let up = self.top(block)?.load(Ordering::Relaxed);
            (up != 0).then(|| &words.of(slot::unit(up), TOP)[node_of(block) % FAN])
        })
    }
}

/// The cache of a pool: the memory of all its volumes.
pub(super) struct MappingCache {
    words: Words,
    budget: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    arena: Arena,
    volumes: Vec<Option<Arc<Directory>>>,
    /// Numbers of volumes that nobody has.
    free: Vec<usize>,
    stamp: u64,
}

/// What is known of the mappings of one volume.
pub(super) struct Mappings {
    cache: Arc<MappingCache>,
    directory: Arc<Directory>,
    id: usize,
}

impl MappingCache {
    /// A cache of at most `budget` bytes; nothing is allocated yet. A budget of 0 knows nothing.
    pub(super) fn new(budget: usize) -> Arc<Self> {
        let budget = budget.min(slot::UNITS * arena::UNIT * 8);
        Arc::new(Self { words: Words::new(budget), budget, inner: Mutex::default() })
    }

    /// The cache of a volume that has `blocks` blocks now. It may grow.
    pub(super) fn volume(self: &Arc<Self>, blocks: u64) -> Mappings {
        let near = blocks.div_ceil(NODE_BLOCKS).clamp(*NEAR.start(), *NEAR.end());
        // Room to grow to eight times as much.
        let tops = blocks.div_ceil(TOP_BLOCKS).saturating_mul(8).clamp(*TOPS.start(), *TOPS.end());
        let directory = Arc::new(Directory {
            near: slots(near as usize),
            tops: OnceLock::new(),
            tops_len: tops as usize,
            era: AtomicU64::new(1),
            changes: AtomicU64::new(0),
        });
        let mut inner = self.lock();
        let id = inner.free.pop().unwrap_or(inner.volumes.len());
        if id == inner.volumes.len() {
            inner.volumes.push(None);
        }
        inner.volumes[id] = Some(directory.clone());
        Mappings { cache: self.clone(), directory, id }
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.lock().arena.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mappings {
    /// What is known of a block. No lock, no allocation; a few loads. To be relied on within the section that it was
    /// asked in, and while the bio is counted in its epoch.
    #[inline]
    pub(super) fn lookup(&self, block: u64) -> Known {
        let found = match self.directory.near.get(node_of(block)) {
            Some(node) => self.look(node, block),
            None => self.look_far(block),
        };
        match found {
            Some(known) => known,
            None => self.look_again(block),
        }
    }

    /// After something moved beneath a lookup.
    #[cold]
    #[inline(never)]
    fn look_again(&self, block: u64) -> Known {
        let look = |_| match self.directory.near.get(node_of(block)) {
            Some(node) => self.look(node, block),
            None => self.look_far(block),
        };
        (0..TRIES).find_map(look).unwrap_or(Known::Unknown)
    }

    /// As [`look`](Self::look), for a block whose node is in a top.
    #[inline(never)]
    fn look_far(&self, block: u64) -> Option<Known> {
        let Some(top) = self.directory.top(block) else { return Some(Known::Unknown) };
        let up = look(top);
        if up == 0 {
            return Some(Known::Unknown);
        }
        #[cfg(test)]
        tests::linger(tests::Step::Top);
        let known = self.look(self.cache.words.word(slot::unit(up), node_of(block) % FAN), block)?;
        // What was found was acquired: as in `look`.
        unchanged(top, up).then_some(known)
    }

    /// What is known of a block, unless something moves meanwhile.
    #[inline]
    fn look(&self, node: &AtomicU64, block: u64) -> Option<Known> {
        let words = &self.cache.words;
        let up = look(node);
        // Nothing; or no slot, in a top that has changed meanwhile.
        if up & slot::TAG == 0 {
            return Some(Known::Unknown);
        }
        #[cfg(test)]
        tests::linger(tests::Step::Node);
        let leaf = words.word(slot::unit(up), leaf_of(block));
        let down = look(leaf);
        #[cfg(test)]
        tests::linger(tests::Step::Leaf);
        let found = match slot::class(down) {
            DENSE if down & slot::TAG != 0 => words.word(slot::unit(down), index_of(block)).load(Ordering::Acquire),
            0 => 0,
            _ => find_sparse(words, down, index_of(block)),
        };
        #[cfg(test)]
        tests::linger(tests::Step::Entry);
        // Acquired what was found: if it is from another use of the memory, the slots are seen to have changed.
        fence(Ordering::Acquire);
        (unchanged(leaf, down) && unchanged(node, up)).then(|| self.meaning(down, found))
    }

    #[inline]
    fn meaning(&self, leaf: u64, found: u64) -> Known {
        // By branches: what is asked most often is told first, and a table of jumps is foretold badly.
        let state = found & entry::STATE;
        if state == entry::MAPPED {
            let era = found >> entry::ERA & (entry::ERAS - 1);
            let shared = era != self.directory.era.load(Ordering::Acquire);
            Known::At(Place { data: found >> entry::DATA, shared })
        } else if state == entry::UNMAPPED || (state == 0 && leaf & slot::UNMAPPED != 0) {
            Known::Unmapped
        } else {
            Known::Unknown
        }
    }

    fn entry(&self, block: u64, known: Known) -> u64 {
        let era = self.directory.era.load(Ordering::Relaxed);
        entry::at(index_of(block))
            | match known {
                Known::Unknown => entry::UNKNOWN,
                Known::Unmapped => entry::UNMAPPED,
                Known::At(Place { data, shared }) => {
                    assert!(data < 1 << 40, "data block {data} is beyond the format");
                    entry::MAPPED | data << entry::DATA | if shared { 0 } else { era << entry::ERA }
                }
            }
    }

    /// How often a mapping has changed, but for those of blocks that had none: what was found before may be true no
    /// more. Counted before the drain that waits for whoever uses what was, so that who enters an epoch and finds the
    /// number unchanged may use it.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.directory.changes.load(Ordering::Acquire)
    }

    fn count_change(&self) {
        self.directory.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes what a mapped block is from now on.
    pub(super) fn replace(&self, block: u64, known: Known) {
        self.count_change();
        self.set(block, known);
    }

    /// Notes what a block is: what the metadata say, or said nothing of. Takes the cache's lock, which is held for
    /// microseconds and never over I/O. It may be forgotten at once.
    pub(super) fn set(&self, block: u64, known: Known) {
        let mut inner = self.cache.lock();
        let entry = self.entry(block, known);
        if !self.set_in_place(block, entry) {
            self.rebuild(&mut inner, block, |leaf| leaf.put(entry));
        }
    }

    /// Sets an entry that is there, or for which there is room.
    fn set_in_place(&self, block: u64, entry: u64) -> bool {
        let Some(leaf) = self.leaf(block) else { return false };
        let slot = leaf.load(Ordering::Relaxed);
        if slot == 0 {
            return false;
        }
        let words = &self.cache.words;
        let (Some(at), found) = find(words, slot, index_of(block)) else { return false };
        if found == 0 && slot::class(slot) != DENSE {
            let piece = words.of(slot::unit(slot), slot::class(slot));
            let entries = piece.iter().filter(|w| w.load(Ordering::Relaxed) != 0).count();
            if class_for(entries + 1) > slot::class(slot) {
                return false;
            }
        }
        words.of(slot::unit(slot), slot::class(slot))[at].store(entry, Ordering::Release);
        true
    }

    /// Notes everything that the metadata says of the blocks of `range`: those of `mapped`, in ascending order, and no
    /// others. Of a range that is long, only what lies around `block` is noted.
    pub(super) fn fill(&self, block: u64, range: Range<u64>, mapped: &[(u64, Place)]) {
        if range.is_empty() {
            return;
        }
        let mut inner = self.cache.lock();
        let home = block / FAN as u64;
        let first = (range.start / FAN as u64).max(home.saturating_sub(FILL / 2));
        let last = ((range.end - 1) / FAN as u64).min(home.saturating_add(FILL / 2));
        for number in first..=last {
            let leaf = number * FAN as u64..(number + 1).saturating_mul(FAN as u64);
            let told = range.start.max(leaf.start)..range.end.min(leaf.end);
            let from = mapped.partition_point(|(b, _)| *b < told.start);
            let here = mapped[from..].iter().take_while(|(b, _)| *b < told.end);
            self.rebuild(&mut inner, leaf.start, |image| {
                if told == leaf {
                    *image = Image::new(true);
                } else {
                    (told.start..told.end).for_each(|b| image.put(self.entry(b, Known::Unmapped)));
                }
                here.for_each(|&(b, place)| image.put(self.entry(b, Known::At(place))));
            });
        }
    }

    /// Forgets what is known of the blocks of `range`, which change. Costs the more the more is known there.
    pub(super) fn clear(&self, range: Range<u64>) {
        self.count_change();
        let mut inner = self.cache.lock();
        let mut at = range.start;
        while at < range.end {
            let node_end = (at / NODE_BLOCKS + 1).saturating_mul(NODE_BLOCKS);
            let place = self.directory.node(&self.cache.words, at).map(|node| node.load(Ordering::Relaxed));
            let known = place.is_some_and(|node| node != 0);
            if known && at.is_multiple_of(NODE_BLOCKS) && node_end <= range.end {
                self.drop_node(&mut inner, at);
            } else if known {
                self.clear_in_node(&mut inner, at..range.end.min(node_end));
            }
            at = match place {
                Some(_) => node_end,
                None if self.directory.top(at).is_some() => (at / TOP_BLOCKS + 1) * TOP_BLOCKS,
                // Beyond all tops, or there are none.
                None => return,
            };
        }
    }

    fn clear_in_node(&self, inner: &mut Inner, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / FAN as u64 + 1) * FAN as u64);
            if self.leaf(at).is_some_and(|leaf| leaf.load(Ordering::Relaxed) != 0) {
                if end - at == FAN as u64 {
                    self.drop_leaf(inner, at);
                } else {
                    self.rebuild(inner, at, |image| (at..end).for_each(|b| image.put(self.entry(b, Known::Unknown))));
                }
            }
            at = end;
        }
    }

    /// From now on every block that is mapped is shared, as when a snapshot is taken. One step, whatever is known.
    pub(super) fn share_all(&self) {
        self.count_change();
        let mut inner = self.cache.lock();
        let era = self.directory.era.load(Ordering::Relaxed) + 1;
        if era == entry::ERAS {
            self.forget(&mut inner);
            self.directory.era.store(1, Ordering::Release);
        } else {
            self.directory.era.store(era, Ordering::Release);
        }
    }

    /// Forgets everything.
    pub(super) fn forget_all(&self) {
        self.count_change();
        self.forget(&mut self.cache.lock());
    }

    fn forget(&self, inner: &mut Inner) {
        for number in 0..self.directory.near.len() as u64 {
            self.drop_node(inner, number * NODE_BLOCKS);
        }
        for number in 0..self.directory.tops.get().map_or(0, |tops| tops.len()) as u64 {
            drop_top(&self.cache.words, inner, &self.directory, number * TOP_BLOCKS);
        }
    }

    /// The slot of the block's leaf. Under the lock.
    fn leaf(&self, block: u64) -> Option<&AtomicU64> {
        leaf(&self.cache.words, &self.directory, block)
    }

    fn drop_leaf(&self, inner: &mut Inner, block: u64) {
        drop_leaf(&self.cache.words, inner, &self.directory, block);
    }

    fn drop_node(&self, inner: &mut Inner, block: u64) {
        drop_node(&self.cache.words, inner, &self.directory, block);
    }

    /// Makes the block's leaf anew, changed by `change`, in a piece that fits it. Without room for it, it is forgotten.
    fn rebuild(&self, inner: &mut Inner, block: u64, change: impl FnOnce(&mut Image)) {
        let words = &self.cache.words;
        let old = self.leaf(block).map_or(0, |leaf| leaf.load(Ordering::Relaxed));
        let mut image = Image::read(words, old);
        change(&mut image);
        image.settle();
        self.drop_leaf(inner, block);
        let entries = image.entries();
        if entries == 0 && !image.unmapped || !self.make_node(inner, block) {
            return;
        }
        let class = class_for(entries);
        let piece = if class == 0 { Some(0) } else { self.take(inner, class, block) };
        let Some(piece) = piece else { return };
        match self.leaf(block) {
            Some(leaf) => {
                image.write(words.of(piece, class), class);
                leaf.store(slot::new(class, piece, inner.stamp(), image.unmapped), Ordering::Release);
            }
            // To make room for the leaf, its node had to go.
            None if class != 0 => inner.arena.give(piece, class),
            None => {}
        }
    }

    /// Whether there is a node for the block's leaf, now.
    fn make_node(&self, inner: &mut Inner, block: u64) -> bool {
        let (words, directory) = (&self.cache.words, &self.directory);
        if node_of(block) >= directory.near.len() {
            directory.tops.get_or_init(|| slots(directory.tops_len));
            let Some(top) = directory.top(block) else { return false };
            if top.load(Ordering::Relaxed) == 0 {
                let Some(piece) = self.take(inner, TOP, block) else { return false };
                top.store(slot::new(TOP, piece, inner.stamp(), false) | slot::USED, Ordering::Release);
            }
        }
        if directory.node(words, block).is_some_and(|node| node.load(Ordering::Relaxed) != 0) {
            return true;
        }
        let Some(piece) = self.take(inner, NODE, block) else { return false };
        let Some(node) = directory.node(words, block) else {
            // To make room for the node, its top had to go.
            inner.arena.give(piece, NODE);
            return false;
        };
        // Not to go at once for what it is made for.
        node.store(slot::new(NODE, piece, inner.stamp(), false) | slot::USED, Ordering::Release);
        true
    }

    /// A piece for the leaf, node or top of `block`; others go if they must.
    fn take(&self, inner: &mut Inner, class: usize, block: u64) -> Option<usize> {
        let owner = ((self.id as u64) << OWNER_LEAF) | (block / FAN as u64);
        loop {
            if let Some(piece) = inner.arena.take(&self.cache.words, class, owner, self.cache.budget) {
                return Some(piece);
            }
            if !make_room(&self.cache.words, inner) {
                return None;
            }
        }
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        let mut inner = self.cache.lock();
        self.forget(&mut inner);
        inner.volumes[self.id] = None;
        inner.free.push(self.id);
    }
}

/// Owners are a volume's number above a leaf's, which has 38 bits for the greatest of volumes.
const OWNER_LEAF: u32 = 40;

impl Inner {
    /// What no slot of late has had. It repeats after 2^29 times, in which no section is still open.
    const fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

/// Empties a page that was not used since it was last looked at. False if there is none.
#[cold]
fn make_room(words: &Words, inner: &mut Inner) -> bool {
    for _ in 0..=2 * inner.arena.pages() {
        let Some((class, owners)) = inner.arena.next() else { return false };
        let places: Vec<_> = owners
            .iter()
            .map(|owner| {
                let volume = inner.volumes[(owner >> OWNER_LEAF) as usize].clone();
                (volume.expect("pieces go before their volume"), (owner & ((1 << OWNER_LEAF) - 1)) * FAN as u64)
            })
            .collect();
        let slot = |directory, block| place(words, directory, class, block);
        let was_used = places.iter().fold(false, |used, (directory, block)| {
            let before = slot(directory, *block).map_or(0, |slot| slot.fetch_and(!slot::USED, Ordering::Relaxed));
            used | (before & slot::USED != 0)
        });
        if was_used {
            continue;
        }
        for (directory, block) in &places {
            match class {
                TOP => drop_top(words, inner, directory, *block),
                NODE => drop_node(words, inner, directory, *block),
                _ => drop_leaf(words, inner, directory, *block),
            }
        }
        return true;
    }
    false
}

/// The slot of a block's piece of a class.
fn place<'a>(words: &'a Words, directory: &'a Directory, class: usize, block: u64) -> Option<&'a AtomicU64> {
    match class {
        TOP => directory.top(block),
        NODE => directory.node(words, block),
        _ => leaf(words, directory, block),
    }
}

/// The slot of a block's leaf, if its node is there. Under the lock.
fn leaf<'a>(words: &'a Words, directory: &'a Directory, block: u64) -> Option<&'a AtomicU64> {
    let up = directory.node(words, block)?.load(Ordering::Relaxed);
    (up != 0).then(|| &words.of(slot::unit(up), NODE)[leaf_of(block)])
}

fn drop_leaf(words: &Words, inner: &mut Inner, directory: &Directory, block: u64) {
    let old = leaf(words, directory, block).map_or(0, |leaf| leaf.swap(0, Ordering::AcqRel));
    if slot::class(old) != 0 {
        inner.arena.give(slot::unit(old), slot::class(old));
    }
}

fn drop_node(words: &Words, inner: &mut Inner, directory: &Directory, block: u64) {
    let Some(node) = directory.node(words, block) else { return };
    let old = node.load(Ordering::Relaxed);
    if old != 0 {
        let first = block / NODE_BLOCKS * NODE_BLOCKS;
        (0..FAN as u64).for_each(|leaf| drop_leaf(words, inner, directory, first + leaf * FAN as u64));
        node.store(0, Ordering::Release);
        inner.arena.give(slot::unit(old), NODE);
    }
}

fn drop_top(words: &Words, inner: &mut Inner, directory: &Directory, block: u64) {
    let Some(top) = directory.top(block) else { return };
    let old = top.load(Ordering::Relaxed);
    if old != 0 {
        let first = block / TOP_BLOCKS * TOP_BLOCKS;
        let nodes = (0..FAN as u64).map(|node| first + node * NODE_BLOCKS);
        // Those that the directory has itself are not in the top.
        let nodes = nodes.filter(|block| node_of(*block) >= directory.near.len());
        nodes.for_each(|block| drop_node(words, inner, directory, block));
        top.store(0, Ordering::Release);
        inner.arena.give(slot::unit(old), TOP);
    }
}

/// Whether a slot is as it was, but for the mark.
#[inline]
fn unchanged(slot: &AtomicU64, then: u64) -> bool {
    (slot.load(Ordering::Acquire) ^ then) & !slot::USED == 0
}

/// A slot's value; marks that it was used.
#[inline]
fn look(slot: &AtomicU64) -> u64 {
    let found = slot.load(Ordering::Acquire);
    if found & (slot::TAG | slot::USED) == slot::TAG {
        mark(slot, found);
    }
    found
}

#[cold]
fn mark(slot: &AtomicU64, found: u64) {
    // Should the word be another by now, then it stays.
    let _ = slot.compare_exchange(found, found | slot::USED, Ordering::Relaxed, Ordering::Relaxed);
}

/// The number of a block's node.
#[inline]
const fn node_of(block: u64) -> usize {
    (block / NODE_BLOCKS) as usize
}

#[inline]
const fn leaf_of(block: u64) -> usize {
    (block / FAN as u64) as usize % FAN
}

#[inline]
const fn index_of(block: u64) -> usize {
    block as usize % FAN
}

/// What is in a leaf that is no dense one. A word that is no slot leads nowhere: then the node has changed.
#[inline(never)]
fn find_sparse(words: &Words, slot: u64, index: usize) -> u64 {
    if slot & slot::TAG == 0 { 0 } else { find(words, slot, index).1 }
}

/// A block's word in its leaf, or where it could be put, and what is there.
#[inline]
fn find(words: &Words, slot: u64, index: usize) -> (Option<usize>, u64) {
    let class = slot::class(slot);
    if class == 0 {
        return (None, 0);
    }
    let piece = words.of(slot::unit(slot), class);
    if class == DENSE {
        return (Some(index), piece[index].load(Ordering::Acquire));
    }
    probe(piece, index)
}
