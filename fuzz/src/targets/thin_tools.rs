//! The tools for a thin pool's metadata: XML, and whole images with bytes changed.

use std::sync::{Arc, OnceLock};

use udm_formats::thin::superblock::{LOCATION, Superblock};
use udm_formats::thin::tools::check::{self, Depth, Fault, Listener, Severity};
use udm_formats::thin::tools::{Progress, View, Which, Xml, dump, ls, repair, restore};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, Kind, Memory, layout};

/// Words of dumps.
pub const WORDS: &[&[u8]] = &[
    b"<superblock ",
    b"</superblock>",
    b"<device ",
    b"</device>",
    b"<single_mapping ",
    b"<range_mapping ",
    b"length=\"",
    b"/>",
    b"\"18446744073709551615\"",
];

const BLOCKS: usize = 64;

fn device(image: Vec<u8>) -> Arc<dyn BlockIo> {
    Memory::of(image).io()
}

struct Silent;

impl Progress for Silent {
    fn at(&mut self, _: u64, _: u64) {}
}

impl Listener for Silent {
    fn stage(&mut self, _: &str) {}

    fn fault(&mut self, fault: &Fault) {
        assert!(!fault.text.is_empty());
    }

    fn head(&mut self, _: u64, _: u64) {}
}

fn is_good(io: &Arc<dyn BlockIo>) -> bool {
    let options = check::Options { which: Which::Main, depth: Depth::All, ignore_non_fatal: false };
    let outcome = check::check(io, options, &mut Silent).expect("damage is no error");
    assert_eq!(outcome.is_good(false), outcome.worst.is_none_or(|worst| worst == Severity::Note));
    outcome.is_good(false)
}

fn dumped(io: &Arc<dyn BlockIo>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let view = View::open(io.clone(), Which::Main).ok()?;
    let done = dump::dump(&view, &dump::Options::default(), &mut Xml(&mut out), &mut ());
    let fields = ["DEV".parse().expect("a field"), "EXCLUSIVE".parse().expect("a field")];
    let _ = ls::ls(&view, &fields, true, std::io::sink(), &mut ());
    done.is_ok().then_some(out)
}

fn restored(xml: &[u8]) -> Option<Arc<dyn BlockIo>> {
    let io = device(vec![0; BLOCKS * BLOCK_SIZE]);
    restore::restore(&io, &mut &*xml, restore::Overrides::default(), &mut ()).ok()?;
    Some(io)
}

/// What can be restored is clean, and its dump is restored to the same dump.
pub fn fuzz_xml(data: &[u8]) {
    let Some(io) = restored(data) else { return };
    assert!(is_good(&io), "what was restored is clean");
    let first = dumped(&io).expect("and can be dumped");
    let again = restored(&first).and_then(|io| dumped(&io));
    assert_eq!(again.as_deref(), Some(&first[..]), "and dumps to the same again");
}

/// An image, and its blocks with what each is.
type Image = (Vec<u8>, Vec<(usize, Kind)>);

/// A small pool with a device whose mappings take two levels, and shared blocks.
fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let mut xml = String::from(
            "<superblock uuid=\"\" time=\"1\" transaction=\"1\" data_block_size=\"128\" nr_data_blocks=\"1000\">",
        );
        for dev in 0..4 {
            xml.push_str(&format!(
                "<device dev_id=\"{dev}\" mapped_blocks=\"1\" transaction=\"1\" creation_time=\"0\" snap_time=\"1\">\
                 <range_mapping origin_begin=\"0\" data_begin=\"5\" length=\"300\" time=\"0\"/></device>"
            ));
        }
        xml.push_str("</superblock>");
        let io = restored(xml.as_bytes()).expect("this is a pool");
        let mut image = Vec::new();
        let mut kinds = Vec::new();
        for at in 0..BLOCKS {
            let block = udm_pdata::block_on(io.read(at as u64, Block::zeroed())).expect("memory");
            let all = [Kind::Node, Kind::Bitmap, Kind::Index];
            let kind = all.into_iter().find(|kind| layout::check(&block, *kind, at as u64).is_ok());
            kinds.extend(kind.map(|kind| (at, kind)));
            image.extend_from_slice(&block.0);
        }
        (image, kinds)
    })
}

/// Every five bytes of the input change a byte: which block, where (two bytes), to what, and whether the checksum is
/// made right.
pub fn fuzz_check(data: &[u8]) {
    let (clean, kinds) = image();
    let mut image = clean.clone();
    for change in data.chunks_exact(5).take(64) {
        let (at, kind) = match usize::from(change[0]) % (kinds.len() + 1) {
            0 => (0, None),
            n => (kinds[n - 1].0, Some(kinds[n - 1].1)),
        };
        let place = at * BLOCK_SIZE + usize::from(u16::from_le_bytes([change[1], change[2]])) % BLOCK_SIZE;
        image[place] = change[3];
        if change[4] % 4 == 0 {
            continue;
        }
        let mut block = Block::zeroed();
        block.0.copy_from_slice(&image[at * BLOCK_SIZE..][..BLOCK_SIZE]);
        match kind {
            Some(kind) => layout::seal(&mut block, kind, at as u64),
            None => {
                if let Ok(superblock) = Superblock::read(block.clone(), LOCATION) {
                    block = superblock.sealed(LOCATION);
                } else {
                    let sum = layout::checksum(&block, udm_formats::thin::superblock::SALT);
                    block.0[..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }
        image[at * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block.0);
    }
    let io = device(image);
    let good = is_good(&io);
    let dump = dumped(&io);
    assert!(!good || dump.is_some(), "what is clean can be dumped");
    let _ = repair::dump(&io, restore::Overrides::default(), &mut Xml(std::io::sink()), &mut ());
}
