//! Changes beneath a running stack that are easy to get wrong: smaller tables, weaker disks, longer stacks, stale handles.

mod rig;
use rig::*;
use udm_base::{Sector, Sectors};
use udm_io::*;

#[test]
fn a_device_beneath_may_shrink() {
    for below in ["0 50 linear /a 0", "0 20 linear /a 0\n20 30 linear /a 20"] {
        let rig = Rig::default();
        rig.disk("/a", 1000);
        let small = rig.device("small", "0 100 linear /a 0");
        let io = rig.io(&rig.device("top", "0 100 linear {small} 0"));
        rig.reload(&small, below);
        assert_eq!(io.read(Sector::new(49), &mut [0; 512]), Ok(()));
        assert_eq!(io.read(Sector::new(50), &mut [0; 512]), Err(Status::Io));
        assert_eq!(io.read(Sector::new(49), &mut [0; 1024]), Err(Status::Io));
    }
}

#[test]
fn a_compiled_path_asks_nothing_of_a_disk_that_it_cannot_do() {
    let rig = Rig::default();
    rig.disk("/able", 1000);
    let weak = Limits { max_sectors: Sectors::new(8), fua: false, write_cache: true, ..Limits::default() };
    let disk = rig.disk_with("/weak", 1000, weak);
    let below = rig.device("below", "0 100 linear /able 0");
    let io = rig.io(&rig.device("top", "0 100 linear {below} 0"));
    rig.reload(&below, "0 100 linear /weak 0");
    io.write(Sector::new(1), &[1; 512], OpFlags::FUA).unwrap();
    assert_eq!(disk.log(), ["Write 1+1", "Flush 0+0"]);
    write(&io, 0, 20, 1);
    assert_eq!(disk.log(), ["Write 0+8", "Write 8+8", "Write 16+4"]);
}

#[test]
fn a_flush_in_place_of_fua_reaches_every_device_of_a_stack() {
    let rig = Rig::default();
    let weak = Limits { fua: false, write_cache: true, ..Limits::default() };
    let disks = ["/a", "/b", "/c"].map(|name| rig.disk_with(name, 1000, weak));
    rig.device("one", "0 100 linear /a 0\n100 100 linear /b 0");
    rig.device("two", "0 100 linear /c 0");
    let io = rig.io(&rig.device("top", "0 200 linear {one} 0\n200 100 linear {two} 0"));
    io.write(Sector::new(250), &[1; 512], OpFlags::FUA).unwrap();
    let flushed = disks.map(|d| d.log().last().cloned());
    assert_eq!(flushed, ["Flush 0+0"; 3].map(|s| Some(s.to_owned())));
}
