//! Reads a whole image with nothing but the layouts, counts every reference, and holds the space maps against the
//! counts.
//!
//! It shares no code with what it judges but the readers of single blocks.

use std::collections::BTreeMap;

use udm_formats::thin::superblock::{LOCATION, NEEDS_CHECK, Superblock};
use udm_formats::thin::{BlockTime, Details, DiskDetails};
use udm_pdata::layout::{self, ENTRIES_PER_BITMAP, IndexEntry, SpaceMapRoot, bitmap_get};
use udm_pdata::node::Node;
use udm_pdata::{BLOCK_SIZE, Block, Kind, Value};
use zerocopy::FromBytes;

/// A device: its details, and what each virtual block is mapped to.
pub(crate) type Devices = BTreeMap<u32, (Details, BTreeMap<u64, BlockTime>)>;

/// What an image says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Contents {
    pub(crate) time: u32,
    pub(crate) trans_id: u64,
    pub(crate) needs_check: bool,
    pub(crate) data_blocks: u64,
    pub(crate) metadata_blocks: u64,
    pub(crate) devices: Devices,
    /// The devices of the metadata snapshot.
    pub(crate) held: Option<Devices>,
    /// Every data block with a reference, and how many.
    pub(crate) data: BTreeMap<u64, u32>,
}

struct Audit<'a> {
    image: &'a [u8],
    /// How much the sums of a space map may be off: thin_restore 0.9.0 counts one metadata block too many.
    slack: u64,
    metadata: BTreeMap<u64, u32>,
    data: BTreeMap<u64, u32>,
}

impl Audit<'_> {
    fn block(&self, at: u64) -> Box<Block> {
        let start = at as usize * BLOCK_SIZE;
        let bytes = self.image.get(start..start + BLOCK_SIZE).unwrap_or_else(|| panic!("block {at} is past the end"));
        let mut block = Block::zeroed();
        block.0.copy_from_slice(bytes);
        block
    }

    /// One more reference to a metadata block; whether it is the first.
    fn refer(&mut self, at: u64) -> bool {
        let count = self.metadata.entry(at).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// Every entry beneath `root`, and whether its leaf is met for the first time.
    fn tree<V: Value>(&mut self, root: u64) -> Vec<(u64, V, bool)> {
        let mut entries = Vec::new();
        self.node(root, true, true, &mut entries, 0..=u64::MAX);
        entries
    }

    fn node<V: Value>(
        &mut self,
        at: u64,
        first: bool,
        is_root: bool,
        entries: &mut Vec<(u64, V, bool)>,
        keys: std::ops::RangeInclusive<u64>,
    ) -> usize {
        // What hangs beneath a shared node is referred to once, by that node.
        let first = first && self.refer(at);
        let block = self.block(at);
        let node = Node::read(&block, at).unwrap_or_else(|error| panic!("{error}"));
        assert!(is_root || node.len() > 0, "block {at}: an empty node");
        let mut depth = None;
        for i in 0..node.len() {
            let key = node.key(i);
            assert!(keys.contains(&key), "block {at}: key {key} outside its parent's {keys:?}");
            if node.is_leaf() {
                assert_eq!(node.value_size(), V::SIZE, "block {at}");
                entries.push((key, V::decode(node.value(i)), first));
            } else {
                let end = if i + 1 < node.len() { node.key(i + 1) - 1 } else { *keys.end() };
                let below = self.node(node.child(i), first, false, entries, key..=end);
                assert_eq!(*depth.get_or_insert(below), below, "block {at}: leaves lie equally deep");
            }
        }
        depth.unwrap_or(0) + 1
    }

    fn devices(&mut self, mappings: u64, details: u64) -> Devices {
        let mut devices = Devices::new();
        for (dev, value, _) in self.tree::<DiskDetailsValue>(details) {
            devices.insert(dev as u32, (value.0.into(), BTreeMap::new()));
        }
        for (dev, root, first) in self.tree::<u64>(mappings) {
            let (_, blocks) = devices.get_mut(&(dev as u32)).unwrap_or_else(|| panic!("no details for device {dev}"));
            let mut entries = Vec::new();
            self.node::<u64>(root, first, true, &mut entries, 0..=u64::MAX);
            for (block, value, first) in entries {
                let value = BlockTime::unpack(value);
                blocks.insert(block, value);
                if first {
                    *self.data.entry(value.block).or_insert(0) += 1;
                }
            }
        }
        for (dev, (details, blocks)) in &devices {
            assert_eq!(details.mapped_blocks, blocks.len() as u64, "device {dev}: mapped_blocks");
        }
        devices
    }

    /// The counts of a space map whose bitmaps are these.
    fn counts(&mut self, root: &SpaceMapRoot, bitmaps: &[IndexEntry]) -> BTreeMap<u64, u32> {
        let many: BTreeMap<u64, u32> =
            self.tree::<u32>(root.ref_count_root.get()).into_iter().map(|(key, count, _)| (key, count)).collect();
        let mut counts = BTreeMap::new();
        for (index, entry) in bitmaps.iter().enumerate() {
            let at = entry.blocknr.get();
            self.refer(at);
            let block = self.block(at);
            layout::check(&block, Kind::Bitmap, at).unwrap_or_else(|error| panic!("{error}"));
            let from = index as u64 * ENTRIES_PER_BITMAP;
            let here = ENTRIES_PER_BITMAP.min(root.nr_blocks.get() - from);
            let mut free = 0;
            for e in 0..here {
                match bitmap_get(&block, e) {
                    0 => free += 1,
                    3 => drop(counts.insert(from + e, many[&(from + e)])),
                    n => drop(counts.insert(from + e, n)),
                }
            }
            // The kernel counts those past the device's end as free, thin_restore does not.
            let past = (ENTRIES_PER_BITMAP - here) as u32;
            let nr_free = entry.nr_free.get();
            let near = |right: u32| u64::from(right.abs_diff(nr_free)) <= self.slack;
            assert!(near(free) || near(free + past), "bitmap {index}: nr_free {nr_free}, but {free} (+ {past})");
            let none_free_before = u64::from(entry.none_free_before.get()).min(here);
            let before = (0..none_free_before).filter(|e| bitmap_get(&block, *e) == 0).count() as u64;
            assert!(before <= self.slack, "bitmap {index}: {before} free before none_free_before");
        }
        assert!(many.iter().all(|(b, n)| *n >= 3 && counts.get(b) == Some(n)), "counts of 3 and more: {many:?}");
        let (sum, counted) = (root.nr_allocated.get(), counts.len() as u64);
        assert!(sum.abs_diff(counted) <= self.slack, "nr_allocated {sum}, but {counted}");
        counts
    }
}

