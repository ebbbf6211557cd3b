//! Devices on which something is wrong: the error, and its place.

use super::{Disk, allocate, format, geometry};
use udm_formats::snapshot::{ErrorKind, Exception};

/// A store of 40 exceptions on 100 chunks of one sector: area 0 in chunk 1 is full, area 1 in chunk 34 has 8.
fn disk() -> Disk {
    let (mut store, mut disk) = format(geometry(1, 100), 0);
    let all: Vec<Exception> = (0..40).map(|old| allocate(&mut store, old)).collect();
    disk.write(&store.commit(&all));
    disk
}

fn set(disk: &mut Disk, chunk: usize, entry: usize, old: u64, new: u64) {
    let entry = &mut disk.bytes[chunk * 512 + entry * 16..][..16];
    entry[..8].copy_from_slice(&old.to_le_bytes());
    entry[8..].copy_from_slice(&new.to_le_bytes());
}

fn check(spoil: impl FnOnce(&mut Disk), kind: ErrorKind, chunk: u64, text: &str) {
    let mut disk = disk();
    spoil(&mut disk);
    let error = disk.load().unwrap_err();
    assert_eq!((error.kind, error.chunk), (kind, chunk), "{error}");
    assert_eq!(error.to_string(), text);
}

#[test]
fn each_with_its_place() {
    use ErrorKind::{Corrupt, Truncated};
    let text = "chunk 1, entry 3 of area 0, new_chunk: found 100, and the device ends after 100 chunks";
    check(|d| set(d, 1, 3, 500, 100), Corrupt, 1, text);
    let text =
        format!("chunk 34, entry 8 of area 1, new_chunk: found {}, and the device ends after 100 chunks", u64::MAX);
    check(|d| set(d, 34, 8, 500, u64::MAX), Corrupt, 34, &text);
    let text = "chunk 1, entry 0 of area 0, new_chunk: found 34, where an area lies, expected a chunk of data";
    check(|d| set(d, 1, 0, 500, 34), Corrupt, 1, text);
    let text = "chunk 34, entry 2 of area 1, old_chunk: found 7, which entry 7 of area 0 has too";
    check(|d| set(d, 34, 2, 7, 37), Corrupt, 34, text);
    let text = "chunk 34, entry 2 of area 1, new_chunk: found 36, which entry 1 of area 1 has too";
    check(|d| set(d, 34, 2, 7777, 36), Corrupt, 34, text);
    let text = "chunk 34, the device's size: area 0 is full and the device ends before area 1, after 34 chunks: it was \
                cut short";
    let shorten = |d: &mut Disk| {
        *d = {
            let mut short = Disk::new(geometry(1, 34), 0);
            short.bytes.copy_from_slice(&d.bytes[..34 * 512]);
            short
        }
    };
    check(shorten, Truncated, 34, text);
}

#[test]
fn an_old_chunk_past_any_device() {
    let (mut store, mut disk) = format(geometry(16, 10), 0);
    let one = allocate(&mut store, 1);
    disk.write(&store.commit(&[one]));
    set(&mut disk, 16, 0, (1 << 51) - 1, 2);
    assert!(disk.load().is_ok());
    set(&mut disk, 16, 0, 1 << 51, 2);
    let error = disk.load().unwrap_err();
    assert_eq!(error.field, "entry 0 of area 0, old_chunk");
}
