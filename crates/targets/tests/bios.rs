//! How bios go through tables: split, shifted, fanned out, emulated, counted.

mod rig;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::MappedDevice;
use udm_io::*;

fn range(io: &BlockingIo, op: Op, sector: u64, sectors: u64) -> Result<(), Status> {
    io.range(op, OpFlags::NONE, Sector::new(sector), Sectors::new(sectors))
}

/// Writes one range through `table` and gives what each disk was asked.
fn asked(table: &str, sector: u64, sectors: u64) -> [Vec<String>; 2] {
    let rig = Rig::default();
    let disks = [rig.disk("/a", 1000), rig.disk("/b", 1000)];
    let md = rig.device("x", table);
    let io = rig.io(&md);
    write(&io, sector, sectors, 1);
    assert_eq!(read(&io, sector, sectors), pattern(sector, sectors, 1));
    disks.map(|d| d.log().into_iter().filter(|l| l.starts_with("Write")).collect())
}

#[test]
fn bios_are_split_at_borders_and_only_there() {
    let two = "0 100 linear /a 7\n100 100 linear /b 500";
    assert_eq!(asked(two, 0, 100), [vec!["Write 7+100"], vec![]]);
    assert_eq!(asked(two, 100, 5), [vec![], vec!["Write 500+5"]]);
    assert_eq!(asked(two, 99, 2), [vec!["Write 106+1"], vec!["Write 500+1"]]);
    assert_eq!(asked(two, 0, 200), [vec!["Write 7+100"], vec!["Write 500+100"]]);
    let stripes = "0 160 striped 2 16 /a 0 /b 100";
    assert_eq!(asked(stripes, 0, 16), [vec!["Write 0+16"], vec![]]);
    assert_eq!(asked(stripes, 16, 16), [vec![], vec!["Write 100+16"]]);
    assert_eq!(asked(stripes, 40, 8), [vec!["Write 24+8"], vec![]]);
    assert_eq!(asked(stripes, 8, 32), [vec!["Write 8+8", "Write 16+8"], vec!["Write 100+16"]]);
    let odd = "0 72 striped 2 12 /a 0 /b 0";
    assert_eq!(asked(odd, 11, 2), [vec!["Write 11+1"], vec!["Write 0+1"]]);
}

#[test]
fn max_sectors_of_the_disk_splits_too() {
    let rig = Rig::default();
    let disk = rig.disk_with("/a", 1000, Limits { max_sectors: Sectors::new(64), ..Limits::default() });
    let md = rig.device("x", "0 1000 linear /a 0");
    write(&rig.io(&md), 3, 150, 1);
    assert_eq!(disk.log(), ["Write 3+64", "Write 67+64", "Write 131+22"]);
}

#[test]
fn a_flush_reaches_every_device_beneath_once() {
    let rig = Rig::default();
    let disks = [rig.disk("/a", 1000), rig.disk("/b", 1000)];
    let md = rig.device("x", "0 10 linear /a 0\n10 10 linear /b 0\n20 10 linear /a 10\n30 10 zero");
    let top = rig.device("top", "0 40 linear {x} 0");
    rig.io(&top).flush().unwrap();
    assert_eq!(disks.each_ref().map(|d| d.log()), [vec!["Flush 0+0"], vec!["Flush 0+0"]]);
    disks[1].failing.store(true, Ordering::Relaxed);
    assert_eq!(rig.io(&md).flush(), Err(Status::Io));
    let zero = rig.device("z", "0 40 zero");
    rig.io(&zero).flush().unwrap();
}

