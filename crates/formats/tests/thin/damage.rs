//! Metadata that are not what they should be: an error that names block and field, and nothing written.

use udm_base::Sectors;
use udm_formats::thin::superblock::{Disk as Fields, LOCATION, NEEDS_CHECK, SALT, Superblock};
use udm_formats::thin::{Error, Geometry, MAX_DEVICE, Metadata, Options};
use udm_pdata::layout::{self, SpaceMapRoot, checksum};
use udm_pdata::node::Node;
use udm_pdata::{Block, Kind, block_on};
use zerocopy::FromBytes;

use crate::audit::audit;
use crate::disk::Disk;
use crate::model::{DATA_BLOCK, Op, Pair};

const DATA_BLOCKS: u64 = 4000;
const GEOMETRY: Geometry = Geometry { data_block: DATA_BLOCK, data_blocks: DATA_BLOCKS };

/// A pool with a device of 600 blocks, a snapshot of it, and a metadata snapshot.
fn pool() -> Disk {
    let mut pair = Pair::new(512, DATA_BLOCKS, Options::default());
    for op in [
        Op::CreateThin(1),
        Op::Write(1, 0, 600),
        Op::CreateSnap(2, 1),
        Op::Write(1, 0, 10),
        Op::ReserveSnap,
        Op::Write(2, 5, 10),
        Op::Commit,
    ] {
        pair.apply(&op).expect("a healthy pool");
    }
    pair.disk.copy()
}

fn change(disk: &Disk, change: impl FnOnce(&mut Fields)) {
    disk.patch(LOCATION, |block| {
        change(Fields::mut_from_prefix(&mut block.0).expect("a block holds a superblock").0);
        let sum = checksum(block, SALT);
        block.0[..4].copy_from_slice(&sum.to_le_bytes());
    });
}

fn fields(disk: &Disk) -> Fields {
    let image = disk.image();
    *Fields::ref_from_prefix(&image).expect("an image holds a superblock").0
}

/// Opens `disk`, which has to fail with `expected` and without a write.
fn refused(disk: &Disk, geometry: &Geometry, expected: &str) {
    let before = disk.writes();
    for open in [
        block_on(Metadata::open(disk.io(), geometry, Options::default())),
        block_on(Metadata::open_or_format(disk.io(), geometry, Options::default())),
    ] {
        let error = open.err().unwrap_or_else(|| panic!("it opened; expected: {expected}")).to_string();
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }
    assert_eq!(disk.writes(), before, "nothing is written to a pool that did not open");
}

