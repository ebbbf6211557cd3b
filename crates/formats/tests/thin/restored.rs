//! Metadata that Debian's thin_restore wrote: opened, compared, changed, and found clean.

use std::fmt::Write;

use udm_formats::thin::{BlockTime, Geometry, Mapping, Metadata, Options};
use udm_pdata::block_on;

use crate::audit::{Contents, audit_restored};
use crate::disk::Disk;
use crate::model::{DATA_BLOCK, Op, Pair, State};
use crate::oracle::{thin_check, thin_restore};

const DATA_BLOCKS: u64 = 200_000;

/// A device of the XML: id, snapshot time, and runs of (virtual block, data block, length, time).
type Device<'a> = (u32, u32, &'a [(u64, u64, u64, u32)]);

fn xml(time: u32, devices: &[Device<'_>]) -> String {
    let mut xml = format!(
        r#"<superblock uuid="" time="{time}" transaction="9" flags="0" version="2" data_block_size="128" nr_data_blocks="{DATA_BLOCKS}">"#
    );
    for (dev, snap_time, runs) in devices {
        let mapped: u64 = runs.iter().map(|run| run.2).sum();
        _ = write!(
            xml,
            r#"<device dev_id="{dev}" mapped_blocks="{mapped}" transaction="3" creation_time="0" snap_time="{snap_time}">"#
        );
        for (from, data, length, time) in *runs {
            _ = write!(
                xml,
                r#"<range_mapping origin_begin="{from}" data_begin="{data}" length="{length}" time="{time}"/>"#
            );
        }
        xml.push_str("</device>");
    }
    xml + "</superblock>"
}

/// What the audit found, as the model has it.
fn state(contents: Contents) -> State {
    State {
        time: contents.time,
        trans_id: contents.trans_id,
        data_blocks: contents.data_blocks,
        devices: contents.devices,
        held: contents.held,
    }
}

fn check(time: u32, devices: &[Device<'_>]) {
    let Some(image) = thin_restore(&xml(time, devices), 2048) else { return };
    let contents = audit_restored(&image);
    assert_eq!((contents.time, contents.trans_id), (time, 9));
    for (dev, snap_time, runs) in devices {
        let (details, blocks) = &contents.devices[dev];
        assert_eq!(details.snapshotted_time, *snap_time);
        let expected = runs.iter().flat_map(|(from, data, length, time)| {
            (0..*length).map(move |i| (from + i, BlockTime { block: data + i, time: *time }))
        });
        assert!(blocks.iter().map(|(block, value)| (*block, *value)).eq(expected), "device {dev}");
    }
    assert_eq!(contents.devices.len(), devices.len());

    let disk = Disk::of(&image);
    let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: DATA_BLOCKS };
    let options = Options::default();
    let metadata = block_on(Metadata::open(disk.io(), &geometry, options)).expect("it opens");
    assert_eq!(disk.writes(), 0, "opening writes nothing");
    let state = state(contents);
    let mut pair = Pair { disk, metadata, committed: state.clone(), state, options };
    pair.compare();
    assert_eq!(pair.disk.writes(), 0, "reading writes nothing");

    let mut ops = vec![Op::CreateThin(100), Op::Write(100, 0, 300)];
    for (dev, ..) in devices {
        ops.extend([Op::CreateSnap(dev + 200, *dev), Op::Write(*dev, 0, 400), Op::Remove(*dev, 100, 250), Op::Commit]);
    }
    if let Some((dev, ..)) = devices.first() {
        ops.extend([Op::Delete(*dev, false), Op::ReserveSnap, Op::Commit]);
    }
    ops.extend([Op::GrowData(50_000), Op::Commit]);
    for op in &ops {
        pair.apply(op).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
    pair.compare();
    pair.compare_disk();
    thin_check(&pair.disk.image());
}

#[test]
fn an_empty_pool() {
    check(0, &[]);
}

#[test]
fn a_device_without_mappings() {
    check(0, &[(1, 0, &[])]);
}

#[test]
fn a_tree_of_three_levels() {
    check(0, &[(1, 0, &[(0, 0, 100_000, 0)])]);
}

#[test]
fn scattered_mappings() {
    let runs: Vec<_> = (0..3000).map(|i| (i * 1000, i * 3, 1, 0)).collect();
    check(0, &[(7, 0, &runs)]);
}

#[test]
fn many_references_to_one_block() {
    let shared: &[_] = &[(0, 0, 1000, 0)];
    let devices: Vec<_> = (0..12).map(|dev| (dev, dev + 1, shared)).collect();
    check(12, &devices);
}

#[test]
fn snapshots_that_went_their_own_ways() {
    check(2, &[(1, 2, &[(0, 0, 500, 0), (500, 900, 20, 2)]), (2, 2, &[(0, 0, 300, 0), (300, 600, 200, 1)])]);
}

#[test]
fn shared_is_older_than_the_last_snapshot() {
    let Some(image) = thin_restore(&xml(5, &[(1, 3, &[(0, 10, 1, 2), (1, 20, 1, 3), (2, 30, 1, 4)])]), 1024) else {
        return;
    };
    let geometry = Geometry { data_block: DATA_BLOCK, data_blocks: DATA_BLOCKS };
    let mut metadata =
        block_on(Metadata::open(Disk::of(&image).io(), &geometry, Options::default())).expect("it opens");
    let found = [0, 1, 2, 3].map(|block| block_on(metadata.find(1, block)).expect("a look-up"));
    let mapping = |data, shared| Some(Mapping { data, shared });
    assert_eq!(found, [mapping(10, true), mapping(20, false), mapping(30, false), None]);
}
