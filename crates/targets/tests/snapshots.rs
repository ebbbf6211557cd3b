//! Snapshots over disks in memory: what is seen where, in which order, and what goes wrong how.

mod rig;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use udm_base::{Sector, Sectors};
use udm_core::*;
use udm_io::*;

const SIZE: u64 = 256;

fn status(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Info)
}

fn table(md: &Arc<MappedDevice>) -> String {
    md.table(TableSlot::Active).unwrap().targets().next().unwrap().status(StatusKind::Table)
}

/// An origin of 256 sectors with known content, on a disk `/o`; and a COW disk `/cN` for each of `cows` sectors.
struct World {
    rig: Rig,
    origin: Arc<MappedDevice>,
    disk: Arc<Disk>,
    cows: Vec<Arc<Disk>>,
}

fn world(cows: &[u64]) -> World {
    let rig = Rig::default();
    let disk = rig.disk("/o", SIZE);
    let cows = cows.iter().enumerate().map(|(i, size)| rig.disk(&format!("/c{i}"), *size)).collect();
    let origin = rig.device("origin", &format!("0 {SIZE} snapshot-origin /o"));
    write(&rig.io(&origin), 0, SIZE, 1);
    World { rig, origin, disk, cows }
}

impl World {
    fn snap(&self, name: &str, cow: usize, rest: &str) -> Arc<MappedDevice> {
        self.rig.device(name, &format!("0 {SIZE} snapshot /o /c{cow} {rest}"))
    }
    fn read(&self, md: &Arc<MappedDevice>, sector: u64, count: u64) -> Vec<u8> {
        read(&self.rig.io(md), sector, count)
    }
    fn write(&self, md: &Arc<MappedDevice>, sector: u64, count: u64, generation: u64) {
        write(&self.rig.io(md), sector, count, generation);
    }
}

#[test]
fn a_snapshot_shows_the_origin_as_it_was_and_its_own_writes() {
    for store in ["P 8", "PO 8", "N 8", "P 16", "N 32"] {
        let w = world(&[1024]);
        let snap = w.snap("snap", 0, store);
        w.write(&w.origin, 3, 40, 2);
        assert_eq!(w.read(&snap, 0, SIZE), pattern(0, SIZE, 1), "{store}");
        assert_eq!(w.read(&w.origin, 3, 40), pattern(3, 40, 2));
        w.write(&snap, 5, 2, 3);
        w.write(&snap, 64, 32, 4);
        w.write(&snap, 200, 1, 5);
        let mut expect = pattern(0, SIZE, 1);
        for (at, n, generation) in [(5, 2, 3), (64, 32, 4), (200, 1, 5)] {
            expect[at * 512..(at + n) * 512].copy_from_slice(&pattern(at as u64, n as u64, generation));
        }
        assert_eq!(w.read(&snap, 0, SIZE), expect, "{store}");
        assert_eq!(w.read(&w.origin, 44, SIZE - 44), pattern(44, SIZE - 44, 1));
        assert_eq!(table(&snap), format!("/o /c0 {store}"));
    }
}