#[test]
fn a_superblock_that_is_wrong_is_refused_by_its_field() {
    type Row = (fn(&mut Fields), &'static str);
    let rows: &[Row] = &[
        (|f| f.blocknr.set(3), "block 0, superblock: blocknr is 3, expected 0"),
        (|f| f.magic.set(7), "block 0, superblock: magic is 7, expected 27022010"),
        (|f| f.version.set(3), "block 0, superblock: version is 3, expected 1 or 2"),
        (|f| f.version.set(0), "version is 0"),
        (|f| f.metadata_block_size.set(4), "metadata_block_size is 4 sectors, expected 8 sectors"),
        (|f| f.data_block_size.set(0), "data_block_size is 0 sectors"),
        (|f| f.data_block_size.set(129), "data_block_size is 129 sectors, expected a multiple of 128"),
        (|f| f.data_block_size.set(256), "data_block_size is 256 sectors, expected 128 sectors"),
        (|f| f.incompat_flags.set(1 << 31), "incompat_flags is 0x80000000, expected 0"),
        (|f| f.compat_ro_flags.set(2), "compat_ro_flags is 0x2, expected 0"),
        (|f| f.time.set(1 << 24), "time is 16777216, expected at most 16777215"),
        (|f| f.held_root.set(512), "held_root is 512, expected less than 512"),
        (|f| f.data_mapping_root.set(0), "data_mapping_root is 0"),
        (|f| f.data_mapping_root.set(512), "data_mapping_root is 512, expected 1 to 511"),
        (|f| f.device_details_root.set(u64::MAX), "device_details_root is 18446744073709551615, expected 1 to 511"),
        (|f| f.metadata_space_map_root[0] = 0xff, "metadata device"),
        (|f| f.metadata_space_map_root[..8].fill(0), "metadata_space_map_root is 0 blocks, expected 1 to 4161600"),
        (|f| f.metadata_space_map_root[23] = 1, "metadata bitmap_root is"),
        (|f| f.data_space_map_root[15] = 1, "data nr_allocated is"),
        (|f| f.data_space_map_root[6] = 1, "data_space_map_root is 281474976714656 blocks, expected at most"),
        (|f| f.data_space_map_root[2] = 1, "the data device has 4000 blocks, but its metadata were made for 69536"),
    ];
    for (patch, expected) in rows {
        let disk = pool();
        change(&disk, patch);
        refused(&disk, &GEOMETRY, expected);
    }
    let disk = pool();
    disk.patch(LOCATION, |block| block.0[400] ^= 1);
    refused(&disk, &GEOMETRY, "block 0, superblock: csum is 0x");
}

#[test]
fn a_version_1_pool_opens() {
    let disk = pool();
    change(&disk, |f| f.version.set(1));
    block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("it opens");
}

#[test]
fn a_reader_needs_not_know_what_a_writer_needs_to() {
    let disk = pool();
    change(&disk, |f| f.compat_ro_flags.set(2));
    let options = Options { read_only: true, ..Options::default() };
    block_on(Metadata::open(disk.io(), &GEOMETRY, options)).expect("it opens for reading");
}

#[test]
fn devices_that_are_too_small_are_refused() {
    let small = Geometry { data_blocks: DATA_BLOCKS - 1, ..GEOMETRY };
    refused(&pool(), &small, "the data device has 3999 blocks, but its metadata were made for 4000");
    let disk = pool();
    disk.grow(511);
    refused(&disk, &GEOMETRY, "the metadata device has 511 blocks, but its metadata were made for 512");
    refused(&Disk::new(0), &GEOMETRY, "past the end");
    let tiny = Disk::new(4);
    let error = block_on(Metadata::open_or_format(tiny.io(), &GEOMETRY, Options::default())).expect_err("no room");
    assert!(error.to_string().contains("no free metadata block"), "{error}");
    assert_eq!(tiny.writes(), 0);
}

#[test]
fn an_empty_device_is_formatted_only_when_asked() {
    let disk = Disk::new(512);
    let error = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect_err("nothing is there");
    assert!(matches!(error, Error::Unformatted));
    let read_only = Options { read_only: true, ..Options::default() };
    let error = block_on(Metadata::open_or_format(disk.io(), &GEOMETRY, read_only)).expect_err("nothing is written");
    assert!(matches!(error, Error::Unformatted));
    assert_eq!(disk.writes(), 0);
    // One byte anywhere in the block makes it somebody's.
    disk.patch(LOCATION, |block| block.0[4095] = 1);
    refused(&disk, &GEOMETRY, "magic is 0");
    let odd = Geometry { data_block: Sectors::new(64), ..GEOMETRY };
    let error = block_on(Metadata::format(Disk::new(512).io(), &odd, Options::default())).expect_err("an odd size");
    assert!(error.to_string().contains("data_block_size is 64 sectors"), "{error}");
}

#[test]
fn needs_check_makes_a_pool_read_only() {
    let disk = pool();
    let mut metadata = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).unwrap();
    block_on(metadata.create_thin(9)).unwrap();
    block_on(metadata.abort()).unwrap();
    block_on(metadata.set_needs_check()).unwrap();
    assert!(metadata.needs_check() && metadata.is_read_only());
    let image = disk.image();
    let contents = audit(&image);
    assert!(contents.needs_check && !contents.devices.contains_key(&9));

    let mut metadata = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).unwrap();
    let before = disk.writes();
    metadata.set_read_only(false);
    assert!(metadata.is_read_only(), "only a check makes it writable");
    assert!(matches!(block_on(metadata.create_thin(9)), Err(Error::ReadOnly)));
    assert!(matches!(block_on(metadata.remove_range(1, 0, 9)), Err(Error::ReadOnly)));
    assert!(matches!(block_on(metadata.alloc_data_block()), Err(Error::ReadOnly)));
    assert!(matches!(block_on(metadata.release_snap()), Err(Error::ReadOnly)));
    assert!(matches!(metadata.set_transaction_id(0, 1), Err(Error::ReadOnly)));
    block_on(metadata.commit()).unwrap_err();
    assert!(block_on(metadata.find(1, 0)).unwrap().is_some(), "it can be read");
    assert_eq!(disk.writes(), before);
    assert!(disk.image() == image);

    change(&disk, |f| f.flags.set(0));
    let mut metadata = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).unwrap();
    block_on(metadata.create_thin(9)).unwrap();
}

