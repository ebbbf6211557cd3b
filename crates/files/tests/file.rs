//! Files as devices, at the boundary: every engine gives the same answers.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_files::*;
use udm_io::*;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// A folder of its own, an engine that serves files in it, and the options that lead there.
struct Place {
    dir: TempDir,
    engine: FileEngine,
    options: FileOptions,
}

/// One place for each engine that this machine has.
fn places() -> Vec<Place> {
    let all = FileOptions::default();
    let buffered = FileOptions { ring: false, mapping: false, ..all };
    let on_disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let in_memory = Path::new("/dev/shm");
    let mut places = Vec::new();
    for (parent, engine, options) in [
        (on_disk, FileEngine::Direct, all),
        (on_disk, FileEngine::Buffered, buffered),
        (in_memory, FileEngine::Mapped, all),
        (in_memory, FileEngine::Buffered, buffered),
    ] {
        let Ok(dir) = TempDir::new_in(parent) else {
            println!("SKIP {engine:?}: no folder can be made in {}", parent.display());
            continue;
        };
        let place = Place { dir, engine, options };
        let got = place.open(&place.make("probe", MIB)).engine();
        if got == engine {
            places.push(place);
        } else {
            println!("SKIP {engine:?}: files in {} are {got:?}", parent.display());
        }
    }
    assert!(places.iter().any(|p| p.engine == FileEngine::Buffered), "that engine needs nothing");
    places
}

impl Place {
    /// A sparse file of `len` bytes.
    fn make(&self, name: &str, len: u64) -> PathBuf {
        let path = self.dir.path().join(name);
        File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    fn open(&self, path: &Path) -> FileDevice {
        FileDevice::open(path, self.options, Arc::new(ThreadExecutor)).unwrap()
    }

    fn io(&self, path: &Path) -> BlockingIo {
        BlockingIo::new(&Domain::default(), Arc::new(self.open(path))).unwrap()
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let next = |_| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 56) as u8
    };
    (0..len).map(next).collect()
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks()
}

#[test]
fn what_is_written_is_read_back_and_lies_in_the_file() {
    for place in places() {
        let path = place.make("disk", MIB);
        let io = place.io(&path);
        assert_eq!(io.sectors(), Sectors::new(2048), "{:?}", place.engine);
        for (sector, sectors, flags) in
            [(0, 8, OpFlags::NONE), (2040, 8, OpFlags::FUA), (17, 1, OpFlags::NONE), (100, 1500, OpFlags::FUA)]
        {
            let data = pattern(sectors * 512, sector);
            io.write(Sector::new(sector), &data, flags).unwrap();
            let mut back = vec![0; data.len()];
            io.read(Sector::new(sector), &mut back).unwrap();
            assert!(back == data, "{:?} {sector}+{sectors}", place.engine);
            io.flush().unwrap();
            let mut back = vec![0; data.len()];
            File::open(&path).unwrap().read_exact_at(&mut back, sector * 512).unwrap();
            assert!(back == data, "{:?} {sector}+{sectors} in the file", place.engine);
        }
    }
}

#[test]
fn many_at_once_of_every_shape() {
    for place in places() {
        let path = place.make("disk", 4 * MIB);
        let domain = Domain::default();
        let channel = domain.channel().unwrap();
        channel.set_depth(2000);
        let dev = channel.attach(Arc::new(place.open(&path)));
        // More than the ring has entries; every third from memory of odd alignment, every third in pieces.
        const N: usize = 1500;
        let data = pattern(N * 2048, 3);
        for read in [false, true] {
            let memory = AlignedBuf::zeroed(N * 4096);
            let lists: Vec<Vec<Segment>> = (0..N)
                .map(|i| {
                    let at = memory.as_ptr().wrapping_add(i * 4096);
                    let pieces: &[(usize, usize)] = match i % 3 {
                        0 => &[(0, 2048)],
                        1 => &[(3, 2048)],
                        _ if i % 2 == 0 => &[(0, 1024), (2048, 0), (3072, 1024)],
                        _ => &[(1, 1), (1024, 1023), (2048, 1024)],
                    };
                    pieces.iter().map(|(o, len)| unsafe { Segment::new(at.wrapping_add(*o), *len) }).collect()
                })
                .collect();
            let each = |visit: &mut dyn FnMut(*mut u8, std::ops::Range<usize>)| {
                for (i, list) in lists.iter().enumerate() {
                    let mut at = i * 2048;
                    for seg in list {
                        visit(seg.as_ptr(), at..at + seg.len());
                        at += seg.len();
                    }
                }
            };
            if !read {
                each(&mut |p, r| unsafe { std::ptr::copy_nonoverlapping(data[r.clone()].as_ptr(), p, r.len()) });
            }
            let op = if read { Op::Read } else { Op::Write };
            for (i, list) in lists.iter().enumerate() {
                let (sector, len) = (Sector::new(i as u64 * 4), Sectors::new(4));
                assert!(unsafe { channel.submit_vectored(dev, op, OpFlags::NONE, sector, len, list, i as u64) });
            }
            let mut seen = [false; N];
            while seen.contains(&false) {
                channel.poll();
                while let Some(done) = channel.completed() {
                    assert_eq!(done.status, Status::Ok, "{:?} {op:?} {}", place.engine, done.token);
                    assert!(!std::mem::replace(&mut seen[done.token as usize], true));
                }
                if channel.outstanding() > 0 {
                    channel.wait(None, &mut Vec::new()).unwrap();
                }
            }
            if read {
                each(&mut |p, r| {
                    let got = unsafe { std::slice::from_raw_parts(p, r.len()) };
                    assert!(got == &data[r.clone()], "{:?} at {r:?}", place.engine);
                });
            }
            drop(memory);
        }
    }
}

