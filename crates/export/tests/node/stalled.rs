//! Devices that do not answer, and those beside them.

use crate::device::Disk;
use crate::loops::on;
use crate::place::{Place, pattern, until};
use rustix::fs::FallocateFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use udm_base::AlignedBuf;
use udm_export::node::fuse::Transport;

const MIB: usize = 1 << 20;
/// Requests of a MiB that a worker takes of one device which does not answer.
const SHARE: usize = 7;

/// Disks that do not answer for as long as it lives.
struct Stalled(Vec<Arc<Disk>>);

impl Stalled {
    fn new(disks: &[Arc<Disk>]) -> Self {
        disks.iter().for_each(|disk| disk.hold());
        Self(disks.to_vec())
    }

    /// Whether something is done meanwhile.
    fn lets(self, what: impl FnOnce() + Send) -> bool {
        let (done, is_done) = std::sync::mpsc::sync_channel(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                what();
                let _ = done.send(());
            });
            // No healthy run comes near it.
            let went_on = is_done.recv_timeout(std::time::Duration::from_secs(60)).is_ok();
            drop(self);
            went_on
        })
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.0.iter().for_each(|disk| {
            disk.release();
            disk.answer();
        });
    }
}

fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A MiB at a page border: what is not there is cut within blocks, and written one after the other.
fn blocks(seed: u64) -> AlignedBuf {
    let mut data = AlignedBuf::zeroed(MIB);
    data.copy_from_slice(&pattern(seed, MIB));
    data
}

/// The CPUs that a thread may use.
fn cpus() -> Vec<usize> {
    let mine = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu)).collect()
}

/// How many requests are under way when a device that does not answer has all that it can get.
fn most(place: &Place) -> usize {
    match place.server.transport() {
        Transport::Descriptor => SHARE,
        Transport::IoUring => {
            let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
            let last: usize = text.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
            let queues = (last + 1).div_ceil(2);
            cpus().len() * (128 / queues).clamp(2, 32)
        }
    }
}

#[test]
fn others_go_on_beside_a_device_that_does_not_answer() {
    for place in Place::both() {
        let (path, stalled) = place.disk(Disk::blocks(MIB as u64, 512));
        let other = Disk::blocks(8 << 20, 512);
        let other_path = place.add("other", &other);
        let (data, most, file) = (blocks(1), most(&place), rw(&path));
        let (writers, begun) = (48, AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let stall = Stalled::new(std::slice::from_ref(&stalled));
            for cpu in cpus() {
                for _ in 0..writers {
                    let (data, file, begun) = (&data, &file, &begun);
                    scope.spawn(move || {
                        let mut set = CpuSet::new();
                        set.set(cpu);
                        sched_setaffinity(None, &set).unwrap();
                        begun.fetch_add(1, Ordering::SeqCst);
                        file.write_all_at(data, 0).unwrap();
                    });
                }
            }
            until("all write", || begun.load(Ordering::SeqCst) == cpus().len() * writers);
            until("it has what it can get", || stalled.held() >= most);
            let transport = place.server.transport();
            let went_on = stall.lets(|| {
                let data = pattern(2, 8 * MIB);
                fs::write(&other_path, &data).unwrap();
                assert!(fs::read(&other_path).unwrap() == data);
                assert!(fs::read_dir(place.server.dir()).unwrap().count() == 3);
            });
            assert!(went_on, "{transport:?}: the other device waits for the one that does not answer");
        });
        let mut back = vec![0; MIB];
        rw(&path).read_exact_at(&mut back, 0).unwrap();
        assert!(back == data[..], "what waited is written");
    }
}

/// As when a pool has no space: many devices at once, each with more than it may hold.
#[test]
fn others_go_on_beside_many_that_do_not_answer() {
    for place in Place::both() {
        let stalled: Vec<_> = (0..24).map(|_| Disk::blocks(MIB as u64, 512)).collect();
        let paths: Vec<_> = stalled.iter().enumerate().map(|(n, disk)| place.add(&format!("disk{n}"), disk)).collect();
        let other_path = place.add("other", &Disk::blocks(8 << 20, 512));
        let (data, files) = (blocks(1), paths.iter().map(|path| rw(path)).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            let stall = Stalled::new(&stalled);
            for file in &files {
                for _ in 0..4 {
                    scope.spawn(|| file.write_all_at(&data, 0).unwrap());
                }
            }
            until("each has some", || stalled.iter().all(|disk| disk.held() > 0));
            let went_on = stall.lets(|| {
                let data = pattern(2, 8 * MIB);
                fs::write(&other_path, &data).unwrap();
                assert!(fs::read(&other_path).unwrap() == data);
            });
            assert!(went_on, "{:?}", place.server.transport());
        });
    }
}

