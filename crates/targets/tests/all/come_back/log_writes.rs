//! The log of `log-writes`, as `udm_formats` reads it back.

use crate::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_formats::log_writes::{Reader, Record, Superblock};
use udm_io::*;

struct World {
    rig: Rig,
    dev: Arc<Disk>,
    log: Arc<Disk>,
}

impl World {
    fn new(log_sectors: u64) -> Self {
        Self::with(log_sectors, Limits { write_cache: true, ..Limits::default() })
    }

    fn with(log_sectors: u64, limits: Limits) -> Self {
        let rig = Rig::default();
        let (dev, log) = (rig.disk_with("/dev", 1000, limits), rig.disk("/log", log_sectors));
        // What was there before is no log.
        for disk in [&dev, &log] {
            let io = BlockingIo::new(&rig.domain, disk.clone()).unwrap();
            io.range(Op::WriteZeroes, OpFlags::NONE, Sector::ZERO, disk.sectors()).unwrap();
        }
        Self { rig, dev, log }
    }

    fn device(&self) -> Arc<MappedDevice> {
        self.rig.device("x", "0 1000 log-writes /dev /log")
    }

    fn raw(&self, sector: u64, count: u64) -> Vec<u8> {
        read(&BlockingIo::new(&self.rig.domain, self.log.clone()).unwrap(), sector, count)
    }

    fn records(&self) -> Vec<Record> {
        let bytes = self.raw(0, self.log.sectors().get());
        let superblock = Superblock::decode(&bytes, self.log.sectors()).unwrap();
        let mut reader = Reader::new(superblock, self.log.sectors());
        let mut records = Vec::new();
        while let Some((at, len)) = reader.want() {
            let from = Sectors::new(at.get()).as_len();
            records.push(reader.feed(&bytes[from..from + len.as_len()]).unwrap());
        }
        records
    }

    /// The log, after a mark: `W8+2` for a write of sectors 8 and 9, and so on.
    fn log(&self, md: &Arc<MappedDevice>) -> Vec<String> {
        md.message(Sector::ZERO, &["mark", "."]).unwrap();
        let mut log = self.described();
        assert_eq!(log.pop().as_deref(), Some("mark ."));
        log
    }

    fn described(&self) -> Vec<String> {
        let describe = |r: Record| match r.entry.flags.to_string().as_str() {
            "MARK" => format!("mark {}", String::from_utf8(r.entry.mark).unwrap()),
            "FLUSH" => "flush".to_owned(),
            flags => {
                let name = match flags {
                    "NONE" => "W",
                    "FUA" => "FUA",
                    "DISCARD" => "D",
                    other => other,
                };
                format!("{name}{}+{}", r.sector.get(), r.sectors.get())
            }
        };
        self.records().into_iter().map(describe).collect()
    }
}

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().lines(StatusKind::Info { noflush: false })[0].params.clone()
}

#[test]
fn writes_wait_for_a_flush_and_fua_does_not() {
    let world = World::new(400);
    let md = world.device();
    let io = world.rig.io(&md);
    write(&io, 8, 2, 1);
    io.write(Sector::new(100), &pattern(100, 1, 2), OpFlags::FUA).unwrap();
    io.range(Op::Discard, OpFlags::NONE, Sector::new(50), Sectors::new(9)).unwrap();
    write(&io, 9, 1, 3);
    assert!(read(&io, 8, 1) == pattern(8, 1, 1), "reads pass and are not logged");
    assert_eq!(world.log(&md), ["FUA100+1"], "the others are not durable");
    io.flush().unwrap();
    assert_eq!(world.log(&md), ["FUA100+1", "mark .", "W8+2", "D50+9", "W9+1", "flush"]);
    let records = world.records();
    assert!(world.raw(records[2].data.0.get(), 2) == pattern(8, 2, 1), "with its data");
    assert!(world.raw(records[0].data.0.get(), 1) == pattern(100, 1, 2));
    drop(io);
    write(&world.rig.io(&md), 1, 1, 4);
    world.rig.registry.remove(&md, false).unwrap();
    let described = world.described();
    assert_eq!(
        described[described.len() - 2..],
        ["W1+1", "mark dm-log-writes-end"],
        "its end has what no flush has seen"
    );
}

