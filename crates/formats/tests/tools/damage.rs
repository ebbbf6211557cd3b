//! Each region of a small pool damaged: the check names block and field, never panics, and says what thin_check's exit
//! code says.

use udm_formats::thin::superblock::{LOCATION, Superblock};
use udm_formats::thin::tools::check::{self, Severity};
use udm_formats::thin::tools::{Error, Xml, repair, restore};
use udm_pdata::node::Node;
use udm_pdata::{BLOCK_SIZE, Block, Kind, layout};

use super::support::{Memory, check, clean, debian, file, has_debian, restored, udm};

/// A pool with every kind of block: two levels of nodes, and counts above two.
fn pool() -> Memory {
    let mut xml = String::from(
        "<superblock uuid=\"\" time=\"3\" transaction=\"2\" version=\"2\" data_block_size=\"128\" nr_data_blocks=\"20000\">",
    );
    for dev in 1..=4 {
        xml.push_str(&format!(
            "<device dev_id=\"{dev}\" mapped_blocks=\"0\" transaction=\"0\" creation_time=\"0\" snap_time=\"1\">\
             <range_mapping origin_begin=\"0\" data_begin=\"5\" length=\"300\" time=\"1\"/></device>"
        ));
    }
    xml.push_str("</superblock>");
    restored(&xml, 128).expect("it fits")
}

fn block(image: &[u8], at: usize) -> Box<Block> {
    let mut block = Block::zeroed();
    block.0.copy_from_slice(&image[at * BLOCK_SIZE..][..BLOCK_SIZE]);
    block
}

/// What a block is, by its checksum.
fn kind(image: &[u8], at: usize) -> Option<Kind> {
    let block = block(image, at);
    [Kind::Node, Kind::Bitmap, Kind::Index].into_iter().find(|kind| layout::check(&block, *kind, at as u64).is_ok())
}

fn used(image: &[u8]) -> Vec<(usize, Kind)> {
    (1..image.len() / BLOCK_SIZE).filter_map(|at| Some((at, kind(image, at)?))).collect()
}

#[test]
fn every_bit_counts() {
    let clean_image = pool().image();
    let blocks = used(&clean_image);
    for expect in [Kind::Node, Kind::Bitmap, Kind::Index] {
        assert!(blocks.iter().any(|(_, kind)| *kind == expect), "the pool has a {expect}");
    }
    let debian_too = has_debian();
    let all = std::iter::once((0, None)).chain(blocks.into_iter().map(|(at, kind)| (at, Some(kind))));
    for (at, kind) in all {
        // Checksum, flags, number, counts, keys, values, and the last byte.
        for byte in [0, 4, 8, 16, 20, 24, 32, 40, 320, 2048, 2100, 4095] {
            let mut image = clean_image.clone();
            image[at * BLOCK_SIZE + byte] ^= 0x10;
            let (outcome, said) = check(&Memory::of(image.clone()));
            assert_eq!(outcome.worst, Some(Severity::Fatal), "block {at} ({kind:?}), byte {byte}");
            let place = format!("block {at}");
            assert!(said.names(&[&place]), "block {at}, byte {byte}: {:?}", said.faults);
            if debian_too && byte == 2048 {
                assert!(!debian(file(&image).path(), "thin_check", &["-q"]).0, "block {at}, byte {byte}");
            }
        }
    }
}

#[test]
fn right_checksums_do_not_help() {
    let clean_image = pool().image();
    let mut found = 0;
    for (at, kind) in used(&clean_image) {
        for byte in (4..40).chain((40..BLOCK_SIZE).step_by(211)) {
            let mut image = clean_image.clone();
            image[at * BLOCK_SIZE + byte] ^= 1;
            let number = image[at * BLOCK_SIZE + 8..][..8].to_vec();
            let mut sealed = block(&image, at);
            layout::seal(&mut sealed, kind, at as u64);
            sealed.0[8..16].copy_from_slice(&number);
            let sum = layout::checksum(&sealed, kind.salt());
            sealed.0[..4].copy_from_slice(&sum.to_le_bytes());
            image[at * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&sealed.0);
            let memory = Memory::of(image);
            let (outcome, _) = check(&memory);
            found += u32::from(!outcome.is_good(false));
            let head = kind == Kind::Node && (4..20).contains(&byte);
            assert!(!head || !outcome.is_good(false), "block {at}, byte {byte} of a node's head");
            // Nobody panics on it.
            let _ = udm(&memory, "thin_dump", &[]);
            let _ = udm(&memory, "thin_ls", &["-o", "EXCLUSIVE"]);
            let _ = udm(&memory, "thin_delta", &["--thin1", "1", "--thin2", "2"]);
        }
    }
    assert!(found > 200, "{found}");
}

