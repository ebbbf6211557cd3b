//! The modelled disk at its boundary: its order, its times, what it keeps.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_sim::*;

/// 100 tracks of 10 sectors of 100 ns, skewed by 3; to the next track in 100 ns, over all in 1000.
fn options() -> RotatingOptions {
    let model = DiskModel {
        track: 10,
        sector_ns: 100,
        skew: 3,
        seek_min_ns: 100,
        seek_full_ns: 1000,
        tracks: 100,
        command_ns: 50,
    };
    let (size, merge) = (Sectors::new(1000), Sectors::new(8));
    RotatingOptions { size, model, requests: 4, merge, keep: Keep::All }
}

/// Submits requests at one moment, and returns which completed when.
fn run(disk: &RotatingDisk, domain: &Domain, requests: &[(Op, u64, u64)]) -> Vec<(u64, u64)> {
    let channel = domain.channel().unwrap();
    let on = channel.attach(Arc::new(disk.clone()));
    let mut memory: Vec<Vec<u8>> = requests.iter().map(|(_, _, len)| vec![7; *len as usize * 512]).collect();
    for (n, (&(op, sector, _), buf)) in requests.iter().zip(&mut memory).enumerate() {
        assert!(unsafe { channel.submit(on, op, OpFlags::NONE, Sector::new(sector), buf, n as u64) });
    }
    let mut done = Vec::new();
    while done.len() < requests.len() {
        channel.wait(None, &mut Vec::new()).unwrap();
        channel.poll();
        let now = channel.now().0;
        while let Some(c) = channel.completed() {
            assert!(c.status.is_ok());
            done.push((c.token, now));
        }
    }
    done
}

#[test]
fn one_way_and_merged() {
    use Op::{Read, Write};
    let check = |requests: &[(Op, u64, u64)], expect: &[(u64, u64)], seeks: u64| {
        let sim = Sim::new(1);
        let disk = RotatingDisk::new(&sim, options());
        assert_eq!(run(&disk, &sim.domain(), requests), expect, "{requests:?}");
        let stats = disk.stats();
        assert_eq!((stats.seeks, stats.bios), (seeks, requests.len() as u64), "{requests:?}");
        let busy = stats.command_ns + stats.seek_ns + stats.rotation_ns + stats.transfer_ns;
        assert_eq!(busy, expect.last().unwrap().1, "it is never idle here");
    };
    // One after the other, in whatever order they came: one request.
    check(&[(Write, 0, 2), (Write, 2, 2), (Write, 4, 2)], &[(0, 600), (1, 600), (2, 600)], 0);
    check(&[(Write, 4, 2), (Write, 2, 2), (Write, 0, 2)], &[(0, 600), (1, 600), (2, 600)], 0);
    // At most 8 sectors.
    check(&[(Write, 0, 6), (Write, 6, 2), (Write, 8, 1)], &[(0, 800), (1, 800), (2, 900)], 0);
    // Reads and writes go by themselves.
    check(&[(Write, 0, 2), (Read, 2, 2)], &[(0, 200), (1, 400)], 0);
    // Upwards first, then from the start.
    check(&[(Write, 8, 1), (Write, 2, 1), (Write, 5, 1)], &[(1, 300), (2, 600), (0, 900)], 3);
    // Four places: the fifth, though it lies nearest, waits outside until the first has gone.
    let five = [(Write, 2, 1), (Write, 4, 1), (Write, 6, 1), (Write, 8, 1), (Write, 0, 1)];
    check(&five, &[(0, 300), (1, 500), (2, 700), (3, 900), (4, 1100)], 5);
}

#[test]
fn the_same_again() {
    let run = || {
        let sim = Sim::new(3);
        let disk = RotatingDisk::new(&sim, RotatingOptions::desktop(Sectors::in_bytes(1 << 30)));
        let mut rng = Rng::new(9);
        let requests: Vec<_> = (0..200).map(|_| (Op::Write, rng.below(2_000_000), 1 + rng.below(8))).collect();
        let domain = sim.domain();
        (run(&disk, &domain, &requests), disk.stats())
    };
    let (times, stats) = run();
    assert_eq!((times.clone(), stats), run());
    // With 128 to choose from, a request costs far less than a seek over a third of the disk and half a revolution.
    let each = times.last().unwrap().1 / 200;
    assert!((4_000_000..8_000_000).contains(&each), "{each}");
}

