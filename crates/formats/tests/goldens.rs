//! What the kernel wrote (`tests/goldens/thin`, `tests/goldens/snapshot`), read by these formats: every volume has the
//! checksum that the kernel read.

use std::future::ready;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use udm_base::Sectors;
use udm_formats::snapshot::{ChunkSize, Exception, Geometry as CowGeometry, Header, Probe, Reader};
use udm_formats::thin::{Geometry, Metadata, Options};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture, block_on};
use udm_sim::golden::{pattern, unpack};

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

/// The records in a directory, by name.
fn records(name: &str) -> Vec<(String, String)> {
    let text = |path: PathBuf| {
        let stem = path.file_stem()?.to_str()?.to_owned();
        (path.extension()? == "txt").then(|| (stem, std::fs::read_to_string(&path).unwrap()))
    };
    let entries = std::fs::read_dir(directory(name)).unwrap();
    let mut records: Vec<_> = entries.filter_map(|entry| text(entry.unwrap().path())).collect();
    records.sort();
    assert!(records.len() > 5, "there are goldens");
    records
}

fn image(directory_name: &str, name: &str, what: &str) -> Vec<u8> {
    let path = directory(directory_name).join(format!("{name}.{what}.pages.gz"));
    unpack(&std::fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"))).unwrap()
}

/// SHA-256 in hexadecimal, by coreutils' program; nothing where there is none.
fn sha256(bytes: &[u8]) -> Option<String> {
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    child.stdin.take()?.write_all(bytes).ok()?;
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.split(' ').next()?.to_owned())
}

/// The words of the lines that begin with `word`.
fn lines<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    text.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(move |words| words[0] == word)
}

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
    if sha256(&[]).is_none() {
        return println!("SKIP the kernel's pools: there is no sha256sum");
    }
    for (name, text) in records("thin") {
        let created = text.lines().find(|line| line.contains("thin-pool")).unwrap();
        let block: u64 = created.split(' ').nth(10).unwrap().parse().unwrap();
        let status = lines(&text, "status").filter(|words| words[1] == "pool").last().unwrap();
        let data_blocks = status[7].split_once('/').unwrap().1.parse().unwrap();
        let disk = Disk(image("thin", &name, "meta"));
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

        let origin = if text.contains("/dev/mapper/ext") { pattern(9, 0, 10280, 1) } else { Vec::new() };
        let data = if name == "deep-64k" { Vec::new() } else { image("thin", &name, "data") };
        for words in lines(&text, "volume") {
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
            assert_eq!(sha256(&bytes).unwrap(), words[3], "{name}: volume {dev}");
        }
        let given_up = metadata.needs_check();
        // A device that was open when a transaction was given up keeps the count of before in the kernel's memory.
        for words in lines(&text, "status").filter(|words| words[4] == "thin" && !given_up) {
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
    if sha256(&[]).is_none() {
        return println!("SKIP the kernel's stores: there is no sha256sum");
    }
    for (name, text) in records("snapshot") {
        let (origin, cow) = (image("snapshot", &name, "origin"), image("snapshot", &name, "cow"));
        let Some((chunk, exceptions)) = exceptions(&name, &cow) else {
            let last = lines(&text, "status").last().unwrap();
            assert_eq!(last.last(), Some(&"Invalid"), "{name}");
            continue;
        };
        // What the kernel counts: sectors of chunks in use and, of those, of the header and the areas.
        if let Some(words) =
            lines(&text, "status").filter(|words| words[4].starts_with("snap") && words.len() == 7).last()
        {
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
            if let Some(words) = lines(&text, "volume").filter(|words| words[1] == volume).last() {
                // What the origin was before all was merged is on neither device; what the snapshot was, is on both.
                if !(name.starts_with("merged") && volume == "org") {
                    assert_eq!(sha256(bytes).unwrap(), words[3], "{name}: {volume}");
                }
            }
        }
    }
}