#[test]
fn large_ones_from_odd_memory_go_in_several_steps() {
    for place in places() {
        let io = place.io(&place.make("disk", 4 * MIB));
        let data = pattern(3 * MIB as usize + 1, 5);
        io.write(Sector::new(1), &data[1..], OpFlags::NONE).unwrap();
        let mut back = vec![0; 3 * MIB as usize + 3];
        io.read(Sector::new(1), &mut back[3..]).unwrap();
        assert!(back[3..] == data[1..], "{:?}", place.engine);
    }
}

#[test]
fn a_file_cut_off_below_gives_eio_and_does_not_grow_again() {
    for place in places() {
        let path = place.make("disk", MIB);
        let io = place.io(&path);
        let mut buf = pattern(64 * KIB as usize, 1);
        for sector in (0..2048).step_by(128) {
            io.write(Sector::new(sector), &buf, OpFlags::NONE).unwrap();
        }
        io.flush().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(512 * KIB).unwrap();
        for sector in [1024, 1920, 1000] {
            let at = format!("{:?} {sector}", place.engine);
            assert_eq!(io.read(Sector::new(sector), &mut buf), Err(Status::Io), "{at}");
            assert_eq!(io.write(Sector::new(sector), &buf, OpFlags::NONE), Err(Status::Io), "{at}");
            assert_eq!(io.write(Sector::new(sector), &buf, OpFlags::FUA), Err(Status::Io), "{at}");
            let zeroes = io.range(Op::WriteZeroes, OpFlags::NONE, Sector::new(sector), Sectors::new(128));
            assert_eq!(zeroes, Err(Status::Io), "{at}");
        }
        io.read(Sector::new(896), &mut buf).unwrap();
        io.write(Sector::new(896), &buf, OpFlags::NONE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 512 * KIB, "{:?}", place.engine);
    }
}

#[test]
fn a_file_that_grows_below_is_larger() {
    for place in places() {
        let path = place.make("disk", MIB + 100);
        let io = place.io(&path);
        let data = pattern(4096, 2);
        assert_eq!(io.sectors(), Sectors::new(2048));
        assert_eq!(io.write(Sector::new(2048), &data, OpFlags::NONE), Err(Status::Invalid), "{:?}", place.engine);
        File::options().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
        io.write(Sector::new(4088), &data, OpFlags::NONE).unwrap();
        let mut back = vec![0; 4096];
        io.read(Sector::new(4088), &mut back).unwrap();
        assert!(back == data, "{:?}", place.engine);
    }
}

#[test]
fn holes_stay_holes_when_read_and_are_found() {
    for place in places() {
        let path = place.make("disk", 4 * MIB);
        let io = place.io(&path);
        let data = pattern(256 * KIB as usize, 2);
        io.write(Sector::new(2048), &data, OpFlags::NONE).unwrap();
        io.flush().unwrap();
        let before = blocks(&path);
        let mut buf = vec![9; 4 * MIB as usize];
        io.read(Sector::ZERO, &mut buf).unwrap();
        assert!(buf[..MIB as usize].iter().all(|b| *b == 0) && buf[MIB as usize..][..data.len()] == data);
        assert_eq!(blocks(&path), before, "{:?}", place.engine);
        let found = place.io(&path).extents(Sector::new(8), Sectors::new(8000));
        let extents: Vec<_> = found.iter().map(|e| (e.sectors.get(), e.kind)).collect();
        let expect = [(2040, ExtentKind::Hole), (512, ExtentKind::Data), (5448, ExtentKind::Hole)];
        assert_eq!(extents, expect, "{:?}", place.engine);
    }
}

