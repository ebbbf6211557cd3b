//! A node's file, by plain file I/O.

use crate::device::Disk;
use crate::place::{Place, owner, pattern, until};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use udm_export::Export;
use udm_export::node::fuse::{Adopted, FuseServer};
use udm_io::{Domain, Limits, Op, OpFlags};

const MIB: usize = 1 << 20;

fn rw(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn what_is_written_is_read_whatever_its_place_and_length() {
    for place in Place::both() {
        for block in [512, 4096] {
            let disk = Disk::blocks(4 << 20, block);
            let file = rw(&place.add(&format!("disk{block}"), &disk));
            let mut model = vec![0u8; 4 << 20];
            let seeds =
                [(0, MIB), (1, MIB), (4095, 2), (511, 1), (512, 512), (3 * MIB - 7, MIB), (100, 3 * MIB), (0, 4 * MIB)];
            for (i, (offset, len)) in seeds.into_iter().enumerate() {
                let data = pattern(i as u64 + 1, len);
                file.write_all_at(&data, offset as u64).unwrap();
                model[offset..offset + len].copy_from_slice(&data);
                let mut back = vec![0; 4 << 20];
                file.read_exact_at(&mut back, 0).unwrap();
                assert!(back == model, "blocks of {block}, {len} bytes at {offset}");
                let mut part = vec![0; len];
                file.read_exact_at(&mut part, offset as u64).unwrap();
                assert!(part == data);
            }
        }
    }
}

/// Memory that is not aligned makes the kernel cut requests where no block ends.
#[test]
fn large_writes_from_memory_of_any_alignment() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(8 << 20, 4096));
        let file = rw(&path);
        let data = pattern(7, 8 * MIB + 4096);
        for skew in [0, 1, 8, 16, 512, 4095] {
            let data = &data[skew..skew + 8 * MIB];
            file.write_all_at(data, 0).unwrap();
            let mut back = vec![0; 8 * MIB];
            file.read_exact_at(&mut back, 0).unwrap();
            assert!(back == data, "memory {skew} bytes off");
        }
    }
}

#[test]
fn dd_with_direct_io() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(32 << 20, 512));
        let source = place.root.path().join("source");
        let data = pattern(3, 32 * MIB);
        fs::write(&source, &data).unwrap();
        for bs in ["1M", "64k", "3M", "512"] {
            let count = if bs == "512" { "count=4096" } else { "count=1000" };
            let of = format!("of={}", path.display());
            let dd = Command::new("dd")
                .args([
                    &format!("if={}", source.display()),
                    &of,
                    &format!("bs={bs}"),
                    count,
                    "oflag=direct",
                    "conv=notrunc,fsync",
                ])
                .output()
                .unwrap();
            assert!(dd.status.success(), "{}", String::from_utf8_lossy(&dd.stderr));
            let len = if bs == "512" { 4096 * 512 } else { data.len() };
            let mut direct =
                OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
            let mut back = Vec::new();
            direct.read_to_end(&mut back).unwrap();
            assert!(back[..len] == data[..len], "bs={bs}");
            rw(&path).write_all_at(&vec![0; data.len()], 0).unwrap();
        }
    }
}

#[test]
fn many_writers_of_parts_of_the_same_blocks_undo_nothing() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(1 << 20, 4096));
        // Each has every fourth stretch of 1000 bytes, so that all share blocks.
        let (len, rounds) = (1000, 60);
        std::thread::scope(|scope| {
            for writer in 0..4usize {
                let path = &path;
                scope.spawn(move || {
                    let file = rw(path);
                    for round in 0..rounds {
                        for stretch in (writer..16).step_by(4) {
                            let byte = (writer * 60 + round) as u8;
                            file.write_all_at(&vec![byte; len], (stretch * len) as u64).unwrap();
                        }
                    }
                });
            }
        });
        let mut all = vec![0; 16 * len];
        rw(&path).read_exact_at(&mut all, 0).unwrap();
        for (stretch, bytes) in all.chunks(len).enumerate() {
            let expect = (stretch % 4 * 60 + rounds - 1) as u8;
            assert!(bytes.iter().all(|b| *b == expect), "stretch {stretch}");
        }
    }
}