#[test]
fn fua_is_passed_on_or_becomes_a_flush() {
    let rig = Rig::default();
    let with = rig.disk("/a", 1000);
    let without = rig.disk_with("/b", 1000, Limits { fua: false, write_cache: true, ..Limits::default() });
    let a = rig.device("a", "0 100 linear /a 0");
    rig.io(&a).write(Sector::new(1), &[1; 512], OpFlags::FUA).unwrap();
    assert_eq!(with.log(), ["Write 1+1 fua"]);
    let b = rig.device("b", "0 100 linear /b 0");
    rig.io(&b).write(Sector::new(1), &[1; 512], OpFlags::FUA).unwrap();
    assert_eq!(without.log(), ["Write 1+1", "Flush 0+0"]);
    let both = rig.device("c", "0 10 linear /a 200\n10 10 linear /b 200");
    rig.io(&both).write(Sector::new(9), &[1; 1024], OpFlags::FUA).unwrap();
    // Each part by its own target's limits; the flushes of the one part go to every device.
    assert_eq!(with.log(), ["Write 209+1 fua", "Flush 0+0"]);
    assert_eq!(without.log(), ["Write 200+1", "Flush 0+0"]);
    without.failing.store(true, Ordering::Relaxed);
    assert_eq!(rig.io(&b).write(Sector::new(1), &[1; 512], OpFlags::FUA), Err(Status::Io));
}

#[test]
fn discards_and_zeroes_are_passed_cut_or_written_out() {
    let rig = Rig::default();
    let able = rig.disk_with("/a", 1000, Limits { max_discard: Sectors::new(30), ..Limits::default() });
    let unable = rig.disk_with(
        "/b",
        1000,
        Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..Limits::default() },
    );
    let md = rig.device("x", "0 100 linear /a 0");
    let io = rig.io(&md);
    range(&io, Op::Discard, 5, 70).unwrap();
    assert_eq!(able.log(), ["Discard 5+30", "Discard 35+30", "Discard 65+10"]);
    let none = rig.device("y", "0 500 linear /b 0");
    let io = rig.io(&none);
    write(&io, 0, 500, 1);
    range(&io, Op::WriteZeroes, 10, 300).unwrap();
    assert_eq!(unable.log()[1..], ["Write 10+128", "Write 138+128", "Write 266+44"]);
    assert!(read(&io, 10, 300).iter().all(|b| *b == 0));
    assert_eq!(read(&io, 310, 190), pattern(310, 190, 1));
    assert_eq!(range(&io, Op::Discard, 0, 8), Err(Status::NotSupported));
    assert_eq!(range(&io, Op::Discard, 0, 0), Ok(()));
}

#[test]
fn what_is_out_of_range_or_forbidden_is_refused() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.registry.create("x", "", None).unwrap();
    rig.load(&md, "0 100 linear /a 0", true).unwrap();
    resume(&md);
    let io = rig.io(&md);
    assert_eq!(io.read(Sector::new(99), &mut [0; 1024]), Err(Status::Invalid));
    assert_eq!(io.write(Sector::new(0), &[0; 512], OpFlags::NONE), Err(Status::ReadOnly));
    assert_eq!(range(&io, Op::Discard, 0, 1), Err(Status::ReadOnly));
    assert_eq!(io.read(Sector::new(99), &mut [0; 512]), Ok(()));
    let error = rig.device("e", "0 10 error");
    let io = rig.io(&error);
    assert_eq!(io.read(Sector::ZERO, &mut [0; 512]), Err(Status::Io));
    assert_eq!(range(&io, Op::Discard, 0, 1), Err(Status::Io));
    assert_eq!(range(&io, Op::WriteZeroes, 0, 1), Err(Status::Io));
    let empty = rig.registry.create("empty", "", None).unwrap();
    assert_eq!(rig.io(&empty).read(Sector::ZERO, &mut [0; 512]), Err(Status::Invalid));
}

#[test]
fn a_read_only_device_beneath_stays_so_under_a_writeable_one() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let below = rig.registry.create("below", "", None).unwrap();
    rig.load(&below, "0 100 linear /a 0", true).unwrap();
    resume(&below);
    let top = rig.device("top", "0 100 linear {below} 0");
    let io = rig.io(&top);
    assert_eq!(io.write(Sector::ZERO, &[0; 512], OpFlags::NONE), Err(Status::ReadOnly));
    assert_eq!(io.read(Sector::ZERO, &mut [0; 512]), Ok(()));
}

fn remapped_and_cloned(md: &Arc<MappedDevice>) -> (u64, u64) {
    let t = md.totals();
    (t.remapped, t.cloned)
}