#[test]
fn discards_give_space_back_and_zero_writes_read_as_zeroes() {
    for place in places() {
        let path = place.make("disk", 4 * MIB);
        let io = place.io(&path);
        let data = pattern(4 * MIB as usize, 2);
        io.write(Sector::ZERO, &data, OpFlags::NONE).unwrap();
        io.flush().unwrap();
        let full = blocks(&path);
        io.range(Op::Discard, OpFlags::NONE, Sector::new(2048), Sectors::new(2048)).unwrap();
        assert!(blocks(&path) <= full - 2000, "{:?}", place.engine);
        // Odd ends, kept provisioned, durable at once.
        for (flags, sector) in
            [(OpFlags::NONE, 4097), (OpFlags::NO_UNMAP, 5001), (OpFlags::NO_UNMAP.with(OpFlags::FUA), 6001)]
        {
            let before = blocks(&path);
            io.range(Op::WriteZeroes, flags, Sector::new(sector), Sectors::new(301)).unwrap();
            assert!(!flags.contains(OpFlags::NO_UNMAP) || blocks(&path) >= before, "{:?}", place.engine);
        }
        let mut expect = data.clone();
        for (sector, n) in [(2048, 2048), (4097, 301), (5001, 301), (6001, 301)] {
            expect[sector * 512..(sector + n) * 512].fill(0);
        }
        let mut back = vec![1; data.len()];
        io.read(Sector::ZERO, &mut back).unwrap();
        assert!(back == expect, "{:?}", place.engine);
        // A hole is written again.
        let few = blocks(&path);
        io.write(Sector::new(2500), &data[..64 * KIB as usize], OpFlags::NONE).unwrap();
        io.read(Sector::new(2500), &mut back[..64 * KIB as usize]).unwrap();
        assert!(back[..64 * KIB as usize] == data[..64 * KIB as usize]);
        io.flush().unwrap();
        assert!(blocks(&path) >= few + 120, "{:?}", place.engine);
    }
}

#[test]
fn read_only_on_request() {
    for place in places() {
        let path = place.make("disk", MIB);
        let options = FileOptions { read_only: true, ..place.options };
        let dev = FileDevice::open(&path, options, Arc::new(ThreadExecutor)).unwrap();
        assert!(dev.read_only());
        let io = BlockingIo::new(&Domain::default(), Arc::new(dev)).unwrap();
        io.read(Sector::ZERO, &mut [0; 512]).unwrap();
        io.flush().unwrap();
        assert_eq!(io.write(Sector::ZERO, &[1; 512], OpFlags::NONE), Err(Status::ReadOnly), "{:?}", place.engine);
        for op in [Op::Discard, Op::WriteZeroes] {
            assert_eq!(io.range(op, OpFlags::NONE, Sector::ZERO, Sectors::new(8)), Err(Status::ReadOnly));
        }
    }
}

#[test]
fn without_io_uring_a_file_is_buffered() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![5; 8192]).unwrap();
    let options = FileOptions { ring: false, ..FileOptions::default() };
    let dev = FileDevice::open(&path, options, Arc::new(ThreadExecutor)).unwrap();
    assert_eq!((dev.engine(), dev.limits().dma_alignment), (FileEngine::Buffered, 1));
}

/// An executor that starts nothing.
struct NoThreads;

