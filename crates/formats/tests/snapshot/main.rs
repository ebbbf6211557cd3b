//! The exception store, at the boundary of the library: against a model of the kernel's rules, byte for byte, and
//! against power cuts and broken devices.

mod bad_input;
mod disk;
mod model;

use disk::Disk;
use model::Kernel;
use proptest::prelude::*;
use udm_base::Sectors;
use udm_formats::snapshot::{ChunkSize, ErrorKind, Exception, Geometry, Header, Merge, Probe, Store, runs};

/// A chunk of 1 sector has 32 entries, so that few exceptions fill areas; one of 16 has blocks smaller than it.
fn geometry(chunk: u64, chunks: u64) -> Geometry {
    Geometry::new(ChunkSize::new(Sectors::new(chunk)).unwrap(), Sectors::new(chunk * chunks), 512).unwrap()
}

/// A new store on a device with `noise` all over it.
fn format(geometry: Geometry, noise: u8) -> (Store, Disk) {
    let mut disk = Disk::new(geometry, noise);
    let (mut store, batch) = Store::format(geometry);
    disk.write(&batch);
    store.finish(&batch, true);
    (store, disk)
}

fn allocate(store: &mut Store, old: u64) -> Exception {
    Exception { old, new: store.allocate().expect("room") }
}

#[test]
fn a_new_store() {
    let geometry = geometry(16, 100);
    let (store, disk) = format(geometry, 0xaa);
    assert_eq!(store.usage().to_string(), "32/1600 32", "as the kernel shows a new snapshot");
    assert_eq!(Header::probe(&disk.bytes), Ok(Probe::Store(Header { valid: true, chunk: geometry.chunk() })));
    assert!(disk.bytes[16..2 * 8192].iter().all(|b| *b == 0));
    assert!(disk.bytes[2 * 8192..].iter().all(|b| *b == 0xaa), "nothing else is touched");
    assert!(disk.load().unwrap().exceptions.is_empty());
}

#[test]
fn an_invalid_store() {
    let (mut store, mut disk) = format(geometry(16, 100), 0);
    let batch = store.invalidate();
    disk.write(&batch);
    store.finish(&batch, true);
    assert!(store.is_poisoned());
    assert!(matches!(Header::probe(&disk.bytes), Ok(Probe::Store(Header { valid: false, .. }))));
}

#[test]
fn one_block_is_written_of_a_large_area() {
    let (mut store, mut disk) = format(geometry(1024, 10), 0);
    for n in 0..3 {
        let exception = allocate(&mut store, n);
        let batch = store.commit(&[exception]);
        assert!(batch.first.is_empty());
        assert_eq!((batch.last.sector.get(), batch.last.sectors.get()), (1024, 8));
        disk.write(&batch);
        store.finish(&batch, true);
    }
    assert_eq!(disk.load().unwrap().exceptions.len(), 3);
}

#[test]
fn zeroes_in_an_area_that_was_come_past_hurt_nobody() {
    for together in [1, 7, 32, 33, 50] {
        let (mut store, mut disk) = format(geometry(1, 200), 0xaa);
        assert_eq!(store.area_behind(), None, "the first area is in use");
        let (mut pending, mut made, mut areas) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = 2;
        for old in 0..150 {
            let exception = allocate(&mut store, old);
            assert_eq!(exception.new, next);
            next += 1;
            if let Some(len) = store.area_behind() {
                assert_eq!(len, Sectors::new(1));
                disk.bytes[next as usize * 512..][..512].fill(0);
                areas.push(next);
                next += 1;
            }
            pending.push(exception);
            if pending.len() == together {
                let batch = store.commit(&pending);
                disk.write(&batch);
                store.finish(&batch, true);
                made.append(&mut pending);
            }
            assert_eq!(disk.load().unwrap().exceptions, made, "{together} together, after {old}");
        }
        assert_eq!(areas, [34, 67, 100, 133]);
        // A store that is read again goes on behind what it has.
        assert_eq!(disk.load().unwrap().store.area_behind(), None);
    }
}

