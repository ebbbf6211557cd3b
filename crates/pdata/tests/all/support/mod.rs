//! A device in memory whose power can be cut, and a check of all that is on it that shares nothing with the store.

#![allow(dead_code, reason = "each test uses its own part")]

pub(crate) mod world;

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex};

use udm_pdata::layout::{self, IndexEntry, SpaceMapRoot};
use udm_pdata::node::Node;
use udm_pdata::{Block, BlockIo, IoError, IoFuture, Kind, Ref, Roots, Store, Value, block_on};

/// A small source of chance, made again from its seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) durable: BTreeMap<u64, Box<Block>>,
    /// Writes since the last flush, in order.
    pub(crate) pending: Vec<(u64, Box<Block>)>,
    /// The last of them for each block.
    pub(crate) latest: HashMap<u64, usize>,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// The operation with this number, from now on, fails.
    pub(crate) fail_in: Option<u64>,
    /// Every state that the power could have been cut in, for who wants them.
    pub(crate) steps: Option<Vec<Cut>>,
}

/// What was durable and what was not at some point.
pub(crate) struct Cut {
    pub(crate) durable: BTreeMap<u64, Box<Block>>,
    pub(crate) pending: Vec<(u64, Box<Block>)>,
}

impl Disk {
    fn fails(&mut self) -> bool {
        match &mut self.fail_in {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                *left == 0
            }
            None => false,
        }
    }

    pub(crate) fn get(&self, at: u64) -> Option<&Block> {
        let pending = self.latest.get(&at).map(|i| &self.pending[*i].1);
        pending.or_else(|| self.durable.get(&at)).map(|block| &**block)
    }

    fn put(&mut self, at: u64, block: Box<Block>) {
        self.latest.insert(at, self.pending.len());
        self.pending.push((at, block));
    }

    fn flush(&mut self) {
        self.latest.clear();
        for (at, block) in std::mem::take(&mut self.pending) {
            self.durable.insert(at, block);
        }
    }

    fn step(&mut self) {
        if let Some(steps) = &mut self.steps {
            steps.push(Cut { durable: self.durable.clone(), pending: self.pending.clone() });
        }
    }
}

/// A device of `blocks` blocks.
pub(crate) struct Memory {
    pub(crate) blocks: Mutex<u64>,
    pub(crate) disk: Mutex<Disk>,
}

impl Memory {
    pub(crate) fn new(blocks: u64) -> Arc<Self> {
        Arc::new(Self { blocks: Mutex::new(blocks), disk: Mutex::default() })
    }

    pub(crate) fn of(blocks: u64, durable: BTreeMap<u64, Box<Block>>) -> Arc<Self> {
        Arc::new(Self { blocks: Mutex::new(blocks), disk: Mutex::new(Disk { durable, ..Disk::default() }) })
    }

    pub(crate) fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    pub(crate) fn get(&self, at: u64) -> Box<Block> {
        self.disk().get(at).map_or_else(Block::zeroed, |block| Box::new(block.clone()))
    }
}

impl BlockIo for Memory {
    fn blocks(&self) -> u64 {
        *self.blocks.lock().unwrap()
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let mut disk = self.disk();
        disk.reads += 1;
        if disk.fails() {
            return Box::pin(ready(Err(IoError::Failed)));
        }
        if at >= self.blocks() {
            return Box::pin(ready(Err(IoError::PastEnd)));
        }
        match disk.get(at) {
            Some(block) => into.0 = block.0,
            None => into.0.fill(0xA5),
        }
        Box::pin(ready(Ok(into)))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        let mut disk = self.disk();
        disk.writes += blocks.len() as u64;
        let failed = disk.fails();
        for (i, (at, block)) in blocks.iter().enumerate() {
            // Of writes that failed, some have arrived.
            if !failed || i % 2 == 0 {
                disk.put(*at, block.clone());
            }
        }
        disk.step();
        Box::pin(ready(if failed { Err(IoError::Failed) } else { Ok(blocks) }))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        let mut disk = self.disk();
        if disk.fails() {
            return Box::pin(ready(Err(IoError::Failed)));
        }
        disk.flush();
        disk.step();
        Box::pin(ready(Ok(())))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let mut disk = self.disk();
        if disk.fails() {
            disk.put(at, block);
            return Box::pin(ready(Err(IoError::Failed)));
        }
        if disk.steps.is_some() {
            // A superblock is one block: it is there, or not, or torn.
            disk.pending.push((at, block.clone()));
            disk.step();
            disk.pending.pop();
        }
        disk.durable.insert(at, block.clone());
        disk.step();
        Box::pin(ready(Ok(block)))
    }
}

