//! What the kernel wrote (`tests/goldens/thin`, `tests/goldens/snapshot`), read by these formats: every volume has the
//! checksum that the kernel read.

use std::future::ready;
use std::sync::Arc;
use udm_base::Sectors;
use udm_formats::snapshot::{ChunkSize, Exception, Geometry as CowGeometry, Header, Probe, Reader};
use udm_formats::thin::{Geometry, Metadata, Options};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture, block_on};
use udm_sim::golden::{Record, pattern, sha256};

/// Metadata that can be read only.
struct Disk(Vec<u8>);

impl BlockIo for Disk {
    fn blocks(&self) -> u64 {
        (self.0.len() / BLOCK_SIZE) as u64
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let bytes = self.0.get(at as usize * BLOCK_SIZE..).and_then(|bytes| bytes.get(..BLOCK_SIZE));
        Box::pin(ready(bytes.ok_or(IoError::PastEnd).map(|bytes| {
            into.0.copy_from_slice(bytes);
            into
        })))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        panic!("reading wrote {:?}", blocks.iter().map(|(at, _)| *at).collect::<Vec<_>>())
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        panic!("reading flushed")
    }

    fn write_fua(&self, at: u64, _: Box<Block>) -> IoFuture<'_, Box<Block>> {
        panic!("reading wrote {at}")
    }
}

#[test]
fn thin_pools_of_the_kernel() {
    for record in Record::all("thin") {
        let name = &record.name;
        let created = record.text.lines().find(|line| line.contains("thin-pool")).unwrap();
        let block: u64 = created.split(' ').nth(10).unwrap().parse().unwrap();
        let status = record.lines("status").rfind(|words| words[1] == "pool").unwrap();
        let data_blocks = status[7].split_once('/').unwrap().1.parse().unwrap();
        let disk = Disk(record.image("meta").expect("a pool has metadata"));
        let geometry = Geometry { data_block: Sectors::new(block), data_blocks };
        let options = Options { read_only: true, ..Options::default() };
        let mut metadata = block_on(Metadata::open(Arc::new(disk), &geometry, options))
            .unwrap_or_else(|e| panic!("{name} does not open: {e}"));

        // Transaction, used data blocks, metadata snapshot, needs_check: as the kernel's status has it.
        assert_eq!(metadata.transaction_id(), status[5].parse::<u64>().unwrap(), "{name}");
        let used = metadata.data_blocks() - metadata.data_free();
        assert_eq!(format!("{used}/{data_blocks}"), status[7], "{name}");
        assert_eq!(metadata.snap_root().map_or("-".into(), |root| root.to_string()), status[8], "{name}");
        assert_eq!(metadata.needs_check(), status.contains(&"needs_check"), "{name}");

        let origin = if record.text.contains("/dev/mapper/ext") { pattern(9, 0, 10280, 1) } else { Vec::new() };
        let data = record.image("data").unwrap_or_default();
        assert_eq!(data.is_empty(), name == "deep-64k");
        for words in record.lines("volume") {
            let (dev, sectors): (u32, usize) = (words[1].parse().unwrap(), words[2].parse().unwrap());
            let mut bytes = origin.clone();
            bytes.resize(sectors * 512, 0);
            let (length, mut at) = (block as usize * 512, 0);
            while let Some(run) = block_on(metadata.mapped_range(dev, at, u64::MAX)).unwrap() {
                for i in 0..run.to - run.from {
                    let (to, from) = ((run.from + i) as usize * length, (run.data + i) as usize * length);
                    let part = length.min(bytes.len() - to);
                    bytes[to..to + part].copy_from_slice(&data[from..from + part]);
                }
                at = run.to;
            }
            assert_eq!(sha256(&bytes), words[3], "{name}: volume {dev}");
        }
        let given_up = metadata.needs_check();
        // A device that was open when a transaction was given up keeps the count of before in the kernel's memory.
        for words in record.lines("status").filter(|words| words[4] == "thin" && !given_up) {
            let details = block_on(metadata.details(words[1][1..].parse().unwrap())).unwrap();
            assert_eq!((details.mapped_blocks * block).to_string(), words[5], "{name}: {words:?}");
        }
    }
}

/// The exceptions of a COW device; nothing when it is invalid.
fn exceptions(name: &str, cow: &[u8]) -> Option<(ChunkSize, Vec<Exception>)> {
    let Probe::Store(header) = Header::probe(cow).unwrap() else { panic!("{name}: no header") };
    if !header.valid {
        return None;
    }
    let geometry = CowGeometry::new(header.chunk, Sectors::in_bytes(cow.len() as u64), 512).unwrap();
    let mut reader = Reader::new(geometry);
    while let Some(piece) = reader.want() {
        let from = piece.sector.get() as usize * 512;
        reader.feed(&cow[from..from + piece.sectors.bytes() as usize]).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    Some((header.chunk, reader.finish().unwrap_or_else(|e| panic!("{name}: {e}")).exceptions))
}

#[test]
fn exception_stores_of_the_kernel() {
    for record in Record::all("snapshot") {
        let name = &record.name;
        let image = |what: &str| record.image(what).unwrap_or_else(|| panic!("{name}: no {what}"));
        let (origin, cow) = (image("origin"), image("cow"));
        let Some((chunk, exceptions)) = exceptions(name, &cow) else {
            let last = record.lines("status").next_back().unwrap();
            assert_eq!(last.last(), Some(&"Invalid"), "{name}");
            continue;
        };
        // What the kernel counts: sectors of chunks in use and, of those, of the header and the areas.
        if let Some(words) = record.lines("status").rfind(|words| words[4].starts_with("snap") && words.len() == 7) {
            let (used, metadata) = (words[5].split_once('/').unwrap().0, words[6]);
            let chunks = (used.parse::<u64>().unwrap() - metadata.parse::<u64>().unwrap()) / chunk.sectors().get();
            assert_eq!(exceptions.len() as u64, chunks, "{name}");
        }
        let mut snapshot = origin.clone();
        let length = chunk.sectors().bytes() as usize;
        for exception in &exceptions {
            let (to, from) = (exception.old as usize * length, exception.new as usize * length);
            let part = length.min(snapshot.len() - to);
            snapshot[to..to + part].copy_from_slice(&cow[from..from + part]);
        }
        for (volume, bytes) in [("org", &origin), ("snap", &snapshot), ("base", &origin), ("merge", &origin)] {
            if let Some(words) = record.lines("volume").rfind(|words| words[1] == volume) {
                // What the origin was before all was merged is on neither device; what the snapshot was, is on both.
                if !(name.starts_with("merged") && volume == "org") {
                    assert_eq!(sha256(bytes), words[3], "{name}: {volume}");
                }
            }
        }
    }
}
