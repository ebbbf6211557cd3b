//! In a steady state no I/O allocates: counted, for each kind of device.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_files::*;
use udm_io::*;

struct Counting;

thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|n| n.set(n.get() + 1));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|n| n.set(n.get() + 1));
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 32;
const STRIDE: usize = 8192;

/// One round: a bio for each list of segments, all at once, until the last has completed.
fn round(
    channel: &Channel,
    dev: Attached,
    op: Op,
    flags: OpFlags,
    lists: &[[Segment; 2]; DEPTH],
    woken: &mut Vec<Woken>,
) {
    for (i, list) in lists.iter().enumerate() {
        let sector = Sector::new(i as u64 * 8);
        assert!(unsafe { channel.submit_vectored(dev, op, flags, sector, Sectors::new(8), list, i as u64) });
    }
    let mut done = 0;
    while done < DEPTH {
        channel.poll();
        while let Some(c) = channel.completed() {
            assert_eq!(c.status, Status::Ok);
            done += 1;
        }
        if channel.outstanding() > 0 {
            channel.wait(None, woken).unwrap();
        }
    }
}

#[test]
fn a_steady_load_allocates_nothing() {
    let null = |spec: &str| -> Arc<dyn BlockDevice> { Arc::new(NullDevice::new(spec.parse().unwrap()).unwrap()) };
    let mut devices: Vec<(String, Arc<dyn BlockDevice>, OpFlags)> = vec![
        ("memory".into(), Arc::new(MemoryDevice::new(Sectors::new(2048)).unwrap()), OpFlags::NONE),
        ("null".into(), null("null:size=1M"), OpFlags::NONE),
        ("null, late".into(), null("null:size=1M:latency_us=1"), OpFlags::NONE),
        ("null, polled".into(), null("null:size=1M:poll_queues=1"), OpFlags::HIPRI),
    ];
    let mut folders = Vec::new();
    for parent in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let Ok(folder) = tempfile::TempDir::new_in(parent) else {
            println!("SKIP {parent}: no folder can be made there");
            continue;
        };
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = FileDevice::open(Path::new(&path), FileOptions::default(), Arc::new(ThreadExecutor)).unwrap();
        devices.push((format!("{:?}", file.engine()), Arc::new(file), OpFlags::NONE));
        folders.push(folder);
    }
    let domain = Domain::default();
    let mut memory = AlignedBuf::zeroed(DEPTH * STRIDE);
    let at = memory.as_mut_ptr();
    for (name, dev, flags) in devices {
        let channel = domain.channel().unwrap();
        let on = channel.attach(dev);
        let mut woken = Vec::with_capacity(16);
        // Whole and aligned; in two aligned pieces; at an odd address.
        for (skew, first) in [(0, 4096), (0, 1024), (1, 4096)] {
            let lists: [[Segment; 2]; DEPTH] = std::array::from_fn(|i| {
                let at = at.wrapping_add(i * STRIDE + skew);
                let second = at.wrapping_add(if first < 4096 { 4096 } else { first });
                [(at, first), (second, 4096 - first)].map(|(p, n)| unsafe { Segment::new(p, n) })
            });
            for op in [Op::Read, Op::Write] {
                (0..4).for_each(|_| round(&channel, on, op, flags, &lists, &mut woken));
                let before = COUNT.with(Cell::get);
                (0..20).for_each(|_| round(&channel, on, op, flags, &lists, &mut woken));
                let more = COUNT.with(Cell::get) - before;
                // The Buffered engine hands over to threads, whose queue may grow.
                if name != "Buffered" {
                    assert_eq!(more, 0, "{name} {op:?} skew {skew} first {first}");
                }
            }
        }
    }
}