#[test]
fn the_end_of_the_device() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(8192, 512));
        let file = rw(&path);
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
        // As on a block device: as much as there is room for, then no space.
        assert_eq!(file.write_at(&[1; 1024], 7680).unwrap(), 512);
        assert_eq!(file.write_at(&[1; 1024], 8192).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(file.read_at(&mut [0; 1024], 7680).unwrap(), 512);
        assert_eq!(file.read_at(&mut [0; 1024], 8192).unwrap(), 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    }
}

#[test]
fn sync_reaches_the_device() {
    for place in Place::both() {
        for fua in [true, false] {
            let disk = Disk::new(MIB as u64, Limits { fua, write_cache: true, ..Limits::default() });
            let path = place.add(&format!("fua-{fua}"), &disk);
            let file = rw(&path);
            disk.seen();
            file.write_all_at(&[1; 4096], 0).unwrap();
            assert_eq!(disk.seen(), [(Op::Write, OpFlags::NONE, 0, 8)]);
            file.sync_data().unwrap();
            assert_eq!(disk.seen(), [(Op::Flush, OpFlags::NONE, 0, 0)]);
            let sync = OpenOptions::new().write(true).custom_flags(OFlags::DSYNC.bits() as i32).open(&path).unwrap();
            sync.write_all_at(&[2; 4096], 4096).unwrap();
            let expect = match fua {
                true => vec![(Op::Write, OpFlags::FUA, 8, 8)],
                false => vec![(Op::Write, OpFlags::NONE, 8, 8), (Op::Flush, OpFlags::NONE, 0, 0)],
            };
            assert_eq!(disk.seen(), expect);
            sync.write_all_at(&[3; 10], 5).unwrap();
            assert_eq!(disk.seen().last(), Some(&(Op::Flush, OpFlags::NONE, 0, 0)));
        }
    }
}

#[test]
fn holes_are_punched_and_zeroes_written() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(MIB as u64, 512));
        let file = rw(&path);
        let data = pattern(9, MIB);
        let (punch, zero) = (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE);
        for flags in [punch, zero] {
            for (offset, len) in [(0, MIB), (4096, 8192), (1, 10), (700, 5000), (65536, 131_072), (MIB - 1, 1)] {
                file.write_all_at(&data, 0).unwrap();
                rustix::fs::fallocate(&file, flags, offset as u64, len as u64).unwrap();
                let mut expect = data.clone();
                expect[offset..offset + len].fill(0);
                let mut back = vec![0; MIB];
                file.read_exact_at(&mut back, 0).unwrap();
                assert!(back == expect, "{flags:?}: {len} bytes at {offset}");
            }
        }
        disk.seen();
        rustix::fs::fallocate(&file, punch, 0, 262_144).unwrap();
        // Discarded, then zeroed where the device still speaks of data.
        let zeroed = |start| (Op::WriteZeroes, OpFlags::NONE, start, 128);
        let seen = disk.seen();
        assert_eq!(seen[0], (Op::Discard, OpFlags::NONE, 0, 512));
        assert!(seen[1..].contains(&zeroed(0)) && seen[1..].contains(&zeroed(256)) && seen.len() == 3, "{seen:?}");
        rustix::fs::fallocate(&file, zero, 0, 4096).unwrap();
        assert_eq!(disk.seen(), [(Op::WriteZeroes, OpFlags::NO_UNMAP, 0, 8)]);
        let errno = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len).unwrap_err().raw_os_error();
        assert_eq!(errno(FallocateFlags::empty(), 0, 4096), libc::EOPNOTSUPP);
        assert_eq!(errno(zero, 0, 2 * MIB as u64), libc::EINVAL);
        rustix::fs::fallocate(&file, punch, 0, 2 * MIB as u64).unwrap();
    }
}

