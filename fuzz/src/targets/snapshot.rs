//! The snapshot's exception store: the bytes are a COW device.

use udm_base::{SECTOR_SIZE, Sectors};
use udm_formats::snapshot::{Batch, Content, Exception, Geometry, Header, Loaded, Merge, Probe, Reader};

/// Parts of a header and of areas.
pub const WORDS: &[&[u8]] = &[
    b"SnAp\x01\0\0\0\x01\0\0\0\x01\0\0\0",
    b"SnAp\0\0\0\0",
    b"\x02\0\0\0\0\0\0\0",
    b"\x22\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
];

/// Reads `data` as a header. What is read is written the same.
pub fn fuzz_header(data: &[u8]) {
    match Header::probe(data) {
        Ok(Probe::Store(header)) => assert_eq!(Header::probe(&header.encode()), Ok(Probe::Store(header))),
        Ok(Probe::Empty) => assert_eq!(data[..4], [0; 4]),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Reads `data` as a device. What can be read is gone on with: exceptions are added, and it is merged.
pub fn fuzz_areas(data: &[u8]) {
    let mut disk = data.to_vec();
    disk.truncate(data.len() / SECTOR_SIZE * SECTOR_SIZE);
    let Some(Loaded { exceptions, mut store }) = load(&disk) else { return };
    let chunks = store.geometry().chunks();
    assert!(exceptions.iter().all(|e| e.new < chunks && !store.geometry().is_metadata(e.new)));
    let new: Vec<u64> = std::iter::from_fn(|| store.allocate().ok()).take(70).collect();
    let unused = exceptions.iter().map(|e| e.old).max().map_or(0, |old| old + 1);
    let more: Vec<Exception> = (unused..).zip(new).map(|(old, new)| Exception { old, new }).collect();
    let mut all = exceptions;
    // Only what an origin can have: the reader refuses the rest.
    if !more.is_empty() && unused < 1 << 32 {
        write(&mut disk, &store.commit(&more));
        all.extend(more);
    }
    let Loaded { exceptions, mut store } = load(&disk).expect("what was written can be read");
    assert_eq!(exceptions, all);
    loop {
        match store.merge(20) {
            Ok(Merge::Done) => break,
            Ok(Merge::Load(mut area)) => {
                while let Some(piece) = area.want() {
                    area.feed(&disk[piece.sector.bytes() as usize..][..piece.sectors.as_len()])
                        .expect("it was read before");
                }
                store.merge_loaded(area).expect("it was full before");
            }
            Ok(Merge::Window(window)) => {
                assert!(all.ends_with(window));
                let len = window.len();
                all.truncate(all.len() - len);
                let batch = store.merge_commit(len);
                write(&mut disk, &batch);
                store.finish(&batch, true);
            }
            Err(error) => panic!("what was read can be merged: {error}"),
        }
    }
    assert!(all.is_empty());
}

fn load(disk: &[u8]) -> Option<Loaded> {
    let Ok(Probe::Store(header)) = Header::probe(disk) else { return None };
    let geometry = Geometry::new(header.chunk, Sectors::in_bytes(disk.len() as u64), 512).ok()?;
    let mut reader = Reader::new(geometry);
    while let Some(piece) = reader.want() {
        reader.feed(&disk[piece.sector.bytes() as usize..][..piece.sectors.as_len()]).ok()?;
    }
    reader.finish().ok()
}

fn write(disk: &mut [u8], batch: &Batch) {
    for write in batch.writes() {
        let place = &mut disk[write.sector.bytes() as usize..][..write.sectors.as_len()];
        match &write.content {
            Content::Zeroes => place.fill(0),
            Content::Bytes(bytes) => place.copy_from_slice(bytes),
        }
    }
}
