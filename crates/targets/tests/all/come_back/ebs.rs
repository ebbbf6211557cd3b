//! The target `ebs`: parts of blocks, one after the other.

use crate::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::Sector;
use udm_io::*;
use udm_sim::Rng;

fn disk_of_4096(rig: &Rig) -> Arc<Disk> {
    rig.disk_with("/k", 800, Limits { logical_block_size: 4096, physical_block_size: 4096, ..Limits::default() })
}

/// Nothing but whole blocks has reached the disk.
fn whole(log: &[String]) {
    for line in log.iter().filter(|line| !line.starts_with("Flush")) {
        let range = line.split(' ').nth(1).unwrap();
        let numbers: Vec<u64> = range.split('+').map(|n| n.parse().unwrap()).collect();
        assert!(numbers.iter().all(|n| n % 8 == 0), "{line}");
    }
}

#[test]
fn parts_are_read_changed_and_written() {
    let rig = Rig::default();
    let disk = disk_of_4096(&rig);
    let md = rig.device("x", "0 400 ebs /k 8 1");
    assert_eq!(md.limits().logical_block_size, 512);
    assert_eq!(md.limits().physical_block_size, 4096);
    let io = rig.io(&md);
    for (sector, count, expect) in [
        (3, 2, ["Read 8+8", "Write 8+8"].as_slice()),
        (6, 4, &["Read 8+8", "Read 16+8", "Write 8+16"]),
        (8, 8, &["Write 16+8"]),
        (8, 9, &["Read 24+8", "Write 16+16"]),
        (7, 9, &["Read 8+8", "Write 8+16"]),
        (0, 24, &["Write 8+24"]),
        (7, 18, &["Read 8+8", "Read 32+8", "Write 8+32"]),
    ] {
        write(&io, sector, count, 1);
        assert_eq!(disk.log(), expect, "{sector}+{count}");
        assert!(read(&io, sector, count) == pattern(sector, count, 1), "{sector}+{count}");
        whole(&disk.log());
    }
    io.write(Sector::new(1), &pattern(1, 1, 2), OpFlags::FUA).unwrap();
    assert_eq!(disk.log(), ["Read 8+8", "Write 8+8 fua"]);
    io.flush().unwrap();
    for (sector, count, expect) in [(8, 16, ["Discard 16+16"].as_slice()), (3, 12, &[]), (7, 10, &["Discard 16+8"])] {
        disk.log();
        io.range(Op::Discard, OpFlags::NONE, Sector::new(sector), udm_base::Sectors::new(count)).unwrap();
        assert_eq!(disk.log(), expect, "{sector}+{count}");
    }
}

#[test]
fn an_error_at_any_step_comes_home_and_hinders_nobody() {
    let rig = Rig::default();
    let disk = disk_of_4096(&rig);
    let md = rig.device("x", "0 400 ebs /k 0 1");
    let io = rig.io(&md);
    for failing in ["Read 0+8", "Read 8+8", "Write 0+16"] {
        *disk.fail_if.lock().unwrap() = Some(Box::new(move |bio| format!("{bio:?}") == failing));
        assert_eq!(io.write(Sector::new(3), &pattern(3, 8, 1), OpFlags::NONE), Err(Status::Io), "{failing}");
        *disk.fail_if.lock().unwrap() = None;
        write(&io, 3, 8, 2);
        assert!(read(&io, 3, 8) == pattern(3, 8, 2));
    }
    disk.failing.store(true, Ordering::Relaxed);
    assert_eq!(io.read(Sector::new(1), &mut [0; 512]), Err(Status::Io));
    assert_eq!(io.write(Sector::new(0), &[0; 4096], OpFlags::NONE), Err(Status::Io));
    disk.failing.store(false, Ordering::Relaxed);
    write(&io, 0, 8, 2);
}