#[test]
fn seeking_data_and_holes() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(192 * 1024, 512));
        let mut file = rw(&path);
        let seek = |file: &File, from| rustix::fs::seek(file, from);
        assert_eq!(seek(&file, rustix::fs::SeekFrom::Data(10)), Ok(10));
        assert_eq!(seek(&file, rustix::fs::SeekFrom::Hole(10)), Ok(65536));
        assert_eq!(seek(&file, rustix::fs::SeekFrom::Data(70_000)), Ok(131_072));
        assert_eq!(seek(&file, rustix::fs::SeekFrom::Hole(131_072)), Ok(192 * 1024));
        assert_eq!(seek(&file, rustix::fs::SeekFrom::Data(192 * 1024)), Err(rustix::io::Errno::NXIO));
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 192 * 1024);
    }
}

#[test]
fn a_device_that_grows_and_shrinks() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(MIB as u64, 512));
        let file = rw(&path);
        let data = pattern(5, MIB);
        file.write_all_at(&data, 0).unwrap();
        for size in [MIB / 2, MIB / 4, MIB] {
            disk.resize(size as u64);
            place.server.changed("disk");
            assert_eq!(
                (file.metadata().unwrap().len(), fs::metadata(&path).unwrap().len()),
                (size as u64, size as u64)
            );
            let mut back = Vec::new();
            rw(&path).read_to_end(&mut back).unwrap();
            assert!(back == data[..size]);
            if size < MIB {
                assert_eq!(file.write_at(&[0; 512], size as u64).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            }
        }
    }
}

#[test]
fn truncation_is_what_it_is_on_a_block_device() {
    for place in Place::both() {
        let (path, _) = place.disk(Disk::blocks(8192, 512));
        let data = pattern(4, 8192);
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
        let file = rw(&path);
        assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(file.set_len(16384).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        file.set_len(8192).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
    }
}

#[test]
fn the_directory_is_only_looked_at() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(8192, 512));
        let dir = place.server.dir();
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, [".files", "disk"]);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mode(), meta.mtime(), meta.uid()), (0o100_600, 1_000_000_000, owner().uid));
        assert!(fs::remove_file(&path).is_err() && File::create(dir.join("new")).is_err());
        assert!(fs::create_dir(dir.join("new")).is_err() && fs::rename(&path, dir.join("new")).is_err());
        assert_eq!(fs::metadata(dir.join("new")).unwrap_err().kind(), ErrorKind::NotFound);
        for i in 0..2000 {
            place.add(&format!("more-{i}"), &disk);
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2002);
        assert_eq!(fs::read_dir(dir.join(".files")).unwrap().count(), 2001);
        place.server.set_link("disk", Some(std::path::Path::new("/dev/null")));
        assert_eq!(fs::read_link(&path).unwrap(), std::path::Path::new("/dev/null"));
        assert_eq!(fs::metadata(place.server.file("disk")).unwrap().len(), 8192);
        place.server.rename("disk", "renamed").unwrap();
        assert!(fs::symlink_metadata(&path).is_err());
        place.server.set_link("renamed", None);
        assert_eq!(fs::read(place.server.path("renamed")).unwrap().len(), 8192);
    }
}

#[test]
fn read_only() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(8192, 512));
        disk.read_only.store(true, Ordering::SeqCst);
        assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_400);
        // Root may open what has no mode for it.
        let error = OpenOptions::new().write(true).open(&path).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)), "{error}");
        assert_eq!(fs::read(&path).unwrap().len(), 8192);
    }
}

#[test]
fn open_files_are_counted_and_outlive_their_names() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(8192, 512));
        let (one, two) = (rw(&path), rw(&path));
        assert_eq!(disk.open.load(Ordering::SeqCst), 2);
        assert!(place.server.is_open("disk"));
        drop(two);
        assert!(place.server.reap());
        assert_eq!(disk.open.load(Ordering::SeqCst), 1);
        assert!(place.server.remove("disk"));
        assert!(fs::metadata(&path).is_err());
        one.write_all_at(&[7; 512], 0).unwrap();
        let mut back = [0; 512];
        one.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back, [7; 512]);
        // Another of the same name is another.
        let other = Disk::blocks(4096, 512);
        assert_eq!(fs::read(place.add("disk", &other)).unwrap(), [0; 4096]);
        drop(one);
        assert!(place.server.reap());
        assert_eq!(disk.open.load(Ordering::SeqCst), 0);
        // The worker that served it lets go of it, too.
        until("the disk is let go of", || std::sync::Arc::strong_count(&disk) == 1);
    }
}