/// Changes a node, seals it, and expects a fault with these words.
fn broken(pick: impl Fn(Node<'_>) -> bool, change: impl Fn(&mut Block), words: &[&str]) {
    let mut image = pool().image();
    let found = used(&image).into_iter().filter(|(_, kind)| *kind == Kind::Node).find(|(at, _)| {
        let block = block(&image, *at);
        pick(Node::read(&block, *at as u64).expect("it is a node"))
    });
    let at = found.expect("there is such a node").0;
    let mut block = block(&image, at);
    change(&mut block);
    layout::seal(&mut block, Kind::Node, at as u64);
    image[at * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block.0);
    let (outcome, said) = check(&Memory::of(image));
    assert!(!outcome.is_good(false));
    assert!(said.names(words), "{words:?}: {:?}", said.faults);
}

#[test]
fn what_a_node_says() {
    let leaf = |node: Node<'_>| node.is_leaf() && node.value_size() == 8 && node.len() > 100;
    let inner = |node: Node<'_>| !node.is_leaf();
    broken(leaf, |b| b.0[4..8].copy_from_slice(&9_u32.to_le_bytes()), &["flags is 9"]);
    broken(leaf, |b| b.0[16..20].copy_from_slice(&300_u32.to_le_bytes()), &["nr_entries is 300"]);
    broken(leaf, |b| b.0[20..24].copy_from_slice(&251_u32.to_le_bytes()), &["max_entries is 251"]);
    broken(leaf, |b| b.0[24..28].copy_from_slice(&4_u32.to_le_bytes()), &["is 252"]);
    broken(leaf, |b| b.0[16..20].copy_from_slice(&5_u32.to_le_bytes()), &["nr_entries is 5", "84"]);
    broken(leaf, |b| b.0[40..48].copy_from_slice(&0_u64.to_le_bytes()), &["a key is 0"]);
    // A mapping past the end of the data device.
    let values = 32 + 252 * 8;
    broken(leaf, |b| b.0[values..values + 8].copy_from_slice(&(20_000_u64 << 24).to_le_bytes()), &["data block 20000"]);
    // A child that is not there, one that is its own parent, one that is the superblock.
    for (child, words) in [(1_u64 << 40, "past the end"), (0, "block 0")] {
        broken(inner, |b| b.0[values..values + 8].copy_from_slice(&child.to_le_bytes()), &[words]);
    }
    broken(inner, |b| b.0.copy_within(8..16, values), &["beneath itself"]);
}

#[test]
fn counts_and_leaks() {
    let change = |index: u64, entry: u64, count: u32| {
        let mut image = pool().image();
        let superblock = Superblock::read(block(&image, 0), LOCATION).expect("a superblock");
        let root = &superblock.disk().metadata_space_map_root;
        let index_at = u64::from_le_bytes(root[16..24].try_into().expect("eight bytes")) as usize;
        let index_block = block(&image, index_at);
        let at = layout::index(&index_block).index[index as usize].blocknr.get() as usize;
        let mut bitmap = block(&image, at);
        layout::bitmap_set(&mut bitmap, entry, count);
        layout::seal(&mut bitmap, Kind::Bitmap, at as u64);
        image[at * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&bitmap.0);
        (Memory::of(image), at)
    };
    // A leak: space is lost, and can be found again.
    let (memory, at) = change(0, 100, 1);
    let (outcome, said) = check(&memory);
    assert_eq!(outcome.worst, Some(Severity::NonFatal));
    assert!(
        said.names(&[&format!("block {at}"), "metadata block 100 is 1, expected 0", "leaked"]),
        "{:?}",
        said.faults
    );
    assert!(outcome.is_good(true) && !outcome.is_good(false));
    if has_debian() {
        let image = file(&memory.image());
        assert!(!debian(image.path(), "thin_check", &["-q"]).0);
        assert!(debian(image.path(), "thin_check", &["-q", "--ignore-non-fatal-errors"]).0);
    }
    check::mend(&memory.io(), &outcome.leaks).expect("it can be mended");
    clean(&memory);
    if has_debian() {
        assert!(debian(file(&memory.image()).path(), "thin_check", &["-q"]).0);
    }
    // A block in use that is said to be free.
    let (memory, _) = change(0, 1, 0);
    let (outcome, said) = check(&memory);
    assert_eq!(outcome.worst, Some(Severity::Fatal));
    assert!(said.names(&["metadata block 1 is 0, expected 1"]), "{:?}", said.faults);
    // A count that nobody has in the tree.
    let (memory, _) = change(0, 1, 3);
    assert!(check(&memory).1.names(&["3 or more"]));
}

#[test]
fn needs_check() {
    let memory = pool();
    let mut image = memory.image();
    let mut superblock = Superblock::read(block(&image, 0), LOCATION).expect("a superblock");
    superblock.disk_mut().flags.set(1);
    image[..BLOCK_SIZE].copy_from_slice(&superblock.sealed(LOCATION).0);
    let memory = Memory::of(image);
    assert!(check(&memory).0.needs_check);
    assert!(check::clear_needs_check(&memory.io()).expect("it can be cleared"));
    assert!(!check(&memory).0.needs_check);
    assert!(!check::clear_needs_check(&memory.io()).expect("nothing to do"));
    clean(&memory);
}

#[test]
fn cut_short() {
    let image = pool().image();
    let blocks = image.len() / BLOCK_SIZE;
    for keep in (1..20).chain([blocks - 1]) {
        let memory = Memory::of(image[..keep * BLOCK_SIZE].to_vec());
        let (outcome, said) = check(&memory);
        assert!(!outcome.is_good(true), "{keep} blocks");
        assert!(said.names(&["nr_blocks is 128"]), "{:?}", said.faults);
    }
    assert!(check(&Memory::new(1)).1.names(&["zeroes"]));
}

#[test]
fn what_is_left_is_repaired() {
    let whole = udm(&pool(), "thin_dump", &[]).expect("it dumps");
    // Whatever happens to space maps does not matter.
    for (at, kind) in used(&pool().image()) {
        let mut image = pool().image();
        image[at * BLOCK_SIZE + 100] ^= 1;
        let from = Memory::of(image);
        let to = Memory::new(128);
        match repair::repair(&from.io(), &to.io(), restore::Overrides::default(), &mut ()) {
            Ok((_, lost)) => {
                clean(&to);
                let dumped = udm(&to, "thin_dump", &[]).expect("it dumps");
                assert!(kind == Kind::Node || lost.is_empty() && dumped == whole, "block {at}");
                assert!(lost.is_empty() == (dumped == whole), "block {at}: {lost:?}");
            }
            // Without the only root there is nothing.
            Err(Error::Refused(_)) => assert_eq!(kind, Kind::Node),
            Err(error) => panic!("block {at}: {error}"),
        }
    }
    // Without a superblock.
    let mut image = pool().image();
    image[..BLOCK_SIZE].fill(0);
    let from = Memory::of(image);
    let mut out = Vec::new();
    let overrides = restore::Overrides { transaction: Some(2), data_block_size: Some(128), data_blocks: Some(20_000) };
    assert!(repair::dump(&from.io(), restore::Overrides::default(), &mut Xml(&mut out), &mut ()).is_err());
    let lost = repair::dump(&from.io(), overrides, &mut Xml(&mut out), &mut ()).expect("the roots are found");
    assert!(lost.is_empty());
    let dumped = String::from_utf8(out).expect("text");
    assert_eq!(dumped.split_once('\n').map(|(_, rest)| rest), whole.split_once('\n').map(|(_, rest)| rest));
}

/// What thin_repair makes of an image, dumped; nothing when it gives up.
fn repaired_by_debian(image: &[u8], args: &[&str]) -> Option<String> {
    let (input, output) = (file(image), file(&vec![0; image.len()]));
    let output_name = output.path().to_str().expect("text");
    let (ok, _) = debian(input.path(), "thin_repair", &[args, &["-o", output_name, "-i"]].concat());
    let memory = Memory::of(std::fs::read(output.path()).expect("the image can be read"));
    ok.then(|| udm(&memory, "thin_dump", &[]).expect("it dumps"))
}

/// The same by udm.
fn repaired(image: Vec<u8>, overrides: restore::Overrides) -> Option<String> {
    let (from, to) = (Memory::of(image), Memory::new(128));
    repair::repair(&from.io(), &to.io(), overrides, &mut ()).ok()?;
    Some(udm(&to, "thin_dump", &[]).expect("it dumps"))
}

/// The lines of a dump that are mappings, and their devices.
fn content(dump: &str) -> Vec<&str> {
    dump.lines().filter(|line| line.contains("device dev_id") || line.contains("mapping ")).collect()
}

/// Whatever block is damaged, udm gives back what thin_repair gives back. Where that gives back an empty pool, udm
/// refuses.
#[test]
fn as_much_is_repaired_as_by_thin_repair() {
    if !has_debian() {
        return;
    }
    let clean_image = pool().image();
    let (mut partly, mut refused) = (0, 0);
    for (at, kind) in used(&clean_image) {
        for byte in [100, 2048] {
            let mut image = clean_image.clone();
            image[at * BLOCK_SIZE + byte] ^= 1;
            let what = format!("block {at}, {kind}, byte {byte}");
            let theirs = repaired_by_debian(&image, &[]);
            match repaired(image, restore::Overrides::default()) {
                Some(ours) => {
                    partly += u32::from(kind == Kind::Node);
                    assert_eq!(Some(content(&ours)), theirs.as_deref().map(content), "{what}");
                }
                None => {
                    refused += 1;
                    assert!(theirs.is_none_or(|dump| content(&dump).is_empty()), "{what}: there is something left");
                }
            }
        }
    }
    assert!(partly > 10 && refused > 0, "{partly} {refused}");
    // Without a superblock, when the same is told of it.
    let mut image = clean_image;
    image[..BLOCK_SIZE].fill(0);
    let told = ["--transaction-id", "2", "--data-block-size", "128", "--nr-data-blocks", "20000"];
    let overrides = restore::Overrides { transaction: Some(2), data_block_size: Some(128), data_blocks: Some(20_000) };
    let theirs = repaired_by_debian(&image, &told).expect("it finds the roots");
    let ours = repaired(image, overrides).expect("the roots are found");
    assert_eq!(content(&ours), content(&theirs));
}