/// Several writes of parts of the same blocks at a time, whole ones and discards among them, on a disk that ends them
/// when the test says so: every sector holds what was written there last.
#[test]
fn writes_of_one_block_do_not_undo_each_other() {
    for seed in 0..30 {
        let rig = Rig::default();
        let disk = disk_of_4096(&rig);
        let md = rig.device("x", "0 64 ebs /k 16 1");
        let mut rng = Rng::new(seed);
        let mut clients: Vec<_> = (0..2).map(|_| Client::new(&rig, &md)).collect();
        let mut model = vec![0; 64];
        for round in 1..20 {
            disk.holding.store(true, Ordering::Relaxed);
            let mut taken = [false; 64];
            let mut tokens = Vec::new();
            for generation in round * 100..round * 100 + 24 {
                let sector = rng.below(64);
                let most = if rng.below(4) == 0 { 20 } else { 4 };
                let count = (1 + rng.below(most)).min(64 - sector);
                // What two have under way together may hold either.
                let range = sector as usize..(sector + count) as usize;
                if taken[range.clone()].contains(&true) {
                    continue;
                }
                taken[range.clone()].fill(true);
                model[range].fill(generation);
                let who = rng.below(2) as usize;
                tokens.push((who, clients[who].write(sector, pattern(sector, count, generation), OpFlags::NONE)));
                if rng.below(3) == 0 && disk.held() > 0 {
                    disk.release_last();
                    clients.iter_mut().for_each(|client| assert!(client.status(0).is_none()));
                }
            }
            // One by one, the last first: each may let another begin.
            while tokens.iter().any(|(who, token)| clients[*who].status(*token).is_none()) {
                if disk.held() > 0 {
                    disk.release_last();
                }
            }
            assert!(tokens.iter().all(|(who, token)| clients[*who].status(*token) == Some(Status::Ok)));
            disk.holding.store(false, Ordering::Relaxed);
            let io = rig.io(&md);
            for (sector, generation) in model.iter().enumerate() {
                let expect = if *generation == 0 { vec![0; 512] } else { pattern(sector as u64, 1, *generation) };
                assert!(read(&io, sector as u64, 1) == expect, "seed {seed}, round {round}, sector {sector}");
            }
        }
        whole(&disk.log());
    }
}

#[test]
fn thousands_wait_for_one_block_and_a_suspension_for_all() {
    let rig = Rig::default();
    let disk = disk_of_4096(&rig);
    let md = rig.device("x", "0 64 ebs /k 0 1");
    disk.holding.store(true, Ordering::Relaxed);
    let mut client = Client::new(&rig, &md);
    client.deepen(4000);
    let tokens: Vec<_> = (0..3000).map(|n| client.write(n % 8, pattern(n % 8, 1, n), OpFlags::NONE)).collect();
    assert!(tokens.iter().all(|token| client.status(*token).is_none()));
    assert_eq!(disk.held(), 1, "one at a time");
    // More than a channel has internal bios for.
    let reads: Vec<_> = (0..600).map(|n| client.read(9 + n % 7, 1)).collect();
    assert_eq!(disk.held(), INTERNAL_MAX);
    disk.holding.store(false, Ordering::Relaxed);
    disk.release();
    suspend(&md);
    assert!(tokens.iter().chain(&reads).all(|token| client.status(*token) == Some(Status::Ok)));
    resume(&md);
    let io = rig.io(&md);
    for sector in 0..8 {
        assert!(read(&io, sector, 1) == pattern(sector, 1, 2992 + sector));
    }
}

#[test]
fn a_block_that_the_table_names_may_be_any() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 1000 ebs /a 0 2 64");
    assert_eq!(md.limits().logical_block_size, 1024);
    let io = rig.io(&md);
    // The last block is cut off by the disk's end.
    write(&io, 996, 4, 1);
    assert_eq!(disk.log(), ["Read 960+40", "Write 960+40"]);
    write(&io, 62, 4, 1);
    assert_eq!(disk.log(), ["Read 0+64", "Read 64+64", "Write 0+128"]);
    assert!(read(&io, 62, 4) == pattern(62, 4, 1));
    let plain = rig.device("y", "0 1000 ebs /a 0 8 1");
    disk.log();
    write(&rig.io(&plain), 8, 8, 1);
    assert_eq!(disk.log(), ["Write 8+8"], "what is smaller beneath needs no care");
}
