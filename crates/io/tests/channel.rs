//! The channel at its boundary: submission, completion from elsewhere, orphans, remote pollers.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_io::*;

fn memory(sectors: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(Sectors::new(sectors)).unwrap())
}

/// Keeps bios until told to end them, from whatever thread.
#[derive(Default)]
struct Holding {
    bios: Mutex<Vec<Bio>>,
}

impl Holding {
    fn end_all(&self, status: Status) -> usize {
        let bios = std::mem::take(&mut *self.bios.lock().unwrap());
        let n = bios.len();
        bios.into_iter().for_each(|b| b.end(status));
        n
    }
}

impl BlockDevice for Holding {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.bios.lock().unwrap().push(bio);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(1000)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(0)
    }
    fn name(&self) -> String {
        "holding".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Has a bio look again, from within its section, until it has been there so often.
struct Again {
    sections: Mutex<Vec<u64>>,
    visits: usize,
}

impl BlockDevice for Again {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let mut sections = self.sections.lock().unwrap();
        sections.push(cx.section());
        if sections.len() < self.visits {
            bio.resubmit()
        } else {
            bio.end(Status::Ok)
        }
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(1000)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(1)
    }
    fn name(&self) -> String {
        "again".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Trap: who has a bio look again until something changes, while who changes it waits for the section.
#[test]
fn a_bio_that_looks_again_does_so_in_another_section() {
    let domain = Domain::default();
    let dev = Arc::new(Again { sections: Mutex::default(), visits: 5000 });
    let channel = domain.channel().unwrap();
    let at = channel.attach(dev.clone());
    assert!(channel.submit_range(at, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 7));
    for round in 1..dev.visits {
        assert_eq!(dev.sections.lock().unwrap().len(), round, "once a poll");
        assert!(channel.completed().is_none());
        assert_eq!(channel.poll(), 1);
    }
    assert_eq!(channel.completed(), Some(Completion { token: 7, status: Status::Ok }));
    let mut sections = std::mem::take(&mut *dev.sections.lock().unwrap());
    sections.dedup();
    assert_eq!(sections.len(), dev.visits, "each in a section of its own");
}

#[test]
fn reads_back_what_was_written() {
    let domain = Domain::default();
    let io = BlockingIo::new(&domain, memory(16)).unwrap();
    let data: Vec<u8> = (0..2048).map(|i| i as u8).collect();
    io.write(Sector::new(3), &data, OpFlags::FUA).unwrap();
    let mut back = vec![0xee; 4096];
    io.read(Sector::new(2), &mut back).unwrap();
    assert_eq!(&back[..512], [0; 512]);
    assert_eq!(&back[512..2560], &data[..]);
    io.range(Op::Discard, OpFlags::NONE, Sector::new(3), Sectors::new(1)).unwrap();
    io.read(Sector::new(3), &mut back[..512]).unwrap();
    assert_eq!(&back[..512], [0; 512]);
    assert_eq!(io.read(Sector::new(15), &mut back[..1024]), Err(Status::Invalid));
    assert_eq!(io.range(Op::Discard, OpFlags::NONE, Sector::new(u64::MAX), Sectors::new(2)), Err(Status::Invalid));
}

#[test]
fn discard_gives_whole_pages_back_and_zeroes_the_rest() {
    let io = BlockingIo::new(&Domain::default(), memory(64)).unwrap();
    io.write(Sector::ZERO, &[7; 64 * 512], OpFlags::NONE).unwrap();
    io.range(Op::Discard, OpFlags::NONE, Sector::new(5), Sectors::new(40)).unwrap();
    let mut back = vec![0; 64 * 512];
    io.read(Sector::ZERO, &mut back).unwrap();
    for (i, sector) in back.chunks(512).enumerate() {
        let expect = if (5..45).contains(&i) { 0 } else { 7 };
        assert!(sector.iter().all(|b| *b == expect), "sector {i}");
    }
}

#[test]
fn segments_may_be_unaligned_and_short_ones_are_refused() {
    let domain = Domain::default();
    let channel = domain.channel().unwrap();
    let dev = channel.attach(memory(16));
    let mut buf = vec![9u8; 4096];
    let segs = [(1usize, 511usize), (700, 1), (1000, 0), (1001, 512)]
        .map(|(at, len)| unsafe { Segment::new(buf.as_mut_ptr().add(at), len) });
    assert!(unsafe { channel.submit_vectored(dev, Op::Read, OpFlags::NONE, Sector::ZERO, Sectors::new(2), &segs, 1) });
    assert!(unsafe { channel.submit_vectored(dev, Op::Read, OpFlags::NONE, Sector::ZERO, Sectors::new(3), &segs, 2) });
    assert_eq!(channel.completed(), Some(Completion { token: 1, status: Status::Ok }));
    assert_eq!(channel.completed(), Some(Completion { token: 2, status: Status::Invalid }));
    assert_eq!(buf.iter().filter(|b| **b == 0).count(), 1024);
    assert_eq!(
        (buf[0], buf[1], buf[511], buf[512], buf[700], buf[701], buf[1000], buf[1001]),
        (9, 0, 0, 9, 0, 9, 9, 0)
    );
}

#[test]
fn a_completion_on_another_thread_comes_home_by_mailbox() {
    let domain = Domain::default();
    let holding = Arc::new(Holding::default());
    let channel = domain.channel().unwrap();
    let dev = channel.attach(holding.clone());
    for token in 0..100 {
        assert!(channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), token));
    }
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        holding.end_all(Status::NoSpace)
    });
    let mut done = Vec::new();
    while done.len() < 100 {
        channel.wait(None, &mut Vec::new()).unwrap();
        channel.poll();
        while let Some(c) = channel.completed() {
            assert_eq!(c.status, Status::NoSpace);
            done.push(c.token);
        }
    }
    assert_eq!(done, (0..100).collect::<Vec<_>>(), "mail is read in the order it was sent");
    assert_eq!(other.join().unwrap(), 100);
    assert_eq!(channel.outstanding(), 0);
}