#[derive(Clone, Copy)]
struct DiskDetailsValue(DiskDetails);

impl Value for DiskDetailsValue {
    const SIZE: usize = 24;

    fn decode(bytes: &[u8]) -> Self {
        Self(DiskDetails::read_from_bytes(bytes).expect("24 bytes"))
    }

    fn encode(&self, _: &mut [u8]) {
        unreachable!("the audit writes nothing")
    }
}

/// Audits what udm wrote.
///
/// # Panics
/// When anything does not add up.
pub(crate) fn audit(image: &[u8]) -> Contents {
    audit_with(image, 0)
}

/// Audits what thin_restore wrote.
pub(crate) fn audit_restored(image: &[u8]) -> Contents {
    audit_with(image, 1)
}

fn audit_with(image: &[u8], slack: u64) -> Contents {
    let mut audit = Audit { image, slack, metadata: BTreeMap::new(), data: BTreeMap::new() };
    let superblock = Superblock::read(audit.block(LOCATION), LOCATION).unwrap_or_else(|error| panic!("{error}"));
    let disk = *superblock.disk();
    audit.refer(LOCATION);
    let devices = audit.devices(disk.data_mapping_root.get(), disk.device_details_root.get());
    let held_root = disk.held_root.get();
    let held = (held_root != 0).then(|| {
        audit.refer(held_root);
        let held = Superblock::read(audit.block(held_root), held_root).unwrap_or_else(|error| panic!("{error}"));
        assert!(held.disk().data_space_map_root.iter().all(|b| *b == 0), "a snapshot has no space maps");
        assert!(held.disk().metadata_space_map_root.iter().all(|b| *b == 0), "a snapshot has no space maps");
        assert_eq!(held.disk().held_root.get(), 0);
        audit.devices(held.disk().data_mapping_root.get(), held.disk().device_details_root.get())
    });

    let data_root = SpaceMapRoot::ref_from_prefix(&disk.data_space_map_root).expect("it is longer").0;
    let bitmaps: Vec<IndexEntry> = audit.tree(data_root.bitmap_root.get()).into_iter().map(|(_, e, _)| e).collect();
    assert_eq!(bitmaps.len() as u64, data_root.nr_blocks.get().div_ceil(ENTRIES_PER_BITMAP), "data bitmaps");
    let data = audit.counts(data_root, &bitmaps);
    assert_eq!(data, audit.data, "references to data blocks (left: the space map)");

    let metadata_root = SpaceMapRoot::ref_from_prefix(&disk.metadata_space_map_root).expect("it is longer").0;
    let at = metadata_root.bitmap_root.get();
    audit.refer(at);
    let index = audit.block(at);
    layout::check(&index, Kind::Index, at).unwrap_or_else(|error| panic!("{error}"));
    let bitmaps = metadata_root.nr_blocks.get().div_ceil(ENTRIES_PER_BITMAP) as usize;
    let index = layout::index(&index).index;
    let counts = audit.counts(metadata_root, &index[..bitmaps]);
    assert_eq!(counts, audit.metadata, "references to metadata blocks (left: the space map)");

    Contents {
        time: disk.time.get(),
        trans_id: disk.trans_id.get(),
        needs_check: disk.flags.get() & NEEDS_CHECK != 0,
        data_blocks: data_root.nr_blocks.get(),
        metadata_blocks: metadata_root.nr_blocks.get(),
        devices,
        held,
        data,
    }
}