#[test]
fn a_full_device() {
    for chunks in [2, 3, 33, 34, 35, 36, 67, 68] {
        let (mut store, mut disk) = format(geometry(1, chunks), 0);
        let all: Vec<Exception> =
            std::iter::from_fn(|| store.allocate().ok()).zip(100..).map(|(new, old)| Exception { old, new }).collect();
        // The entry that would fill the last area stays empty, for the reader goes on to the next after it.
        let expect = match chunks {
            33 | 34 => 31,
            35 | 36 => chunks - 3,
            67 => 63,
            68 => 64,
            _ => chunks - 2,
        };
        assert_eq!(all.len() as u64, expect, "{chunks}");
        if !all.is_empty() {
            let batch = store.commit(&all);
            disk.write(&batch);
            store.finish(&batch, true);
        }
        assert_eq!(disk.load().unwrap().exceptions, all, "{chunks}");
    }
}

#[test]
fn neither_order_nor_a_failure_is_passed_over() {
    let (mut store, _) = format(geometry(1, 100), 0);
    let (one, two) = (allocate(&mut store, 1), allocate(&mut store, 2));
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.commit(&[two, one])));
    assert!(broken.is_err(), "allocated in another order");
    let (mut store, _) = format(geometry(1, 100), 0);
    let one = allocate(&mut store, 1);
    let batch = store.commit(&[one]);
    store.finish(&batch, false);
    assert!(store.is_poisoned());
    let two = allocate(&mut store, 2);
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.commit(&[two])));
    assert!(broken.is_err(), "nothing follows a write that failed");
}

#[test]
fn what_lies_after_the_end_never_comes_back() {
    // An area that ends and has entries after its end, in the same block and in a later one, as a torn write can leave.
    let geometry = geometry(32, 20);
    let (mut store, mut disk) = format(geometry, 0);
    let all: Vec<_> = (0..2).map(|old| allocate(&mut store, old)).collect();
    let batch = store.commit(&all);
    disk.write(&batch);
    let area = 32 * 512;
    for stale in [3, 500, 1023] {
        disk.bytes[area + stale * 16..][..16].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    }
    let mut loaded = disk.load().unwrap();
    assert_eq!(loaded.exceptions, all);
    let more = allocate(&mut loaded.store, 7);
    disk.write(&loaded.store.commit(&[more]));
    let entries: Vec<u8> = disk.bytes[area..][..32 * 512].to_vec();
    assert!(entries[3 * 16..].iter().all(|b| *b == 0));
}

#[test]
fn merging_shows_in_the_usage() {
    let (mut store, mut disk) = format(geometry(1, 100), 0);
    let all: Vec<_> = (0..40).map(|old| allocate(&mut store, old)).collect();
    disk.write(&store.commit(&all));
    let mut store = disk.load().unwrap().store;
    assert_eq!(store.usage().to_string(), "43/100 3");
    let Merge::Window(window) = store.merge(5).unwrap() else { panic!("there is something") };
    assert_eq!(window, &all[35..]);
    let batch = store.merge_commit(5);
    assert_eq!(store.usage().to_string(), "43/100 3", "not on the device yet");
    disk.write(&batch);
    store.finish(&batch, true);
    assert_eq!(store.usage().to_string(), "38/100 3");
    assert_eq!(disk.load().unwrap().exceptions, all[..35]);
}

#[test]
fn an_area_that_changed_beneath_a_merge() {
    let (mut store, mut disk) = format(geometry(1, 100), 0);
    let all: Vec<_> = (0..32).map(|old| allocate(&mut store, old)).collect();
    disk.write(&store.commit(&all));
    let mut store = disk.load().unwrap().store;
    let Ok(Merge::Load(mut area)) = store.merge(5) else { panic!("the last area is empty") };
    disk.bytes[512..1024].fill(0);
    let piece = area.want().unwrap();
    area.feed(disk.read(piece)).unwrap();
    assert_eq!(store.merge_loaded(area).unwrap_err().kind, ErrorKind::Corrupt);
}

/// Batches of exceptions, and a reload now and then.
fn batches() -> impl Strategy<Value = (u64, u64, Vec<(usize, usize, bool)>)> {
    let batch = (0usize..70, 0usize..70, proptest::bool::weighted(0.2));
    (prop_oneof![Just(1u64), Just(2), Just(16)], 3u64..300, proptest::collection::vec(batch, 1..12))
}

