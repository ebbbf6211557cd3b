//! Table lines: what is refused and where, what is printed, and that it loads again.

use super::pools::*;
use super::rig::*;
use udm_core::*;

fn refused(rig: &Rig, table: &str) -> String {
    let md = rig.registry.create("refused", "", None).unwrap();
    let e = rig.load(&md, table, false).unwrap_err();
    rig.registry.remove(&md, false).unwrap();
    e.to_string()
}

#[test]
fn bad_tables_say_where_and_what() {
    let rig = Rig::default();
    rig.disk("meta", 8192);
    rig.disk("data", 4096);
    rig.disk("small", 128);
    for (table, message, at) in [
        ("0 4096 thin-pool meta data 128", "Invalid argument count: expected <metadata device>", ""),
        ("0 4096 thin-pool meta meta 128 0", "Error setting metadata or data device", "meta "),
        ("0 4096 thin-pool none data 128 0", "Error opening metadata block device: none: no such file", "none"),
        ("0 4096 thin-pool meta none 128 0", "Error getting data device: none: no such file", "none"),
        ("0 4096 thin-pool meta data 0 0", "Invalid block size: expected a multiple of 128 sectors", "0 0"),
        ("0 4096 thin-pool meta data 100 0", "Invalid block size", "100"),
        ("0 4096 thin-pool meta data 2097280 0", "Invalid block size", "2097280"),
        ("0 4096 thin-pool meta data x 0", "Invalid block size: expected a block size in sectors as a decimal", "x"),
        ("0 4096 thin-pool meta data 128 y", "Invalid low water mark", "y"),
        ("0 4096 thin-pool meta data 128 0 9", "Invalid number of pool feature arguments", "9"),
        ("0 4096 thin-pool meta data 128 0 1 what", "Unrecognised pool feature requested: found \"what\"", "what"),
        ("0 8192 thin-pool meta data 128 0", "data device too small for target: expected 8192 sectors", "data"),
        ("0 4096 thin-pool meta data 128 0\n4096 8 zero", "singleton target must appear alone", ""),
        ("0 128 thin small 0", "Couldn't get pool mapped device: expected a mapped device with a thin-pool", "small"),
        ("0 128 thin", "Invalid argument count", ""),
        ("0 128 thin a b c d", "Invalid argument count", "d"),
        ("0 128 thin small x", "Invalid device id: expected a number from 0 to 16777215, found \"x\"", "x"),
        ("0 128 thin small 16777216", "Invalid device id", "16777216"),
        ("0 128 thin small 0 small", "Error setting origin device", "small"),
        ("0 128 thin small 0 none", "Error opening origin device", "none"),
        ("0 128 thin none 0", "Error opening pool device", "none"),
    ] {
        let e = refused(&rig, table);
        assert!(e.contains(message), "{table}: {e}");
        if !at.is_empty() {
            let (line, caret) = (e.lines().nth(1).unwrap(), e.lines().nth(2).unwrap());
            assert!(line[caret.find('^').unwrap()..].starts_with(at), "{e}");
        }
    }
}

#[test]
fn volumes_need_a_pool_that_runs() {
    let pool = Pool::new(16, "");
    pool.ok("create_thin 0");
    let rig = &pool.rig;
    assert!(
        refused(rig, "0 128 thin {pool} 1").contains("Couldn't open thin internal device: there is no thin device 1")
    );
    suspend(&pool.md);
    let e = refused(rig, "0 128 thin {pool} 0");
    assert!(e.contains("Unable to activate thin device while pool is suspended"), "{e}");
    resume(&pool.md);
    rig.disk("d", 128);
    rig.device("lin", "0 128 linear d 0");
    assert!(refused(rig, "0 128 thin {lin} 0").contains("Couldn't find pool object: lin has no thin-pool"));
    let thin = pool.activate("thin", 0, 16);
    let e = rig.registry.remove(&pool.md, false).unwrap_err().to_string();
    assert!(e.contains("in use"), "{e}");
    drop(thin);
    pool.check();
}

