//! The target `delay`: what it keeps, for how long, and what lets it go early.

use crate::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::{MappedDevice, Removal, StatusKind, SuspendOptions, TableSlot};
use udm_io::*;
use udm_sim::{Rng, Sim};

const MS: u64 = 1_000_000;

/// A rig whose time the test moves.
fn timed(seed: u64) -> (Sim, Rig) {
    let sim = Sim::new(seed);
    let rig = Rig::with(udm_targets::TARGETS, sim.domain());
    (sim, rig)
}

fn at(sim: &Sim, ns: u64) {
    sim.clock().advance_to(Nanos(ns));
}

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().lines(StatusKind::Info { noflush: false })[0].params.clone()
}

#[test]
fn each_leg_has_its_delay_and_its_device() {
    let (sim, rig) = timed(1);
    let [a, b, c] = ["/a", "/b", "/c"].map(|name| rig.disk(name, 1000));
    let md = rig.device("x", "0 100 delay /a 7 10 /b 8 20 /c 9 30");
    let mut client = Client::new(&rig, &md);
    let read = client.read(1, 2);
    let write = client.write(3, pattern(3, 4, 1), OpFlags::NONE);
    let flush = client.range(Op::Flush, OpFlags::NONE, 0, 0);
    let discard = client.range(Op::Discard, OpFlags::NONE, 50, 5);
    assert_eq!(status(&md), "1 2 1");
    for (ms, expect) in [
        (9, [None; 4]),
        (10, [Some(Status::Ok), None, None, None]),
        (19, [Some(Status::Ok), None, None, None]),
        (20, [Some(Status::Ok), Some(Status::Ok), None, Some(Status::Ok)]),
        (29, [Some(Status::Ok), Some(Status::Ok), None, Some(Status::Ok)]),
        (30, [Some(Status::Ok); 4]),
    ] {
        at(&sim, ms * MS);
        assert_eq!([read, write, flush, discard].map(|token| client.status(token)), expect, "at {ms} ms");
    }
    assert_eq!(status(&md), "0 0 0");
    // A flush makes durable what was written, whatever device it is delayed for.
    assert_eq!(a.log(), ["Read 8+2"]);
    assert_eq!(b.log(), ["Write 11+4", "Discard 58+5", "Flush 0+0"]);
    assert_eq!(c.log(), ["Flush 0+0"]);
}

#[test]
fn what_is_not_given_is_as_the_leg_before_it() {
    for (legs, expect) in [("/a 0 10", [10, 10, 10]), ("/a 0 10 /a 0 20", [10, 20, 20]), ("/a 0 0 /a 0 5", [0, 5, 5])] {
        let (sim, rig) = timed(1);
        let disk = rig.disk("/a", 1000);
        let md = rig.device("x", &format!("0 100 delay {legs}"));
        let mut client = Client::new(&rig, &md);
        let tokens = [
            client.read(0, 1),
            client.write(1, pattern(1, 1, 1), OpFlags::NONE),
            client.range(Op::Flush, OpFlags::NONE, 0, 0),
        ];
        for ms in 0..=20 {
            at(&sim, ms * MS);
            let ended = tokens.map(|token| client.status(token).is_some());
            assert_eq!(ended, expect.map(|delay| ms >= delay), "{legs} after {ms} ms");
        }
        assert_eq!(disk.log().iter().filter(|line| line.starts_with("Flush")).count(), 1, "{legs}");
    }
}

#[test]
fn a_write_with_fua_is_delayed_once_and_durable() {
    let (sim, rig) = timed(1);
    let disk = rig.disk_with("/a", 1000, Limits { write_cache: true, fua: false, ..Limits::default() });
    let md = rig.device("x", "0 100 delay /a 0 10");
    let mut client = Client::new(&rig, &md);
    let write = client.write(3, pattern(3, 1, 1), OpFlags::FUA);
    at(&sim, 10 * MS);
    assert_eq!(client.status(write), Some(Status::Ok));
    assert_eq!(disk.log(), ["Write 3+1", "Flush 0+0"]);
}

