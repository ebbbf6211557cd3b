//! The mapping cache: what a volume's blocks are mapped to, as far as it is known, read without a lock.
//!
//! Each volume has a tree over its blocks: a directory of *nodes* (512 leaves each), a node of *slots*, and *leaves* (512
//! blocks each). A leaf holds an entry for each block that differs from what it says of all others, *unmapped* or
//! *unknown*: a hole costs its slot, and a leaf with few entries a few cache lines. 4 million blocks, scattered over 16 TiB, take
//! less than 64 MiB. All volumes of a pool share one budget; what was not used lately makes room for what is (second chance, page by page).
//!
//! # Invariants
//! - Forgetting is always allowed: who finds nothing asks the metadata. So nothing here fails.
//! - Words only change under the pool's lock, but for the mark that something was used.
//! - No memory is freed while the cache is there, only used anew. A reader looks at its slots again after it has read the
//!   entry: each slot has a *stamp* that no other has, and it is changed before the memory behind it is.
//! - What a lookup says was true within the caller's section. Who changes a mapping lets the epochs drain
//!   ([`Drains`](super::inflight::Drains)) before relying on that nobody uses the old one.

mod arena;
#[cfg(test)]
mod tests;

use arena::{Arena, DENSE, FAN, NODE, Words, class_for};
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
/// Slots of a part of a directory, which is made when it is first needed.
const PART: usize = 4096;
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

/// Slots of nodes. Their number is in the type, so that an index cut to it needs no check.
type Part = [AtomicU64; PART];

/// The directory of one volume.
struct Directory {
    parts: Box<[OnceLock<Box<Part>>]>,
    /// Blocks that were exclusive in an earlier era are shared.
    era: AtomicU64,
}