#[test]
fn needs_check_leaves_the_rest_of_the_superblock_alone() {
    let disk = pool();
    let before = fields(&disk);
    let mut metadata = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).unwrap();
    block_on(metadata.create_snap(9, 1)).unwrap();
    metadata.set_transaction_id(0, 77).unwrap();
    block_on(metadata.set_needs_check()).unwrap();
    let after = fields(&disk);
    assert_eq!(after.flags.get(), NEEDS_CHECK);
    assert_eq!((after.time.get(), after.trans_id.get()), (before.time.get(), before.trans_id.get()));
    assert_eq!(after.data_mapping_root.get(), before.data_mapping_root.get());
    audit(&disk.image());
}

#[test]
fn bytes_that_nobody_understands_survive_a_commit() {
    let disk = pool();
    change(&disk, |f| {
        f.uuid = *b"sixteen bytes...";
        f.compat_flags.set(0x8421);
        f.flags.set(0x100);
        f.data_space_map_root[100] = 5;
        f.metadata_space_map_root[127] = 6;
    });
    disk.patch(LOCATION, |block| {
        block.0[364..].fill(0xa5);
        let sum = checksum(block, SALT);
        block.0[..4].copy_from_slice(&sum.to_le_bytes());
    });
    let mut metadata = block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).unwrap();
    block_on(metadata.create_thin(9)).unwrap();
    block_on(metadata.commit()).unwrap();
    let after = fields(&disk);
    assert_eq!(after.uuid, *b"sixteen bytes...");
    assert_eq!((after.compat_flags.get(), after.flags.get()), (0x8421, 0x100));
    assert_eq!((after.data_space_map_root[100], after.metadata_space_map_root[127]), (5, 6));
    assert!(disk.image()[364..4096].iter().all(|byte| *byte == 0xa5));
    assert!(audit(&disk.image()).devices.contains_key(&9));
}

/// The root of device `dev`'s own tree.
fn device_root(disk: &Disk, dev: u64) -> u64 {
    let at = fields(disk).data_mapping_root.get();
    let block = read(disk, at);
    let node = Node::read(&block, at).expect("a node");
    let i = (0..node.len()).find(|i| node.key(*i) == dev).expect("the device");
    node.child(i)
}

fn read(disk: &Disk, at: u64) -> Box<Block> {
    let mut block = Block::zeroed();
    block.0.copy_from_slice(&disk.image()[at as usize * 4096..][..4096]);
    block
}

/// The first leaf of device `dev`.
fn first_leaf(disk: &Disk, dev: u64) -> u64 {
    let mut at = device_root(disk, dev);
    loop {
        let block = read(disk, at);
        let node = Node::read(&block, at).expect("a node");
        if node.is_leaf() {
            return at;
        }
        at = node.child(0);
    }
}

fn reseal(disk: &Disk, at: u64, change: impl FnOnce(&mut Block)) {
    disk.patch(at, |block| {
        change(block);
        layout::seal(block, Kind::Node, at);
    });
}