#[test]
fn errors_from_beneath_come_home() {
    let (sim, rig) = timed(1);
    let [a, b] = ["/a", "/b"].map(|name| rig.disk(name, 1000));
    let md = rig.device("x", "0 100 delay /a 0 1 /a 0 1 /b 0 1");
    let mut client = Client::new(&rig, &md);
    let failing = |disk: &Disk, on| disk.failing.store(on, Ordering::Relaxed);
    for (disk, asked) in [(&a, ["Read", "Write", "Flush"].as_slice()), (&b, &["Flush"])] {
        failing(disk, true);
        let tokens = [
            ("Read", client.read(0, 1)),
            ("Write", client.write(1, pattern(1, 1, 1), OpFlags::NONE)),
            ("Flush", client.range(Op::Flush, OpFlags::NONE, 0, 0)),
        ];
        at(&sim, sim.clock().now().0 + MS);
        for (what, token) in tokens {
            let expect = if asked.contains(&what) { Status::Io } else { Status::Ok };
            assert_eq!(client.status(token), Some(expect), "{what}");
        }
        failing(disk, false);
    }
    assert_eq!(status(&md), "0 0 0");
}

/// Ten thousand at a time, by whatever lets them go.
#[test]
fn nothing_waits_for_delayed_bios() {
    const MANY: u64 = 10_000;
    let hour = 3_600_000;
    type LetGo = fn(&Rig, &Arc<MappedDevice>);
    let ways: [(&str, LetGo); 5] = [
        ("suspend", |_, md| {
            suspend(md);
            resume(md);
        }),
        ("without flush", |_, md| {
            md.suspend(SuspendOptions { noflush: true, ..Default::default() }, &|| false).unwrap();
            resume(md);
        }),
        ("another table", |rig, md| {
            rig.load(md, "0 20000 linear {below} 0", false).unwrap();
            suspend(md);
            resume(md);
        }),
        ("grown beneath", |rig, md| {
            rig.reload(&rig.registry.by_name("below").unwrap(), "0 30000 linear /a 0");
            rig.reload(md, &format!("0 30000 delay {{below}} 0 {}", 3_600_000));
        }),
        ("removal", |rig, md| assert_eq!(rig.registry.remove(md, false).unwrap(), Removal::Done)),
    ];
    for (way, let_go) in ways {
        let (_, rig) = timed(1);
        let disk = rig.disk("/a", 30_000);
        rig.device("below", "0 20000 linear /a 0");
        let md = rig.device("x", &format!("0 20000 delay {{below}} 0 {hour}"));
        let mut client = Client::new(&rig, &md);
        client.deepen(MANY as usize + 1);
        let writes: Vec<_> = (0..MANY).map(|at| client.write(2 * at, pattern(2 * at, 1, 7), OpFlags::NONE)).collect();
        assert_eq!(status(&md), format!("0 {MANY} 0"), "{way}");
        let_go(&rig, &md);
        assert!(writes.iter().all(|token| client.status(*token) == Some(Status::Ok)), "{way}");
        assert_eq!(disk.log().iter().filter(|line| line.starts_with("Write")).count() as u64, MANY, "{way}");
        if way != "removal" && way != "another table" {
            assert_eq!(status(&md), "0 0 0", "{way}");
            // And it delays again.
            let again = client.read(0, 1);
            assert_eq!(client.status(again), None, "{way}");
            suspend(&md);
        }
    }
}

#[test]
fn the_end_of_a_channel_ends_the_delay() {
    let (_, rig) = timed(1);
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 delay /a 0 3600000");
    // Twice delayed: what the upper one lets go when the channel ends, the lower one cannot keep.
    let top = rig.device("top", "0 100 delay {x} 0 3600000");
    for dev in [&md, &top] {
        let mut client = Client::new(&rig, dev);
        let tokens = [client.read(0, 1), client.write(1, pattern(1, 1, 1), OpFlags::NONE)];
        assert!(tokens.iter().all(|token| client.status(*token).is_none()));
        drop(client);
        rig.domain.drain(|| status(&md) == "0 0 0" && status(&top) == "0 0 0");
    }
}

/// How long each of some reads takes, by the sector, whatever their order.
fn latencies(seed: u64, delay: &str, order: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let (sim, rig) = timed(1);
    rig.disk("/a", 1000);
    let md = rig.device("x", &format!("0 100 delay /a 0 {delay}"));
    md.set_target_option("fault-seed", &seed.to_string()).unwrap();
    let mut client = Client::new(&rig, &md);
    let mut took = vec![0; 100];
    for sector in order {
        let began = sim.clock().now().0;
        let token = client.read(sector, 1);
        assert_eq!(client.wait(token), Status::Ok);
        took[sector as usize] = sim.clock().now().0 - began;
    }
    took
}

