//! Polled load, every byte of it verified, while all that polling hangs on is changed under it: nothing hangs, fails or
//! is lost. `UDM_POLL_SECONDS=N` does each for that long, with the switch every 10 ms and a reload every 50 ms; without
//! it, a number of changes is done as fast as they go.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use udm_bench::{CompletionMode, Load, Rw, Stack, Verify, measure};
use udm_core::{MappedDevice, SuspendOptions, TableLine};
use udm_io::{BlockDevice, Domain, PollPolicy};

/// Changes of a short run.
const CHANGES: u32 = 100;

/// Requests that a short run sees at least.
const IOS: u64 = 2_000;

/// Calls `change` with 0, 1, 2 … as long as the run lasts.
fn changes(loaded: &MappedDevice, mut change: impl FnMut(u32)) {
    let seconds = std::env::var("UDM_POLL_SECONDS").ok().and_then(|text| text.parse().ok());
    match seconds.map(Duration::from_secs) {
        Some(time) => {
            let start = Instant::now();
            let mut n = 0;
            while start.elapsed() < time {
                change(n);
                n += 1;
                sleep(Duration::from_millis(10));
            }
        }
        None => {
            let ios = || loaded.totals().reads + loaded.totals().writes;
            let start = ios();
            let mut n = 0;
            while n < CHANGES || ios() - start < IOS {
                change(n);
                n += 1;
                std::thread::yield_now();
            }
        }
    }
}

fn reload(md: &Arc<MappedDevice>, table: &str) {
    let lines = TableLine::parse_all(table).unwrap();
    md.load(&lines, false, Path::new("/")).unwrap_or_else(|e| panic!("{table}: {}", e.message));
    md.resume(SuspendOptions::default(), &|| false).unwrap_or_else(|e| panic!("{table}: {}", e.message));
}

/// Verified polled load on a device, again and again until `work` has returned.
fn under_load(domain: &Domain, stack: &Stack, name: &str, jobs: usize, work: impl FnOnce()) {
    let subject = stack.subject(name).unwrap();
    let load = Load {
        rw: Rw::RandRw,
        bs: 12 << 10,
        iodepth: 8,
        numjobs: jobs,
        runtime: None,
        number_ios: Some(300),
        completion: CompletionMode::Poll,
        verify: Some(Verify::Pattern),
        ..Load::default()
    };
    let stop = AtomicBool::new(false);
    scope(|scope| {
        let loading = scope.spawn(|| {
            let mut rounds = 0;
            while rounds == 0 || !stop.load(Ordering::Relaxed) {
                let done = measure(domain, &subject, &Load { seed: rounds, ..load.clone() }).unwrap();
                assert_eq!(done.reads.ios + done.writes.ios, 300 * jobs as u64);
                rounds += 1;
            }
        });
        // Also when the work fails: else the load goes on for ever, and nobody learns of it.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        loading.join().unwrap();
        done.unwrap();
    });
}

/// Three null devices that keep what is written, a linear on each, stripes over these, and a linear on top.
const STACK: &str = "a,,,,0 8192 linear null:size=4M:poll_queues=2:latency_us=1:memory=1 0;\
    b,,,,0 8192 linear null:size=4M:poll_queues=2:latency_us=1:memory=1 0;\
    c,,,,0 8192 linear null:size=4M:poll_queues=1:memory=1 0;\
    s,,,,0 24576 striped 3 8 /dev/mapper/a 0 /dev/mapper/b 0 /dev/mapper/c 0;top,,,,0 24576 linear /dev/mapper/s 0";

#[test]
fn the_switch_is_thrown_and_tables_are_replaced() {
    let domain = Domain::default();
    let stack = Stack::new(&domain, STACK).unwrap();
    let md = |name| stack.device(name).unwrap();
    let before = md("top").totals().polls;
    under_load(&domain, &stack, "top", 2, || {
        changes(&md("top"), |n| {
            let switched = md(["top", "s", "b"][n as usize / 2 % 3]);
            switched.set_io_poll(n % 2 == 1).unwrap();
            if n % 5 == 0 {
                reload(
                    &md("top"),
                    ["0 24576 linear /dev/mapper/s 0", "0 24576 striped 1 8 /dev/mapper/s 0"][n as usize / 5 % 2],
                );
                md("s").set_compile(n % 2 == 0);
            }
        });
    });
    // From below: what stands on one that is not polled for cannot be.
    for name in ["b", "s", "top"] {
        md(name).set_io_poll(true).unwrap();
    }
    under_load(&domain, &stack, "top", 1, || {});
    assert!(md("top").can_poll());
    let after = md("top").totals().polls;
    assert!(after.sub > before.sub, "{after:?}");
    assert_eq!(domain.poll_totals().waited, 0, "no poller waited for another");
}

#[test]
fn the_number_of_queues_changes() {
    let domain = Domain::default();
    let stack = Stack::new(&domain, STACK).unwrap();
    let md = |name| stack.device(name).unwrap();
    under_load(&domain, &stack, "top", 3, || {
        changes(&md("top"), |n| {
            assert!(md(["a", "b", "c"][n as usize % 3]).set_poll_queues([0, 3, 1, 2][n as usize / 3 % 4]));
            assert_eq!(md("top").can_poll(), ["a", "b", "c"].iter().all(|name| md(name).can_poll()));
        });
    });
    assert!(md("top").set_poll_queues(2));
    under_load(&domain, &stack, "top", 1, || {});
    assert!(md("top").totals().polls.sub > 0);
}

#[test]
fn three_jobs_share_a_queue() {
    for skip_busy in [true, false] {
        let domain = Domain::default();
        domain.poll_as(PollPolicy { skip_busy, ..PollPolicy::default() });
        let stack = Stack::new(&domain, STACK).unwrap();
        let md = |name| stack.device(name).unwrap();
        md("top").set_poll_queues(1);
        under_load(&domain, &stack, "top", 3, || changes(&md("top"), |_| ()));
        let totals = domain.poll_totals();
        assert!(totals.found > 0);
        assert!(if skip_busy { totals.waited == 0 } else { totals.skipped == 0 }, "{totals:?}");
    }
}