#[test]
fn many_requests_at_once_in_any_order() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(MIB as u64, 512));
        let data = pattern(8, MIB);
        fs::write(&path, &data).unwrap();
        disk.hold();
        std::thread::scope(|scope| {
            for i in 0..16usize {
                let (path, data) = (&path, &data);
                scope.spawn(move || {
                    let mut back = vec![0; 4096];
                    File::open(path).unwrap().read_exact_at(&mut back, (i * 65536) as u64).unwrap();
                    assert!(back == data[i * 65536..i * 65536 + 4096]);
                });
            }
            until("all wait", || disk.held() == 16);
            disk.release();
        });
    }
}

#[test]
fn the_end_with_files_open_and_requests_under_way() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(8192, 512));
        let file = rw(&path);
        disk.hold();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| file.read_at(&mut [0; 512], 0));
            until("the request is there", || disk.held() == 1);
            place.server.shut_down(Duration::ZERO);
            // Its answer will not come: it is told so, and does not wait.
            assert!(read.join().unwrap().is_err());
        });
        assert!(file.read_at(&mut [0; 512], 0).is_err());
        disk.release();
        assert!(fs::read_dir(place.root.path().join("dev")).unwrap().next().is_none(), "it is unmounted");
        assert_eq!(disk.open.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_new_name_while_it_is_open() {
    for place in Place::both() {
        let (path, disk) = place.disk(Disk::blocks(8192, 512));
        let file = rw(&path);
        place.server.rename("disk", "other").unwrap();
        assert!(fs::metadata(&path).is_err());
        let other = rw(&place.server.path("other"));
        file.write_all_at(&[1; 512], 0).unwrap();
        let mut back = [0; 512];
        other.read_exact_at(&mut back, 0).unwrap();
        assert_eq!((back, disk.open.load(Ordering::SeqCst)), ([1; 512], 2));
        disk.resize(4096);
        place.server.changed("other");
        assert_eq!((file.metadata().unwrap().len(), other.metadata().unwrap().len()), (4096, 4096));
        assert!(place.server.rename("other", "a/b").is_err());
        assert!(fs::metadata(place.server.path("other")).is_ok(), "it is where it was");
        drop((file, other));
        assert!(place.server.reap());
        until("it is closed", || disk.open.load(Ordering::SeqCst) == 0);
    }
}

/// What is open goes on with its connection, its name or not; where a node's mount was ended, its name reaches the
/// device all the same.
#[test]
fn mounts_of_files() {
    let Some(place) = Place::new() else { return };
    let (path, disk) = place.disk(Disk::blocks(MIB as u64, 512));
    let gone = Disk::blocks(8192, 512);
    let open = rw(&place.add("gone", &gone));
    assert!(place.server.remove("gone"));
    if rustix::mount::unmount(place.server.file("disk"), rustix::mount::UnmountFlags::DETACH).is_err() {
        return println!("SKIP unmounting takes root");
    }
    rw(&path).write_all_at(&[3; 512], 0).unwrap();
    let through_the_directory = rw(&path);
    assert!(place.server.pause(Duration::from_secs(60)));
    let (fds, plan) = place.server.give().unwrap();
    let device = |name: &str| {
        assert_eq!(name, "disk");
        Some(Box::new(crate::device::Shown(disk.clone())) as Box<dyn Export>)
    };
    let plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
    let next = Adopted::new(fds, plan, device, &mut Vec::new()).unwrap();
    let next = next.serve(&Domain::default(), place.server.dir(), 2).unwrap();
    let mut back = [0; 512];
    through_the_directory.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [3; 512]);
    open.write_all_at(&[4; 512], 0).unwrap();
    assert_eq!(disk.open.load(Ordering::SeqCst), 2);
    drop((open, through_the_directory));
    assert!(next.reap());
    assert_eq!(disk.open.load(Ordering::SeqCst), 0);
}

