//! Copies between devices that are memory: who lends, who does not, and what is counted.

mod rig;
use rig::*;
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;
use udm_kcopyd::*;

#[derive(Default)]
struct Done(Mutex<Vec<Status>>);

impl Copied for Done {
    fn copied(self: Arc<Self>, _: &Cx<'_>, job: Box<CopyJob>) {
        self.0.lock().unwrap().push(job.status());
    }
}

impl Done {
    fn get(&self) -> Vec<Status> {
        self.0.lock().unwrap().clone()
    }
}

/// What a device has counted of reads and of writes, and their sectors.
fn counted(md: &MappedDevice) -> [u64; 4] {
    let all = md.totals();
    [all.reads, all.read_sectors, all.writes, all.write_sectors]
}

fn sum(a: [u64; 4], b: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| a[i] + b[i])
}

#[test]
fn devices_lend_their_memory_while_they_run_and_count_what_was_done() {
    let rig = Rig::default();
    rig.disk("/d", 256);
    rig.add("null", Arc::new(NullDevice::new("null:size=128k:memory=1".parse().unwrap()).unwrap()));
    let ram = rig.device("ram", "0 256 ram");
    rig.device("linear", "0 256 linear {ram} 0");
    rig.device("shifted", "0 100 linear {ram} 8");
    rig.device("parts", "0 64 linear {ram} 0\n64 192 linear /d 0");
    rig.device("on_null", "0 256 linear null 0");
    rig.device("on_disk", "0 256 linear /d 0");
    let zero = rig.device("zero", "0 256 zero");
    let none = rig.registry.create("none", "", None).unwrap();
    rig.load(&none, "0 256 ram", false).unwrap();
    /// Device, sector, sectors; whether it is lent to be read, and to be written.
    const ROWS: &[(&str, u64, u64, bool, bool)] = &[
        ("ram", 0, 256, true, true),
        ("ram", 255, 1, true, true),
        ("ram", 255, 2, false, false),
        ("ram", 256, 1, false, false),
        ("ram", u64::MAX, 1, false, false),
        ("ram", 0, 0, false, false),
        ("linear", 3, 7, true, true),
        ("shifted", 99, 1, true, true),
        ("shifted", 99, 2, false, false),
        ("parts", 0, 64, true, true),
        ("parts", 0, 65, false, false),
        ("parts", 64, 1, false, false),
        ("on_null", 0, 8, false, false),
        ("on_disk", 0, 8, false, false),
        ("zero", 0, 8, false, false),
        ("none", 0, 8, false, false),
    ];
    let channel = rig.domain.channel().unwrap();
    let lends = |name: &str, at, len| {
        let md = rig.registry.by_name(name).unwrap();
        let (at, len) = (Sector::new(at), Sectors::new(len));
        [Op::Read, Op::Write].map(|op| channel.with_cx(|cx| md.direct_access(cx, op, at, len).is_some()))
    };
    for (name, at, len, read, write) in ROWS {
        assert_eq!(lends(name, *at, *len), [*read, *write], "{name} {at}+{len}");
    }
    // As for bios: not while it is suspended, nor beneath what is, and not to be written when that is refused.
    suspend(&ram);
    assert_eq!([lends("ram", 0, 8), lends("linear", 0, 8)], [[false; 2]; 2]);
    resume(&ram);
    rig.load(&none, "0 256 ram", true).unwrap();
    resume(&none);
    assert_eq!(lends("none", 0, 8), [true, false]);
    assert_eq!(counted(&ram), [0; 4], "to lend is not to do");
    assert_eq!(counted(&zero), [0; 4]);
}

#[test]
fn what_is_copied_in_memory_counts_and_waits_for_suspended_devices() {
    let rig = Rig::default();
    let (from, to) = (rig.device("from", "0 256 ram"), rig.device("to", "0 256 ram"));
    let through = rig.device("through", "0 200 linear {to} 56");
    let disk = rig.disk("/d", 256);
    let on_disk = rig.device("on_disk", "0 256 linear /d 0");
    write(&rig.io(&from), 0, 256, 1);
    let base = counted(&from);
    let copier = Kcopyd::new(&rig.domain, CopyOptions::default()).unwrap();
    let done = Arc::new(Done::default());
    let channel = rig.domain.channel().unwrap();
    // The workqueue may be at the queue: what it takes is done soon.
    let copy = |to: &Arc<MappedDevice>, at, expect| {
        let to = [CopyTo::new(to.clone(), Sector::new(at))];
        let job = CopyJob::new(CopyFrom::Device(from.clone(), Sector::new(16)), Sectors::new(8), to.into());
        channel.with_cx(|cx| assert!(copier.copy(cx, job, done.clone()).is_ok()));
        while done.get().len() < expect {
            std::thread::yield_now();
        }
        done.get().len()
    };
    assert_eq!(copy(&to, 0, 1), 1);
    assert_eq!(copy(&through, 0, 2), 2);
    assert_eq!(read(&rig.io(&to), 0, 8), pattern(16, 8, 1));
    assert_eq!(read(&rig.io(&to), 56, 8), pattern(16, 8, 1));
    assert_eq!(counted(&from), sum(base, [2, 16, 0, 0]));
    assert_eq!(counted(&to), [2, 16, 2, 16], "two copies, two looks");
    assert_eq!(counted(&through), [0, 0, 1, 8]);
    // A place that is no memory has everything go by bios.
    assert_eq!(copy(&on_disk, 8, 3), 3);
    assert_eq!(read(&rig.io(&on_disk), 8, 8), pattern(16, 8, 1));
    assert_eq!(disk.log()[0], "Write 8+8");
    assert_eq!(counted(&from), sum(base, [3, 24, 0, 0]), "not counted twice");
    // Suspended: it waits there, and goes on where the device leads then.
    suspend(&to);
    assert_eq!(copy(&to, 100, 3), 3, "it waits");
    rig.load(&to, "0 256 linear /d 0", false).unwrap();
    resume(&to);
    while done.get().len() < 4 {
        std::thread::yield_now();
    }
    assert_eq!(read(&rig.io(&on_disk), 100, 8), pattern(16, 8, 1));
    assert_eq!(done.get(), [Status::Ok; 4]);
    let stats = copier.stats();
    assert_eq!((stats.reads, stats.writes, stats.bytes_read, stats.bytes_written), (4, 4, 4 * 4096, 4 * 4096));
}
