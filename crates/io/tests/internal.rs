//! Internal bios: submitted from inside a channel, bounded, never lost with the channel.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_io::*;

type Work = dyn Fn(&Cx<'_>) + Send + Sync;

/// Does some work inside the channel for each bio that it gets.
struct Inside(Box<Work>);

impl BlockDevice for Inside {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        (self.0)(cx);
        cx.end(bio, Status::Ok);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(8)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(1)
    }
    fn name(&self) -> String {
        "inside".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Runs `work` inside a channel of `domain`; the channel stays.
fn inside(domain: &Domain, work: impl Fn(&Cx<'_>) + Send + Sync + 'static) -> Channel {
    let channel = domain.channel().unwrap();
    let dev = channel.attach(Arc::new(Inside(Box::new(work))));
    assert!(channel.submit_range(dev, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 1));
    assert_eq!(channel.completed().map(|c| c.status), Some(Status::Ok));
    channel
}

/// Keeps bios.
#[derive(Default)]
struct Holding(Mutex<Vec<Bio>>);

impl Holding {
    fn end(&self, n: usize) {
        let bios: Vec<Bio> = self.0.lock().unwrap().drain(..n).collect();
        bios.into_iter().for_each(|b| b.end(Status::Ok));
    }
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl BlockDevice for Holding {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.0.lock().unwrap().push(bio);
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(1000)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(2)
    }
    fn name(&self) -> String {
        "holding".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What came back, in order.
type Ended = Mutex<Vec<Status>>;

unsafe fn note(_: &Cx<'_>, status: Status, word: *const ()) {
    unsafe { &*word.cast::<Ended>() }.lock().unwrap().push(status);
}

fn flush(cx: &Cx<'_>, level: usize, dev: &dyn BlockDevice, ended: &Ended) -> bool {
    let word = std::ptr::from_ref(ended).cast();
    let range = (Sector::ZERO, Sectors::ZERO);
    unsafe { cx.submit_internal(level, dev, Op::Flush, OpFlags::NONE, range, &[], note, word) }
}

#[test]
fn reads_and_writes_without_a_bio_above() {
    let memory = Arc::new(MemoryDevice::new(Sectors::new(16)).unwrap());
    let (ended, domain) = (Arc::new(Ended::default()), Domain::default());
    let mut data = vec![7u8; 1024];
    let (first, second) = data.split_at_mut(512);
    let segs = [first, second].map(|half| unsafe { Segment::new(half.as_mut_ptr(), half.len()) });
    let (dev, seen, list) = (memory.clone(), ended.clone(), Arc::new(segs));
    let kept = list.clone();
    let _channel = inside(&domain, move |cx| {
        let word = std::ptr::from_ref::<Ended>(&seen).cast();
        let own = |op, at, len, segs: &[Segment]| {
            let range = (Sector::new(at), Sectors::new(len));
            assert!(unsafe { cx.submit_internal(1, &*dev, op, OpFlags::NONE, range, segs, note, word) });
        };
        own(Op::Write, 3, 2, &*list);
        own(Op::Discard, 4, 1, &[]);
        for (at, len, segs) in [(15, 2, &list[..]), (u64::MAX, 2, &list[..]), (3, 2, &list[..1])] {
            own(Op::Write, at, len, segs);
        }
    });
    let mut ended = ended.lock().unwrap().clone();
    // What is refused ends at once, what is submitted waits for the bio that is being submitted.
    ended.sort_by_key(|s| s.is_ok());
    let invalid = Status::Invalid;
    assert_eq!(ended, [invalid, invalid, invalid, Status::Ok, Status::Ok]);
    drop(kept);
    let io = BlockingIo::new(&domain, memory).unwrap();
    let mut back = vec![1; 4 * 512];
    io.read(Sector::new(2), &mut back).unwrap();
    let firsts: Vec<u8> = back.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(firsts, [0, 7, 0, 0]);
}

/// Tries again for as long as it has something to do.
struct Waiting {
    me: usize,
    dev: Arc<Holding>,
    ended: Ended,
    order: Arc<Mutex<Vec<(usize, bool)>>>,
}

impl InternalWaiter for Waiting {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        let served = flush(cx, 1, &*self.dev, &self.ended);
        self.order.lock().unwrap().push((self.me, served));
    }
}

#[test]
fn a_reserve_is_bounded_and_who_is_refused_is_called_in_order() {
    let (domain, dev, ended) = (Domain::default(), Arc::new(Holding::default()), Arc::new(Ended::default()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiting: Vec<Arc<Waiting>> = (0..3)
        .map(|me| Arc::new(Waiting { me, dev: dev.clone(), ended: Ended::default(), order: order.clone() }))
        .collect();
    let (there, seen, who) = (dev.clone(), ended.clone(), waiting.clone());
    let channel = inside(&domain, move |cx| {
        (0..INTERNAL_MAX).for_each(|_| assert!(flush(cx, 1, &*there, &seen)));
        assert!(!flush(cx, 1, &*there, &seen), "the reserve is used up");
        assert_eq!((cx.internal_out(1), cx.internal_out(2)), (INTERNAL_MAX, 0));
        assert!(flush(cx, 2, &*there, &seen), "another level's is not");
        who.iter().for_each(|w| assert!(cx.when_internal(1, w.clone())));
    });
    assert_eq!(dev.len(), INTERNAL_MAX + 1);
    dev.end(2);
    channel.poll();
    assert_eq!(*order.lock().unwrap(), [(0, true), (1, true)]);
    assert_eq!(dev.len(), INTERNAL_MAX + 1);
    dev.end(INTERNAL_MAX + 1);
    channel.poll();
    assert_eq!(*order.lock().unwrap(), [(0, true), (1, true), (2, true)]);
    dev.end(1);
    channel.poll();
    assert!(waiting.iter().all(|w| w.ended.lock().unwrap().len() == 1));
    assert_eq!(ended.lock().unwrap().len(), INTERNAL_MAX + 1);
}

/// Begins the next as soon as one has ended.
struct Chain {
    left: AtomicUsize,
    dev: MemoryDevice,
}

unsafe fn next(cx: &Cx<'_>, _: Status, word: *const ()) {
    let chain = unsafe { &*word.cast::<Chain>() };
    if chain.left.fetch_sub(1, SeqCst) > 1 {
        let range = (Sector::ZERO, Sectors::ZERO);
        assert!(unsafe { cx.submit_internal(1, &chain.dev, Op::Flush, OpFlags::NONE, range, &[], next, word) });
    }
}

#[test]
fn a_long_chain_takes_no_stack() {
    let left = AtomicUsize::new(if cfg!(miri) { 300 } else { 200_000 });
    let chain = Arc::new(Chain { left, dev: MemoryDevice::new(Sectors::new(8)).unwrap() });
    let it = chain.clone();
    inside(&Domain::default(), move |cx| unsafe {
        chain.left.fetch_add(1, SeqCst);
        next(cx, Status::Ok, Arc::as_ptr(&chain).cast());
    });
    assert_eq!(it.left.load(SeqCst), 0);
}

/// Notes what it could do when it was called.
struct Elsewhere(Mutex<Vec<(bool, bool)>>);

impl InternalWaiter for Elsewhere {
    fn again(self: Arc<Self>, cx: &Cx<'_>) {
        let next = cx.when_internal(1, self.clone());
        self.0.lock().unwrap().push((cx.can_submit_internal(), next));
    }
}

#[test]
fn a_channel_waits_for_own_bios_and_sends_others_elsewhere() {
    let (domain, dev, ended) = (Domain::default(), Arc::new(Holding::default()), Arc::new(Ended::default()));
    let elsewhere = Arc::new(Elsewhere(Mutex::default()));
    let (there, seen, waiter) = (dev.clone(), ended.clone(), elsewhere.clone());
    let channel = inside(&domain, move |cx| {
        (0..INTERNAL_MAX).for_each(|_| assert!(flush(cx, 1, &*there, &seen)));
        assert!(cx.when_internal(1, waiter.clone()));
    });
    let (held, told) = (dev.clone(), elsewhere.clone());
    let ender = std::thread::spawn(move || {
        while told.0.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        held.end(INTERNAL_MAX);
    });
    let id = channel.id();
    drop(channel);
    assert_eq!(*ended.lock().unwrap(), vec![Status::Ok; INTERNAL_MAX], "the last was home before the channel went");
    ender.join().unwrap();
    assert_eq!(*elsewhere.0.lock().unwrap(), [(false, false)], "told once that nothing is to be had here");
    // The next owner of the core gets some again.
    let (there, seen) = (dev.clone(), ended.clone());
    let next = inside(&domain, move |cx| assert!(cx.can_submit_internal() && flush(cx, 1, &*there, &seen)));
    assert_eq!(next.id(), id);
    dev.end(1);
}

/// A clock that the test moves.
#[derive(Default)]
struct Hands(std::sync::atomic::AtomicU64);

impl Clock for Hands {
    fn now(&self) -> Nanos {
        // Every look takes a while.
        Nanos(self.0.fetch_add(100_000_000, SeqCst))
    }
}

#[test]
fn a_channel_does_not_wait_for_ever_and_its_own_bios_still_come_home() {
    let domain = DomainBuilder::default().clock(Arc::new(Hands::default())).build();
    let (dev, ended) = (Arc::new(Holding::default()), Arc::new(Ended::default()));
    let (there, seen) = (dev.clone(), ended.clone());
    let channel = inside(&domain, move |cx| assert!(flush(cx, 1, &*there, &seen)));
    drop(channel);
    assert!(ended.lock().unwrap().is_empty(), "it was kept");
    dev.end(1);
    let done = ended.clone();
    domain.drain(|| !done.lock().unwrap().is_empty());
    assert_eq!(*ended.lock().unwrap(), [Status::Ok]);
}

#[test]
fn a_channel_that_was_left_to_the_workqueue_is_given_back() {
    let domain = DomainBuilder::default().clock(Arc::new(Hands::default())).build();
    let all = domain.channels_left();
    // With a bio of the submitter's beside the own one, which comes home later, and without.
    for beside in [true, false] {
        let (dev, ended) = (Arc::new(Holding::default()), Arc::new(Ended::default()));
        let (there, seen) = (dev.clone(), ended.clone());
        let channel = inside(&domain, move |cx| assert!(flush(cx, 1, &*there, &seen)));
        let on = channel.attach(dev.clone());
        if beside {
            assert!(channel.submit_range(on, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 2));
        }
        drop(channel);
        assert_eq!((domain.channels_left(), dev.len()), (all - 1, 1 + usize::from(beside)));
        dev.end(1);
        domain.drain(|| !ended.lock().unwrap().is_empty());
        assert_eq!(domain.channels_left(), all - usize::from(beside), "its own bio is home, beside: {beside}");
        dev.end(usize::from(beside));
        assert_eq!(domain.channels_left(), all, "all are home, beside: {beside}");
        assert_eq!(Arc::strong_count(&dev), 1, "the channel holds nothing any more");
    }
}
