//! The keeper attends to duties, and serves channels whose threads are elsewhere.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::*;
use udm_kcopyd::*;

/// Counts how often it is attended to, and asks for more as often as told.
#[derive(Default)]
struct Counting {
    attended: AtomicUsize,
    /// So many times it wants to be called again soon.
    again: AtomicUsize,
}

impl Duty for Counting {
    fn attend(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.attended.fetch_add(1, SeqCst);
        let more = self.again.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        more.then(|| cx.now().after(1000))
    }
}

fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_duty_is_attended_to_when_rung_and_when_due() {
    let domain = Domain::default();
    let duty = Arc::new(Counting::default());
    let weak: std::sync::Weak<Counting> = Arc::downgrade(&duty);
    let kept = Kept::new(&domain, weak).unwrap();
    until(|| duty.attended.load(SeqCst) == 1);
    duty.again.store(5, SeqCst);
    kept.ring();
    until(|| duty.attended.load(SeqCst) == 7);
    drop(kept);
    // Another begins where the thread may just be ending.
    let kept = Kept::new(&domain, Arc::downgrade(&duty) as _).unwrap();
    until(|| duty.attended.load(SeqCst) == 8);
    for n in 9..100 {
        kept.ring();
        until(|| duty.attended.load(SeqCst) >= n);
    }
}

/// Sends one errand whenever a bio comes by; ends those it was given when told.
#[derive(Default)]
struct Worker {
    held: Mutex<Vec<Bio>>,
    back: Mutex<Vec<(u64, Status)>>,
}

struct Holding(Arc<Worker>);