impl Directory {
    #[inline]
    fn node(&self, block: u64) -> Option<&AtomicU64> {
        let at = (block / NODE_BLOCKS) as usize;
        Some(&self.parts.get(at / PART)?.get()?[at % PART])
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
    /// Bytes of directories.
    directories: usize,
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
        // Room to grow to 4 PiB of 64 KiB blocks; what lies beyond is never known, and only slower.
        let parts = (blocks.div_ceil(NODE_BLOCKS * PART as u64)).clamp(64, 1 << 17) as usize;
        let parts = (0..parts).map(|_| OnceLock::new()).collect();
        let directory = Arc::new(Directory { parts, era: AtomicU64::new(1) });
        let mut inner = self.lock();
        let id = inner.volumes.iter().position(Option::is_none).unwrap_or(inner.volumes.len());
        if id == inner.volumes.len() {
            inner.volumes.push(None);
        }
        inner.volumes[id] = Some(directory.clone());
        Mappings { cache: self.clone(), directory, id }
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> usize {
        let inner = self.lock();
        inner.arena.bytes() + inner.directories
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
        let Some(node) = self.directory.node(block) else { return Known::Unknown };
        match self.look(node, block) {
            Some(known) => known,
            None => self.look_again(node, block),
        }
    }

    /// After something moved beneath a lookup.
    #[cold]
    #[inline(never)]
    fn look_again(&self, node: &AtomicU64, block: u64) -> Known {
        (0..TRIES).find_map(|_| self.look(node, block)).unwrap_or(Known::Unknown)
    }

    /// What is known of a block, unless something moves meanwhile.
    #[inline]
    fn look(&self, node: &AtomicU64, block: u64) -> Option<Known> {
        let words = &self.cache.words;
        let up = look(node);
        if up == 0 {
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
        let unchanged = |at: &AtomicU64, then: u64| (at.load(Ordering::Acquire) ^ then) & !slot::USED == 0;
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

    /// Notes what a block is now. Takes the cache's lock, which is held for microseconds and never over I/O.
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

    /// Notes everything that the metadata says of the blocks of `range`: those of `mapped`, in ascending order, and no others.
    /// Of a range that is long, only what lies around `block` is noted.
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

    /// Forgets what is known of the blocks of `range`. Costs the more the more is known there.
    pub(super) fn clear(&self, range: Range<u64>) {
        let mut inner = self.cache.lock();
        let mut at = range.start;
        while at < range.end {
            let node_end = (at / NODE_BLOCKS + 1).saturating_mul(NODE_BLOCKS);
            let known = self.directory.node(at).is_some_and(|n| n.load(Ordering::Relaxed) != 0);
            if known && at.is_multiple_of(NODE_BLOCKS) && node_end <= range.end {
                self.drop_node(&mut inner, at);
            } else if known {
                self.clear_in_node(&mut inner, at..range.end.min(node_end));
            }
            at = match self.directory.parts.get((at / NODE_BLOCKS) as usize / PART) {
                Some(part) if part.get().is_some() => node_end,
                // A part that nobody has made, or none at all.
                Some(_) => (at / (NODE_BLOCKS * PART as u64) + 1) * NODE_BLOCKS * PART as u64,
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
        self.forget(&mut self.cache.lock());
    }

    fn forget(&self, inner: &mut Inner) {
        for (part, nodes) in self.directory.parts.iter().enumerate() {
            for at in 0..nodes.get().map_or(0, |nodes| nodes.len()) {
                self.drop_node(inner, (part * PART + at) as u64 * NODE_BLOCKS);
            }
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
        const BYTES: usize = PART * size_of::<AtomicU64>();
        let at = (block / NODE_BLOCKS) as usize;
        let Some(part) = self.directory.parts.get(at / PART) else { return false };
        if part.get().is_none() {
            // Parts stay as long as their volume, so they must not take all there is.
            if inner.directories + BYTES > self.cache.budget / 4 {
                return false;
            }
            inner.directories += BYTES;
        }
        let part = part.get_or_init(|| {
            let slots: Box<[AtomicU64]> = (0..PART).map(|_| AtomicU64::new(0)).collect();
            slots.try_into().expect("as many as there are in the type")
        });
        if part[at % PART].load(Ordering::Relaxed) == 0 {
            let Some(piece) = self.take(inner, NODE, block / NODE_BLOCKS * NODE_BLOCKS) else { return false };
            part[at % PART].store(slot::new(NODE, piece, inner.stamp(), false), Ordering::Release);
        }
        true
    }

    /// A piece for the leaf or node of `block`; others go if they must.
    fn take(&self, inner: &mut Inner, class: usize, block: u64) -> Option<usize> {
        let owner = ((self.id as u64) << OWNER_LEAF) | (block / FAN as u64);
        loop {
            let budget = self.cache.budget.saturating_sub(inner.directories);
            if let Some(piece) = inner.arena.take(&self.cache.words, class, owner, budget) {
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
        let parts = self.directory.parts.iter().filter(|part| part.get().is_some()).count();
        inner.directories -= parts * PART * size_of::<AtomicU64>();
        inner.volumes[self.id] = None;
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
        let slot =
            |directory, block| if class == NODE { node(directory, block) } else { leaf(words, directory, block) };
        let was_used = places.iter().fold(false, |used, (directory, block)| {
            let before = slot(directory, *block).map_or(0, |slot| slot.fetch_and(!slot::USED, Ordering::Relaxed));
            used | (before & slot::USED != 0)
        });
        if was_used {
            continue;
        }
        for (directory, block) in &places {
            if class == NODE {
                drop_node(words, inner, directory, *block);
            } else {
                drop_leaf(words, inner, directory, *block);
            }
        }
        return true;
    }
    false
}

fn node(directory: &Directory, block: u64) -> Option<&AtomicU64> {
    directory.node(block)
}

/// The slot of a block's leaf, if its node is there. Under the lock.
fn leaf<'a>(words: &'a Words, directory: &Directory, block: u64) -> Option<&'a AtomicU64> {
    let up = directory.node(block)?.load(Ordering::Relaxed);
    (up != 0).then(|| &words.of(slot::unit(up), NODE)[leaf_of(block)])
}

fn drop_leaf(words: &Words, inner: &mut Inner, directory: &Directory, block: u64) {
    let old = leaf(words, directory, block).map_or(0, |leaf| leaf.swap(0, Ordering::AcqRel));
    if slot::class(old) != 0 {
        inner.arena.give(slot::unit(old), slot::class(old));
    }
}

fn drop_node(words: &Words, inner: &mut Inner, directory: &Directory, block: u64) {
    let Some(node) = directory.node(block) else { return };
    let old = node.load(Ordering::Relaxed);
    if old != 0 {
        let first = block / NODE_BLOCKS * NODE_BLOCKS;
        (0..FAN as u64).for_each(|leaf| drop_leaf(words, inner, directory, first + leaf * FAN as u64));
        node.store(0, Ordering::Release);
        inner.arena.give(slot::unit(old), NODE);
    }
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

/// The same in a piece that is searched from a hash of the index.
fn probe(piece: &[AtomicU64], index: usize) -> (Option<usize>, u64) {
    let start = (((index as u32).wrapping_mul(0x9e37_79b1) as u64 * piece.len() as u64) >> 32) as usize;
    for at in (start..piece.len()).chain(0..start) {
        let found = piece[at].load(Ordering::Acquire);
        if found == 0 || entry::index(found) == index {
            return (Some(at), found);
        }
    }
    (None, 0)
}

/// A leaf while it is made.
struct Image {
    entries: [u64; FAN],
    unmapped: bool,
}

impl Image {
    const fn new(unmapped: bool) -> Self {
        Self { entries: [0; FAN], unmapped }
    }

    fn read(words: &Words, slot: u64) -> Self {
        let mut image = Self::new(slot & slot::UNMAPPED != 0);
        if slot::class(slot) != 0 {
            for word in words.of(slot::unit(slot), slot::class(slot)) {
                let entry = word.load(Ordering::Relaxed);
                if entry != 0 {
                    image.entries[entry::index(entry)] = entry;
                }
            }
        }
        image
    }

    const fn put(&mut self, entry: u64) {
        self.entries[entry::index(entry)] = entry;
    }

    /// Has the more frequent of unmapped and unknown said by the leaf.
    fn settle(&mut self) {
        let count = |state: u64| self.entries.iter().filter(|&&e| e != 0 && e & entry::STATE == state).count();
        let silent = self.entries.iter().filter(|&&e| e == 0).count();
        let (unmapped, unknown) = (count(entry::UNMAPPED), count(entry::UNKNOWN));
        let (said, other) =
            if self.unmapped { (entry::UNMAPPED, entry::UNKNOWN) } else { (entry::UNKNOWN, entry::UNMAPPED) };
        let (silent, others) = if self.unmapped { (silent + unmapped, unknown) } else { (silent + unknown, unmapped) };
        let flip = others > silent;
        for (index, e) in self.entries.iter_mut().enumerate() {
            let state = if *e == 0 { said } else { *e & entry::STATE };
            if state == said {
                *e = if flip { said | entry::at(index) } else { 0 };
            } else if state == other && flip {
                *e = 0;
            }
        }
        self.unmapped ^= flip;
    }

    fn entries(&self) -> usize {
        self.entries.iter().filter(|&&e| e != 0).count()
    }

    fn write(&self, piece: &[AtomicU64], class: usize) {
        for (index, &entry) in self.entries.iter().enumerate().filter(|(_, e)| **e != 0) {
            let at = if class == DENSE { Some(index) } else { probe(piece, index).0 };
            piece[at.expect("the class was chosen to fit")].store(entry, Ordering::Release);
        }
    }
}