/// The example in the head of dm-log-writes.c: Wa, Wb, Wc, Cc, Ca, FLUSH, FUAd, Cb, CFLUSH, CFUAd.
#[test]
fn the_order_of_the_kernels_example() {
    let world = World::new(400);
    let md = world.device();
    let mut client = Client::new(&world.rig, &md);
    world.dev.holding.store(true, Ordering::Relaxed);
    let b = client.write(2, pattern(2, 1, 1), OpFlags::NONE);
    let a = client.write(1, pattern(1, 1, 1), OpFlags::NONE);
    let c = client.write(3, pattern(3, 1, 1), OpFlags::NONE);
    // Completed: c, then a.
    for token in [c, a] {
        world.dev.release_last();
        assert_eq!(client.status(token), Some(Status::Ok));
    }
    let flush = client.range(Op::Flush, OpFlags::NONE, 0, 0);
    let d = client.write(4, pattern(4, 1, 1), OpFlags::FUA);
    assert_eq!(world.dev.release(), 3);
    for token in [b, flush, d] {
        assert_eq!(client.status(token), Some(Status::Ok));
    }
    assert_eq!(world.log(&md), ["W3+1", "W1+1", "flush", "FUA4+1"], "b was not complete when the flush was sent");
    let next = client.range(Op::Flush, OpFlags::NONE, 0, 0);
    world.dev.release();
    assert_eq!(client.status(next), Some(Status::Ok));
    assert_eq!(world.log(&md)[4..], ["mark .", "W2+1", "flush"]);
}

#[test]
fn fua_of_a_device_without_it() {
    let world = World::with(400, Limits { write_cache: true, fua: false, ..Limits::default() });
    let md = world.device();
    let io = world.rig.io(&md);
    write(&io, 7, 1, 1);
    world.dev.log();
    io.write(Sector::new(5), &pattern(5, 1, 1), OpFlags::FUA).unwrap();
    let asked = world.dev.log();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].contains("Write") && !asked[0].contains("fua") && asked[1].contains("Flush"), "{asked:?}");
    assert_eq!(world.log(&md), ["FUA5+1"]);
    world.dev.failing.store(true, Ordering::Relaxed);
    assert!(io.write(Sector::new(5), &pattern(5, 1, 2), OpFlags::FUA).is_err());
}

#[test]
fn discards_of_a_device_without_them_are_logged() {
    let world =
        World::with(400, Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..Limits::default() });
    let md = world.device();
    let io = world.rig.io(&md);
    write(&io, 0, 1, 1);
    io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(4)).unwrap();
    io.range(Op::WriteZeroes, OpFlags::NONE, Sector::new(4), Sectors::new(2)).unwrap();
    io.flush().unwrap();
    assert!(read(&io, 0, 1) == pattern(0, 1, 1), "it is the log's only");
    assert_eq!(world.log(&md), ["W0+1", "D0+4", "W4+2", "flush"], "zeroes are written");
}

#[test]
fn status_and_table() {
    let world = World::new(400);
    let md = world.device();
    let io = world.rig.io(&md);
    assert_eq!(status(&md), "0 0");
    write(&io, 8, 2, 1);
    assert_eq!(status(&md), "0 0", "what waits for a flush has no place");
    io.flush().unwrap();
    world.log(&md);
    assert_eq!(status(&md), "3 5");
    let table = md.table(TableSlot::Active).unwrap();
    assert_eq!(table.lines(StatusKind::Table)[0].params, "/dev /log");
    // More than a sector holds.
    md.message(Sector::ZERO, &["MARK", &"y".repeat(600)]).unwrap();
    assert_eq!(world.described().pop().unwrap().len(), "mark ".len() + 479);
}

