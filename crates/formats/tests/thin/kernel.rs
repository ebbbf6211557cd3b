//! Pools that the kernel made (`tests/goldens/thin`): opened, compared with what thin_dump said of them, changed, and
//! found clean.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use udm_base::Sectors;
use udm_formats::thin::superblock::{LOCATION, Superblock};
use udm_formats::thin::{BlockTime, Details, Error, Geometry, Metadata, Options};
use udm_pdata::{BLOCK_SIZE, Block, block_on};

use crate::audit::{Devices, audit};
use crate::disk::Disk;
use crate::model::{Op, Pair, State};
use crate::oracle::thin_check;

fn golden(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/thin").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The devices of thin_dump's XML, whose lines each have one element.
fn devices(xml: &str) -> Devices {
    let mut devices = Devices::new();
    let mut dev = 0;
    for line in xml.lines() {
        let get = |name: &str| -> u64 {
            let value = line.split(&format!(" {name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
        };
        let mut map = |from: u64, data: u64, length: u64| {
            let time = get("time") as u32;
            let (_, blocks) = devices.get_mut(&dev).expect("a device comes first");
            blocks.extend((0..length).map(|i| (from + i, BlockTime { block: data + i, time })));
        };
        match line.trim_start().split(' ').next() {
            Some("<single_mapping") => map(get("origin_block"), get("data_block"), 1),
            Some("<range_mapping") => map(get("origin_begin"), get("data_begin"), get("length")),
            Some("<device") => {
                dev = get("dev_id") as u32;
                let details = Details {
                    mapped_blocks: get("mapped_blocks"),
                    transaction_id: get("transaction"),
                    creation_time: get("creation_time") as u32,
                    snapshotted_time: get("snap_time") as u32,
                };
                devices.insert(dev, (details, BTreeMap::new()));
            }
            _ => {}
        }
    }
    devices
}

fn check(name: &str, expected: Result<(), ()>) {
    let image = udm_sim::golden::unpack(&golden(&format!("{name}.meta.pages.gz"))).expect("an image");
    let mut xml = String::new();
    let packed = golden(&format!("{name}.xml.gz"));
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut xml).expect("the XML can be read");

    let contents = audit(&image);
    assert_eq!(contents.devices, devices(&xml), "{name}");

    let mut block = Block::zeroed();
    block.0.copy_from_slice(&image[..BLOCK_SIZE]);
    let superblock = Superblock::read(block, LOCATION).expect("the kernel's superblock");
    assert!(superblock.sealed(LOCATION).0[..] == image[..BLOCK_SIZE]);
    let data_block: Sectors = superblock.data_block();

    let disk = Disk::of(&image);
    let geometry = Geometry { data_block, data_blocks: contents.data_blocks };
    let options = Options::default();
    let metadata = block_on(Metadata::open(disk.io(), &geometry, options)).expect("it opens");
    assert_eq!(metadata.needs_check(), expected.is_err(), "{name}");
    let state = State {
        time: contents.time,
        trans_id: contents.trans_id,
        data_blocks: contents.data_blocks,
        devices: contents.devices,
        held: contents.held,
    };
    let ids: Vec<u32> = state.devices.keys().copied().collect();
    let mut pair = Pair { disk, metadata, committed: state.clone(), state, options };
    pair.compare();
    assert_eq!(pair.disk.writes(), 0, "reading writes nothing");
    if expected.is_err() {
        assert!(matches!(block_on(pair.metadata.create_thin(9999)), Err(Error::ReadOnly)));
        return;
    }

    let mut ops = vec![Op::CreateThin(9999), Op::Write(9999, 0, 40), Op::SetTransactionId(77)];
    for (i, id) in ids.iter().enumerate() {
        ops.extend([
            Op::CreateSnap(10_000 + i as u32, *id),
            Op::Write(*id, 3, 30),
            Op::Remove(*id, 10, 20),
            Op::Commit,
        ]);
    }
    ops.extend(ids.first().map(|id| Op::Delete(*id, false)));
    ops.extend([Op::ReleaseSnap, Op::Commit, Op::ReserveSnap, Op::GrowData(100), Op::Write(9999, 500, 60), Op::Commit]);
    for op in &ops {
        pair.apply(op).unwrap_or_else(|error| panic!("{name}: {op:?}: {error}"));
    }
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
}

#[test]
fn pools_that_the_kernel_made() {
    for name in ["basic-64k", "basic-1m", "plain-64k", "external-64k", "held-64k", "grown-64k", "full-64k", "deep-64k"]
    {
        check(name, Ok(()));
    }
}

#[test]
fn a_pool_of_the_kernels_that_needs_a_check() {
    check("needs-check-64k", Err(()));
}
