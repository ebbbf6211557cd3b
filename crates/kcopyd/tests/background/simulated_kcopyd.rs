//! kcopyd in the simulated world: contents, order, memory, errors, and time that repeats.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_kcopyd::*;
use udm_sim::*;

const CHUNK: u64 = 16;

/// Keeps the jobs that are done, in the order in which they ended.
#[derive(Default)]
struct Done(Mutex<Vec<Box<CopyJob>>>);

impl Copied for Done {
    fn copied(self: Arc<Self>, _: &Cx<'_>, job: Box<CopyJob>) {
        self.0.lock().unwrap().push(job);
    }
}

impl Done {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn take(&self) -> Vec<Box<CopyJob>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Rig {
    sim: Sim,
    domain: Domain,
    channel: Channel,
    from: Arc<SimDevice>,
    to: Vec<Arc<SimDevice>>,
    copier: Kcopyd,
    done: Arc<Done>,
}

fn image(sectors: u64, salt: u64) -> Image {
    let mut image = Image::new();
    for sector in 0..sectors {
        let bytes: Vec<u8> = (0..64).flat_map(|_| (sector << 8 | salt).to_le_bytes()).collect();
        image.write(Sector::new(sector), &bytes);
    }
    image
}

fn bytes(image: &Image, sector: u64, sectors: u64) -> Vec<u8> {
    let mut buf = vec![0; sectors as usize * 512];
    image.read(Sector::new(sector), &mut buf);
    buf
}

impl Rig {
    fn new(seed: u64, places: usize, limits: Limits, options: CopyOptions) -> Self {
        let sim = Sim::new(seed);
        let size = Sectors::new(4096);
        let make = |limits, image| {
            Arc::new(SimDevice::with_image(&sim, SimOptions { limits, ..SimOptions::new(size) }, image))
        };
        let from = make(Limits::default(), image(4096, 1));
        let to = (0..places).map(|i| make(limits, image(4096, 2 + i as u64))).collect();
        let domain = sim.domain();
        let channel = domain.channel().unwrap();
        let copier = Kcopyd::new(&domain, options).unwrap();
        Self { sim, domain, channel, from, to, copier, done: Arc::default() }
    }

    fn job(&self, token: u64, zeroes: bool, from: u64, to: u64, sectors: u64) -> Box<CopyJob> {
        let place = |dev: &Arc<SimDevice>| CopyTo::new(dev.clone(), Sector::new(to));
        let source = if zeroes { CopyFrom::Zeroes } else { CopyFrom::Device(self.from.clone(), Sector::new(from)) };
        let mut job = CopyJob::new(source, Sectors::new(sectors), self.to.iter().map(place).collect());
        job.token = token;
        job
    }

    fn add(&self, job: Box<CopyJob>) {
        assert!(self.copier.add(job, self.done.clone()).is_ok());
    }

    /// Runs until `n` jobs are done, and gives them.
    fn finish(&self, n: usize) -> Vec<Box<CopyJob>> {
        self.channel.with_cx(|cx| self.copier.run(cx));
        self.go_on(n)
    }

    fn go_on(&self, n: usize) -> Vec<Box<CopyJob>> {
        while self.done.len() < n {
            self.channel.poll();
            self.channel.wait(None, &mut Vec::new()).unwrap();
        }
        assert!(self.copier.is_idle());
        self.done.take()
    }
}

#[test]
fn every_place_gets_what_the_source_holds() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let pick = |rng: &mut Rng, all: &[usize]| all[rng.below(all.len() as u64) as usize];
        let options = CopyOptions {
            pool: pick(&mut rng, &[4096, 20000, 1 << 20]),
            piece: pick(&mut rng, &[4096, 65536, 1 << 20]),
            pieces: pick(&mut rng, &[1, 3, 64]),
            requeue: if rng.one_in(3) { Requeue::Tail } else { Requeue::Head },
            ..CopyOptions::default()
        };
        let max_sectors = Sectors::new(pick(&mut rng, &[8, 40, 1 << 20]) as u64);
        let max_write_zeroes = Sectors::new(pick(&mut rng, &[0, 32, 1 << 20]) as u64);
        let limits = Limits { max_sectors, max_write_zeroes, write_cache: true, ..Limits::default() };
        let rig = Rig::new(seed, 1 + rng.below(3) as usize, limits, options);
        let mut expect: Vec<Image> = rig.to.iter().map(|dev| dev.content()).collect();
        let (mut at, mut jobs) = (0, 0);
        let source = rig.from.content();
        while at < 3900 {
            let len = if rng.one_in(8) { 1 + rng.below(190) } else { CHUNK };
            let (from, zeroes) = (if rng.one_in(2) { at } else { rng.below(3900) }, rng.one_in(4));
            let len = len.min(4096 - at);
            for image in &mut expect {
                if zeroes {
                    image.zero(Sector::new(at), Sectors::new(len));
                } else {
                    image.write(Sector::new(at), &bytes(&source, from, len));
                }
            }
            rig.add(rig.job(jobs, zeroes, from, at, len));
            (at, jobs) = (at + len, jobs + 1);
        }
        let done = rig.finish(jobs as usize);
        assert!(done.iter().all(|job| job.status() == Status::Ok));
        for (dev, expect) in rig.to.iter().zip(&expect) {
            assert_eq!(bytes(&dev.content(), 0, 4096), bytes(expect, 0, 4096), "seed {seed}");
        }
        let stats = rig.copier.stats();
        assert_eq!((stats.jobs, stats.done, stats.failed), (jobs, jobs, 0));
        assert!(stats.pool_peak <= options.pool.next_multiple_of(4096) as u64, "{stats:?}");
        if options.requeue == Requeue::Head {
            assert_eq!(stats.out_of_order, 0, "seed {seed}");
        }
    }
}