#[test]
fn a_full_log_and_a_broken_one() {
    let world = World::new(5);
    let md = world.device();
    let io = world.rig.io(&md);
    write(&io, 0, 2, 1);
    io.flush().unwrap();
    assert_eq!(
        status(&md),
        "1 4 logging_disabled",
        "the flush found no place: the sector that it would have had counts"
    );
    write(&io, 0, 2, 2);
    io.flush().unwrap();
    assert!(read(&io, 0, 2) == pattern(0, 2, 2), "the device goes on");
    md.message(Sector::ZERO, &["mark", "late"]).unwrap();
    assert_eq!(status(&md), "1 4 logging_disabled");

    let world = World::new(400);
    let md = world.device();
    let io = world.rig.io(&md);
    world.log.failing.store(true, Ordering::Relaxed);
    write(&io, 0, 1, 1);
    io.flush().unwrap();
    world.log.failing.store(false, Ordering::Relaxed);
    md.message(Sector::ZERO, &["mark", "late"]).unwrap();
    assert_eq!(status(&md), "2 3 logging_disabled");
    assert!(Superblock::decode(&world.raw(0, 1), Sectors::new(400)).is_err(), "it counts nothing that is not there");
}

#[test]
fn a_reload_goes_on_with_the_log() {
    let world = World::new(400);
    let md = world.device();
    let io = world.rig.io(&md);
    write(&io, 1, 1, 1);
    io.flush().unwrap();
    write(&io, 2, 1, 1);
    world.rig.reload(&md, "0 900 log-writes /dev /log");
    write(&io, 3, 1, 1);
    io.flush().unwrap();
    // A table that nobody resumes says nothing.
    world.rig.load(&md, "0 800 log-writes /dev /log", false).unwrap();
    assert!(md.clear());
    assert_eq!(world.log(&md), ["W1+1", "flush", "W2+1", "W3+1", "flush"]);
    let other = world.rig.disk("/other", 1000);
    let refused = world.rig.load(&md, "0 900 log-writes /other /log", false).unwrap_err().to_string();
    assert!(refused.contains("/log is the log of /dev; a log has one device"), "{refused}");
    assert!(other.log().is_empty());
    drop(io);
    world.rig.registry.remove(&md, false).unwrap();
    let end = world.described();
    assert_eq!(end.last().map(String::as_str), Some("mark dm-log-writes-end"));
    assert_eq!(end.iter().filter(|e| *e == "mark dm-log-writes-end").count(), 1);
}

#[test]
fn a_target_in_the_middle_keeps_its_sectors() {
    let world = World::new(400);
    let md = world.rig.device("x", "0 100 zero\n100 100 log-writes /dev /log");
    let io = world.rig.io(&md);
    write(&io, 150, 1, 1);
    io.flush().unwrap();
    assert_eq!(world.log_of_second(&md), ["W150+1", "flush"]);
    let dev = BlockingIo::new(&world.rig.domain, world.dev.clone()).unwrap();
    assert!(read(&dev, 150, 1) == pattern(150, 1, 1), "as the kernel, which takes no start sector");
}

impl World {
    fn log_of_second(&self, md: &Arc<MappedDevice>) -> Vec<String> {
        md.message(Sector::new(100), &["mark", "."]).unwrap();
        let mut log = self.described();
        log.pop();
        log
    }
}