/// What the kernel writes back of one block device.
#[test]
fn others_go_on_beside_writeback() {
    let Some(place) = Place::new() else { return };
    let stalled = Disk::blocks(64 << 20, 512);
    place.add("stalled", &stalled);
    place.add("other", &Disk::blocks(MIB as u64, 512));
    let Some(device) = on(&place, "stalled", false, 512) else { return };
    let Some(other) = on(&place, "other", false, 512) else { return };
    let file = rw(&device.0.path());
    file.write_all_at(&pattern(3, 64 * MIB), 0).unwrap();
    std::thread::scope(|scope| {
        let stall = Stalled::new(std::slice::from_ref(&stalled));
        scope.spawn(|| file.sync_all().unwrap());
        until("it has what it can get", || stalled.held() >= SHARE);
        let went_on = stall.lets(|| {
            let data = pattern(4, MIB);
            let file = rw(&other.0.path());
            file.write_all_at(&data, 0).unwrap();
            file.sync_all().unwrap();
            assert!(fs::read(place.server.file("other")).unwrap() == data);
        });
        assert!(went_on, "the other device waits for the one that does not answer");
    });
}

/// Where data is, and what a hole that is punched leaves, a pool may have to read from a disk that does not answer.
#[test]
fn others_go_on_beside_questions() {
    for place in Place::both() {
        // More than there are workers.
        let stalled: Vec<_> = (0..6).map(|_| Disk::blocks(MIB as u64, 512)).collect();
        let paths: Vec<_> = stalled.iter().enumerate().map(|(n, disk)| place.add(&format!("disk{n}"), disk)).collect();
        let other_path = place.add("other", &Disk::blocks(MIB as u64, 512));
        let files: Vec<_> = paths.iter().map(|path| rw(path)).collect();
        files.iter().for_each(|file| file.write_all_at(&blocks(5), 0).unwrap());
        std::thread::scope(|scope| {
            let stall = Stalled(stalled.clone());
            stalled.iter().for_each(|disk| disk.hold_questions());
            for (n, file) in files.iter().enumerate() {
                scope.spawn(move || match n % 2 {
                    0 => assert_eq!(rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0)), Ok(65536)),
                    _ => {
                        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        rustix::fs::fallocate(file, flags, 0, MIB as u64).unwrap();
                    }
                });
            }
            until("each is asked", || stalled.iter().all(|disk| disk.held_questions() > 0));
            let went_on = stall.lets(|| {
                let data = pattern(6, MIB);
                fs::write(&other_path, &data).unwrap();
                assert!(fs::read(&other_path).unwrap() == data);
            });
            assert!(went_on, "{:?}", place.server.transport());
        });
        let mut back = vec![1; MIB];
        files[1].read_exact_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|byte| *byte == 0), "the hole is one");
    }
}

/// A shell that has a node open and starts a command closes it there, while it becomes the other program: with that in
/// the kernel's hands until the device answers, not even `ps` goes on.
#[test]
fn files_are_closed_and_programs_begin_beside_writes_that_wait() {
    for place in Place::both() {
        let (path, stalled) = place.disk(Disk::blocks(MIB as u64, 512));
        let (data, file, inherited) = (blocks(1), rw(&path), rw(&path));
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        std::thread::scope(|scope| {
            let stall = Stalled::new(std::slice::from_ref(&stalled));
            // More than the server takes of one device, so that a question of the kernel would wait behind them.
            for _ in 0..48 {
                scope.spawn(|| file.write_all_at(&data, 0).unwrap());
            }
            until("it has what it can get", || stalled.held() >= SHARE);
            let went_on = stall.lets(|| {
                drop(file.try_clone().unwrap());
                assert!(std::process::Command::new("true").status().unwrap().success());
            });
            assert!(went_on, "{:?}: a file cannot be closed", place.server.transport());
        });
        drop(inherited);
    }
}