/// A superblock: what a commit of these tests keeps in block 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Super {
    pub(crate) number: u64,
    pub(crate) trees: Vec<u64>,
}

const SALT: u32 = 4711;

pub(crate) fn write_super(what: &Super, roots: &Roots) -> Box<Block> {
    let mut block = Block::zeroed();
    let mut at = 8;
    let mut put = |number: u64| {
        block.0[at..at + 8].copy_from_slice(&number.to_le_bytes());
        at += 8;
    };
    put(what.number);
    for root in [roots.metadata, roots.data.unwrap_or(roots.metadata)] {
        for number in [root.nr_blocks, root.nr_allocated, root.bitmap_root, root.ref_count_root] {
            put(number.get());
        }
    }
    put(u64::from(roots.data.is_some()));
    put(what.trees.len() as u64);
    what.trees.iter().for_each(|root| put(*root));
    let sum = layout::checksum(&block, SALT);
    block.0[..4].copy_from_slice(&sum.to_le_bytes());
    block
}

pub(crate) fn read_super(block: &Block) -> Option<(Super, Roots)> {
    let sum = u32::from_le_bytes(block.0[..4].try_into().unwrap());
    if layout::checksum(block, SALT) != sum {
        return None;
    }
    let word = |i: usize| u64::from_le_bytes(block.0[8 + i * 8..16 + i * 8].try_into().unwrap());
    let root = |i: usize| SpaceMapRoot {
        nr_blocks: word(i).into(),
        nr_allocated: word(i + 1).into(),
        bitmap_root: word(i + 2).into(),
        ref_count_root: word(i + 3).into(),
    };
    let roots = Roots { metadata: root(1), data: (word(9) == 1).then(|| root(5)) };
    let trees = (0..word(10) as usize).map(|i| word(11 + i)).collect();
    Some((Super { number: word(0), trees }, roots))
}

pub(crate) fn commit(store: &mut Store, what: &Super) -> Result<(), udm_pdata::Error> {
    block_on(async {
        let roots = store.prepare_commit().await?;
        store.commit(0, write_super(what, &roots)).await
    })
}

/// A value that refers to data and is so large that few fit a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fat(pub(crate) u64);

impl Value for Fat {
    const SIZE: usize = 1000;

    fn decode(bytes: &[u8]) -> Self {
        Self(u64::decode(&bytes[..8]))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        self.0.encode(&mut bytes[..8]);
    }

    fn refers_to(&self) -> Ref {
        Ref::Data(self.0)
    }
}

/// As the mapping of a volume: eight bytes that refer to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped(pub(crate) u64);

impl Value for Mapped {
    const SIZE: usize = 8;

    fn decode(bytes: &[u8]) -> Self {
        Self(u64::decode(bytes))
    }

    fn encode(&self, bytes: &mut [u8]) {
        self.0.encode(bytes);
    }

    fn refers_to(&self) -> Ref {
        Ref::Data(self.0)
    }
}

/// Everything on a device, counted anew from the superblock on, from the bytes on the disk alone.
pub(crate) struct Checker<'a> {
    disk: &'a Disk,
    metadata: BTreeMap<u64, u32>,
    data: BTreeMap<u64, u32>,
}