#[test]
fn a_slow_log_device_makes_writers_wait() {
    const WRITE: u64 = 8192;
    let rig = Rig::default();
    let dev = rig.disk_with("/dev", WRITE, Limits { write_cache: true, ..Limits::default() });
    let log = rig.disk("/log", 1 << 20);
    let md = rig.device("x", &format!("0 {WRITE} log-writes /dev /log"));
    let mut client = Client::new(&rig, &md);
    log.holding.store(true, Ordering::Relaxed);
    let data = pattern(0, WRITE, 1);
    let mut tokens: Vec<u64> = (0..20).map(|_| client.write(0, data.clone(), OpFlags::FUA)).collect();
    let waiting = tokens.pop().unwrap();
    assert_eq!(client.status(tokens[15]), Some(Status::Ok));
    assert_eq!(client.status(waiting), None, "80 MiB and nothing is on the log device");
    // A suspension waits for nothing of the log device.
    suspend_while(&rig, &md, &log, || {});
    assert_eq!(client.wait(waiting), Status::Ok);
    drop(dev);
}

/// Suspends, while the log device holds what it is sent, and lets that go.
fn suspend_while(_: &Rig, md: &Arc<MappedDevice>, log: &Arc<Disk>, then: impl FnOnce()) {
    suspend(md);
    then();
    log.holding.store(false, Ordering::Relaxed);
    log.release();
    resume(md);
}

#[test]
fn constructor_and_message_errors() {
    let world = World::new(100);
    let md = world.device();
    for (table, expect) in [
        ("0 10 log-writes", "Invalid argument count: expected <device> <log device>, found 0 arguments"),
        ("0 10 log-writes /dev", "Invalid argument count: expected <device> <log device>, found 1 argument"),
        ("0 10 log-writes /none /log", "Device lookup failed: /none: no such file"),
        ("0 10 log-writes /dev /none", "Log device lookup failed: /none: no such file"),
        ("0 10 log-writes /dev /dev", "Log device lookup failed: /dev cannot be its own log"),
    ] {
        let error = world.rig.load(&md, table, false).expect_err(table).to_string();
        assert!(error.contains(expect), "{table}: {error}");
    }
    // For a reload sizes are checked at the resume.
    let other = world.rig.registry.create("other", "", None).unwrap();
    let error = world.rig.load(&other, "0 2000 log-writes /dev /log", false).expect_err("too short").to_string();
    assert!(error.contains("1000"), "{error}");
    world.rig.load(&md, "0 10 log-writes /dev /log and more", false).expect("the kernel does not look at the rest");
    for (words, expect) in [
        (&["mark"][..], "Invalid log-writes message arguments, expect 2 arguments, got 1"),
        (&["mark", "a", "b"], "Invalid log-writes message arguments, expect 2 arguments, got 3"),
        (&["merk", "a"], "Unrecognised log writes target message received: merk"),
    ] {
        let error = md.message(Sector::ZERO, words).unwrap_err().to_string();
        assert!(error.contains(expect), "{words:?}: {error}");
    }
}

/// A writer acknowledges what it has written, and a mark says when. A replay up to there finds the one that does not
/// flush before.
#[test]
fn a_writer_that_leaves_its_flush_out_is_found() {
    for (flags, flushes, is_there) in
        [(OpFlags::NONE, true, true), (OpFlags::FUA, false, true), (OpFlags::NONE, false, false)]
    {
        let world = World::new(400);
        let md = world.device();
        let io = world.rig.io(&md);
        io.write(Sector::new(5), &pattern(5, 1, 1), flags).unwrap();
        if flushes {
            io.flush().unwrap();
        }
        md.message(Sector::ZERO, &["mark", "acknowledged"]).unwrap();
        io.flush().unwrap();
        let mut disk = vec![0; 10 * 512];
        for record in world.records() {
            if record.entry.mark == b"acknowledged" {
                break;
            }
            let at = Sectors::new(record.sector.get()).as_len();
            let data = world.raw(record.data.0.get(), record.data.1.get());
            disk[at..at + data.len()].copy_from_slice(&data);
        }
        assert_eq!(disk[5 * 512..6 * 512] == pattern(5, 1, 1), is_there, "{flags:?}, {flushes}");
    }
}
