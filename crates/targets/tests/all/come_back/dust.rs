//! The targets `dust`, `unstriped` and `switch`: what messages change, and where sectors lie.

use crate::rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::{MappedDevice, StatusKind, TableSlot};
use udm_io::*;

/// Sends a message: its answer, or what was wrong with it.
fn message(md: &Arc<MappedDevice>, text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split(' ').collect();
    md.message(Sector::ZERO, &words).map_err(|e| e.message)
}

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().lines(StatusKind::Info { noflush: false })[0].params.clone()
}

#[test]
fn dust_answers_as_the_kernel_does() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 dust /a 5 1024");
    let out_of_range = |block: &str| {
        Err(format!("selected block value out of range: expected a block from 0 to 500, found {block:?}"))
    };
    for (text, expect) in [
        ("listbadblocks", Ok("No blocks in badblocklist".into())),
        ("countbadblocks", Ok("countbadblocks: 0 badblock(s) found".into())),
        ("clearbadblocks", Ok("dust_clear_badblocks: no badblocks found".into())),
        ("addbadblock 60", Ok(String::new())),
        ("ADDBADBLOCK 7 3", Ok(String::new())),
        ("addbadblock 500", Ok(String::new())),
        ("addbadblock 60", Err("dust_add_block: block 60 already in badblocklist".into())),
        ("addbadblock 501", out_of_range("501")),
        ("addbadblock x", out_of_range("x")),
        ("addbadblock -1", out_of_range("-1")),
        ("addbadblock 8 256", Err("selected write fail count out of range: expected 0 to 255, found \"256\"".into())),
        ("addbadblock", Err("addbadblock requires an additional argument".into())),
        ("queryblock 60", Ok("dust_query_block: block 60 found in badblocklist".into())),
        ("queryblock 61", Ok("dust_query_block: block 61 not found in badblocklist".into())),
        ("listbadblocks", Ok("7\n60\n500\n".into())),
        ("countbadblocks", Ok("countbadblocks: 3 badblock(s) found".into())),
        ("removebadblock 61", Err("dust_remove_block: block 61 not found in badblocklist".into())),
        ("removebadblock 60", Ok(String::new())),
        ("countbadblocks", Ok("countbadblocks: 2 badblock(s) found".into())),
        ("clearbadblocks", Ok("dust_clear_badblocks: badblocks cleared".into())),
        ("countbadblocks", Ok("countbadblocks: 0 badblock(s) found".into())),
        ("removebadblock 1 2", Err("unrecognized message 'removebadblock' received".into())),
        ("sweep", Err("unrecognized message 'sweep' received".into())),
        ("addbadblock 1 2 3", Err("invalid number of arguments '4'".into())),
    ] {
        assert_eq!(message(&md, text), expect, "{text}");
    }
    for (text, expect) in [
        ("disable", "/a bypass verbose"),
        ("enable", "/a fail_read_on_bad_block verbose"),
        ("quiet", "/a fail_read_on_bad_block quiet"),
        ("Disable", "/a bypass quiet"),
        ("quiet", "/a bypass verbose"),
    ] {
        assert_eq!(message(&md, text), Ok(String::new()));
        assert_eq!(status(&md), expect);
    }
}

#[test]
fn bad_blocks_fail_until_they_are_written() {
    let rig = Rig::default();
    let disk = rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 dust /a 8 1024");
    let io = rig.io(&md);
    // The block of the device beneath that holds sectors 10 and 11, which are 2 and 3 here.
    message(&md, "addbadblock 5").unwrap();
    message(&md, "addbadblock 7 2").unwrap();
    assert_eq!(io.read(Sector::new(2), &mut [0; 512]), Ok(()), "not enabled yet");
    message(&md, "enable").unwrap();
    let can_read = |at: u64| io.read(Sector::new(at), &mut [0; 512]).is_ok();
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8].map(can_read), [true, false, false, true, true, false, false, true]);
    assert_eq!(io.read(Sector::new(0), &mut [0; 8192]), Err(Status::Io), "a part of it fails");
    io.flush().unwrap();
    assert!(!can_read(2), "a flush is no write");
    // A part of a block makes it good.
    write(&io, 3, 1, 1);
    assert_eq!([2, 3].map(can_read), [true, true]);
    disk.log();
    for expect in [Err(Status::Io), Err(Status::Io), Ok(())] {
        assert_eq!(io.range(Op::Discard, OpFlags::NONE, Sector::new(6), Sectors::new(1)), expect);
    }
    assert_eq!(disk.log(), ["Discard 14+1"]);
    assert!(can_read(7));
    assert_eq!(message(&md, "countbadblocks").unwrap(), "countbadblocks: 0 badblock(s) found");
    message(&md, "addbadblock 5").unwrap();
    message(&md, "disable").unwrap();
    write(&io, 2, 1, 1);
    message(&md, "enable").unwrap();
    assert!(!can_read(2), "while it is disabled, writes make nothing good");
    message(&md, "clearbadblocks").unwrap();
    assert!(can_read(2));
}