impl Executor for NoThreads {
    fn spawn(&self, _: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<Joiner> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn without_threads_it_is_served_in_place() {
    for place in places() {
        let path = place.make("disk", MIB);
        let dev = FileDevice::open(&path, place.options, Arc::new(NoThreads)).unwrap();
        let io = BlockingIo::new(&Domain::default(), Arc::new(dev)).unwrap();
        let data = pattern(8192, 4);
        io.write(Sector::new(5), &data, OpFlags::FUA).unwrap();
        io.range(Op::WriteZeroes, OpFlags::FUA, Sector::new(6), Sectors::new(1)).unwrap();
        let mut back = vec![0; 8192];
        io.read(Sector::new(5), &mut back).unwrap();
        assert!(back[..512] == data[..512] && back[512..1024] == [0; 512] && back[1024..] == data[1024..]);
    }
}

#[test]
fn an_exclusive_open_is_refused_with_the_holder() {
    for place in places() {
        let path = place.make("disk", MIB);
        let exclusive = FileOptions { exclusive: true, ..place.options };
        let open = |options| FileDevice::open(&path, options, Arc::new(ThreadExecutor));
        let first = open(exclusive).unwrap();
        let error = open(exclusive).err().expect("it is locked");
        assert_eq!((error.kind(), error.errno().name()), (OpenErrorKind::Busy, Some("EBUSY")));
        let me = format!("(pid {}, this process)", std::process::id());
        assert!(error.to_string().contains(&me), "{error}");
        open(place.options).expect("only exclusive opens lock");
        drop(first);
        let io = BlockingIo::new(&Domain::default(), Arc::new(open(exclusive).expect("unlocked"))).unwrap();
        // Also after a worker has served it.
        io.range(Op::WriteZeroes, OpFlags::FUA, Sector::ZERO, Sectors::new(8)).unwrap();
        drop(io);
        open(exclusive).expect("unlocked with the device");
    }
}

#[test]
fn a_full_file_system_is_an_error() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(dir.path())
        .output()
        .is_ok_and(|o| o.status.success());
    if !mounted {
        println!("SKIP a tmpfs cannot be mounted here");
        return;
    }
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let outcome = std::panic::catch_unwind(|| {
        for options in [FileOptions::default(), FileOptions { ring: false, mapping: false, ..Default::default() }] {
            let dev = FileDevice::open(&path, options, Arc::new(ThreadExecutor)).unwrap();
            let engine = dev.engine();
            let io = BlockingIo::new(&Domain::default(), Arc::new(dev)).unwrap();
            let data = pattern(256 * KIB as usize, 1);
            let wrote: Vec<_> = (0..8).map(|i| io.write(Sector::new(i * 512), &data, OpFlags::NONE)).collect();
            assert!(wrote.contains(&Err(Status::NoSpace)), "{engine:?} {wrote:?}");
            assert_eq!(wrote[0], Ok(()), "{engine:?}");
            // Written over where there is room already, and read where there is none.
            io.write(Sector::new(1), &data[..4096], OpFlags::NONE).unwrap();
            let mut back = vec![0; 8 * MIB as usize];
            io.read(Sector::ZERO, &mut back).unwrap();
            io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, io.sectors()).unwrap();
            io.write(Sector::new(8192), &data, OpFlags::NONE).unwrap();
            io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, io.sectors()).unwrap();
        }
    });
    assert!(std::process::Command::new("umount").arg(dir.path()).status().unwrap().success());
    outcome.unwrap_or_else(|e| std::panic::resume_unwind(e));
}

/// A loop device of the kernel over a file; gone with the value.
struct KernelLoop(PathBuf);

impl KernelLoop {
    fn new(file: &Path) -> Option<Self> {
        let out = std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        out.status.success().then(|| Self(String::from_utf8(out.stdout).unwrap().trim().into()))
    }
}

impl Drop for KernelLoop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_of_the_host() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("disk");
    let mut file = File::create(&path).unwrap();
    let data = pattern(4 * MIB as usize, 1);
    file.write_all(&data).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 4 * MIB);
    let Some(node) = KernelLoop::new(&path) else {
        println!("SKIP a loop device cannot be set up here");
        return;
    };
    for ring in [true, false] {
        let open = |exclusive| {
            let options = FileOptions { exclusive, ring, ..FileOptions::default() };
            FileDevice::open(&node.0, options, Arc::new(ThreadExecutor))
        };
        let dev = open(true).unwrap();
        assert!(ring || dev.engine() == FileEngine::Buffered);
        let error = open(true).err().expect("claimed");
        assert_eq!((error.kind(), error.errno().name()), (OpenErrorKind::Busy, Some("EBUSY")), "{error}");
        let DeviceId::Number(number) = dev.id() else { panic!("{:?}", dev.id()) };
        assert_eq!(number.major, 7);
        assert!(!dev.limits().max_discard.is_zero() && !dev.limits().max_write_zeroes.is_zero());
        let io = BlockingIo::new(&Domain::default(), Arc::new(dev)).unwrap();
        let mut back = vec![0; 64 * KIB as usize];
        io.write(Sector::new(80), &data[..back.len()], OpFlags::FUA).unwrap();
        io.read(Sector::new(80), &mut back).unwrap();
        assert!(back == data[..back.len()]);
        io.range(Op::Discard, OpFlags::NONE, Sector::new(80), Sectors::new(64)).unwrap();
        io.range(Op::WriteZeroes, OpFlags::NO_UNMAP, Sector::new(144), Sectors::new(64)).unwrap();
        io.read(Sector::new(80), &mut back).unwrap();
        assert!(back.iter().all(|b| *b == 0));
        io.flush().unwrap();
    }
}