#[test]
fn lines_are_the_kernels() {
    let pool = Pool::new(64, "");
    // The kernel's line ends with a space, too.
    assert_eq!(shown(&pool.md), "meta data 128 0 0 ");
    assert_eq!(pool.status(), "0 111/1024 0/64 - rw discard_passdown queue_if_no_space - 256 skip_zero_writes");
    let thin = pool.thin("thin", 3, 16);
    let devt = pool.md.devt();
    assert_eq!((shown(&thin), info(&thin)), (format!("{devt} 3"), "0 -".to_owned()));
    write(&pool.rig.io(&thin), 300, 8, 1);
    assert_eq!(info(&thin), "128 383");
    pool.rig.disk("origin", 128);
    pool.ok("create_thin 4");
    let other = pool.rig.device("other", "0 1024 thin {pool} 4 origin");
    assert_eq!(shown(&other), format!("{devt} 4 origin"));
    for (features, table, status) in [
        ("1 ignore_discard", "", "Discard support cannot be disabled once enabled"),
        (
            "1 no_discard_passdown",
            "1 no_discard_passdown",
            "rw no_discard_passdown queue_if_no_space - 256 skip_zero_writes",
        ),
        ("1 error_if_no_space", "1 error_if_no_space", "rw discard_passdown error_if_no_space - 256 skip_zero_writes"),
        (
            "1 skip_block_zeroing",
            "1 skip_block_zeroing",
            "rw discard_passdown queue_if_no_space - 256 enable_zero_writes",
        ),
        (
            "1 enable_zero_writes",
            "1 enable_zero_writes",
            "rw discard_passdown queue_if_no_space - 256 enable_zero_writes",
        ),
        (
            "2 unmap_zero_writes skip_zero_writes",
            "2 skip_zero_writes unmap_zero_writes",
            "rw discard_passdown queue_if_no_space - 256 skip_zero_writes",
        ),
        ("1 read_only", "1 read_only", "ro discard_passdown queue_if_no_space - 256 skip_zero_writes"),
        ("0", "0", "rw discard_passdown queue_if_no_space - 256 skip_zero_writes"),
    ] {
        if let Err(e) = pool.rig.load(&pool.md, &pool.table(features), false) {
            assert!(e.to_string().contains(status), "{features}: {e}");
            continue;
        }
        resume(&pool.md);
        assert_eq!(shown(&pool.md), format!("meta data 128 0 {table} "));
        assert!(pool.status().ends_with(status), "{features}: {}", pool.status());
    }
    drop((thin, other));
    pool.check();
}

#[test]
fn a_pool_is_not_replaced_by_another() {
    let pool = Pool::new(16, "");
    pool.rig.disk("other", 8192);
    for table in
        ["0 2048 thin-pool other data 128 0", "0 2048 thin-pool meta other 128 0", "0 2048 thin-pool meta data 256 0"]
    {
        let e = pool.rig.load(&pool.md, table, false).unwrap_err().to_string();
        assert!(e.contains("different pool cannot replace a pool"), "{table}: {e}");
    }
    let e = pool.rig.load(&pool.md, "0 128 zero", false).unwrap_err().to_string();
    assert!(e.contains("can't replace immutable target type"), "{e}");
    let md = pool.rig.registry.create("ro", "", None).unwrap();
    let e = pool.rig.load(&md, &pool.table(""), true).unwrap_err().to_string();
    assert!(e.contains("read-only tables"), "{e}");
    pool.check();
}

#[test]
fn limits_are_the_blocks() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 16);
    let limits = udm_io::BlockDevice::limits(&*thin);
    assert_eq!((limits.io_min, limits.io_opt, limits.write_cache, limits.fua), (65536, 65536, true, true));
    let table = pool.md.table(TableSlot::Active).unwrap();
    let names: Vec<String> = table.devices().iter().map(|d| d.name()).collect();
    assert_eq!(names, ["meta", "data"]);
    drop((thin, table));
    pool.check();
}

/// A table that is refused for its data device leaves blank metadata blank.
#[test]
fn a_refused_table_makes_no_metadata() {
    let rig = Rig::default();
    let metadata = rig.disk("meta", 8192);
    rig.disk("data", 4096);
    for table in ["0 8192 thin-pool meta data 128 0", "0 4096 thin-pool meta data 128 0 1 what"] {
        refused(&rig, table);
        assert!(!metadata.log().iter().any(|l| l.contains("Write")), "{table}");
    }
}
