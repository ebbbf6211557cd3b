//! Suspensions of pools and of volumes.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_base::Sectors;
use udm_core::*;
use udm_io::*;
use udm_sim::{Sim, SimDevice, SimOptions};

/// Trap: a suspended pool suspends its volumes: nothing reaches the disks until it is resumed.
#[test]
fn a_suspended_pool_holds_its_volumes() {
    let pool = Pool::new(16, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    suspend(&pool.md);
    pool.rig.log();
    let mut client = Client::new(&pool.rig, &thin);
    let tokens = [
        client.read(0, 8),
        client.write(8, pattern(8, 8, 2), OpFlags::NONE),
        client.write(5 * BLOCK, pattern(5 * BLOCK, 8, 2), OpFlags::NONE),
        client.range(Op::Discard, OpFlags::NONE, BLOCK, BLOCK),
        client.range(Op::WriteZeroes, OpFlags::NONE, 16, 8),
    ];
    for token in tokens {
        assert_eq!(client.status(token), None);
    }
    assert_eq!(pool.rig.log(), Vec::<String>::new());
    resume(&pool.md);
    for token in tokens {
        assert_eq!(client.wait(token), Status::Ok);
    }
    assert_eq!(read(&io, 8, 16), [pattern(8, 8, 2), zeroes(8)].concat());
    drop((client, io));
    pool.check();
}

/// And a suspension waits for what was on its way.
#[test]
fn a_suspension_of_the_pool_waits_for_its_volumes() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let rig = Rig::with(udm_targets::TARGETS, sim.domain());
        rig.disk("meta", 8192);
        let options = SimOptions { latency_ns: 10_000..5_000_000, ..SimOptions::new(Sectors::new(64 * BLOCK)) };
        let data = Arc::new(SimDevice::new(&sim, options));
        rig.add("data", data.clone());
        let md = rig.device("pool", &table(64, ""));
        md.message(udm_base::Sector::ZERO, &["create_thin", "0"]).unwrap();
        let thin = rig.device("thin", &format!("0 {} thin {{pool}} 0", 16 * BLOCK));
        write(&rig.io(&thin), 0, 2 * BLOCK, 1);
        let mut client = Client::new(&rig, &thin);
        // One that is mapped, one that is being provisioned.
        let tokens = [
            client.write(8, pattern(8, 8, 2), OpFlags::NONE),
            client.write(4 * BLOCK, pattern(0, 8, 2), OpFlags::NONE),
        ];
        suspend(&md);
        assert_eq!(client.status(tokens[0]), Some(Status::Ok), "seed {seed}: done when the pool is suspended");
        let writes = sim.writes();
        let channel = rig.domain.channel().unwrap();
        for _ in 0..50 {
            channel.poll();
            channel.wait(None, &mut Vec::new()).unwrap();
        }
        assert_eq!(sim.writes(), writes, "seed {seed}: nothing is written any more");
        resume(&md);
        assert!(tokens.map(|t| client.wait(t)) == [Status::Ok; 2]);
    }
}

/// A volume that is suspended with `noflush` takes back what waits for space.
#[test]
fn noflush_takes_back_what_waits() {
    let pool = Pool::new(1, "");
    let thin = pool.thin("thin", 0, 16);
    let io = pool.rig.io(&thin);
    write(&io, 0, BLOCK, 1);
    let mut client = Client::new(&pool.rig, &thin);
    let waiting = client.write(BLOCK, pattern(BLOCK, 8, 2), OpFlags::NONE);
    assert_eq!(client.status(waiting), None);
    assert!(pool.status().contains(" out_of_data_space "));
    thin.suspend(SuspendOptions { noflush: true, ..SuspendOptions::default() }, &|| false).unwrap();
    assert_eq!(client.status(waiting), None, "the device has it");
    discard_all_of(&pool);
    resume(&thin);
    assert_eq!(client.wait(waiting), Status::Ok);
    drop((client, io));
    pool.check();
}

/// The same of a request over several blocks, of which some are there, some are made, and some wait: it is one request.
#[test]
fn noflush_takes_back_a_request_of_which_a_part_waits() {
    for (op, flags) in [(Op::Write, OpFlags::NONE), (Op::Write, OpFlags::FUA), (Op::WriteZeroes, OpFlags::NO_UNMAP)] {
        let pool = Pool::new(3, "");
        let thin = pool.thin("thin", 0, 16);
        let top = pool.rig.device("top", &format!("0 {} linear {{thin}} 0", 16 * BLOCK));
        let io = pool.rig.io(&thin);
        write(&io, 0, BLOCK, 1);
        write(&io, 8 * BLOCK, BLOCK, 1);
        let mut client = Client::new(&pool.rig, &top);
        let (count, data) = (3 * BLOCK, pattern(0, 3 * BLOCK, 2));
        let waiting = match op {
            Op::Write => client.write(0, data.clone(), flags),
            _ => client.range(op, flags, 0, count),
        };
        assert_eq!(client.status(waiting), None);
        assert!(pool.status().contains(" out_of_data_space "));
        for _ in 0..2 {
            thin.suspend(SuspendOptions { noflush: true, ..SuspendOptions::default() }, &|| false).unwrap();
            assert_eq!(client.status(waiting), None, "{op:?}: the device has it");
            resume(&thin);
            assert_eq!(client.status(waiting), None, "{op:?}: it waits for space again");
        }
        thin.suspend(SuspendOptions { noflush: true, ..SuspendOptions::default() }, &|| false).unwrap();
        let other = pool.activate("other", 0, 16);
        discard(&pool.rig.io(&other), 8 * BLOCK, BLOCK);
        drop(other);
        resume(&thin);
        assert_eq!(client.wait(waiting), Status::Ok, "{op:?} {flags:?}");
        let expect = if op == Op::Write { data } else { zeroes(count) };
        assert!(read(&io, 0, count) == expect, "{op:?}");
        drop((client, io));
        pool.remove("top");
        pool.check();
    }
}

/// Makes room by way of another table of the volume.
fn discard_all_of(pool: &Pool) {
    let other = pool.activate("other", 0, 16);
    discard(&pool.rig.io(&other), 0, BLOCK);
}

/// A reload of a volume keeps what it knows; both tables are one device of the pool.
#[test]
fn a_volume_is_reloaded_while_in_use() {
    let pool = Pool::new(32, "");
    let thin = pool.thin("thin", 0, 8);
    let io = pool.rig.io(&thin);
    write(&io, 0, 4 * BLOCK, 1);
    pool.rig.reload(&thin, &format!("0 {} thin {{pool}} 0", 16 * BLOCK));
    let io = pool.rig.io(&thin);
    write(&io, 12 * BLOCK, BLOCK, 2);
    assert!(read(&io, 0, 4 * BLOCK) == pattern(0, 4 * BLOCK, 1));
    assert_eq!(info(&thin), format!("{} {}", 5 * BLOCK, 13 * BLOCK - 1));
    drop(io);
    pool.check();
}