#[test]
fn unmounted_by_somebody_else() {
    for place in Place::both() {
        place.disk(Disk::blocks(8192, 512));
        if let Err(error) = rustix::mount::unmount(place.server.dir(), rustix::mount::UnmountFlags::DETACH) {
            println!("SKIP unmounting takes root: {error}");
            return;
        }
        until("it is noticed", || !place.server.is_mounted());
        assert!(place.server.reap());
    }
}

#[test]
fn a_mount_that_is_there() {
    let Some(place) = Place::new() else { return };
    let (path, disk) = place.disk(Disk::blocks(8192, 512));
    let file = rw(&path);
    // What has our type is taken for a dead server's: who has the directory knows that there is no other.
    let again = FuseServer::start(&Domain::default(), place.server.dir(), 1, owner()).unwrap();
    assert!(fs::metadata(&path).is_err());
    again.add("other", Box::new(crate::device::Shown(disk.clone()))).unwrap();
    (&file).write_all(&[1; 512]).unwrap();
    assert_eq!(fs::read(again.path("other")).unwrap()[..512], [1; 512]);
    drop(again);
    let dir = place.root.path().join("tmpfs");
    fs::create_dir(&dir).unwrap();
    let tmpfs = rustix::mount::mount("tmpfs", &dir, "tmpfs", rustix::mount::MountFlags::empty(), None);
    if tmpfs.is_ok() {
        let error = FuseServer::start(&Domain::default(), &dir, 1, owner()).err().unwrap();
        assert!(error.to_string().contains("of type tmpfs is mounted there"), "{error}");
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    }
}

#[test]
fn another_server_goes_on_with_what_is_open() {
    let Some(place) = Place::new() else { return };
    let (path, disk) = place.disk(Disk::blocks(MIB as u64, 512));
    let (file, data) = (rw(&path), pattern(9, MIB));
    file.write_all_at(&data, 0).unwrap();
    std::thread::scope(|scope| {
        disk.hold();
        let reader = scope.spawn(|| file.read_at(&mut [0; 512], 0).unwrap());
        until("the request is there", || disk.held() == 1);
        assert!(!place.server.pause(Duration::from_millis(20)), "it does not end");
        disk.release();
        assert_eq!(reader.join().unwrap(), 512);
    });
    assert!(place.server.pause(Duration::from_secs(60)));
    place.server.resume();
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB as u64);
    assert!(place.server.pause(Duration::from_secs(60)));
    assert_eq!(place.server.open_devices(), ["disk"]);
    std::thread::scope(|scope| {
        // Whether the kernel has them before or after, they are answered by the next.
        let readers = [0, 4096, 70_000].map(|at| {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                let mut back = vec![0; 30_000];
                file.read_exact_at(&mut back, at as u64).unwrap();
                assert!(back == data[at..at + 30_000]);
            })
        });
        let (fds, plan) = place.server.give().unwrap();
        assert_eq!(disk.open.load(Ordering::SeqCst), 0, "the device is let go of");
        let plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        let mut problems = Vec::new();
        let device = |name: &str| {
            assert_eq!(name, "disk");
            Some(Box::new(crate::device::Shown(disk.clone())) as Box<dyn Export>)
        };
        let next = Adopted::new(fds, plan, device, &mut problems).unwrap();
        assert_eq!((disk.open.load(Ordering::SeqCst), problems), (1, Vec::<String>::new()));
        let next = next.serve(&Domain::default(), place.server.dir(), 1).unwrap();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(fs::read(&path).unwrap() == data && next.is_open("disk"));
        assert!(place.server.give().is_err(), "it is given away");
        place.server.shut_down(Duration::ZERO);
        assert_eq!(file.metadata().unwrap().len(), MIB as u64, "its end is not the mount's");
        drop(next);
    });
    assert!(fs::read_dir(place.root.path().join("dev")).unwrap().next().is_none(), "it is unmounted");
}
