//! Ten gigabytes are written to an origin with eight snapshots, queued as fast as they come. The kernel's copier once
//! took as much memory as was queued.
//!
//! Alone in its process, whose memory it looks at.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::{Error, HostRequest, Registry, SuspendOptions, TableLine, TableSlot};
use udm_io::{BlockDevice, Channel, Limits, Op, OpFlags};
use udm_sim::{Sim, SimDevice, SimOptions};
use udm_targets::TARGETS;

/// Sectors of the origin, of a write, and of a chunk.
const SIZE: u64 = 10 << 21;
const WRITE: u64 = 2048;
const CHUNK: u64 = 1024;
const SNAPSHOTS: u64 = 8;
/// Each takes some hundred writes.
const CHANNELS: usize = 16;
/// What copies may take (`CopyOptions` of an origin), and what the whole process may, with its bookkeeping: bytes.
const POOL: u64 = 32 << 20;
const ALL: u64 = 256 << 20;

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn ten_gigabytes_with_eight_snapshots_take_what_the_pool_takes() {
    let sim = Sim::new(1);
    let domain = sim.domain();
    let mut disks: HashMap<String, Arc<dyn BlockDevice>> = HashMap::new();
    let limits = Limits { write_cache: true, fua: true, ..Limits::default() };
    for n in 0..=SNAPSHOTS {
        // What lies on them nobody reads; reads of the origin give zeroes.
        let options = SimOptions { limits, discard_payload: true, ..SimOptions::new(Sectors::new(SIZE + (SIZE >> 3))) };
        disks.insert(format!("d{n}"), Arc::new(SimDevice::new(&sim, options)));
    }
    let host = move |request: &HostRequest<'_>| {
        let found = disks.get(request.spec).cloned();
        found.ok_or_else(|| Error::new(Errno::ENOENT, "no such disk"))
    };
    let registry = Registry::new(domain.clone(), TARGETS, Box::new(host));
    let device = |name: &str, table: &str| {
        let md = registry.create(name, "", None).expect("a name");
        md.load(&TableLine::parse_all(table).expect("a table"), false, Path::new("/"))
            .unwrap_or_else(|e| panic!("{e}"));
        md.resume(SuspendOptions::default(), &|| false).unwrap_or_else(|e| panic!("{e}"));
        md
    };
    let origin = device("origin", &format!("0 {SIZE} snapshot-origin d0"));
    let snaps: Vec<_> = (1..=SNAPSHOTS)
        .map(|n| device(&format!("s{n}"), &format!("0 {SIZE} snapshot d0 d{n} {} {CHUNK}", ["P", "N"][n as usize % 2])))
        .collect();
    let before = peak();
    let channels: Vec<Channel> = (0..CHANNELS).map(|_| domain.channel().expect("a channel")).collect();
    let at: Vec<_> = channels.iter().map(|channel| channel.attach(origin.clone())).collect();
    let mut buf = vec![7u8; Sectors::new(WRITE).as_len()];
    let (mut next, mut done, mut deepest) = (0, 0, 0);
    while done < SIZE / WRITE {
        for (channel, at) in channels.iter().zip(&at) {
            // As many as the channel takes.
            while next < SIZE / WRITE {
                let sector = Sector::new(next * WRITE);
                // SAFETY: `buf` stays until all completions have been taken; it is only read.
                if !unsafe { channel.submit(*at, Op::Write, OpFlags::NONE, sector, &mut buf, next) } {
                    break;
                }
                next += 1;
            }
        }
        deepest = deepest.max(next - done);
        let polled: usize = channels.iter().map(Channel::poll).sum();
        if polled == 0 && next > done {
            // Time passes for all.
            channels[0].wait(None, &mut Vec::new()).expect("simulated");
        }
        for completion in channels.iter().flat_map(|channel| std::iter::from_fn(|| channel.completed())) {
            assert!(completion.status.is_ok(), "{completion:?}");
            done += 1;
        }
    }
    let table = snaps[0].table(TableSlot::Active).expect("a table");
    let stats = table.targets().next().expect("a target").message(&["copy_stats"]).expect("statistics");
    let value = |key: &str| -> u64 {
        let found = stats.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {key} in {stats}"))
    };
    println!("{deepest} writes queued, {stats}, {} MiB more than before", (peak() - before) >> 20);
    assert_eq!((value("bytes_read"), value("bytes_written")), (SIZE * 512, SNAPSHOTS * SIZE * 512), "{stats}");
    assert!(value("pool_peak") <= POOL, "{stats}");
    assert!(deepest * WRITE * 512 > 64 * POOL, "more was queued than fits: {deepest}");
    assert!(peak() - before < ALL, "the process has taken {} MiB", (peak() - before) >> 20);
}