#[test]
fn a_full_slab_refuses_and_recovers() {
    let domain = Domain::default();
    let holding = Arc::new(Holding::default());
    let channel = domain.channel().unwrap();
    channel.set_depth(5);
    let dev = channel.attach(holding.clone());
    let submit = |token| channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, token);
    assert_eq!((0..7).map(submit).collect::<Vec<_>>(), [true, true, true, true, true, false, false]);
    holding.end_all(Status::Ok);
    channel.poll();
    assert!(submit(9));
    holding.end_all(Status::Ok);
}

#[test]
fn a_slab_outlives_its_channel() {
    let domain = Domain::default();
    let holding = Arc::new(Holding::default());
    let first = {
        let channel = domain.channel().unwrap();
        let dev = channel.attach(holding.clone());
        for token in 0..10 {
            channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, token);
        }
        channel.id()
    };
    let second = domain.channel().unwrap();
    assert_ne!(second.id(), first, "an orphan keeps its number");
    let weak = Arc::downgrade(&holding);
    drop(domain);
    assert_eq!(std::thread::spawn(move || holding.end_all(Status::Ok)).join().unwrap(), 10);
    assert!(weak.upgrade().is_none(), "the orphan let go of its devices");
}

#[test]
fn drain_serves_channels_that_sleep_elsewhere() {
    let domain = Domain::default();
    let holding = Arc::new(Holding::default());
    let channel = domain.channel().unwrap();
    let dev = channel.attach(holding.clone());
    channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 7);
    let there = domain.clone();
    // This thread sleeps in join(), outside udm, while another ends its bio and drains.
    std::thread::spawn(move || {
        holding.end_all(Status::Ok);
        let mut rounds = 0;
        there.drain(|| {
            rounds += 1;
            rounds > 3
        });
    })
    .join()
    .unwrap();
    assert_eq!(channel.completed(), Some(Completion { token: 7, status: Status::Ok }), "completed without a poll");
}

#[test]
fn remote_pollers_and_owner_exclude_each_other() {
    let domain = Domain::default();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let remotes: Vec<_> = (0..2)
        .map(|_| {
            let (domain, stop) = (domain.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut once = false;
                    domain.drain(|| std::mem::replace(&mut once, true));
                    domain.synchronize();
                }
            })
        })
        .collect();
    let channel = domain.channel().unwrap();
    let dev = channel.attach(memory(64));
    let mut buf = vec![1u8; 512];
    for i in 0..200_000u64 {
        assert!(unsafe { channel.submit(dev, Op::Write, OpFlags::NONE, Sector::new(i % 64), &mut buf, i) });
        assert_eq!(channel.completed().map(|c| c.token), Some(i));
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    remotes.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn channels_run_out_with_an_error_and_come_back() {
    let domain = Domain::default();
    let all: Vec<_> = (0..CHANNELS).map(|_| domain.channel().unwrap()).collect();
    let error = domain.channel().err().expect("no number is left").to_string();
    assert!(error.contains("253 channels"), "{error}");
    drop(all);
    assert!(domain.channel().is_ok());
}

#[test]
#[should_panic(expected = "dropped without being ended")]
#[cfg(debug_assertions)]
fn a_dropped_bio_is_caught() {
    let holding = Arc::new(Holding::default());
    let channel = Domain::default().channel().unwrap();
    let dev = channel.attach(holding.clone());
    channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 7);
    let bio = holding.bios.lock().unwrap().pop();
    drop(bio);
}

