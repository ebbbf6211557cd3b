//! The target `flakey`: when it is down, and what it does then.

use crate::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::Sector;
use udm_core::MappedDevice;
use udm_io::*;
use udm_sim::{Rng, Sim};

const SECOND: u64 = 1_000_000_000;

fn timed() -> (Sim, Rig, Arc<Disk>) {
    let sim = Sim::new(1);
    let rig = Rig::with(udm_targets::TARGETS, sim.domain());
    let disk = rig.disk("/a", 1000);
    (sim, rig, disk)
}

/// A device that is always down, with these features.
fn down(rig: &Rig, features: &str) -> Arc<MappedDevice> {
    rig.device("x", &format!("0 100 flakey /a 5 0 1 {features}"))
}

#[test]
fn what_fails_is_dropped_or_passes_in_a_down_interval() {
    use Status::{Io, Ok};
    // Read, write, discard, flush: their outcome, and what reached the disk.
    let all = ["Read 5+1", "Write 6+1", "Discard 7+1", "Flush 0+0"];
    for (features, expect, reached) in [
        ("", [Io; 4], [].as_slice()),
        ("0", [Io; 4], &[]),
        ("1 error_reads", [Io, Ok, Ok, Ok], &all[1..]),
        ("1 error_writes", [Ok, Io, Io, Io], &all[..1]),
        ("1 drop_writes", [Ok; 4], &all[..1]),
        ("2 error_reads drop_writes", [Io, Ok, Ok, Ok], &[]),
        ("2 drop_writes error_reads", [Io, Ok, Ok, Ok], &[]),
        ("2 error_reads error_writes", [Io; 4], &[]),
        ("2 random_read_corrupt 0", [Io; 4], &[]),
        ("2 random_read_corrupt 1", [Ok; 4], &all),
    ] {
        let (_, rig, disk) = timed();
        let md = down(&rig, features);
        let mut client = Client::new(&rig, &md);
        let tokens = [
            client.read(0, 1),
            client.write(1, pattern(1, 1, 1), OpFlags::NONE),
            client.range(Op::Discard, OpFlags::NONE, 2, 1),
            client.range(Op::Flush, OpFlags::NONE, 0, 0),
        ];
        assert_eq!(tokens.map(|token| client.wait(token)), expect, "{features}");
        assert_eq!(disk.log(), reached, "{features}");
    }
}

/// Writes at random times: what is dropped is what falls into a down interval, and nothing else.
#[test]
fn what_is_dropped_is_what_is_written_in_down_intervals() {
    for seed in 0..10 {
        let (sim, rig, _) = timed();
        let mut rng = Rng::new(seed);
        sim.clock().advance_to(Nanos(rng.below(5 * SECOND)));
        let (up, down) = (rng.below(4), 1 + rng.below(4));
        let md = rig.device("x", &format!("0 900 flakey /a 5 {up} {down} 1 drop_writes"));
        let start = sim.clock().now().0;
        let io = rig.io(&md);
        let mut model = vec![0; 900];
        for generation in 1..500 {
            // Often at the very border.
            let now = sim.clock().now().0;
            let next = match rng.below(3) {
                0 => start + (now - start) / SECOND * SECOND + SECOND,
                1 => start + (now - start) / SECOND * SECOND + SECOND - 1,
                _ => now + rng.below(SECOND / 2),
            };
            sim.clock().advance_to(Nanos(next));
            let elapsed = (sim.clock().now().0 - start) / SECOND;
            let sector = rng.below(900);
            write(&io, sector, 1, generation);
            if elapsed % (up + down) < up {
                model[sector as usize] = generation;
            }
            let expect = match model[sector as usize] {
                0 => vec![0; 512],
                generation => pattern(sector, 1, generation),
            };
            assert!(read(&io, sector, 1) == expect, "seed {seed}, up {up}, down {down}, {elapsed} s");
        }
    }
}

#[test]
fn intervals_are_counted_in_bios_too() {
    let (_, rig, _) = timed();
    let md = rig.device("x", "0 100 flakey /a 0 3bios 2bios 1 error_writes");
    let io = rig.io(&md);
    let outcomes: Vec<bool> =
        (0..10).map(|at| io.write(Sector::new(at), &pattern(at, 1, 1), OpFlags::NONE).is_ok()).collect();
    assert_eq!(outcomes, [true, true, true, false, false, true, true, true, false, false]);
}

#[test]
fn the_named_byte_of_a_read_is_replaced_on_its_way_home() {
    let (_, rig, disk) = timed();
    let clean = rig.device("clean", "0 100 linear /a 5");
    write(&rig.io(&clean), 0, 8, 1);
    let md = down(&rig, "5 corrupt_bio_byte 515 r 77 0");
    let io = rig.io(&md);
    let mut expect = pattern(0, 8, 1);
    expect[514] = 77;
    assert!(read(&io, 0, 8) == expect);
    // It is the number of a byte of the bio, not of the disk.
    let mut expect = pattern(1, 2, 1);
    expect[514] = 77;
    assert!(read(&io, 1, 2) == expect);
    assert!(read(&io, 1, 1) == pattern(1, 1, 1), "it has no such byte");
    write(&io, 3, 2, 9);
    disk.failing.store(true, Ordering::Relaxed);
    let mut buf = vec![1; 1024];
    assert_eq!(io.read(Sector::new(0), &mut buf), Err(Status::Io));
    disk.failing.store(false, Ordering::Relaxed);
    assert!(read(&rig.io(&clean), 3, 2) == pattern(3, 2, 9), "writes pass");
}

