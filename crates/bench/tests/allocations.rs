//! No I/O allocates: counted, not believed. One test, since the count is of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use udm_bench::{CompletionMode, Lat, Load, Rw, Setting, Stack, Subject, measure};
use udm_io::Domain;

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of a whole run of so many I/Os.
fn run(domain: &Domain, subject: &Subject, load: &Load, number_ios: u64) -> u64 {
    let load = Load { number_ios: Some(number_ios), ..load.clone() };
    let before = CALLS.load(Ordering::Relaxed);
    measure(domain, subject, &load).unwrap();
    CALLS.load(Ordering::Relaxed) - before
}

#[test]
fn no_io_allocates() {
    let domain = Domain::default();
    let concise = "a,,,,0 8192 ram;b,,,,0 8192 ram;l,,,,0 8192 linear /dev/mapper/a 0;\
                   s,,,,0 16384 striped 2 16 /dev/mapper/a 0 /dev/mapper/b 0;z,,,,0 8192 zero;\
                   n,,,,0 8192 linear null:size=4M 0;p,,,,0 8192 linear null:size=4M:poll_queues=1 0;\
                   u,,,,0 8192 linear /dev/mapper/l 0;c,,,,0 8192 linear /dev/mapper/a 0;\
                   t,,,,0 4096 linear /dev/mapper/a 0,4096 4096 linear /dev/mapper/b 0";
    let stack = Stack::new(&domain, concise).unwrap();
    stack.set("u", Setting::Compile(false)).unwrap();
    stack.set("c", Setting::CloneAlways(true)).unwrap();
    for device in ["a", "l", "s", "z", "n", "p", "u", "c", "t"] {
        // 4096 bytes fit a chunk of the stripes, 65536 are split into eight.
        for bs in [512, 4096, 65536] {
            for (iodepth, lat) in [(1, Lat::Off), (32, Lat::Sample(8))] {
                let completion = if device == "p" { CompletionMode::Poll } else { CompletionMode::Interrupt };
                let base = Load { rw: Rw::RandRw, bs, iodepth, lat, runtime: None, completion, ..Load::default() };
                let subject = stack.subject(device).unwrap();
                // The first run makes what lives as long as the device.
                run(&domain, &subject, &base, 300);
                let (few, many) = (run(&domain, &subject, &base, 300), run(&domain, &subject, &base, 2300));
                assert_eq!(
                    many, few,
                    "{device}, {bs} bytes, depth {iodepth}: {few} allocations, {many} with more I/Os"
                );
            }
        }
    }
    let split = stack.subject("s").unwrap().totals().unwrap();
    assert!(split.cloned > 0, "some were split");
    assert!(CALLS.load(Ordering::Relaxed) > 0, "allocations are counted");
}