/// Threads that read while blocks come and go: an error is one of a block that was bad.
#[test]
fn blocks_go_bad_under_load() {
    let rig = Rig::default();
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 800 dust /a 0 4096");
    message(&md, "enable").unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let io = rig.io(&md);
                while !done.load(Ordering::Relaxed) {
                    for at in 0..100 {
                        let found = io.read(Sector::new(at * 8), &mut [0; 4096]);
                        assert!(found.is_ok() || at == 7, "{at}");
                    }
                }
            });
        }
        for _ in 0..200 {
            message(&md, "addbadblock 7").unwrap();
            message(&md, "removebadblock 7").unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn unstriped_is_what_striped_has_put_there() {
    for (chunk, stripes) in [(8, 2), (6, 3), (5, 1)] {
        let rig = Rig::default();
        rig.disk("/all", 1000);
        let disks: Vec<_> = (0..stripes).map(|n| format!("/d{n}")).collect();
        disks.iter().for_each(|name| drop(rig.disk(name, 500)));
        let rows = 7;
        let len = rows * chunk * stripes;
        let legs: String = disks.iter().map(|name| format!(" {name} 3")).collect();
        let striped = rig.io(&rig.device("s", &format!("0 {len} striped {stripes} {chunk}{legs}")));
        let all = rig.io(&rig.device("all", &format!("0 {len} linear /all 7")));
        write(&striped, 0, len, 1);
        write(&all, 0, len, 1);
        for (n, name) in disks.iter().enumerate() {
            let leg = rig.io(&rig.device(&format!("leg{n}"), &format!("0 {} linear {name} 3", rows * chunk)));
            let table = format!("0 {} unstriped {stripes} {chunk} {n} /all 7", rows * chunk);
            let one = rig.device(&format!("one{n}"), &table);
            assert_eq!(one.limits().max_discard, Sectors::ZERO);
            let one = rig.io(&one);
            assert!(read(&one, 0, rows * chunk) == read(&leg, 0, rows * chunk), "{table}");
            write(&one, chunk - 1, 3, 9);
            one.flush().unwrap();
        }
        assert!(read(&all, 0, chunk - 1) == pattern(0, chunk - 1, 1));
    }
}

/// Which path each region takes.
fn paths(rig: &Rig, md: &Arc<MappedDevice>, disks: &[Arc<Disk>], region: u64) -> String {
    let io = rig.io(md);
    disks.iter().for_each(|disk| drop(disk.log()));
    let regions = md.sectors().get().div_ceil(region);
    let of = |at: u64| {
        let _ = io.read(Sector::new(at * region), &mut [0; 512]);
        let hit = disks.iter().position(|disk| !disk.log().is_empty()).unwrap();
        char::from_digit(hit as u32, 16).unwrap()
    };
    (0..regions).map(of).collect()
}

#[test]
fn switch_sends_each_region_where_messages_say() {
    let rig = Rig::default();
    let disks: Vec<_> = ["/0", "/1", "/2"].map(|name| rig.disk(name, 1000)).into();
    let md = rig.device("x", "0 100 switch 3 7 0 /0 0 /1 50 /2 900");
    let found = || paths(&rig, &md, &disks, 7);
    assert_eq!(found(), "012012012012012", "in turn at first");
    for (text, expect) in [
        ("set_region_mappings 0:1 1:1 2:2 e:0", "112012012012010"),
        ("SET_REGION_MAPPINGS 3:2 :2 :0", "112220012012010"),
        ("set_region_mappings 0:0 R1,e", "000000000000000"),
        ("set_region_mappings 2:0 :1 :2 R3,6 r1,2", "000120120122200"),
        ("set_region_mappings", "000120120122200"),
        ("set_region_mappings :1", "010120120122200"),
    ] {
        assert_eq!(message(&md, text), Ok(String::new()), "{text}");
        assert_eq!(found(), expect, "{text}");
    }
    let before = found();
    for (text, expect) in [
        ("set_region_mappings 5", "invalid set_region_mappings argument: '5'"),
        ("set_region_mappings 0:1 5:", "invalid set_region_mappings argument: '5:'"),
        ("set_region_mappings x:1", "invalid set_region_mappings argument: 'x:1'"),
        ("set_region_mappings 1:1x", "invalid set_region_mappings argument: '1:1x'"),
        ("set_region_mappings R", "invalid set_region_mappings argument: 'R'"),
        ("set_region_mappings R,1", "invalid set_region_mappings argument: 'R,1'"),
        ("set_region_mappings R1,", "invalid set_region_mappings argument: 'R1,'"),
        ("set_region_mappings R0,1", "invalid set_region_mappings cycle length: 18446744073709551615 > 0"),
        ("set_region_mappings R2,1", "invalid set_region_mappings cycle length: 1 > 0"),
        ("set_region_mappings 1:1 R2,e", "invalid set_region_mappings region number: 1 + 14 >= 15"),
        ("set_region_mappings f:1", "invalid set_region_mappings region number: 15 >= 15"),
        ("set_region_mappings e:1 :1", "invalid set_region_mappings region number: 15 >= 15"),
        ("set_region_mappings 1:3", "invalid set_region_mappings device: 3 >= 3"),
        ("set_region_mappings ffffffffffffffffff:1", "invalid set_region_mappings argument: 'ffffffffffffffffff:1'"),
        ("get_region_mappings", "Unrecognised message received."),
    ] {
        assert_eq!(message(&md, text), Err(expect.into()), "{text}");
        assert_eq!(found(), before, "{text}: it changes nothing");
    }
}

#[test]
fn switch_splits_at_regions_and_keeps_the_place() {
    let rig = Rig::default();
    let [a, b] = ["/a", "/b"].map(|name| rig.disk(name, 1000));
    let md = rig.device("x", "0 64 switch 2 16 0 /a 100 /b 200");
    write(&rig.io(&md), 10, 30, 1);
    assert_eq!((a.log(), b.log()), (vec!["Write 110+6".into(), "Write 132+8".into()], vec!["Write 216+16".to_owned()]));
    assert!(read(&rig.io(&md), 10, 30) == pattern(10, 30, 1));
}