#[test]
fn no_clone_is_a_number() {
    for compile in [true, false] {
        let rig = Rig::default();
        rig.disk("/a", 1000);
        rig.disk("/b", 1000);
        let lin = rig.device("lin", "0 200 linear /a 0");
        let stripe = rig.device("stripe", "0 160 striped 2 16 /a 500 /b 0");
        let top = rig.device("top", "0 160 linear {stripe} 0");
        [&lin, &stripe, &top].iter().for_each(|md| md.set_compile(compile));
        for md in [&lin, &stripe, &top] {
            let io = rig.io(md);
            for i in 0..10 {
                write(&io, i * 16, 16, i);
                read(&io, i * 16, 16);
            }
        }
        assert_eq!(remapped_and_cloned(&lin), (20, 0), "compile {compile}");
        assert_eq!(remapped_and_cloned(&top), (20, 0), "compile {compile}");
        assert_eq!(remapped_and_cloned(&stripe), (40, 0), "compile {compile}");
        assert_eq!((stripe.totals().reads, stripe.totals().write_sectors), (20, 320), "compile {compile}");
        lin.set_clone_always(true);
        write(&rig.io(&lin), 0, 8, 1);
        assert_eq!(remapped_and_cloned(&lin), (20, 1));
        write(&rig.io(&stripe), 8, 16, 1);
        assert_eq!(remapped_and_cloned(&stripe), (40, 2), "a split is cloned");
    }
}

#[test]
fn a_stack_deeper_than_a_record_has_frames_clones_where_it_must() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let mut stack = vec![rig.device("l0", "0 100 linear /a 3")];
    for i in 1..20 {
        let below = stack.last().unwrap().devt();
        stack.push(rig.device(&format!("l{i}"), &format!("0 100 linear {below} 0")));
        stack[i].set_compile(false);
    }
    stack[0].set_compile(false);
    let io = rig.io(stack.last().unwrap());
    write(&io, 10, 20, 4);
    assert_eq!(read(&io, 10, 20), pattern(10, 20, 4));
    assert_eq!(disk.log(), ["Write 13+20", "Read 13+20"]);
    let cloned: u64 = stack.iter().map(|md| md.totals().cloned).sum();
    assert!((2..=20).contains(&cloned), "only where frames ran out: {cloned}");
    for md in &stack {
        let t = md.totals();
        assert_eq!((t.reads, t.writes, t.remapped + t.cloned), (1, 1, 2));
    }
}

#[test]
fn the_reserve_of_clones_waits_and_never_fails() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 100_000);
    rig.device("below", "0 99968 striped 1 1 /a 0");
    let md = rig.device("x", "0 99968 striped 1 8 {below} 0");
    disk.holding.store(true, Ordering::Relaxed);
    let channel = rig.domain.channel().unwrap();
    let dev = channel.attach(md.clone());
    let mut bufs: Vec<Vec<u8>> = (0..3).map(|i| pattern(i * 4000, 4000, 9)).collect();
    for (i, buf) in bufs.iter_mut().enumerate() {
        // SAFETY: `bufs` stays until the completions below.
        assert!(unsafe { channel.submit(dev, Op::Write, OpFlags::NONE, Sector::new(i as u64 * 4000), buf, i as u64) });
    }
    let mut done = Vec::new();
    let mut most = 0;
    while done.len() < 3 {
        most = most.max(disk.held());
        assert!(disk.release() > 0 || channel.poll() > 0, "it goes on");
        channel.poll();
        done.extend(std::iter::from_fn(|| channel.completed()));
    }
    assert!(done.iter().all(|c| c.status == Status::Ok));
    assert!(most <= 256, "the reserve bounds what is out: {most}");
    disk.holding.store(false, Ordering::Relaxed);
    assert_eq!(read(&rig.io(&md), 0, 12000), bufs.concat());
    suspend(&md);
    assert!(md.info().suspended, "nothing is left in flight");
}

#[test]
fn an_error_of_one_part_is_the_error_of_the_whole() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 10 linear /a 0\n10 10 error\n20 10 linear /a 10");
    let io = rig.io(&md);
    assert_eq!(io.write(Sector::new(5), &[1; 20 * 512], OpFlags::NONE), Err(Status::Io));
    assert_eq!(io.write(Sector::new(20), &[1; 512], OpFlags::NONE), Ok(()));
}

