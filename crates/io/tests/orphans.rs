//! Channels that are gone while bios are out, and threads that look after channels in their owners' place.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_io::*;

/// Keeps every bio until told otherwise; can be made to hold its submitter up.
#[derive(Default)]
struct Keeper {
    kept: Mutex<Vec<Bio>>,
    submitted: AtomicUsize,
    slow: AtomicBool,
}

impl BlockDevice for Keeper {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.submitted.fetch_add(1, SeqCst);
        while self.slow.load(SeqCst) {
            std::thread::yield_now();
        }
        self.kept.lock().unwrap().push(bio);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(100)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self) as usize)
    }
    fn name(&self) -> String {
        "keeper".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Keeper {
    fn take(&self) -> Vec<Bio> {
        std::mem::take(&mut *self.kept.lock().unwrap())
    }
}

fn discard(channel: &Channel, dev: Attached) {
    assert!(channel.submit_range(dev, Op::Discard, OpFlags::NONE, Sector::ZERO, Sectors::new(1), 0));
}

/// A channel that was dropped with `n` bios out on the keeper.
fn orphan(domain: &Domain, keeper: &Arc<Keeper>, n: usize) {
    let channel = domain.channel().unwrap();
    let dev = channel.attach(keeper.clone());
    (0..n).for_each(|_| discard(&channel, dev));
}

#[test]
fn a_grace_period_waits_for_who_polls_in_the_owners_place() {
    let domain = Domain::default();
    let keeper = Arc::new(Keeper::default());
    let channel = domain.channel().unwrap();
    discard(&channel, channel.attach(keeper.clone()));
    keeper.slow.store(true, SeqCst);
    keeper.take().into_iter().for_each(|bio| std::thread::scope(|s| s.spawn(|| bio.resubmit()).join().unwrap()));
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        // Takes the bio in and is held up by the device, inside the channel.
        s.spawn(|| domain.drain(|| keeper.submitted.load(SeqCst) == 2));
        while keeper.submitted.load(SeqCst) < 2 {
            std::thread::yield_now();
        }
        s.spawn(|| {
            domain.synchronize();
            over.store(true, SeqCst);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!over.swap(true, SeqCst), "the section is not over");
        keeper.slow.store(false, SeqCst);
    });
    keeper.take().into_iter().for_each(|bio| bio.end(Status::Ok));
    channel.poll();
    assert_eq!(channel.completed().map(|c| c.status), Some(Status::Ok));
}

#[test]
fn an_orphan_submits_nothing_and_its_bios_come_home() {
    let domain = Domain::default();
    let keeper = Arc::new(Keeper::default());
    orphan(&domain, &keeper, 3);
    assert_eq!((keeper.submitted.load(SeqCst), Arc::strong_count(&keeper)), (3, 2));
    keeper.take().into_iter().for_each(Bio::resubmit);
    assert_eq!((keeper.submitted.load(SeqCst), Arc::strong_count(&keeper)), (3, 1));
}

#[test]
fn a_frame_of_an_orphan_may_resubmit() {
    /// # Safety
    /// None is needed.
    unsafe fn again(_: &Cx<'_>, bio: Bio, _: *const ()) -> Option<Bio> {
        bio.resubmit();
        None
    }
    let domain = Domain::default();
    let keeper = Arc::new(Keeper::default());
    orphan(&domain, &keeper, 1);
    for mut bio in keeper.take() {
        // SAFETY: the frame ignores its word.
        assert!(unsafe { bio.push_frame(again, std::ptr::null()) });
        bio.end(Status::Ok);
    }
    assert_eq!(Arc::strong_count(&keeper), 1);
}

#[test]
fn no_channel_is_lost_to_a_drain() {
    let domain = Domain::default();
    let keeper = Arc::new(Keeper::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| domain.drain(|| stop.load(SeqCst)));
        for round in 0..1000 {
            orphan(&domain, &keeper, 1 + round % 3);
            keeper.take().into_iter().for_each(|bio| bio.end(Status::Ok));
        }
        stop.store(true, SeqCst);
    });
    let all: Result<Vec<_>, _> = (0..CHANNELS).map(|_| domain.channel()).collect();
    assert!(all.is_ok(), "{:?}", all.err());
    assert_eq!(Arc::strong_count(&keeper), 1);
}