#[test]
fn a_job_without_pages_keeps_its_place_unless_told_otherwise() {
    for (requeue, ordered) in [(Requeue::Head, true), (Requeue::Tail, false)] {
        let options = CopyOptions { pool: 4 * 8192, requeue, merge: false, ..CopyOptions::default() };
        let rig = Rig::new(3, 1, Limits::default(), options);
        for i in 0..100 {
            rig.add(rig.job(i, false, i * CHUNK, i * CHUNK, CHUNK));
        }
        rig.finish(100);
        let stats = rig.copier.stats();
        assert!(stats.page_waits > 50, "{stats:?}");
        assert_eq!(stats.out_of_order == 0, ordered, "{stats:?}");
    }
}

#[test]
fn neighbours_go_together_and_strangers_do_not() {
    let options = CopyOptions::default();
    let rig = Rig::new(4, 2, Limits::default(), options);
    for i in 0..20 {
        rig.add(rig.job(i, false, i * CHUNK, 100 + i * CHUNK, CHUNK));
    }
    rig.finish(20);
    let stats = rig.copier.stats();
    assert_eq!((stats.reads, stats.writes, stats.merged), (1, 2, 19));
    assert_eq!((stats.bytes_read, stats.bytes_written), (20 * 8192, 40 * 8192));
    // A gap in the source, and one in the target; then a job of zeroes.
    for (from, to) in [(0, 0), (16, 16), (48, 32), (64, 64)] {
        rig.add(rig.job(0, false, from, to, CHUNK));
    }
    rig.add(rig.job(0, true, 0, 80, CHUNK));
    rig.finish(5);
    assert_eq!(rig.copier.stats().reads, 1 + 3);
    assert_eq!(rig.copier.stats().merged, 19 + 1);
}

#[test]
fn each_job_and_each_place_learns_of_its_own_error_only() {
    // What fails: a read, or a write to the second place, of sectors of the third job.
    let broken = Sector::new(2 * CHUNK)..Sector::new(3 * CHUNK);
    for read in [true, false] {
        let rig = Rig::new(5, 3, Limits::default(), CopyOptions::default());
        let (dev, op) = if read { (&rig.from, Op::Read) } else { (&rig.to[1], Op::Write) };
        dev.inject(Fault::new(Status::Io).on(op).within(broken.clone()));
        (0..6).for_each(|i| rig.add(rig.job(i, false, i * CHUNK, i * CHUNK, CHUNK)));
        let mut done = rig.finish(6);
        done.sort_by_key(|job| job.token);
        for job in done {
            let hit = job.token == 2;
            let of = |broken: bool| if broken { Status::Io } else { Status::Ok };
            assert_eq!(job.read, of(hit && read));
            let places: Vec<Status> = job.to.iter().map(|to| to.status).collect();
            assert_eq!(places, [of(false), of(hit && !read), of(false)]);
        }
        for (i, dev) in rig.to.iter().enumerate() {
            for chunk in [0, 1, 3, 4, 5] {
                let at = chunk * CHUNK;
                assert_eq!(bytes(&dev.content(), at, CHUNK), bytes(&rig.from.content(), at, CHUNK), "place {i}");
            }
        }
        assert_eq!(rig.copier.stats().failed, 1);
    }
}