impl<'a> Checker<'a> {
    fn block(&self, at: u64, kind: Kind) -> &'a Block {
        let block = self.disk.get(at).unwrap_or_else(|| panic!("{kind} {at} was never written"));
        layout::check(block, kind, at).unwrap();
        block
    }

    /// Walks a tree; what it holds, if this is the first way to it.
    fn tree<V: Value>(&mut self, at: u64, root: bool, into: &mut BTreeMap<u64, V>) {
        let first = self.see(at);
        let node = Node::read(self.block(at, Kind::Node), at).unwrap();
        if !root {
            assert!(node.len() >= node.max() / 3, "node {at} has {} of {}", node.len(), node.max());
        }
        for i in 0..node.len() {
            if !node.is_leaf() {
                let mut below = BTreeMap::new();
                // A shared subtree is counted once, but what it holds is held by every tree.
                if first {
                    self.tree::<V>(node.child(i), false, &mut below);
                } else {
                    self.peek::<V>(node.child(i), &mut below);
                }
                let high = if i + 1 < node.len() { node.key(i + 1) } else { u64::MAX };
                for (key, value) in below {
                    assert!(key >= node.key(i) && key < high || i + 1 == node.len() && key >= node.key(i));
                    assert!(into.insert(key, value).is_none());
                }
            } else {
                let value = V::decode(node.value(i));
                if let (true, Ref::Data(block)) = (first, value.refers_to()) {
                    *self.data.entry(block).or_default() += 1;
                }
                into.insert(node.key(i), value);
            }
        }
    }

    fn peek<V: Value>(&self, at: u64, into: &mut BTreeMap<u64, V>) {
        let node = Node::read(self.block(at, Kind::Node), at).unwrap();
        for i in 0..node.len() {
            if node.is_leaf() {
                into.insert(node.key(i), V::decode(node.value(i)));
            } else {
                self.peek(node.child(i), into);
            }
        }
    }

    fn see(&mut self, at: u64) -> bool {
        let count = self.metadata.entry(at).or_default();
        *count += 1;
        *count == 1
    }

    fn compare(
        &self,
        what: &str,
        entries: &[IndexEntry],
        big: &BTreeMap<u64, u32>,
        nr: u64,
        counted: &BTreeMap<u64, u32>,
    ) {
        for at in 0..nr {
            let entry = entries[(at / layout::ENTRIES_PER_BITMAP) as usize];
            let bitmap = self.block(entry.blocknr.get(), Kind::Bitmap);
            let bits = layout::bitmap_get(bitmap, at % layout::ENTRIES_PER_BITMAP);
            let expected = counted.get(&at).copied().unwrap_or(0);
            assert_eq!(bits, expected.min(3), "bits of {what} block {at}, with {expected} references");
            assert_eq!(big.get(&at).copied(), Some(expected).filter(|n| *n > 2), "large count of {what} block {at}");
        }
        assert!(counted.keys().all(|at| *at < nr), "{what} blocks past the end");
        assert!(big.keys().all(|at| *at < nr), "large counts of {what} past the end");
        for (i, entry) in entries.iter().enumerate() {
            let bitmap = self.block(entry.blocknr.get(), Kind::Bitmap);
            let zero: Vec<u64> =
                (0..layout::ENTRIES_PER_BITMAP).filter(|e| layout::bitmap_get(bitmap, *e) == 0).collect();
            assert_eq!(entry.nr_free.get() as usize, zero.len(), "nr_free of {what} bitmap {i}");
            let first = zero.first().copied().unwrap_or(layout::ENTRIES_PER_BITMAP);
            assert!(u64::from(entry.none_free_before.get()) <= first, "none_free_before of {what} bitmap {i}");
        }
    }
}

/// Checks everything on `disk`; what its trees hold, and the number of the commit.
pub(crate) fn check<V: Value>(disk: &Disk) -> (Super, Vec<BTreeMap<u64, V>>) {
    let (what, roots) = read_super(disk.get(0).expect("a superblock")).expect("a whole superblock");
    let mut checker = Checker { disk, metadata: BTreeMap::new(), data: BTreeMap::new() };
    checker.see(0);
    let index_at = roots.metadata.bitmap_root.get();
    checker.see(index_at);
    let index = layout::index(checker.block(index_at, Kind::Index));
    let nr = roots.metadata.nr_blocks.get();
    let entries = &index.index[..nr.div_ceil(layout::ENTRIES_PER_BITMAP) as usize];
    for entry in entries {
        checker.see(entry.blocknr.get());
    }
    let mut big = BTreeMap::new();
    checker.tree::<u32>(roots.metadata.ref_count_root.get(), true, &mut big);
    let mut data = None;
    if let Some(root) = roots.data {
        let (mut index, mut big) = (BTreeMap::new(), BTreeMap::new());
        checker.tree::<IndexEntry>(root.bitmap_root.get(), true, &mut index);
        checker.tree::<u32>(root.ref_count_root.get(), true, &mut big);
        let nr = root.nr_blocks.get();
        let entries: Vec<IndexEntry> = index.values().copied().collect();
        assert!(index.keys().copied().eq(0..nr.div_ceil(layout::ENTRIES_PER_BITMAP)));
        for entry in &entries {
            checker.see(entry.blocknr.get());
        }
        data = Some((root, entries, big));
    }
    let mut trees = Vec::new();
    for root in &what.trees {
        let mut tree = BTreeMap::new();
        if checker.metadata.contains_key(root) {
            checker.see(*root);
            checker.peek::<V>(*root, &mut tree);
        } else {
            checker.tree::<V>(*root, true, &mut tree);
        }
        trees.push(tree);
    }
    checker.compare("metadata", entries, &big, nr, &checker.metadata);
    assert_eq!(roots.metadata.nr_allocated.get(), checker.metadata.len() as u64);
    if let Some((root, entries, big)) = data {
        checker.compare("data", &entries, &big, root.nr_blocks.get(), &checker.data);
        assert_eq!(root.nr_allocated.get(), checker.data.len() as u64);
    }
    (what, trees)
}
