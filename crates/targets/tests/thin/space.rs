//! Running out of data blocks and of metadata blocks, and getting more.

use super::pools::*;
use super::rig::*;
use std::sync::Arc;
use udm_base::Sector;
use udm_core::*;
use udm_io::*;
use udm_sim::Sim;

/// A pool whose data or metadata device can grow: a linear that is loaded anew.
fn growing(rig: Rig, data_blocks: u64, metadata_blocks: u64, features: &str) -> (Rig, Arc<MappedDevice>) {
    rig.disk("below", 1024 * BLOCK);
    rig.disk("metabelow", 8192);
    rig.device("data", &format!("0 {} linear below 0", data_blocks * BLOCK));
    rig.device("meta", &format!("0 {} linear metabelow 0", metadata_blocks * 8));
    let md = rig.device("pool", &growing_table(data_blocks, features));
    md.message(Sector::ZERO, &["create_thin", "0"]).unwrap();
    rig.device("thin", &format!("0 {} thin {{pool}} 0", 4096 * BLOCK));
    (rig, md)
}

fn growing_table(blocks: u64, features: &str) -> String {
    format!("0 {} thin-pool {{meta}} {{data}} {BLOCK} 2 {features}", blocks * BLOCK)
}

fn device(rig: &Rig, name: &str) -> Arc<MappedDevice> {
    rig.registry.by_name(name).unwrap()
}

#[test]
fn writes_wait_for_space_and_go_on_when_the_pool_grows() {
    let (rig, md) = growing(Rig::default(), 4, 64, "");
    let thin = device(&rig, "thin");
    let io = rig.io(&thin);
    let events = md.info().event_nr;
    write(&io, 0, BLOCK, 1);
    assert_eq!(md.info().event_nr, events, "enough is left");
    write(&io, BLOCK, 3 * BLOCK, 1);
    assert_eq!(md.info().event_nr, events + 1, "the low water event comes once");
    let mut client = Client::new(&rig, &thin);
    let waiting = client.write(9 * BLOCK, pattern(9 * BLOCK, 8, 2), OpFlags::NONE);
    assert_eq!(client.status(waiting), None);
    assert_eq!(md.info().event_nr, events + 2, "the mode has changed");
    assert!(info(&md).contains(" out_of_data_space discard_passdown queue_if_no_space "), "{}", info(&md));
    assert_eq!(read(&io, 0, 8), pattern(0, 8, 1), "reads go on");
    write(&io, 8, 8, 3);
    rig.reload(&device(&rig, "data"), &format!("0 {} linear below 0", 8 * BLOCK));
    rig.reload(&md, &growing_table(8, ""));
    assert_eq!(client.wait(waiting), Status::Ok);
    assert_eq!(read(&io, 9 * BLOCK, 8), pattern(9 * BLOCK, 8, 2));
    assert!(info(&md).contains(" 5/8 - rw "), "{}", info(&md));
}

#[test]
fn writes_fail_at_once_when_the_table_says_so() {
    let (rig, md) = growing(Rig::default(), 2, 64, "1 error_if_no_space");
    let io = rig.io(&device(&rig, "thin"));
    write(&io, 0, 2 * BLOCK, 1);
    assert_eq!(io.write(Sector::new(5 * BLOCK), &pattern(0, 8, 1), OpFlags::NONE), Err(Status::NoSpace));
    assert!(info(&md).contains(" out_of_data_space discard_passdown error_if_no_space "), "{}", info(&md));
    // A discard makes space, at once.
    discard(&io, 0, BLOCK);
    write(&io, 5 * BLOCK, 8, 2);
    assert!(info(&md).contains(" rw "), "{}", info(&md));
}

/// The wait is bounded: 60 seconds unless set; then the pool says that it fails writes.
#[test]
fn the_wait_for_space_is_bounded() {
    for (set, seconds) in [(None, 60), (Some("5"), 5)] {
        let sim = Sim::new(1);
        let (rig, md) = growing(Rig::with(udm_targets::TARGETS, sim.domain()), 1, 64, "");
        if let Some(value) = set {
            md.set_target_option("no_space_timeout", value).unwrap();
        }
        let thin = device(&rig, "thin");
        write(&rig.io(&thin), 0, BLOCK, 1);
        let start = rig.domain.clock().now();
        let mut client = Client::new(&rig, &thin);
        let waiting = client.write(9 * BLOCK, pattern(9 * BLOCK, 8, 2), OpFlags::NONE);
        assert_eq!(client.wait(waiting), Status::NoSpace);
        let waited = rig.domain.clock().now().since(start) / 1_000_000;
        assert!((seconds * 1000..seconds * 1000 + 500).contains(&waited), "{waited} ms");
        assert!(info(&md).contains(" error_if_no_space "), "{}", info(&md));
        let io = rig.io(&thin);
        assert_eq!(io.write(Sector::new(9 * BLOCK), &pattern(0, 8, 1), OpFlags::NONE), Err(Status::NoSpace));
        // With space the table's word holds again.
        discard(&io, 0, BLOCK);
        assert!(info(&md).contains(" rw discard_passdown queue_if_no_space "), "{}", info(&md));
    }
}