#[test]
fn a_device_that_the_channel_does_not_hold_is_refused() {
    let domain = Domain::default();
    let (one, other) = (domain.channel().unwrap(), domain.channel().unwrap());
    let memory = || Arc::new(MemoryDevice::new(Sectors::new(8)).unwrap());
    let (here, there) = (one.attach(memory()), other.attach(memory()));
    let status = |dev| {
        assert!(one.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 7));
        one.completed().map(|c| c.status)
    };
    assert_eq!((status(here), status(there)), (Some(Status::Ok), Some(Status::Invalid)));
    one.detach(here);
    let again = one.attach(memory());
    assert_eq!((status(here), status(again)), (Some(Status::Invalid), Some(Status::Ok)));
}

/// Begins grace periods from inside, and notes at once whether they are over.
struct Asking {
    domain: Domain,
    graces: Mutex<Vec<(Grace, bool)>>,
}

impl BlockDevice for Asking {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let graces = [self.domain.grace(), self.domain.grace_beside(cx)];
        self.graces.lock().unwrap().extend(graces.map(|g| {
            let over = g.is_over();
            (g, over)
        }));
        bio.end(Status::Ok);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(1000)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(0)
    }
    fn name(&self) -> String {
        "asking".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn a_grace_period_begun_inside_is_over_outside() {
    let domain = Domain::default();
    let asking = Arc::new(Asking { domain: domain.clone(), graces: Mutex::default() });
    let _idle = domain.channel().unwrap();
    let channel = domain.channel().unwrap();
    let dev = channel.attach(asking.clone());
    assert!(domain.grace().is_over(), "nobody is inside");
    assert!(channel.submit_range(dev, Op::Flush, OpFlags::default(), Sector::ZERO, Sectors::ZERO, 1));
    let graces = std::mem::take(&mut *asking.graces.lock().unwrap());
    let inside: Vec<bool> = graces.iter().map(|(_, over)| *over).collect();
    assert_eq!(inside, [false, true], "the first waits for its own section, the other does not");
    assert!(graces.iter().all(|(grace, _)| grace.is_over()));
}

/// Serves bios by a clone each, and keeps those of sector 0.
#[derive(Default)]
struct ByClones(Mutex<Vec<Bio>>);

impl ByClones {
    fn serve(&self, cx: &Cx<'_>, mut bio: Bio) {
        let sectors = bio.sectors();
        match unsafe { cx.clone_part(&mut bio, 1, Sectors::ZERO, sectors) } {
            Some(clone) => {
                match clone.sector() {
                    Sector::ZERO => self.0.lock().unwrap().push(clone),
                    _ => cx.end(clone, Status::Ok),
                }
                cx.unhold(bio);
            }
            None => unsafe { cx.park(1, bio, Self::again, std::ptr::from_ref(self).cast()) },
        }
    }

    unsafe fn again(cx: &Cx<'_>, bio: Bio, word: *const ()) -> Option<Bio> {
        unsafe { &*word.cast::<Self>() }.serve(cx, bio);
        None
    }
}

impl BlockDevice for ByClones {
    fn submit(&self, cx: &Cx<'_>, mut bio: Bio) -> Option<Bio> {
        cx.hold(&mut bio);
        self.serve(cx, bio);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(2)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(7)
    }
    fn name(&self) -> String {
        "by clones".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn any_number_that_waits_for_clones_goes_on_without_a_deep_stack() {
    const WAITING: usize = 50_000;
    let (domain, dev) = (Domain::default(), Arc::new(ByClones::default()));
    let channel = domain.channel().unwrap();
    channel.set_depth(WAITING + 256);
    let on = channel.attach(dev.clone());
    let discard = |sector, token| {
        assert!(channel.submit_range(on, Op::Discard, OpFlags::NONE, Sector::new(sector), Sectors::new(1), token));
    };
    (0..256).for_each(|_| discard(0, 0));
    (0..WAITING).for_each(|i| discard(1, 1 + i as u64));
    assert!(channel.completed().is_none(), "the device has every clone");
    let last = dev.0.lock().unwrap().pop().unwrap();
    last.end(Status::Ok);
    channel.poll();
    let tokens: Vec<u64> = std::iter::from_fn(|| channel.completed().map(|c| c.token)).collect();
    assert_eq!(tokens.len(), WAITING + 1);
    assert!(tokens.iter().filter(|t| **t > 0).copied().eq(1..=WAITING as u64), "in their order");
    dev.0.lock().unwrap().drain(..).for_each(|bio| bio.end(Status::Ok));
    channel.poll();
}