#[test]
fn a_stream_runs_at_the_speed_of_the_tracks() {
    let sim = Sim::new(3);
    let disk = RotatingDisk::new(&sim, RotatingOptions::desktop(Sectors::in_bytes(1 << 30)));
    let requests: Vec<_> = (0..200).map(|n| (Op::Write, n * 256, 256)).collect();
    let end = run(&disk, &sim.domain(), &requests).last().unwrap().1;
    let speed = 200.0 * 256.0 * 512.0 * 1e9 / end as f64;
    assert!((speed / disk.options().model.bytes_per_second() - 1.0).abs() < 0.01, "{speed}");
    assert_eq!(disk.stats().seeks, 0);
}

#[test]
fn a_late_request_waits_for_a_revolution() {
    let sim = Sim::new(1);
    let disk = RotatingDisk::new(&sim, options());
    let domain = sim.domain();
    assert_eq!(run(&disk, &domain, &[(Op::Write, 0, 2)]), [(0, 200)]);
    sim.clock().advance_to(Nanos(201));
    assert_eq!(run(&disk, &domain, &[(Op::Write, 2, 2)]), [(0, 1400)]);
    assert_eq!(disk.stats().rotation_ns, 999);
}

#[test]
fn what_is_kept() {
    for (keep, expect, allocated) in [
        (Keep::All, [7, 7, 7], 8192),
        (Keep::Nothing, [0, 0, 0], 0),
        (Keep::Only(Arc::new(|sector| sector == Sector::new(8))), [0, 7, 7], 4096),
    ] {
        let sim = Sim::new(1);
        let disk = RotatingDisk::new(&sim, RotatingOptions { keep, ..options() });
        let io = BlockingIo::new(&sim.domain(), Arc::new(disk.clone())).unwrap();
        io.write(Sector::new(4), &[7; 512 * 12], OpFlags::NONE).unwrap();
        let mut buf = [1; 512];
        for (sector, expect) in [4, 8, 15].into_iter().zip(expect) {
            io.read(Sector::new(sector), &mut buf).unwrap();
            assert_eq!(buf, [expect; 512], "{sector}");
        }
        assert_eq!(disk.allocated(), allocated);
        assert_eq!(io.write(Sector::new(999), &[0; 1024], OpFlags::NONE), Err(Status::Invalid));
        assert_eq!(io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(8)), Err(Status::NotSupported));
    }
}

#[test]
fn when_the_power_goes() {
    let sim = Sim::new(1);
    let disk = RotatingDisk::new(&sim, options());
    let channel = sim.domain().channel().unwrap();
    let on = channel.attach(Arc::new(disk));
    let mut memory = [[0u8; 512]; 9];
    for (n, buf) in memory.iter_mut().enumerate() {
        assert!(unsafe { channel.submit(on, Op::Write, OpFlags::NONE, Sector::new(n as u64 * 3), buf, 0) });
    }
    assert!(sim.power_cut().is_empty());
    channel.poll();
    let done: Vec<_> = std::iter::from_fn(|| channel.completed()).map(|c| c.status).collect();
    assert_eq!(done, [Status::Gone; 9]);
}

#[test]
fn who_waits_for_a_while_waits_no_longer() {
    let sim = Sim::new(1);
    let disk = RotatingDisk::new(&sim, RotatingOptions::desktop(Sectors::in_bytes(1 << 30)));
    let channel = sim.domain().channel().unwrap();
    let on = channel.attach(Arc::new(disk));
    let for_ns = |ns| {
        channel.wait(Some(std::time::Duration::from_nanos(ns)), &mut Vec::new()).unwrap();
        channel.poll();
    };
    for_ns(1000);
    assert_eq!(channel.now(), Nanos(1000));
    let mut memory = [0; 512];
    assert!(unsafe { channel.submit(on, Op::Read, OpFlags::NONE, Sector::new(700_000), &mut memory, 0) });
    for_ns(2000);
    assert_eq!((channel.now(), channel.completed()), (Nanos(3000), None), "the head is on its way");
    for_ns(1_000_000_000);
    assert!(channel.completed().is_some() && channel.now() < Nanos(40_000_000), "it has come");
}