#[test]
fn a_busy_ring_hears_watched_descriptors_and_the_waker() {
    for place in places() {
        let domain = Domain::default();
        let channel = domain.channel().unwrap();
        let dev = channel.attach(Arc::new(place.open(&place.make("disk", MIB))));
        let (mut here, mut there) = std::io::pipe().unwrap();
        channel.watch(&here, 7, true, false).unwrap();
        let mut memory = AlignedBuf::zeroed(8 * 4096);
        let at = memory.as_mut_ptr();
        let (mut free, mut heard, mut asked) = ((0..8u64).collect::<Vec<_>>(), 0, 0);
        while heard < 50 {
            while let Some(i) = free.pop() {
                let piece = unsafe { std::slice::from_raw_parts_mut(at.add(i as usize * 4096), 4096) };
                assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::new(i * 8), piece, i) });
            }
            if asked == heard {
                asked += 1;
                there.write_all(&[1]).unwrap();
            }
            channel.poll();
            let mut woken = Vec::new();
            channel.wait(None, &mut woken).unwrap();
            if woken.iter().any(|w| w.key == 7 && w.readable) {
                std::io::Read::read_exact(&mut here, &mut [0]).unwrap();
                heard += 1;
            }
            channel.poll();
            free.extend(std::iter::from_fn(|| channel.completed()).map(|c| c.token));
        }
        channel.waker().wake();
        channel.wait(None, &mut Vec::new()).unwrap();
        while channel.outstanding() > 0 {
            channel.wait(None, &mut Vec::new()).unwrap();
            channel.poll();
        }
    }
}

#[test]
fn a_remote_poller_that_takes_completions_wakes_their_owner() {
    for place in places() {
        let path = place.make("disk", MIB);
        let domain = Domain::default();
        let finished = std::sync::atomic::AtomicBool::new(false);
        let finish = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let io = BlockingIo::new(&domain, Arc::new(place.open(&path))).unwrap();
                let mut buf = AlignedBuf::zeroed(4096);
                for i in 0..2000 {
                    io.read(Sector::new(i % 255 * 8), &mut buf).unwrap();
                }
                finished.store(true, finish);
            });
            domain.drain(|| finished.load(finish));
        });
    }
}

/// Opens a block device for a user who claims it.
fn open_claimed(path: &Path, claims: &Claims, read_only: bool) -> Result<FileDevice, OpenError> {
    let options = FileOptions { read_only, ..FileOptions::default() };
    FileDevice::open_claimed(path, options, claims, Arc::new(ThreadExecutor))
}

#[test]
fn a_block_device_is_claimed_once_for_all_users_of_one_holder() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let Some(node) = KernelLoop::new(&path) else {
        println!("SKIP a loop device cannot be set up here");
        return;
    };
    let (ours, others) = (Claims::default(), Claims::default());
    let take = |claims: &Claims, read_only| open_claimed(&node.0, claims, read_only);
    let refused = |claims: &Claims| {
        let error = take(claims, true).err().expect("it is claimed");
        assert_eq!((error.kind(), error.errno().name()), (OpenErrorKind::Busy, Some("EBUSY")));
        let text = error.to_string();
        assert!(text.contains(&format!("(pid {}, this process)", std::process::id())), "{text}");
    };
    let (first, second) = (take(&ours, false).unwrap(), take(&ours, true).unwrap());
    drop(first);
    refused(&others);
    // Looking is free.
    FileDevice::open(&node.0, FileOptions::default(), Arc::new(ThreadExecutor)).unwrap();
    // The claim passes on, and there is no moment at which it is free.
    let shared = ours.share().unwrap();
    drop(second);
    refused(&others);
    refused(&ours);
    let adopted: Vec<_> = shared.into_iter().map(|fd| others.adopt(fd).unwrap()).collect();
    let third = take(&others, false).unwrap();
    drop(adopted);
    refused(&ours);
    drop(third);
    drop(take(&ours, false).unwrap());
    // Many at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| drop(take(&ours, false).expect("never in one's own way"))));
        }
    });
    assert!(ours.share().unwrap().is_empty());
    // One that is exclusive for itself stands in the way of claims as well.
    let options = FileOptions { exclusive: true, ..FileOptions::default() };
    let alone = FileDevice::open(&node.0, options, Arc::new(ThreadExecutor)).unwrap();
    refused(&ours);
    drop(alone);
    assert!(others.adopt(File::open(&path).unwrap().into()).is_err(), "only block devices are claimed");
}

