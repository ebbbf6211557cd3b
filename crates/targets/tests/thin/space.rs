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
