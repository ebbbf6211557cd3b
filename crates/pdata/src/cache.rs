//! Blocks in memory: read ones, which may go at any time, and changed ones, which have to be written first.
//!
//! Nothing is evicted within an operation: an operation's slots stay valid until it has ended, and the cache may exceed
//! its bound by the few blocks that one operation touches. [`Cache::room`] says what has to go before the next one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::block::{BLOCK_SIZE, Block};
use crate::error::{Error, Kind};

/// Why an operation cannot go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It needs this block. What it changed so far stands, and it is begun again when the block is there.
    Need(u64, Kind),
    /// It failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What an operation comes to that never waits.
pub(crate) type Attempt<T> = Result<T, Stop>;

/// A hasher for block numbers: they are not chosen by an adversary who gains by collisions, for a table is bounded.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ spread >> 32;
    }
}

/// A map whose keys are block numbers.
pub(crate) type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Where in the cache a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u32);

struct Held {
    block: Box<Block>,
    at: u64,
    kind: Kind,
    dirty: bool,
    used: bool,
}

/// See the module.
pub(crate) struct Cache {
    slots: Vec<Option<Held>>,
    empty: Vec<u32>,
    places: NumberMap<u32>,
    spare: Vec<Box<Block>>,
    hand: usize,
    dirty: usize,
    capacity: usize,
}

/// Boxes that are kept for the next block.
const SPARE: usize = 256;
/// Blocks that are written at a time.
const BATCH: usize = 256;
/// No cache is smaller than this, in blocks: a few operations' worth.
const LEAST: usize = 64;

impl Cache {
    /// A cache of about `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            slots: Vec::new(),
            empty: Vec::new(),
            places: NumberMap::default(),
            spare: Vec::new(),
            hand: 0,
            dirty: 0,
            capacity: (bytes / BLOCK_SIZE).max(LEAST),
        }
    }

    /// The block at `at`, which is a `kind`.
    pub(crate) fn find(&mut self, at: u64, kind: Kind) -> Attempt<Slot> {
        let Some(&place) = self.places.get(&at) else { return Err(Stop::Need(at, kind)) };
        let held = self.slots[place as usize].as_mut().expect("the map leads to full slots");
        held.used = true;
        if held.kind != kind {
            return Err(Error::damage(at, kind, "what refers to it", kind, held.kind).into());
        }
        Ok(Slot(place))
    }

    /// Whether block `at` is in memory.
    pub(crate) fn has(&self, at: u64) -> bool {
        self.places.contains_key(&at)
    }

    fn held(&self, slot: Slot) -> &Held {
        self.slots[slot.0 as usize].as_ref().expect("slots stay within an operation")
    }

    /// The block in `slot`.
    pub(crate) fn block(&self, slot: Slot) -> &Block {
        &self.held(slot).block
    }

    /// The number of the block in `slot`.
    pub(crate) fn at(&self, slot: Slot) -> u64 {
        self.held(slot).at
    }

    /// The block in `slot`, to be changed: it has to be the open transaction's own.
    pub(crate) fn block_mut(&mut self, slot: Slot) -> &mut Block {
        let held = self.slots[slot.0 as usize].as_mut().expect("slots stay within an operation");
        if !held.dirty {
            held.dirty = true;
            self.dirty += 1;
        }
        &mut held.block
    }

    /// A block of memory; its bytes are anything.
    pub(crate) fn memory(&mut self) -> Box<Block> {
        self.spare.pop().unwrap_or_else(Block::zeroed)
    }

    /// Keeps `block`, in the place of what was kept for its number.
    pub(crate) fn insert(&mut self, at: u64, kind: Kind, block: Box<Block>, dirty: bool) -> Slot {
        self.remove(at);
        let held = Held { block, at, kind, dirty, used: true };
        self.dirty += usize::from(dirty);
        let place = match self.empty.pop() {
            Some(place) => {
                self.slots[place as usize] = Some(held);
                place
            }
            None => {
                self.slots.push(Some(held));
                u32::try_from(self.slots.len() - 1).expect("fewer blocks than 16 TiB of memory")
            }
        };
        self.places.insert(at, place);
        Slot(place)
    }

    /// A new block of zeroes, to be written.
    pub(crate) fn insert_zeroed(&mut self, at: u64, kind: Kind) -> Slot {
        let mut block = self.memory();
        block.0.fill(0);
        self.insert(at, kind, block, true)
    }

    /// A copy of `from` as block `at`, to be written.
    pub(crate) fn insert_copy(&mut self, at: u64, kind: Kind, from: Slot) -> Slot {
        let mut block = self.memory();
        block.0.copy_from_slice(&self.block(from).0);
        self.insert(at, kind, block, true)
    }

    fn take(&mut self, place: u32) -> Held {
        let held = self.slots[place as usize].take().expect("a full slot");
        self.empty.push(place);
        self.places.remove(&held.at);
        self.dirty -= usize::from(held.dirty);
        held
    }

    /// Drops what is kept for `at`, written or not.
    pub(crate) fn remove(&mut self, at: u64) {
        if let Some(&place) = self.places.get(&at) {
            let held = self.take(place);
            self.give_back(held.block);
        }
    }

    /// Drops everything.
    pub(crate) fn drop_all(&mut self) {
        self.slots.clear();
        self.empty.clear();
        self.places.clear();
        self.hand = 0;
        self.dirty = 0;
    }

    /// Whether blocks have to go before the next operation.
    pub(crate) fn is_crowded(&self) -> bool {
        self.places.len() > self.capacity
    }

    /// Evicts until the bound is met, and somewhat more, so that it is not reached again at once; or takes blocks out
    /// that have to be written, many at a time: those that were not used for longest.
    pub(crate) fn room(&mut self) -> Vec<(u64, Kind, Box<Block>)> {
        let mut write = Vec::new();
        let goal = self.capacity - self.capacity / 32;
        // A full round at most makes every block unused, a second one finds it so.
        let mut steps = 2 * self.slots.len() + 1;
        while self.places.len() > goal && write.len() < BATCH && steps > 0 {
            steps -= 1;
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(held) = self.slots[self.hand].as_mut() else { continue };
            if std::mem::take(&mut held.used) {
                continue;
            }
            let held = self.take(self.hand as u32);
            if held.dirty {
                write.push((held.at, held.kind, held.block));
            } else {
                self.give_back(held.block);
            }
        }
        write
    }

    /// Memory that is not needed any more.
    pub(crate) fn give_back(&mut self, block: Box<Block>) {
        if self.spare.len() < SPARE {
            self.spare.push(block);
        }
    }

    /// Takes blocks that have to be written, a batch at a time, lowest slot first.
    pub(crate) fn take_dirty(&mut self) -> Vec<(u64, Kind, Box<Block>)> {
        let mut write = Vec::new();
        if self.dirty == 0 {
            return write;
        }
        for place in 0..self.slots.len() {
            if self.slots[place].as_ref().is_some_and(|held| held.dirty) {
                let held = self.take(place as u32);
                write.push((held.at, held.kind, held.block));
                if write.len() == BATCH {
                    break;
                }
            }
        }
        write
    }
}