#[test]
fn a_claimed_block_device_takes_discards_over_what_is_not_written_yet() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let Some(node) = KernelLoop::new(&path) else {
        println!("SKIP a loop device cannot be set up here");
        return;
    };
    for ring in [true, false] {
        let claims = Claims::default();
        let open = |read_only| {
            let options = FileOptions { read_only, ring, ..FileOptions::default() };
            FileDevice::open_claimed(&node.0, options, &claims, Arc::new(ThreadExecutor)).unwrap()
        };
        // Whoever was first, and how.
        let _reader = open(true);
        let io = BlockingIo::new(&Domain::default(), Arc::new(open(false))).unwrap();
        let (data, mut back) = (pattern(64 * KIB as usize, 1), vec![1; 64 * KIB as usize]);
        for (op, flags) in
            [(Op::Discard, OpFlags::NONE), (Op::WriteZeroes, OpFlags::NONE), (Op::WriteZeroes, OpFlags::NO_UNMAP)]
        {
            io.write(Sector::ZERO, &data, OpFlags::NONE).unwrap();
            let text = format!("{op:?} {flags:?}, ring {ring}");
            io.range(op, flags, Sector::ZERO, Sectors::new(128)).unwrap_or_else(|e| panic!("{text}: {e:?}"));
            io.read(Sector::ZERO, &mut back).unwrap();
            assert!(back.iter().all(|b| *b == 0), "{text}");
        }
    }
}

#[test]
fn a_mounted_block_device_is_not_claimed() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, point) = (dir.path().join("disk"), dir.path().join("mnt"));
    File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    std::fs::create_dir(&point).unwrap();
    let Some(node) = KernelLoop::new(&path) else {
        println!("SKIP a loop device cannot be set up here");
        return;
    };
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
    };
    let (disk, at) = (node.0.as_os_str(), point.as_os_str());
    if !run("mkfs.ext4", &["-q".as_ref(), disk]) || !run("mount", &[disk, at]) {
        println!("SKIP no ext4 can be made and mounted here");
        return;
    }
    let claims = Claims::default();
    let refused = [true, false].map(|read_only| open_claimed(&node.0, &claims, read_only).err());
    assert!(run("umount", &[at]));
    for error in refused {
        let error = error.expect("a file system has it");
        assert_eq!(error.errno().name(), Some("EBUSY"));
        assert!(error.to_string().contains(&format!("the file system mounted at {}", point.display())), "{error}");
    }
    open_claimed(&node.0, &claims, false).unwrap();
}

/// Set for the child that has no descriptors left.
const SHORT: &str = "UDM_TEST_WITHOUT_DESCRIPTORS";

#[test]
fn without_a_descriptor_for_a_ring_io_goes_by_system_calls() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    if std::env::var_os(SHORT).is_none() {
        // The limit is a process's.
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "without_a_descriptor_for_a_ring_io_goes_by_system_calls"]).env(SHORT, "1");
        let said = child.output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        return;
    }
    let Some(place) = places().into_iter().find(|place| place.engine == FileEngine::Direct) else {
        return println!("SKIP no file can be opened for direct I/O");
    };
    let path = place.make("disk", MIB);
    let io = place.io(&path);
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(3);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(File::open("/dev/null").is_err(), "no descriptor is left");
    let data = pattern(256 << 10, 5);
    io.write(Sector::new(8), &data, OpFlags::NONE).unwrap();
    io.write(Sector::new(0), &data[..4096], OpFlags::FUA).unwrap();
    io.flush().unwrap();
    // In memory as it comes, and at no border that direct I/O takes.
    let mut back = vec![0; data.len() + 1];
    io.read(Sector::new(8), &mut back[1..]).unwrap();
    assert!(back[1..] == data);
    io.write(Sector::new(1000), &data[1..513], OpFlags::NONE).unwrap();
    io.read(Sector::new(1000), &mut back[3..515]).unwrap();
    assert!(back[3..515] == data[1..513]);
}
