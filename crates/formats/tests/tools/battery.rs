//! Pools of all shapes: udm's tools and Debian's print the same of the same metadata, whoever wrote them.

use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::prelude::*;
use udm_base::Sectors;
use udm_formats::thin::tools::{Which, size};
use udm_formats::thin::{Geometry, Metadata, Options};
use udm_pdata::block_on;

use super::support::{Memory, check_of, clean, debian, debian_restored, file, has_debian, restored, udm};

const FIELDS: &str = "DEV,MAPPED_BLOCKS,EXCLUSIVE_BLOCKS,SHARED_BLOCKS,MAPPED_SECTORS,EXCLUSIVE_SECTORS,SHARED_SECTORS,\
MAPPED_BYTES,EXCLUSIVE_BYTES,SHARED_BYTES,MAPPED,EXCLUSIVE,SHARED,TRANSACTION,CREATE_TIME,SNAP_TIME";

/// Compares everything that prints. `rmap` of shared blocks is in no order with Debian's.
fn same(memory: &Memory, devices: &[u32], snap: bool, shares_leaves: bool) {
    if !has_debian() {
        return;
    }
    let image = file(&memory.image());
    let m: &[&str] = if snap { &["-m"] } else { &[] };
    let compare = |tool: &str, args: &[&str]| {
        let args: Vec<&str> = args.iter().chain(m).copied().collect();
        let (ok, expect) = debian(image.path(), tool, &args);
        let found = udm(memory, tool, &args).unwrap_or_else(|error| panic!("{tool} {args:?}: {error}"));
        assert!(ok, "{tool} {args:?} failed");
        assert_eq!(found, expect, "{tool} {args:?}");
    };
    assert!(debian(image.path(), "thin_check", m).0, "thin_check");
    compare("thin_dump", &[]);
    compare("thin_dump", &["-f", "human_readable"]);
    compare("thin_dump", &["--skip-mappings"]);
    compare("thin_ls", &[]);
    compare("thin_ls", &["-o", FIELDS]);
    compare("thin_ls", &["--no-headers", "-o", "DEV,SHARED"]);
    if let [first, .., last] = devices {
        let (first, last) = (first.to_string(), last.to_string());
        compare("thin_dump", &["--dev-id", &last]);
        // Debian's reads behind the end of a device without mappings.
        let is_mapped =
            |dev: &str| udm(memory, "thin_dump", &["--dev-id", dev]).expect("it dumps").contains("mapping ");
        if is_mapped(&first) && is_mapped(&last) {
            compare("thin_delta", &["--thin1", &first, "--thin2", &last]);
            compare("thin_delta", &["--thin1", &last, "--thin2", &first, "--verbose"]);
        }
    }
    if !snap {
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let region = ["--region", "3..1000000"];
        let (ok, expect) = debian(image.path(), "thin_rmap", &region);
        assert!(ok);
        let (found, expect) = (sorted(udm(memory, "thin_rmap", &region).expect("rmap")), sorted(expect));
        if shares_leaves {
            // Debian's tells of a leaf that several devices share for the first of them only.
            let missing: Vec<_> = expect.iter().filter(|line| !found.contains(line)).collect();
            assert!(missing.is_empty(), "{missing:?}");
        } else {
            assert!(found == expect, "rmap");
        }
    }
}

type Model = BTreeMap<u32, BTreeMap<u64, (u64, u32)>>;

/// As thin_dump writes it.
fn xml(model: &Model) -> String {
    let mut text = String::from(
        "<superblock uuid=\"\" time=\"9\" transaction=\"7\" flags=\"0\" version=\"2\" data_block_size=\"128\" \
         nr_data_blocks=\"40000\">\n",
    );
    for (dev, blocks) in model {
        let mapped = blocks.len();
        let _ = writeln!(
            text,
            "  <device dev_id=\"{dev}\" mapped_blocks=\"{mapped}\" transaction=\"3\" creation_time=\"1\" snap_time=\"2\">"
        );
        let mut runs: Vec<(u64, u64, u32, u64)> = Vec::new();
        for (block, (data, time)) in blocks {
            match runs.last_mut() {
                Some((b, d, t, len)) if *b + *len == *block && *d + *len == *data && t == time => *len += 1,
                _ => runs.push((*block, *data, *time, 1)),
            }
        }
        for (block, data, time, len) in runs {
            let _ = match len {
                1 => writeln!(
                    text,
                    "    <single_mapping origin_block=\"{block}\" data_block=\"{data}\" time=\"{time}\"/>"
                ),
                _ => writeln!(
                    text,
                    "    <range_mapping origin_begin=\"{block}\" data_begin=\"{data}\" length=\"{len}\" time=\"{time}\"/>"
                ),
            };
        }
        text.push_str("  </device>\n");
    }
    text.push_str("</superblock>\n");
    text
}