/// Metadata run out: nothing is lost, the pool is `ro`, and it is `rw` again when the metadata device has grown.
#[test]
fn metadata_that_run_out_make_the_pool_read_only() {
    let (rig, md) = growing(Rig::default(), 64, 100, "");
    let io = rig.io(&device(&rig, "thin"));
    write(&io, 0, 8, 1);
    io.flush().unwrap();
    write(&io, BLOCK, 8, 2);
    // Each has a tree of its own.
    let message = |text: String| md.message(Sector::ZERO, &text.split(' ').collect::<Vec<_>>());
    let refused = (1..200u32).find_map(|n| message(format!("create_thin {n}")).err());
    assert_eq!(refused.map(|e| e.errno), Some(udm_base::Errno::EOPNOTSUPP), "{}", info(&md));
    assert!(info(&md).contains(" ro ") && !info(&md).contains("needs_check"), "{}", info(&md));
    assert_eq!(io.write(Sector::new(9 * BLOCK), &pattern(0, 8, 1), OpFlags::NONE), Err(Status::Io));
    write(&io, 16, 8, 3);
    let check = || {
        for (sector, n) in [(0, 1), (BLOCK, 2), (16, 3)] {
            assert!(read(&io, sector, 8) == pattern(sector, 8, n), "{sector}");
        }
    };
    check();
    io.flush().unwrap();
    rig.reload(&device(&rig, "meta"), &format!("0 {} linear metabelow 0", 512 * 8));
    suspend(&md);
    resume(&md);
    assert!(info(&md).contains(" rw ") && info(&md).contains("/512 "), "{}", info(&md));
    write(&io, 9 * BLOCK, 8, 7);
    io.flush().unwrap();
    check();
    assert_eq!(read(&io, 9 * BLOCK, 8), pattern(9 * BLOCK, 8, 7));
}

/// Trap: a block that is being filled when metadata run out belongs to nobody, also when there are more.
#[test]
fn blocks_that_are_being_filled_when_metadata_run_out_are_given_back() {
    for blocks in [64, 70, 100] {
        let (rig, md) = growing(Rig::default(), 64, blocks, "");
        let mut client = Client::new(&rig, &device(&rig, "thin"));
        let below = rig.named("below").unwrap();
        let below = below.as_any().downcast_ref::<Disk>().unwrap();
        *below.hold_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
        let token = client.write(0, pattern(0, BLOCK, 1), OpFlags::NONE);
        assert_eq!(client.status(token), None);
        let create = |n: u32| md.message(Sector::ZERO, &["create_thin", &n.to_string()]);
        assert!((1..200).any(|n| create(n).is_err()) && info(&md).contains(" ro "), "{}", info(&md));
        *below.hold_if.lock().unwrap() = None;
        below.release();
        assert_eq!(client.wait(token), Status::Io);
        rig.reload(&device(&rig, "meta"), &format!("0 {} linear metabelow 0", 512 * 8));
        suspend(&md);
        resume(&md);
        assert!(info(&md).contains(" 0/64 - rw "), "{blocks} blocks: {}", info(&md));
    }
}

/// As before, by writes: they commit ahead of the reserve.
#[test]
fn writes_leave_the_reserve_to_commits() {
    let (rig, md) = growing(Rig::default(), 1024, 100, "");
    let io = rig.io(&device(&rig, "thin"));
    (0..40).for_each(|n| write(&io, n * BLOCK, 8, n));
    let message = |text: String| md.message(Sector::ZERO, &text.split(' ').collect::<Vec<_>>());
    let mut last = Ok(());
    'all: for snap in 1..200u64 {
        // Each shares the leaf, and the next write takes it apart.
        if message(format!("create_snap {snap} 0")).is_err() {
            break;
        }
        for n in 0..3 {
            let sector = Sector::new((snap * 3 + n) % 40 * BLOCK);
            last = io.write(sector, &pattern(sector.get(), 8, snap), OpFlags::NONE);
            if last.is_err() {
                break 'all;
            }
        }
    }
    assert!(info(&md).contains(" ro ") && !info(&md).contains("needs_check"), "{last:?}: {}", info(&md));
    io.flush().unwrap();
}

#[test]
fn a_pool_does_not_shrink() {
    let (rig, md) = growing(Rig::default(), 8, 64, "");
    rig.load(&md, &growing_table(4, ""), false).unwrap();
    let e = md.resume(SuspendOptions::default(), &|| false).unwrap_err().to_string();
    assert!(e.contains("pool target (4 blocks) too small: expected 8"), "{e}");
    rig.load(&md, &growing_table(8, ""), false).unwrap();
    resume(&md);
    write(&rig.io(&device(&rig, "thin")), 0, 8, 1);
}

/// What a volume or a snapshot holds, by block: the generation of its first sectors.
type Blocks = std::collections::BTreeMap<u64, u64>;