#[test]
fn a_stripe_that_failed_shows_and_raises_fourteen_events() {
    for compile in [true, false] {
        let rig = Rig::default();
        rig.disk("/a", 1000);
        let bad = rig.disk("/b", 1000);
        let md = rig.device("x", "0 160 striped 2 16 /a 0 /b 0");
        let top = rig.device("top", "0 160 linear {x} 0");
        top.set_compile(compile);
        bad.failing.store(true, Ordering::Relaxed);
        let io = rig.io(&top);
        assert_eq!(io.read(Sector::new(0), &mut [0; 512]), Ok(()));
        for _ in 0..20 {
            assert_eq!(io.read(Sector::new(16), &mut [0; 512]), Err(Status::Io));
        }
        let status =
            md.table(udm_core::TableSlot::Active).unwrap().lines(udm_core::StatusKind::Info { noflush: false });
        assert_eq!(status[0].params, "2 /a /b 1 AD", "compile {compile}");
        assert_eq!(md.info().event_nr, 14, "compile {compile}");
    }
}

#[test]
fn a_flush_that_failed_shows_on_its_own_stripe() {
    let rig = Rig::default();
    let disks = [rig.disk("/a", 1000), rig.disk("/b", 1000), rig.disk("/c", 1000)];
    let md = rig.device("x", "0 32 zero\n32 48 striped 3 16 /a 0 /b 0 /c 0\n80 32 striped 2 16 /c 500 /b 500");
    let top = rig.device("top", "0 112 linear {x} 0");
    let io = rig.io(&top);
    let shown = || {
        let lines = md.table(udm_core::TableSlot::Active).unwrap().lines(udm_core::StatusKind::Info { noflush: false });
        (lines[1].params.clone(), lines[2].params.clone(), md.info().event_nr)
    };
    io.flush().unwrap();
    disks[1].failing.store(true, Ordering::Relaxed);
    assert_eq!(io.flush(), Err(Status::Io));
    assert_eq!(shown(), ("3 /a /b /c 1 ADA".into(), "2 /c /b 1 AD".into(), 1));
    // The flush that stands for FUA is of every device, and is told of in the same way.
    disks[1].failing.store(false, Ordering::Relaxed);
    *disks[2].fail_if.lock().unwrap() = Some(Box::new(|bio: &Bio| bio.op() == Op::Flush));
    for disk in &disks {
        *disk.limits.lock().unwrap() = Limits { fua: false, write_cache: true, ..Limits::default() };
    }
    rig.reload(&md, "0 32 zero\n32 48 striped 3 16 /a 0 /b 0 /c 0\n80 32 striped 2 16 /c 500 /b 500");
    assert_eq!(io.write(Sector::new(32), &[1; 512], OpFlags::FUA), Err(Status::Io));
    assert_eq!(shown(), ("3 /a /b /c 1 AAD".into(), "2 /c /b 1 DA".into(), 2));
}

#[test]
fn what_a_stripe_does_not_offer_is_no_error_of_it() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 160 striped 1 16 /a 0");
    let mut client = Client::new(&rig, &md);
    disk.holding.store(true, Ordering::Relaxed);
    let token = client.range(Op::Discard, OpFlags::NONE, 0, 8);
    disk.release_with(Status::NotSupported);
    assert_eq!(client.wait(token), Status::NotSupported);
    let status = md.table(udm_core::TableSlot::Active).unwrap().lines(udm_core::StatusKind::Info { noflush: false });
    assert_eq!((&*status[0].params, md.info().event_nr), ("1 /a 1 A", 0));
}