fn models() -> impl Strategy<Value = Model> {
    let run = (0_u64..3000, 0_u64..39_000, 1_u64..400, 0_u32..3);
    let device = prop::collection::vec(run, 0..12).prop_map(|runs| {
        let mut blocks = BTreeMap::new();
        for (block, data, len, time) in runs {
            blocks.extend((0..len).map(|i| (block * 7 + i, (data + i, time))));
        }
        blocks
    });
    prop::collection::btree_map(prop_oneof![0_u32..6, 0_u32..0xff_ffff], device, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pools_of_all_shapes(model in models()) {
        let expect = xml(&model);
        let devices: Vec<u32> = model.keys().copied().collect();
        let memory = restored(&expect, 1024).expect("it fits");
        clean(&memory);
        prop_assert_eq!(&udm(&memory, "thin_dump", &[]).expect("it dumps"), &expect);
        same(&memory, &devices, false, false);
        if has_debian() {
            let theirs = debian_restored(&expect, 1024);
            clean(&theirs);
            prop_assert_eq!(&udm(&theirs, "thin_dump", &[]).expect("it dumps"), &expect);
            same(&theirs, &devices, false, false);
        }
    }
}

#[test]
fn a_live_pools_snapshot() {
    let memory = Memory::new(1024);
    let g = Geometry { data_block: Sectors::new(128), data_blocks: 5000 };
    block_on(async {
        let mut pool = Metadata::format(memory.io(), &g, Options::default()).await.expect("it formats");
        pool.create_thin(1).await.expect("a thin");
        for block in 0..700 {
            let data = pool.alloc_data_block().await.expect("it allocates").expect("there is room");
            pool.insert(1, block * 2, data).await.expect("it maps");
        }
        pool.create_snap(2, 1).await.expect("a snapshot");
        pool.commit().await.expect("it commits");
        pool.reserve_snap().await.expect("a metadata snapshot");
        for block in 0..300 {
            let data = pool.alloc_data_block().await.expect("it allocates").expect("there is room");
            pool.insert(2, block, data).await.expect("it maps");
        }
        pool.commit().await.expect("it commits");
    });
    clean(&memory);
    assert!(check_of(&memory, Which::Held).0.is_good(false));
    same(&memory, &[1, 2], false, true);
    same(&memory, &[1, 2], true, true);
    assert_ne!(udm(&memory, "thin_dump", &["-m"]).expect("dump"), udm(&memory, "thin_dump", &[]).expect("dump"));
}

#[test]
fn no_snapshot_is_held() {
    let memory = restored(&xml(&Model::new()), 64).expect("it fits");
    let error = udm(&memory, "thin_dump", &["-m"]).expect_err("there is none").to_string();
    assert!(error.contains("no metadata snapshot"), "{error}");
}

#[test]
fn sizes() {
    for (block, pool, thins, unit) in [
        ("64k", "1t", "1000", "s"),
        ("128", "10g", "3", "g"),
        ("1m", "100t", "1k", "M"),
        ("64K", "7T", "1", "b"),
        ("512k", "300G", "12", "kibi"),
    ] {
        let parse = |text: &str| text.parse::<size::Size>().expect("a size");
        let unit_of: size::Unit = unit.parse().expect("a unit");
        let found = size::metadata_size(parse(block), parse(pool), parse(thins), unit_of, size::Form::Full);
        if !has_debian() {
            continue;
        }
        let args = ["-b", block, "-s", pool, "-m", thins, "-u", unit];
        let output = std::process::Command::new("thin_metadata_size").args(args).output().expect("it runs");
        match found {
            Ok(line) => assert_eq!(format!("{line}\n"), String::from_utf8_lossy(&output.stdout), "{args:?}"),
            Err(error) => assert!(!output.status.success(), "{args:?}: {error}"),
        }
    }
}