#[test]
fn zeroes_are_written_out_where_a_device_has_no_way_to_make_them() {
    let rig = Rig::new(6, 2, Limits::default(), CopyOptions::default());
    rig.to[1].inject(Fault::new(Status::NotSupported).on(Op::WriteZeroes));
    rig.add(rig.job(0, true, 0, 8, 4000));
    rig.add(rig.job(1, true, 0, 4008, 8));
    let done = rig.finish(2);
    assert!(done.iter().all(|job| job.status().is_ok()));
    for dev in &rig.to {
        assert!(bytes(&dev.content(), 8, 4008).iter().all(|b| *b == 0));
        assert!(bytes(&dev.content(), 0, 8).iter().any(|b| *b != 0));
    }
    // Another error is an error.
    rig.to[0].inject(Fault::new(Status::Io).on(Op::WriteZeroes));
    rig.add(rig.job(2, true, 0, 0, 8));
    assert_eq!(rig.finish(1)[0].to[0].status, Status::Io);
}

#[test]
fn no_more_jobs_wait_than_may() {
    let rig = Rig::new(7, 1, Limits::default(), CopyOptions { jobs: 3, ..CopyOptions::default() });
    (0..3).for_each(|i| rig.add(rig.job(i, false, 0, 64 * i, CHUNK)));
    let back = rig.copier.add(rig.job(9, false, 0, 0, CHUNK), rig.done.clone());
    assert_eq!(back.err().map(|job| job.token), Some(9));
    rig.finish(3);
    rig.add(rig.job(9, false, 0, 0, CHUNK));
    rig.add(rig.job(10, false, 0, 0, 0));
    let tokens: Vec<u64> = rig.finish(2).iter().map(|job| job.token).collect();
    assert_eq!(tokens, [10, 9], "nothing to copy is done at once");
}

#[test]
fn the_throttle_keeps_to_its_share_of_the_time() {
    let time = |percent| {
        let rig = Rig::new(8, 1, Limits::default(), CopyOptions { pieces: 1, merge: false, ..CopyOptions::default() });
        rig.copier.set_throttle(percent);
        let before = rig.domain.clock().now();
        (0..200).for_each(|i| rig.add(rig.job(i, false, i * CHUNK, i * CHUNK, CHUNK)));
        rig.finish(200);
        rig.domain.clock().now().since(before)
    };
    let (full, half, tenth) = (time(100), time(50), time(10));
    assert!((18..=22).contains(&(half * 10 / full)), "{half} of {full}");
    assert!((85..=115).contains(&(tenth * 10 / full)), "{tenth} of {full}");
}

/// Asks for the same again, so often.
struct Again {
    copier: Kcopyd,
    left: AtomicU64,
}

impl Copied for Again {
    fn copied(self: Arc<Self>, cx: &Cx<'_>, job: Box<CopyJob>) {
        if self.left.fetch_sub(1, SeqCst) > 1 {
            assert!(self.copier.copy(cx, job, self.clone()).is_ok());
        }
    }
}

#[test]
fn an_endless_copy_between_devices_that_answer_at_once_leaves_the_section() {
    let rig = Rig::new(9, 0, Limits::default(), CopyOptions::default());
    let memory = || -> Arc<dyn BlockDevice> { Arc::new(MemoryDevice::new(Sectors::new(64)).unwrap()) };
    let (from, to) = (memory(), CopyTo::new(memory(), Sector::ZERO));
    let again = Arc::new(Again { copier: rig.copier.clone(), left: AtomicU64::new(100_000) });
    let job = CopyJob::new(CopyFrom::Device(from, Sector::ZERO), Sectors::new(8), vec![to]);
    rig.channel.with_cx(|cx| assert!(rig.copier.copy(cx, job, again.clone()).is_ok()));
    let after_one = again.left.load(SeqCst);
    assert!(after_one > 99_000, "{after_one} left: it went on in one section");
    while again.left.load(SeqCst) > 0 {
        rig.channel.poll();
    }
    let _ = &rig.sim;
}

#[test]
fn a_channel_that_goes_leaves_its_copies_to_others() {
    let rig = Rig::new(10, 1, Limits::default(), CopyOptions { pieces: 2, ..CopyOptions::default() });
    let other = rig.domain.channel().unwrap();
    (0..50).for_each(|i| rig.add(rig.job(i, false, (i * 40) % 4000, i * 80, CHUNK)));
    other.with_cx(|cx| rig.copier.run(cx));
    drop(other);
    assert!(!rig.copier.is_idle());
    assert!(rig.go_on(50).iter().all(|job| job.status().is_ok()));
}

