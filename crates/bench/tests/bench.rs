//! Measuring devices, good and bad, through the library and through the command.

use std::any::Any;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_bench::{Error, Fill, Lat, Load, Rw, Setting, Stack, Subject, Verify, compare, measure};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Domain, Limits, Memory, Op, Status};

/// What a bad device does wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    /// A bit of this byte flips on its way out.
    Flip(u64),
    /// Every write to this sector after the first is lost.
    Lose(u64),
    /// Writes to this sector go to the one after it.
    Misplace(u64),
    /// Requests that touch this sector fail.
    Fail(u64),
}

/// Memory with a fault.
struct Bad {
    memory: Memory,
    fault: Fault,
    seen: AtomicU64,
}

impl Bad {
    fn new(sectors: u64, fault: Fault) -> Arc<Self> {
        let memory = Memory::new(Sectors::new(sectors)).unwrap();
        Arc::new(Self { memory, fault, seen: AtomicU64::new(0) })
    }
}

impl BlockDevice for Bad {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let range = bio.sector().get()..bio.end_sector().get();
        let mut at = bio.sector();
        match self.fault {
            Fault::Fail(sector) if range.contains(&sector) => {
                bio.end(Status::Io);
                return None;
            }
            Fault::Lose(sector)
                if bio.op() == Op::Write
                    && range.contains(&sector)
                    && self.seen.fetch_add(1, Ordering::Relaxed) > 0 =>
            {
                bio.end(Status::Ok);
                return None;
            }
            Fault::Misplace(sector) if bio.op() == Op::Write && range.contains(&sector) => at += Sectors::new(1),
            _ => {}
        }
        let status = self.memory.serve_at(&bio, at);
        if let (Fault::Flip(byte), Op::Read) = (self.fault, bio.op())
            && range.contains(&(byte / 512))
        {
            let seg = bio.segments().next().unwrap();
            // SAFETY: a read's memory is the device's until the bio ends; the byte lies within its only segment.
            unsafe { *seg.as_ptr().add((byte - bio.sector().bytes()) as usize) ^= 4 }
        }
        bio.end(status);
        None
    }

    fn sectors(&self) -> Sectors {
        self.memory.sectors()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }

    fn name(&self) -> String {
        "bad".to_owned()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn load(rw: Rw, number_ios: u64) -> Load {
    Load { rw, bs: 512, runtime: None, number_ios: Some(number_ios), ..Load::default() }
}

#[test]
fn every_request_is_made_and_counted() {
    let domain = Domain::default();
    let stack = Stack::new(&domain, "r,,,,0 2048 ram").unwrap();
    for (rw, rwmixread, iodepth, numjobs, ios) in [
        (Rw::Read, 50, 1, 1, 1),
        (Rw::RandRead, 50, 32, 1, 10_000),
        (Rw::RandRead, 50, 32, 1, 7),
        (Rw::RandWrite, 50, 3, 4, 5000),
        (Rw::RandRw, 30, 8, 2, 20_000),
        (Rw::ReadWrite, 100, 1, 1, 1000),
    ] {
        for lat in [Lat::Off, Lat::Sample(1), Lat::Sample(64)] {
            let load = Load { rwmixread, iodepth, numjobs, lat, ..load(rw, ios) };
            let subject = stack.subject("r").unwrap();
            let before = subject.totals().unwrap();
            let found = measure(&domain, &subject, &load).unwrap();
            let after = subject.totals().unwrap();
            let all = ios * numjobs as u64;
            assert_eq!(found.reads.ios + found.writes.ios, all, "{load:?}");
            assert_eq!(found.reads.bytes + found.writes.bytes, all * 512);
            assert_eq!(after.reads - before.reads, found.reads.ios, "the device saw what is reported");
            assert_eq!(after.writes - before.writes, found.writes.ios);
            let measured = found.reads.latencies.count() + found.writes.latencies.count();
            match lat {
                Lat::Off => assert_eq!(measured, 0),
                Lat::Sample(n) => assert_eq!(measured, ios / u64::from(n) * numjobs as u64),
            }
            if rw == Rw::RandRw {
                let share = found.reads.ios as f64 / all as f64;
                assert!((share - 0.3).abs() < 0.02, "{share}");
            }
            assert!(found.elapsed_ns > 0 && found.iops() > 0.0);
        }
    }
}

#[test]
fn a_run_ends_in_time_and_errors_end_it_at_once() {
    let domain = Domain::default();
    let timed = Load { runtime: Some(Duration::from_millis(5)), number_ios: None, ..load(Rw::RandRead, 1) };
    assert!(measure(&domain, &Subject::device("ok", Bad::new(64, Fault::None)), &timed).unwrap().reads.ios > 0);
    for depth in [1, 7] {
        let subject = Subject::device("x", Bad::new(64, Fault::Fail(9)));
        let failing = Load { iodepth: depth, ..load(Rw::Write, u64::MAX) };
        let error = measure(&domain, &subject, &failing).err().unwrap().to_string();
        assert_eq!(error, "x: write of 512 bytes at byte 4608 failed: Input/output error");
    }
    let filled = compare(&domain, &Subject::device("x", Bad::new(64, Fault::Fail(9))), None, &timed, 1, |_, _| ());
    let error = filled.err().unwrap().to_string();
    assert!(error.contains("write of 32768 bytes at byte 0") && error.contains("--no-fill"), "{error}");
}

#[test]
fn reads_find_what_the_filling_wrote_and_shared_devices_are_left_alone() {
    let domain = Domain::default();
    let load = load(Rw::Read, 10);
    let zeroes = |dev: &Arc<Bad>| {
        let mut first = vec![1u8; 4096];
        let io = udm_io::BlockingIo::new(&domain, dev.clone()).unwrap();
        io.read(Sector::new(60), &mut first[..2048]).unwrap();
        first[..2048].iter().filter(|b| **b == 0).count()
    };
    for (own, rw, fill, filled) in [
        (true, Rw::Read, Fill::BeforeReads, true),
        (true, Rw::Read, Fill::No, false),
        (true, Rw::Write, Fill::BeforeReads, false),
        (true, Rw::Write, Fill::Yes, true),
        (false, Rw::Read, Fill::BeforeReads, false),
        (false, Rw::Read, Fill::Yes, true),
    ] {
        let dev = Bad::new(64, Fault::None);
        let subject = if own { Subject::device("d", dev.clone()) } else { Subject::shared("d", dev.clone()) };
        compare(&domain, &subject, None, &Load { rw, fill, ..load.clone() }, 1, |_, _| ()).unwrap();
        assert_eq!(zeroes(&dev) < 1024, filled, "own {own}, {rw:?}, {fill:?}");
    }
}

#[test]
fn verify_finds_what_is_wrong() {
    let domain = Domain::default();
    for verify in [Verify::Pattern, Verify::Crc32c] {
        for rw in [Rw::Write, Rw::RandWrite, Rw::RandRw, Rw::RandRead, Rw::ReadWrite] {
            for (fault, expect) in [
                (Fault::None, None),
                (Fault::Flip(5000), Some(4096..=5000)),
                (Fault::Misplace(11), Some(5120..=6655)),
                (Fault::Lose(20), Some(10_240..=11_263)),
                (Fault::Fail(9), Some(0..=u64::MAX)),
            ] {
                if matches!(fault, Fault::Lose(_)) && !rw.writes() {
                    continue;
                }
                for (numjobs, iodepth) in [(1, 1), (2, 8)] {
                    let load = Load { verify: Some(verify), numjobs, iodepth, bs: 1024, ..load(rw, 2000) };
                    let subject = Subject::device("d", Bad::new(64, fault));
                    let what = format!("{verify:?} {rw:?} {fault:?} {numjobs}x{iodepth}");
                    match (measure(&domain, &subject, &load), &expect) {
                        (Ok(found), None) => assert_eq!(found.reads.ios + found.writes.ios, 2000 * numjobs as u64),
                        (Err(Error::Verify { offset, detail, .. }), Some(range)) => {
                            assert!(range.contains(&offset), "{what}: {offset}: {detail}");
                        }
                        (Err(Error::Io { offset, .. }), Some(_)) => {
                            assert_eq!((fault, offset), (Fault::Fail(9), 4096), "{what}");
                        }
                        (Ok(_), Some(_)) => panic!("{what}: not found"),
                        (Err(e), _) => panic!("{what}: {e}"),
                    }
                }
            }
        }
    }
}

#[test]
fn verify_needs_a_block_for_each_request() {
    let domain = Domain::default();
    let subject = Subject::device("d", Bad::new(64, Fault::None));
    let load = Load { verify: Some(Verify::Pattern), iodepth: 65, ..load(Rw::RandWrite, 1) };
    let error = measure(&domain, &subject, &load).err().unwrap().to_string();
    assert!(error.contains("64 blocks"), "{error}");
}

#[test]
fn remaps_do_not_clone_unless_forced() {
    let domain = Domain::default();
    let concise = "a,,,,0 4096 ram;b,,,,0 4096 ram;l,,,,0 4096 linear /dev/mapper/a 0;\
                   m,,,,0 4096 linear /dev/mapper/l 0;s,,,,0 8192 striped 2 64 /dev/mapper/a 0 /dev/mapper/b 0";
    for (device, bs, settings, remapped, clones) in [
        ("l", 512, &[][..], true, 0),
        ("m", 512, &[], true, 0),
        ("m", 512, &[("m", Setting::Compile(false))], true, 0),
        ("s", 4096, &[], true, 0),
        // Two chunks of each request, one clone each.
        ("s", 65536, &[], false, 2),
        ("l", 512, &[("l", Setting::CloneAlways(true))], false, 1),
    ] {
        let stack = Stack::new(&domain, concise).unwrap();
        for (name, setting) in settings {
            stack.set(name, *setting).unwrap();
        }
        let subject = stack.subject(device).unwrap();
        let load = Load { bs, iodepth: 4, ..load(Rw::RandRw, 1000) };
        measure(&domain, &subject, &load).unwrap();
        let totals = subject.totals().unwrap();
        let expect = (if remapped { 1000 } else { 0 }, clones * 1000);
        assert_eq!((totals.remapped, totals.cloned), expect, "{device} {bs} {settings:?}");
    }
}

#[test]
fn rounds_take_turns() {
    let domain = Domain::default();
    let stack = Stack::new(&domain, "r,,,,0 4096 ram;l,,,,0 4096 linear /dev/mapper/r 0").unwrap();
    let (l, memcpy) = (stack.subject("l").unwrap(), Subject::memcpy(4096 * 512).unwrap());
    let mut told = Vec::new();
    let found = compare(&domain, &l, Some(&memcpy), &load(Rw::RandRead, 1000), 5, |what, round| {
        if round.is_some() {
            told.push(what.to_owned());
        }
    });
    let found = found.unwrap();
    assert_eq!(told, ["round 1 of 5", "round 2 of 5", "round 3 of 5", "round 4 of 5", "round 5 of 5"]);
    assert_eq!(found.rounds.len(), 5);
    assert_eq!((found.total().reads.ios, found.against_total().unwrap().reads.ios), (5000, 5000));
    let ratio = found.ratio().unwrap();
    assert!(ratio.min <= ratio.median && ratio.median <= ratio.max && ratio.min > 0.0);
    for (rounds, verify, expect) in [(0, None, "--rounds=0"), (2, Some(Verify::Pattern), "one round")] {
        let load = Load { verify, ..load(Rw::RandRead, 10) };
        let error = compare(&domain, &l, None, &load, rounds, |_, _| ()).err().unwrap().to_string();
        assert!(error.contains(expect), "{error}");
    }
}

/// The command's exit code.
fn command(words: &str) -> u8 {
    udm_bench::cli::run(words.split('|').map(OsString::from), udm_bench::cli::Surroundings::default())
}

#[test]
fn exit_codes() {
    let ram = "--concise|r,,,,0 4096 ram|--device|r|--number-ios=100";
    let check = |words: &str, code: u8| assert_eq!(command(words), code, "{words}");
    check(ram, 0);
    check(&format!("{ram}|--json|--against=memcpy|--rounds=3|--rw=randrw|--bs=4k"), 0);
    check(&format!("{ram}|--verify=crc32c|--rw=randwrite|--iodepth=4"), 0);
    check("--device=memcpy|--number-ios=100|--size=1m", 0);
    check("--device=null:size=1G|--number-ios=100|--lat=off", 0);
    check("--help", 0);
    check(&format!("{ram}|--rw=sideways"), 2);
    for bad in ["--bs=0", "--bs=1000", "--size=1g", "--iodepth=0", "--runtime=0", "--numjobs=0", "--set=x:compile=0"] {
        check(&format!("{ram}|{bad}"), 2);
    }
    check("--concise|r,,,,0 4096 ram|--device|q", 2);
    check("--concise|r,,,,0 4096 rom|--device|r", 2);
    check("--device|r", 2);
    check("--device|/nowhere/at/all", 2);
    check("--number-ios=1", 2);
    // The devices fail, not the words.
    check("--concise|e,,,,0 4096 error|--device|e|--no-fill|--number-ios=1", 1);
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() {
    let stack = Stack::new(&Domain::default(), "r,,,,0 8 ram;l,,,,0 8 linear /dev/mapper/r 0").unwrap();
    let error = stack.subject("x").err().unwrap().to_string();
    assert_eq!(error, "--concise: no device \"x\" in the specification; it has l, r");
    let error = Stack::new(&Domain::default(), "r,,,,0 8 rom").err().unwrap().to_string();
    assert!(error.contains("r: ") && error.contains("ram"), "{error}");
}