#[test]
fn a_seed_decides_how_long_each_takes() {
    for (delay, range) in [("uniform:1ms-5ms", MS..=5 * MS), ("normal:5ms,1ms", 0..=12 * MS)] {
        let forth = latencies(5, delay, 0..100);
        assert_eq!(forth, latencies(5, delay, (0..100).rev()), "{delay}");
        assert_ne!(forth, latencies(6, delay, 0..100), "{delay}");
        assert!(forth.iter().all(|ns| range.contains(ns)), "{delay}: {forth:?}");
        assert!(forth.iter().any(|ns| *ns != forth[0]), "{delay}");
    }
}

#[test]
fn a_histogram_decides_how_long_each_takes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"bins": {"2000000": 9, "700000000": 1}}"#).unwrap();
    let took = latencies(5, &format!("file:{}", file.path().display()), 0..100);
    let slow = took.iter().filter(|ns| **ns == 700 * MS).count();
    assert!(took.iter().all(|ns| *ns == 2 * MS || *ns == 700 * MS) && (2..25).contains(&slow), "{took:?}");
}

/// Requests of several threads at random times, with suspensions and reloads among them: each is done once, none too
/// early, and what was acknowledged is there.
#[test]
fn a_random_life_with_suspensions() {
    for seed in 0..20 {
        let (sim, rig) = timed(seed);
        let mut rng = Rng::new(seed);
        let disk = rig.disk("/a", 4000);
        let table = |ms: u64| format!("0 2000 delay /a 5 {ms} /a 5 {} /a 5 uniform:1ms-3ms", 2 * ms);
        let md = rig.device("x", &table(3));
        let mut clients: Vec<_> = (0..3).map(|_| Client::new(&rig, &md)).collect();
        let mut written = vec![0u64; 2000];
        let mut out: Vec<(usize, u64, u64, u64)> = Vec::new();
        for step in 1..400u64 {
            let who = rng.below(3) as usize;
            match rng.below(20) {
                0 => {
                    let noflush = rng.below(2) == 0;
                    md.suspend(SuspendOptions { noflush, nolockfs: false }, &|| false).unwrap();
                    resume(&md);
                }
                1 => rig.reload(&md, &table(rng.below(5))),
                2..=9 => at(&sim, sim.clock().now().0 + rng.below(3 * MS)),
                _ => {
                    // Nobody else has this sector under way.
                    let sector = rng.below(2000);
                    if !out.iter().any(|(_, _, other, _)| *other == sector) {
                        let token = clients[who].write(sector, pattern(sector, 1, step), OpFlags::NONE);
                        out.push((who, token, sector, step));
                    }
                }
            }
            out.retain(|(who, token, sector, step)| match clients[*who].status(*token) {
                None => true,
                Some(status) => {
                    assert_eq!(status, Status::Ok, "seed {seed}");
                    written[*sector as usize] = *step;
                    false
                }
            });
        }
        suspend(&md);
        for (who, token, sector, step) in out {
            assert_eq!(clients[who].status(token), Some(Status::Ok), "seed {seed}");
            written[sector as usize] = step;
        }
        resume(&md);
        assert_eq!(status(&md), "0 0 0", "seed {seed}");
        drop(clients);
        let io = BlockingIo::new(&rig.domain, disk.clone()).unwrap();
        let mut found = vec![0; 512];
        for (sector, step) in written.iter().enumerate().filter(|(_, step)| **step > 0) {
            io.read(Sector::new(sector as u64 + 5), &mut found).unwrap();
            assert!(found == pattern(sector as u64, 1, *step), "seed {seed}, sector {sector}");
        }
        assert_eq!(disk.memory().sectors(), Sectors::new(4000));
    }
}

#[test]
fn a_seed_lasts_across_tables() {
    let (sim, rig) = timed(1);
    rig.disk("/a", 1000);
    let table = "0 100 delay /a 0 uniform:1ms-900ms";
    let md = rig.device("x", table);
    md.set_target_option("fault-seed", "7").unwrap();
    let mut client = Client::new(&rig, &md);
    let mut took = || {
        let began = sim.clock().now().0;
        let token = client.read(5, 1);
        assert_eq!(client.wait(token), Status::Ok);
        sim.clock().now().0 - began
    };
    let first = took();
    assert_ne!(took(), first);
    rig.reload(&md, table);
    assert_eq!(took(), first, "it begins anew");
}