/// Memory that is not lent.
struct Lonely(MemoryDevice);

impl BlockDevice for Lonely {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.0.submit(cx, bio)
    }
    fn sectors(&self) -> Sectors {
        self.0.sectors()
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn id(&self) -> DeviceId {
        self.0.id()
    }
    fn name(&self) -> String {
        "lonely".to_owned()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn places_get_the_parts_that_they_are_to_get() {
    /// Of a job of 64 sectors from sector 100 on: how much comes before the part, how long it is, and where it goes.
    const PARTS: &[&[(u64, u64, u64)]] = &[
        &[(0, 64, 8)],
        &[(0, u64::MAX, 8)],
        &[(0, 64, 0), (0, 16, 100), (16, 16, 200), (32, 32, 300)],
        &[(1, 1, 1), (63, 1, 2), (10, 50, 90)],
        // Past the end of the job, in part and wholly, and nothing at all.
        &[(60, 100, 7), (64, 1, 300), (0, 0, 310)],
        &[],
    ];
    let memory = || Arc::new(MemoryDevice::new(Sectors::new(512)).unwrap());
    let size = Sectors::new(512);
    // Pieces of a page, and of a run of pages; memory, devices that take their time, and memory that nobody lends.
    for (piece, lends_from, lends_to) in [
        (1 << 20, true, true),
        (4096, true, true),
        (1 << 20, false, true),
        (1 << 20, true, false),
        (4096, false, false),
        (20000, false, false),
    ] {
        for parts in PARTS {
            let options = CopyOptions { piece, pool: 1 << 20, ..CopyOptions::default() };
            let rig = Rig::new(11, 0, Limits::default(), options);
            let slow = |image| Arc::new(SimDevice::with_image(&rig.sim, SimOptions::new(size), image));
            let source = image(512, 9);
            let from: Arc<dyn BlockDevice> = match lends_from {
                true => memory(),
                false => slow(Image::new()),
            };
            let io = BlockingIo::new(&rig.domain, from.clone()).unwrap();
            io.write(Sector::ZERO, &bytes(&source, 0, 512), OpFlags::NONE).unwrap();
            let to: Vec<Arc<dyn BlockDevice>> = (0..parts.len())
                .map(|at| -> Arc<dyn BlockDevice> {
                    match (lends_to, at % 2) {
                        (true, _) => memory(),
                        (false, 0) => slow(Image::new()),
                        (false, _) => Arc::new(Lonely(MemoryDevice::new(size).unwrap())),
                    }
                })
                .collect();
            let part = |(dev, (skip, take, at)): (&Arc<dyn BlockDevice>, &(u64, u64, u64))| {
                CopyTo::part(dev.clone(), Sector::new(*at), Sectors::new(*skip), Sectors::new(*take))
            };
            let places = to.iter().zip(*parts).map(part).collect();
            rig.add(CopyJob::new(CopyFrom::Device(from, Sector::new(100)), Sectors::new(64), places));
            let done = rig.finish(1);
            assert_eq!(done[0].status(), Status::Ok);
            let mut written = 0;
            for (dev, (skip, take, at)) in to.iter().zip(*parts) {
                let len = (*take).min(64_u64.saturating_sub(*skip));
                let mut expect = Image::new();
                expect.write(Sector::new(*at), &bytes(&source, 100 + skip, len));
                let mut found = vec![0; 512 * 512];
                BlockingIo::new(&rig.domain, dev.clone()).unwrap().read(Sector::ZERO, &mut found).unwrap();
                assert!(found == bytes(&expect, 0, 512), "{skip}+{take} of {parts:?}, pieces of {piece}");
                written += len * 512;
            }
            let stats = rig.copier.stats();
            assert_eq!((stats.bytes_read, stats.bytes_written), (64 * 512, written));
        }
    }
}

#[test]
fn jobs_whose_places_want_parts_do_not_go_together() {
    let rig = Rig::new(12, 2, Limits::default(), CopyOptions::default());
    for i in 0..4 {
        let mut job = rig.job(i, false, i * CHUNK, i * CHUNK, CHUNK);
        if i == 1 {
            job.to[1].take = Sectors::new(CHUNK / 2);
        }
        // As much as there is.
        job.to[0].take = Sectors::new(CHUNK);
        rig.add(job);
    }
    rig.finish(4);
    let stats = rig.copier.stats();
    assert_eq!((stats.reads, stats.merged), (3, 1), "{stats:?}");
    for (dev, half) in [(&rig.to[0], CHUNK), (&rig.to[1], CHUNK + CHUNK / 2)] {
        assert!(bytes(&dev.content(), 0, half) == bytes(&rig.from.content(), 0, half));
        let rest = 2 * CHUNK;
        assert!(bytes(&dev.content(), rest, 2 * CHUNK) == bytes(&rig.from.content(), rest, 2 * CHUNK));
    }
    assert!(bytes(&rig.to[1].content(), CHUNK + CHUNK / 2, 8) != bytes(&rig.from.content(), CHUNK + CHUNK / 2, 8));
}

#[test]
fn zeroes_behind_a_place_go_with_its_write_if_they_fit() {
    /// Jobs next to each other of 16 sectors; which of them has so many zeroes behind it; the place of the first; the
    /// longest write that the device takes. How many writes there are, and which sectors are zeroes then.
    type Row = (u64, Option<(u64, u64)>, u64, u64, u64, Option<(u64, u64)>);
    const ROWS: &[Row] = &[
        (1, None, 0, 1 << 20, 1, None),
        (1, Some((0, 16)), 0, 1 << 20, 1, Some((16, 16))),
        (1, Some((0, 300)), 40, 1 << 20, 1, Some((56, 300))),
        (4, Some((3, 16)), 40, 1 << 20, 1, Some((104, 16))),
        // What follows goes by itself.
        (4, Some((1, 16)), 40, 1 << 20, 2, Some((72, 16))),
        // Past the device's end, and longer than it takes.
        (1, Some((0, 16)), 480, 1 << 20, 1, Some((496, 16))),
        (1, Some((0, 17)), 480, 1 << 20, 1, None),
        (1, Some((0, 16)), 0, 32, 1, Some((16, 16))),
        (1, Some((0, 17)), 0, 32, 1, None),
        (1, Some((0, 8)), 0, 8, 2, None),
    ];
    for memory in [false, true] {
        for row in ROWS {
            let (jobs, pad, at, longest, writes, zeroes) = *row;
            // Only the modelled device has such a limit.
            if memory && longest < 64 {
                continue;
            }
            let rig = Rig::new(13, 0, Limits::default(), CopyOptions::default());
            let size = Sectors::new(512);
            let old = image(512, 7);
            let limits = Limits { max_sectors: Sectors::new(longest), ..Limits::default() };
            let device = |limits, content| -> Arc<dyn BlockDevice> {
                if memory {
                    return Arc::new(MemoryDevice::new(size).unwrap());
                }
                Arc::new(SimDevice::with_image(&rig.sim, SimOptions { limits, ..SimOptions::new(size) }, content))
            };
            let (from, to) = (device(Limits::default(), Image::new()), device(limits, Image::new()));
            for (dev, salt) in [(&from, 1), (&to, 7)] {
                let io = BlockingIo::new(&rig.domain, dev.clone()).unwrap();
                let all = bytes(&image(512, salt), 0, 512);
                // By writes that it takes.
                for (i, part) in all.chunks(8 * 512).enumerate() {
                    io.write(Sector::new(i as u64 * 8), part, OpFlags::NONE).unwrap();
                }
            }
            let mut expect = old.clone();
            let mut gap = 0;
            for job in 0..jobs {
                let mut place = CopyTo::new(to.clone(), Sector::new(at + job * CHUNK + gap));
                expect.write(Sector::new(at + job * CHUNK + gap), &bytes(&image(512, 1), job * CHUNK, CHUNK));
                if let Some((_, zeroes)) = pad.filter(|(behind, _)| *behind == job) {
                    place.pad = Sectors::new(zeroes);
                    gap = zeroes;
                }
                let source = CopyFrom::Device(from.clone(), Sector::new(job * CHUNK));
                rig.add(CopyJob::new(source, Sectors::new(CHUNK), vec![place]));
            }
            if let Some((at, len)) = zeroes {
                expect.zero(Sector::new(at), Sectors::new(len));
            }
            let done = rig.finish(jobs as usize);
            assert!(done.iter().all(|job| job.status().is_ok()));
            let mut found = vec![0; 512 * 512];
            let io = BlockingIo::new(&rig.domain, to.clone()).unwrap();
            for (i, part) in found.chunks_mut(8 * 512).enumerate() {
                io.read(Sector::new(i as u64 * 8), part).unwrap();
            }
            assert!(found == bytes(&expect, 0, 512), "{row:?}, memory: {memory}");
            if !memory {
                assert_eq!(rig.copier.stats().writes, writes, "{row:?}");
            }
        }
    }
}