#[test]
fn a_mapping_past_the_data_device_is_found_where_it_is_met() {
    let disk = pool();
    let leaf = first_leaf(&disk, 1);
    // Keys from byte 32, 252 of them, then the values.
    reseal(&disk, leaf, |block| block.0[32 + 252 * 8..][..8].copy_from_slice(&(4000u64 << 24).to_le_bytes()));
    let mut metadata =
        block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("opening walks nothing");
    let expected = "thin device 1, block 0: mapped to data block 4000, but the pool has 4000";
    let error = block_on(metadata.find(1, 0)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    let error = block_on(metadata.leaf(1, 7, &mut Vec::new())).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    let error = block_on(metadata.mapped_range(1, 0, 5)).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    assert!(block_on(metadata.find(1, 1)).is_ok());
    block_on(metadata.remove_range(1, 0, 1)).unwrap_err();
    block_on(metadata.abort()).unwrap();
}

#[test]
fn damage_to_a_node_names_its_block() {
    let disk = pool();
    let leaf = first_leaf(&disk, 1);
    disk.patch(leaf, |block| block.0[2000] ^= 1);
    let mut metadata =
        block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("opening walks nothing");
    let error = block_on(metadata.find(1, 0)).unwrap_err().to_string();
    assert!(error.contains(&format!("block {leaf}")) && error.contains("checksum"), "{error}");
}

#[test]
fn a_node_that_leads_back_to_itself_does_not_hang() {
    let disk = pool();
    let root = device_root(&disk, 1);
    reseal(&disk, root, |block| block.0[32 + 252 * 8..][..8].copy_from_slice(&root.to_le_bytes()));
    let mut metadata =
        block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("opening walks nothing");
    let error = block_on(metadata.find(1, 0)).unwrap_err().to_string();
    assert!(error.contains("btree node"), "{error}");
    block_on(metadata.leaf(1, 0, &mut Vec::new())).unwrap_err();
    block_on(metadata.mapped_range(1, 0, 9)).unwrap_err();
    block_on(metadata.remove_range(1, 0, 9)).unwrap_err();
}

#[test]
fn a_count_that_does_not_add_up_is_found_where_it_is_touched() {
    let disk = pool();
    // The data block that block 599 of device 1 lies in loses its count.
    let contents = audit(&disk.image());
    let data = contents.devices[&1].1[&599].block;
    let root = *SpaceMapRoot::ref_from_prefix(&fields(&disk).data_space_map_root).expect("it is longer").0;
    let index = read(&disk, root.bitmap_root.get());
    let index = Node::read(&index, root.bitmap_root.get()).expect("a node");
    let bitmap = u64::from_le_bytes(index.value(0)[..8].try_into().expect("eight bytes"));
    disk.patch(bitmap, |block| {
        layout::bitmap_set(block, data, 0);
        layout::seal(block, Kind::Bitmap, bitmap);
    });
    let mut metadata =
        block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("opening walks nothing");
    // Shared: unmapping it from all three adds and takes references in turn; the last one is one too many.
    let result = block_on(async {
        metadata.release_snap().await?;
        metadata.remove_range(1, 599, 600).await?;
        metadata.remove_range(2, 599, 600).await
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("reference count") && error.contains(&data.to_string()), "{error}");
    block_on(metadata.abort()).unwrap();
}

#[test]
fn details_that_belie_the_mappings_are_an_error_and_not_a_wrapped_number() {
    let disk = pool();
    let root = fields(&disk).device_details_root.get();
    // Details are 24 bytes, 126 keys before them.
    reseal(&disk, root, |block| block.0[32 + 126 * 8..][..8].copy_from_slice(&3u64.to_le_bytes()));
    let mut metadata =
        block_on(Metadata::open(disk.io(), &GEOMETRY, Options::default())).expect("opening walks nothing");
    let error = block_on(metadata.remove_range(1, 0, 100)).unwrap_err();
    assert!(matches!(error, Error::Details { dev: 1, .. }), "{error}");
    assert!(!error.is_refusal());
}

#[test]
fn what_the_caller_gets_wrong_changes_nothing() {
    let mut pair = Pair::new(512, DATA_BLOCKS, Options::default());
    pair.apply(&Op::CreateThin(1)).unwrap();
    pair.apply(&Op::Commit).unwrap();
    let metadata = &mut pair.metadata;
    let refusals = [
        block_on(metadata.create_thin(1)).unwrap_err(),
        block_on(metadata.create_thin(MAX_DEVICE + 1)).unwrap_err(),
        block_on(metadata.create_snap(2, 3)).unwrap_err(),
        block_on(metadata.create_snap(1, 1)).unwrap_err(),
        block_on(metadata.create_snap(MAX_DEVICE + 1, 1)).unwrap_err(),
        block_on(metadata.delete(5)).err().unwrap(),
        block_on(metadata.insert(1, 0, DATA_BLOCKS)).unwrap_err(),
        block_on(metadata.insert(7, 0, 0)).unwrap_err(),
        block_on(metadata.inc_data(DATA_BLOCKS - 1..DATA_BLOCKS + 1)).unwrap_err(),
        block_on(metadata.dec_data(DATA_BLOCKS..DATA_BLOCKS + 1)).unwrap_err(),
        block_on(metadata.is_shared(DATA_BLOCKS)).unwrap_err(),
        block_on(metadata.release_snap()).unwrap_err(),
        block_on(metadata.resize_data(DATA_BLOCKS - 1)).unwrap_err(),
        block_on(metadata.resize_data((1 << 40) + 1)).unwrap_err(),
        block_on(metadata.resize_metadata(511)).unwrap_err(),
        metadata.set_transaction_id(1, 2).unwrap_err(),
    ];
    assert!(refusals.iter().all(Error::is_refusal), "{refusals:?}");
    assert!(!metadata.is_dirty());
    pair.compare();
}

#[test]
fn the_superblock_is_its_bytes() {
    let disk = pool();
    let block = read(&disk, LOCATION);
    let superblock = Superblock::read(block.clone(), LOCATION).expect("a superblock");
    assert!(superblock.sealed(LOCATION).0 == block.0);
    assert!(matches!(Superblock::read(block, 1), Err(Error::Superblock { .. })));
}
