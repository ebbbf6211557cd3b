//! Blocks that are used anew while bios are out to them.

use super::*;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Channel, DeviceId, Limits, Op, OpFlags, Status};

/// A device whose bios each use the place that is current when they are submitted; `Op::Discard` ends the latest of its
/// channel's, and a flush does `work`.
struct Users {
    flights: Flights,
    current: AtomicUsize,
    users: [AtomicUsize; 2],
    kicks: AtomicUsize,
    out: Vec<Mutex<Vec<(Bio, usize, Epoch)>>>,
    work: Mutex<Option<Box<Work>>>,
}

type Work = dyn FnMut(&Users, &Cx<'_>) + Send;

impl Users {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flights: Flights::new(),
            current: AtomicUsize::new(0),
            users: Default::default(),
            kicks: AtomicUsize::new(0),
            out: (0..MAX_CHANNELS).map(|_| Mutex::default()).collect(),
            work: Mutex::default(),
        })
    }

    fn end_one(&self, cx: &Cx<'_>) -> bool {
        let Some((bio, place, epoch)) = self.out[cx.id()].lock().unwrap().pop() else { return false };
        self.users[place].fetch_sub(1, Ordering::Relaxed);
        if self.flights.leave(cx, epoch) {
            self.kicks.fetch_add(1, Ordering::Relaxed);
        }
        bio.end(Status::Ok);
        true
    }
}

impl BlockDevice for Users {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        match bio.op() {
            Op::Read | Op::Write | Op::WriteZeroes => {
                let epoch = Epoch::from_bit(self.flights.enter(cx).bit());
                // Where a grace period is needed.
                std::thread::yield_now();
                let place = self.current.load(Ordering::Acquire);
                self.users[place].fetch_add(1, Ordering::Relaxed);
                self.out[cx.id()].lock().unwrap().push((bio, place, epoch));
            }
            Op::Discard => {
                self.end_one(cx);
                bio.end(Status::Ok);
            }
            Op::Flush => {
                let work = self.work.lock().unwrap().take();
                if let Some(mut work) = work {
                    work(self, cx);
                    *self.work.lock().unwrap() = Some(work);
                }
                bio.end(Status::Ok);
            }
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
        DeviceId::Anonymous(0)
    }
    fn name(&self) -> String {
        "users".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn submit(channel: &Channel, dev: udm_io::Attached, op: Op) {
    let sectors = if op == Op::Flush { Sectors::ZERO } else { Sectors::new(1) };
    assert!(channel.submit_range(dev, op, OpFlags::default(), Sector::ZERO, sectors, 0));
    while channel.completed().is_some() {}
}

#[test]
fn a_drain_ends_with_the_last_bio_that_came_before() {
    let domain = Domain::default();
    let (users, channel, other) = (Users::new(), domain.channel().unwrap(), domain.channel().unwrap());
    let (dev, dev2) = (channel.attach(users.clone()), other.attach(users.clone()));
    let drains = Arc::new(Mutex::new(Drains::default()));
    *users.work.lock().unwrap() = Some({
        let (drains, domain) = (drains.clone(), domain.clone());
        Box::new(move |users, cx| {
            drains.lock().unwrap().advance(&users.flights, &domain, cx);
        })
    });
    let is_over = |ticket| drains.lock().unwrap().is_over(ticket);
    submit(&channel, dev, Op::WriteZeroes);
    submit(&other, dev2, Op::WriteZeroes);
    let first = drains.lock().unwrap().ask();
    assert_eq!(first, drains.lock().unwrap().ask(), "nothing has begun in between");
    submit(&channel, dev, Op::Flush);
    assert!(!is_over(first));
    // What enters now is not waited for, but is by who asks now.
    submit(&channel, dev, Op::WriteZeroes);
    let second = drains.lock().unwrap().ask();
    assert!(second > first);
    // The later of the two of this channel, so nobody is kicked.
    submit(&channel, dev, Op::Discard);
    assert_eq!((users.kicks.load(Ordering::Relaxed), users.flights.count()), (0, 2));
    submit(&channel, dev, Op::WriteZeroes);
    submit(&other, dev2, Op::Discard);
    assert_eq!(users.kicks.load(Ordering::Relaxed), 1);
    submit(&channel, dev, Op::Flush);
    assert!(!is_over(first), "one is still out");
    submit(&channel, dev, Op::Discard);
    submit(&channel, dev, Op::Discard);
    assert_eq!(users.kicks.load(Ordering::Relaxed), 2);
    assert!(drains.lock().unwrap().is_waiting());
    submit(&channel, dev, Op::Flush);
    assert!(is_over(first) && is_over(second) && !drains.lock().unwrap().is_waiting());
    assert_eq!(users.flights.count(), 0);
}

/// Threads use whichever of two places is current. One who makes the other current and lets a drain pass finds the
/// first without users, every time.
#[test]
fn a_place_has_no_users_after_its_drain() {
    const ROUNDS: usize = 300;
    let (domain, users, stop) = (Domain::default(), Users::new(), AtomicBool::new(false));
    let left = Arc::new(AtomicUsize::new(ROUNDS));
    *users.work.lock().unwrap() = Some({
        let (domain, left) = (domain.clone(), left.clone());
        let (mut drains, mut asked) = (Drains::default(), None);
        Box::new(move |users, cx| {
            let old = 1 - users.current.load(Ordering::Relaxed);
            if let Some(ticket) = asked {
                drains.advance(&users.flights, &domain, cx);
                if !drains.is_over(ticket) {
                    return;
                }
                assert_eq!(users.users[old].load(Ordering::Relaxed), 0, "used after its drain");
                left.fetch_sub(1, Ordering::Relaxed);
            }
            users.current.store(old, Ordering::Release);
            asked = Some(drains.ask());
        })
    });
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (domain, users, stop) = (&domain, users.clone(), &stop);
            scope.spawn(move || {
                let channel = domain.channel().unwrap();
                let dev = channel.attach(users);
                for i in 0usize.. {
                    let op = if (i + n) % 7 < 4 { Op::WriteZeroes } else { Op::Discard };
                    submit(&channel, dev, op);
                    if i % 7 == 0 {
                        submit(&channel, dev, Op::Discard);
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                }
                while channel.outstanding() > 0 {
                    submit(&channel, dev, Op::Discard);
                }
            });
        }
        let channel = domain.channel().unwrap();
        let dev = channel.attach(users.clone());
        while left.load(Ordering::Relaxed) > 0 {
            submit(&channel, dev, Op::Flush);
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(users.flights.count(), 0);
}