#[test]
fn the_named_byte_of_a_write_is_replaced_in_a_copy() {
    let (_, rig, disk) = timed();
    let md = down(&rig, "5 corrupt_bio_byte 3 w 255 0");
    let clean = rig.device("clean", "0 100 linear /a 5");
    let mut client = Client::new(&rig, &md);
    let token = client.write(4, pattern(4, 2, 1), OpFlags::NONE);
    assert_eq!(client.wait(token), Status::Ok);
    assert!(client.data(token) == pattern(4, 2, 1), "the writer's memory is its own");
    let mut expect = pattern(4, 2, 1);
    expect[2] = 255;
    assert!(read(&rig.io(&clean), 4, 2) == expect);
    assert!(read(&rig.io(&md), 4, 2) == expect, "reads pass");
    disk.failing.store(true, Ordering::Relaxed);
    let token = client.write(4, pattern(4, 2, 1), OpFlags::NONE);
    assert_eq!(client.wait(token), Status::Io);
}

#[test]
fn only_bios_with_the_flags_are_spoilt() {
    const FUA: u32 = 1 << 17;
    for (flags, plain, fua) in
        [(0, true, true), (1, true, true), (FUA, false, true), (FUA + 1, false, true), (2, false, false)]
    {
        let (_, rig, _) = timed();
        let md = down(&rig, &format!("5 corrupt_bio_byte 1 w 200 {flags}"));
        let io = rig.io(&md);
        for (op_flags, expect) in [(OpFlags::NONE, plain), (OpFlags::FUA, fua)] {
            io.write(Sector::new(1), &[9; 512], op_flags).unwrap();
            assert_eq!(read(&io, 1, 1)[0], if expect { 200 } else { 9 }, "{flags} {op_flags:?}");
        }
    }
}

/// More than a channel has internal bios for, on a disk that holds them; and a suspension that waits for all.
#[test]
fn copies_wait_for_their_turn() {
    let (_, rig, disk) = timed();
    let md = rig.device("x", "0 900 flakey /a 5 0 1 5 corrupt_bio_byte 1 w 255 0");
    disk.holding.store(true, Ordering::Relaxed);
    let mut client = Client::new(&rig, &md);
    client.deepen(900);
    let tokens: Vec<_> = (0..900).map(|at| client.write(at, pattern(at, 1, 3), OpFlags::NONE)).collect();
    assert!(tokens.iter().all(|token| client.status(*token).is_none()));
    assert_eq!(disk.held(), INTERNAL_MAX);
    disk.holding.store(false, Ordering::Relaxed);
    disk.release();
    suspend(&md);
    assert!(tokens.iter().all(|token| client.status(*token) == Some(Status::Ok)));
    resume(&md);
    let clean = rig.io(&rig.device("clean", "0 900 linear /a 5"));
    for at in 0..900 {
        let mut expect = pattern(at, 1, 3);
        expect[0] = 255;
        assert!(read(&clean, at, 1) == expect, "{at}");
    }
}

#[test]
fn a_channel_that_ends_leaves_no_write_behind() {
    let (_, rig, disk) = timed();
    let md = rig.device("x", "0 900 flakey /a 5 0 1 5 corrupt_bio_byte 1 w 255 0");
    disk.holding.store(true, Ordering::Relaxed);
    let mut client = Client::new(&rig, &md);
    client.deepen(600);
    for at in 0..600 {
        client.write(at, pattern(at, 1, 3), OpFlags::NONE);
    }
    let held = disk.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while held.held() < INTERNAL_MAX {
                std::thread::yield_now();
            }
            held.holding.store(false, Ordering::Relaxed);
            held.release();
        });
        drop(client);
    });
    suspend(&md);
}

/// Which sectors come spoilt, each asked for twice.
fn spoilt(seed: u64, order: impl IntoIterator<Item = u64>) -> Vec<Vec<usize>> {
    let (_, rig, _) = timed();
    let md = rig.device("x", "0 900 flakey /a 0 0 1 4 random_read_corrupt 300000000 random_write_corrupt 500000000");
    md.set_target_option("fault-seed", &seed.to_string()).unwrap();
    let io = rig.io(&md);
    let mut found = vec![Vec::new(); 400];
    for at in order {
        for _ in 0..2 {
            let bytes = read(&io, at, 1);
            found[at as usize].extend(bytes.iter().position(|byte| *byte != 0).or(Some(999)));
        }
    }
    found
}

#[test]
fn a_seed_decides_what_is_spoilt_where() {
    let forth = spoilt(1, 0..400);
    assert_eq!(forth, spoilt(1, (0..400).rev()));
    assert_ne!(forth, spoilt(2, 0..400));
    let happened = forth.iter().flatten().filter(|at| **at < 512).count();
    // A third of 800, less those whose value happens to be the same.
    assert!((180..300).contains(&happened), "{happened}");
    assert!(forth.iter().any(|twice| twice[0] != twice[1]), "each time anew");
}

#[test]
fn random_writes_are_spoilt_as_often_as_asked_for() {
    let (_, rig, _) = timed();
    let md = rig.device("x", "0 900 flakey /a 0 0 1 2 random_write_corrupt 250000000");
    let io = rig.io(&md);
    (0..800).for_each(|at| write(&io, at, 1, 1));
    let spoilt = (0..800).filter(|at| read(&io, *at, 1) != pattern(*at, 1, 1)).count();
    assert!((140..260).contains(&spoilt), "{spoilt}");
}