/// Trap: metadata end in the middle of anything: a write that maps, one that takes a shared leaf apart, a discard, a
/// snapshot, a deletion, a commit. However many blocks there are: nothing that was acknowledged is lost, nobody has to
/// check anything, and it goes on when there are more.
#[test]
fn metadata_may_end_anywhere() {
    let mut ran_out = 0;
    for blocks in (40..90).step_by(3) {
        let (rig, md) = growing(Rig::default(), 1024, blocks, "1 error_if_no_space");
        let mut volumes = vec![(rig.io(&device(&rig, "thin")), Blocks::new())];
        let mut random = udm_sim::Rng::new(blocks);
        let message = |text: String| md.message(Sector::ZERO, &text.split(' ').collect::<Vec<_>>());
        let mut failed = 0;
        let mut snaps = 0;
        for _ in 0..1000 {
            if failed >= 6 {
                break;
            }
            let at = random.below(volumes.len() as u64) as usize;
            // Near each other, and far.
            let block = random.below(if blocks % 2 == 0 { 300 } else { 4000 });
            match random.below(40) {
                0..5 if volumes.len() < 60 => {
                    snaps += 1;
                    let id = snaps;
                    let origin = (at > 0).then(|| volumes[at].1.get(&u64::MAX).copied()).flatten().unwrap_or(0);
                    let holds = volumes[at].1.clone();
                    if message(format!("create_snap {id} {origin}")).is_err() {
                        failed += 1;
                        continue;
                    }
                    let snap = rig.device(&format!("snap{id}"), &format!("0 {} thin {{pool}} {id}", 4096 * BLOCK));
                    volumes.push((rig.io(&snap), holds));
                    // Its own number, where no block is.
                    volumes.last_mut().unwrap().1.insert(u64::MAX, id);
                }
                5 if volumes.len() > 20 => {
                    let (io, holds) = volumes.remove(1 + at % (volumes.len() - 1));
                    let id = holds[&u64::MAX];
                    drop(io);
                    rig.registry.remove(&device(&rig, &format!("snap{id}")), false).unwrap();
                    failed += usize::from(message(format!("delete {id}")).is_err());
                }
                6 => volumes[at].0.flush().unwrap_or_else(|e| panic!("{blocks} blocks: {e:?}, {}", info(&md))),
                7..9 => {
                    let (io, holds) = &mut volumes[at];
                    let count = 1 + random.below(40);
                    let range = (Sector::new(block * BLOCK), udm_base::Sectors::new(count * BLOCK));
                    if io.range(Op::Discard, OpFlags::NONE, range.0, range.1).is_ok() && info(&md).contains(" rw ") {
                        holds.retain(|at, _| *at < block || *at >= block + count);
                    } else {
                        // Done, or not.
                        holds.retain(|at, _| *at == u64::MAX || *at < block || *at >= block + count);
                        failed += 1;
                    }
                }
                _ => {
                    let (io, holds) = &mut volumes[at];
                    let generation = random.below(1 << 40);
                    let flags = if random.one_in(8) { OpFlags::FUA } else { OpFlags::NONE };
                    let data = pattern(block * BLOCK, 8, generation);
                    match io.write(Sector::new(block * BLOCK), &data, flags) {
                        Ok(()) => drop(holds.insert(block, generation)),
                        Err(Status::NoSpace) => {}
                        Err(_) => failed += 1,
                    }
                }
            }
            assert!(!info(&md).contains("needs_check") && info(&md) != "Fail", "{blocks} blocks: {}", info(&md));
        }
        let check = |volumes: &[(BlockingIo, Blocks)]| {
            for (n, (io, holds)) in volumes.iter().enumerate() {
                for (block, generation) in holds.iter().filter(|(block, _)| **block != u64::MAX) {
                    let expect = pattern(block * BLOCK, 8, *generation);
                    assert!(read(io, block * BLOCK, 8) == expect, "{blocks} blocks, volume {n}, block {block}");
                }
                io.flush().unwrap_or_else(|e| panic!("{blocks} blocks, volume {n}: {e:?}, {}", info(&md)));
            }
        };
        check(&volumes);
        if info(&md).contains(" ro ") {
            ran_out += 1;
            suspend(&md);
            resume(&md);
            assert!(md.notices()[0].contains("let the metadata device grow"), "{:?}", md.notices());
        }
        rig.reload(&device(&rig, "meta"), &format!("0 {} linear metabelow 0", 600 * 8));
        suspend(&md);
        resume(&md);
        assert!(info(&md).contains(" rw ") && info(&md).contains("/600 ") && md.notices().is_empty(), "{}", info(&md));
        for (i, (io, holds)) in volumes.iter_mut().enumerate() {
            write(io, (10 + i as u64) * BLOCK, 8, 7);
            holds.insert(10 + i as u64, 7);
        }
        check(&volumes);
        drop(volumes);
        let mut names: Vec<String> = rig.registry.list().iter().map(|md| md.device_name()).collect();
        names.retain(|name| name == "thin" || name.starts_with("snap"));
        names.push("pool".into());
        drop(md);
        for name in names {
            rig.registry.remove(&device(&rig, &name), false).unwrap();
        }
        if blocks % 10 == 0 {
            let disk = rig.named("metabelow").unwrap();
            check_metadata_on(&rig, disk);
        }
    }
    assert!(ran_out > 10, "metadata ran out {ran_out} times");
}