proptest! {
    /// Whatever is committed, in whatever groups, the device holds what the kernel would have written.
    #[test]
    fn bytes_are_the_kernels((chunk, chunks, steps) in batches(), noise: u8) {
        let geometry = geometry(chunk, chunks);
        let (mut store, mut disk) = format(geometry, noise);
        let mut kernel = Kernel::new(chunk, chunks, noise);
        let (mut waiting, mut done, mut old) = (Vec::new(), Vec::new(), 1000);
        for (allocated, committed, reload) in steps {
            for _ in 0..allocated {
                let Ok(new) = store.allocate() else { break };
                old += 1;
                prop_assert_eq!(kernel.prepare(), Some(new));
                waiting.push(Exception { old, new });
            }
            let now: Vec<Exception> = waiting.drain(..committed.min(waiting.len())).collect();
            if !now.is_empty() {
                let batch = store.commit(&now);
                disk.write(&batch);
                store.finish(&batch, true);
                now.iter().for_each(|e| kernel.commit(*e));
                done.extend(now);
            }
            prop_assert!(disk.bytes == kernel.disk(), "at rest they are the same");
            prop_assert_eq!(store.usage().to_string(), kernel.usage());
            if reload {
                let loaded = disk.load().unwrap();
                prop_assert_eq!(&loaded.exceptions, &done);
                store = loaded.store;
                kernel.reload();
                waiting.clear();
                prop_assert_eq!(store.usage().to_string(), kernel.usage());
            }
        }
        prop_assert_eq!(disk.load().unwrap().exceptions, done);
    }

    /// Wherever the power goes while batches are written, what is read is some of them in order, never less than was
    /// told to be done, never something else; and the store goes on from there.
    #[test]
    fn power_cuts((chunk, chunks, steps) in batches(), seed: u64, noise: u8) {
        let geometry = geometry(chunk, chunks);
        let (mut store, mut disk) = format(geometry, noise);
        let mut seed = seed;
        let (mut done, mut old): (Vec<Exception>, _) = (Vec::new(), 0);
        for (allocated, _, _) in steps {
            let now: Vec<Exception> = std::iter::from_fn(|| store.allocate().ok()).take(allocated).map(|new| { old += 1; Exception { old, new } }).collect();
            if now.is_empty() { continue }
            let batch = store.commit(&now);
            // The power goes somewhere in it, each way as likely.
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            disk.tear(&batch, seed >> 16);
            let loaded = disk.load().unwrap();
            let mut may: Vec<Exception> = done.clone();
            may.extend(now);
            prop_assert!(loaded.exceptions.len() >= done.len());
            prop_assert!(may.starts_with(&loaded.exceptions), "{:?} of {:?}", loaded.exceptions, may);
            done = loaded.exceptions;
            store = loaded.store;
        }
    }

    /// A merge takes exceptions away from the end, each once, across reloads and torn writes, and ends.
    #[test]
    fn merges(chunks in 3u64..200, most in 1usize..50, seed: u64) {
        let (mut store, mut disk) = format(geometry(1, chunks), 0);
        let mut left: Vec<Exception> =
            std::iter::from_fn(|| store.allocate().ok()).zip(0..).map(|(new, old)| Exception { old, new }).collect();
        if !left.is_empty() {
            disk.write(&store.commit(&left));
        }
        let mut store = disk.load().unwrap().store;
        let mut seed = seed;
        loop {
            let count = match store.merge(most).unwrap() {
                Merge::Done => break,
                Merge::Load(mut area) => {
                    while let Some(piece) = area.want() {
                        area.feed(disk.read(piece)).unwrap();
                    }
                    store.merge_loaded(area).unwrap();
                    continue;
                }
                Merge::Window(window) => {
                    prop_assert!(left.ends_with(window));
                    prop_assert_eq!(runs(&mut window.to_vec()).len(), 1, "neighbours here");
                    window.len()
                }
            };
            let batch = store.merge_commit(count);
            prop_assert!(batch.first.is_empty());
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if seed >> 62 == 0 {
                disk.tear(&batch, seed >> 16);
                let loaded = disk.load().unwrap();
                prop_assert!(left.starts_with(&loaded.exceptions));
                prop_assert!(loaded.exceptions.len() + count >= left.len());
                left = loaded.exceptions;
                store = loaded.store;
            } else {
                disk.write(&batch);
                store.finish(&batch, true);
                left.truncate(left.len() - count);
                prop_assert_eq!(&disk.load().unwrap().exceptions, &left);
            }
        }
        prop_assert!(left.is_empty());
    }
}