impl BlockDevice for Holding {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.0.held.lock().unwrap().push(bio);
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
        "holding".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Sender<Option<AlignedBuf>> for Worker {
    fn back(self: Arc<Self>, _: &Cx<'_>, errand: Box<Errand<Option<AlignedBuf>>>, status: Status) {
        self.back.lock().unwrap().push((errand.token, status));
    }
}

impl Duty for Worker {
    fn attend(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.back.lock().unwrap().is_empty().then(|| cx.now().after(1000))
    }
}

#[test]
fn the_keeper_serves_a_channel_that_nobody_polls() {
    let domain = Domain::default();
    let worker = Arc::new(Worker::default());
    let dev: Arc<dyn BlockDevice> = Arc::new(Holding(worker.clone()));
    let channel = domain.channel().unwrap();
    let mut errand = Errand::new(dev.clone(), None);
    errand.token = 7;
    channel.with_cx(|cx| cx.send(errand, worker.clone()).is_ok()).then_some(()).unwrap();
    let bio = worker.held.lock().unwrap().pop().unwrap();
    // From another thread it goes home by mail, where nobody looks.
    std::thread::spawn(move || bio.end(Status::NoSpace)).join().unwrap();
    assert!(worker.back.lock().unwrap().is_empty());
    let _kept = Kept::new(&domain, Arc::downgrade(&worker) as _).unwrap();
    until(|| !worker.back.lock().unwrap().is_empty());
    assert_eq!(*worker.back.lock().unwrap(), [(7, Status::NoSpace)]);
}

/// A duty that wants nothing, and counts what comes home.
#[derive(Default)]
struct Quiet {
    attended: AtomicUsize,
    back: AtomicUsize,
}

impl Duty for Quiet {
    fn attend(self: Arc<Self>, _: &Cx<'_>) -> Option<Nanos> {
        self.attended.fetch_add(1, SeqCst);
        None
    }
}

impl Sender<Option<AlignedBuf>> for Quiet {
    fn back(self: Arc<Self>, _: &Cx<'_>, _: Box<Errand<Option<AlignedBuf>>>, _: Status) {
        self.back.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_control_thread_leaves_out_comes_home_though_no_duty_is_due() {
    let domain = Domain::default();
    let quiet = Arc::new(Quiet::default());
    let _kept = Kept::new(&domain, Arc::downgrade(&quiet) as _).unwrap();
    until(|| quiet.attended.load(SeqCst) == 1);
    let holding = Arc::new(Worker::default());
    let dev: Arc<dyn BlockDevice> = Arc::new(Holding(holding.clone()));
    assert!(domain.drain_with(|cx| Some(cx.send(Errand::new(dev.clone(), None), quiet.clone()).is_ok())));
    let bio = holding.held.lock().unwrap().pop().unwrap();
    // It goes home by mail, to the channel that is nobody's.
    bio.end(Status::NoSpace);
    until(|| quiet.back.load(SeqCst) == 1);
    assert_eq!(quiet.attended.load(SeqCst), 1, "the duty was not due");
}

/// A duty that has something to do in an hour.
#[derive(Default)]
struct Later(AtomicUsize);

impl Duty for Later {
    fn attend(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.0.fetch_add(1, SeqCst);
        Some(cx.now().after(3_600_000_000_000))
    }
}

#[test]
fn a_duty_that_is_due_much_later_can_be_rung() {
    let domain = Domain::default();
    let later = Arc::new(Later::default());
    let kept = Kept::new(&domain, Arc::downgrade(&later) as _).unwrap();
    for n in 1..100 {
        until(|| later.0.load(SeqCst) >= n);
        kept.ring();
    }
}

/// An errand's memory, of each kind.
enum Kind {
    None,
    In(AlignedBuf),
    Out(Arc<AlignedBuf>),
}

impl Lend for Kind {
    fn lend(&mut self) -> Bytes<'_> {
        match self {
            Self::None => Bytes::None,
            Self::In(buf) => Bytes::In(buf),
            Self::Out(buf) => Bytes::Out(buf),
        }
    }
}

#[derive(Default)]
struct Last(Mutex<Option<(Box<Errand<Kind>>, Status)>>);

impl Sender<Kind> for Last {
    fn back(self: Arc<Self>, _: &Cx<'_>, errand: Box<Errand<Kind>>, status: Status) {
        *self.0.lock().unwrap() = Some((errand, status));
    }
}

#[test]
fn an_errand_lends_its_memory_and_comes_back() {
    let domain = Domain::default();
    let channel = domain.channel().unwrap();
    let dev: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(Sectors::new(8)).unwrap());
    let last = Arc::new(Last::default());
    let run = |op, at, sectors, memory| {
        let mut errand = Errand::new(dev.clone(), memory);
        (errand.op, errand.sector, errand.sectors) = (op, Sector::new(at), Sectors::new(sectors));
        assert!(channel.with_cx(|cx| cx.send(errand, last.clone()).is_ok()));
        let (errand, status) = last.0.lock().unwrap().take().expect("memory answers at once");
        (errand.memory, status)
    };
    let buf = |byte: u8| {
        let mut buf = AlignedBuf::zeroed(1024);
        buf.fill(byte);
        buf
    };
    assert_eq!(run(Op::Write, 1, 2, Kind::Out(Arc::new(buf(5)))).1, Status::Ok);
    assert_eq!(run(Op::Write, 4, 2, Kind::In(buf(6))).1, Status::Ok);
    let (Kind::In(read), Status::Ok) = run(Op::Read, 2, 2, Kind::In(buf(1))) else { panic!("a read") };
    assert_eq!((read[0], read[511], read[512]), (5, 5, 0));
    let (Kind::In(read), Status::Ok) = run(Op::Read, 4, 1, Kind::In(read)) else { panic!("a read") };
    assert_eq!((read[0], read[512]), (6, 0));
    for (op, at, sectors, memory) in [
        (Op::Read, 0, 2, Kind::Out(Arc::new(buf(5)))),
        (Op::Read, 0, 2, Kind::None),
        (Op::Read, 0, 3, Kind::In(buf(5))),
        (Op::Write, 7, 2, Kind::In(buf(5))),
        (Op::Discard, u64::MAX, 2, Kind::None),
    ] {
        assert_eq!(run(op, at, sectors, memory).1, Status::Invalid);
    }
    assert_eq!(run(Op::Discard, 4, 4, Kind::None).1, Status::Ok);
}