/// Random tables over two disks, against a plain array.
#[test]
fn random_tables_keep_what_is_written() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    for round in 0..25 {
        let rig = Rig::default();
        let limits = Limits { max_sectors: Sectors::new(1 + random(100)), ..Limits::default() };
        rig.disk_with("/a", 4000, limits);
        rig.disk("/b", 4000);
        let (mut table, mut at, mut from) = (String::new(), 0, [0u64, 0]);
        for _ in 0..1 + random(5) {
            let len = (1 + random(5)) * 24;
            let disk = random(2) as usize;
            let name = ["/a", "/b"][disk];
            match random(3) {
                0 => {
                    table += &format!("{at} {len} linear {name} {}\n", from[disk]);
                    from[disk] += len;
                }
                _ => {
                    let chunk = [1, 3, 4, 12][random(4) as usize];
                    table += &format!("{at} {len} striped 2 {chunk} /a {} /b {}\n", from[0], from[1]);
                    from = from.map(|f| f + len / 2);
                }
            }
            at += len;
        }
        let md = rig.device("x", &table);
        let mut top = md.clone();
        for i in 0..random(4) {
            top = rig.device(&format!("t{i}"), &format!("0 {at} linear {} 0", top.devt()));
            top.set_compile(random(2) == 0);
        }
        let io = rig.io(&top);
        let mut model = vec![0u8; at as usize * 512];
        for generation in 0..100 {
            let sector = random(at);
            let len = 1 + random((at - sector).min(130));
            let bytes = (sector as usize * 512)..((sector + len) as usize * 512);
            match random(4) {
                0 => assert_eq!(read(&io, sector, len), model[bytes], "round {round}: {table}"),
                1 => {
                    range(&io, Op::WriteZeroes, sector, len).unwrap();
                    model[bytes].fill(0);
                }
                _ => {
                    write(&io, sector, len, generation);
                    model[bytes].copy_from_slice(&pattern(sector, len, generation));
                }
            }
        }
        assert_eq!(read(&io, 0, at), model, "round {round}: {table}");
    }
}

#[test]
fn stripes_are_followed_down_and_still_count_fail_and_hold() {
    for compile in [true, false] {
        let rig = Rig::default();
        let disk = rig.disk("/a", 1000);
        let low = rig.device("low", "0 80 linear /a 5");
        let bad = rig.device("bad", "0 40 zero\n40 40 error");
        let ram = rig.device("ram", "0 80 ram");
        let md = rig.device("x", "0 240 striped 3 8 {low} 0 {ram} 0 {bad} 0");
        let top = rig.device("top", "0 240 linear {x} 0");
        [&low, &bad, &ram, &md, &top].iter().for_each(|md| md.set_compile(compile));
        let io = rig.io(&top);
        for row in 0..5 {
            write(&io, row * 24, 8, 1);
            write(&io, row * 24 + 8, 8, 2);
            assert_eq!(read(&io, row * 24, 8), pattern(row * 24, 8, 1));
            assert_eq!(read(&io, row * 24 + 8, 8), pattern(row * 24 + 8, 8, 2));
            assert!(read(&io, row * 24 + 16, 8).iter().all(|b| *b == 0));
        }
        assert_eq!(disk.log()[..2], ["Write 5+8", "Read 5+8"]);
        let counts =
            [&top, &md, &low, &ram, &bad].map(|md| (md.totals().reads, md.totals().writes, md.totals().cloned));
        assert_eq!(counts, [(15, 10, 0), (15, 10, 0), (5, 5, 0), (5, 5, 0), (5, 0, 0)], "compile {compile}");
        assert_eq!(io.read(Sector::new(5 * 24 + 16), &mut [0; 512]), Err(Status::Io));
        let status =
            md.table(udm_core::TableSlot::Active).unwrap().lines(udm_core::StatusKind::Info { noflush: false });
        assert!(status[0].params.ends_with("1 AAD"), "compile {compile}: {}", status[0].params);
        suspend(&ram);
        let channel = rig.domain.channel().unwrap();
        let dev = channel.attach(top.clone());
        let (mut buf, mut other) = (vec![0u8; 512], vec![0u8; 512]);
        // SAFETY: the buffers stay until the completions below.
        assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(8), &mut buf, 1) });
        // SAFETY: as above.
        assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(0), &mut other, 2) });
        channel.poll();
        assert_eq!(channel.completed().map(|c| c.token), Some(2), "the leg that runs goes on");
        assert_eq!(channel.completed(), None, "the leg that is suspended holds");
        resume(&ram);
        channel.poll();
        assert_eq!(channel.completed().map(|c| c.token), Some(1));
    }
}
