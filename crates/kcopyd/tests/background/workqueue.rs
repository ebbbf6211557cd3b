//! The workqueue runs work items, and serves channels whose threads are elsewhere.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::*;
use udm_kcopyd::*;

/// Counts how often it is run, and asks for more as often as told.
#[derive(Default)]
struct Counting {
    runs: AtomicUsize,
    /// So many times it wants to be called again soon.
    again: AtomicUsize,
}

impl Work for Counting {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.runs.fetch_add(1, SeqCst);
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
fn a_work_item_is_run_when_kicked_and_when_due() {
    let domain = Domain::default();
    let work = Arc::new(Counting::default());
    let weak: std::sync::Weak<Counting> = Arc::downgrade(&work);
    let item = WorkItem::new(&domain, weak).unwrap();
    until(|| work.runs.load(SeqCst) == 1);
    work.again.store(5, SeqCst);
    item.kick();
    until(|| work.runs.load(SeqCst) == 7);
    drop(item);
    // Another begins where the thread may just be ending.
    let item = WorkItem::new(&domain, Arc::downgrade(&work) as _).unwrap();
    until(|| work.runs.load(SeqCst) == 8);
    for n in 9..100 {
        item.kick();
        until(|| work.runs.load(SeqCst) >= n);
    }
}

/// Sends one internal I/O whenever a bio comes by; ends those it was given when told.
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

impl InternalIoOwner<Option<AlignedBuf>> for Worker {
    fn io_done(self: Arc<Self>, _: &Cx<'_>, io: Box<InternalIo<Option<AlignedBuf>>>, status: Status) {
        self.back.lock().unwrap().push((io.token, status));
    }
}

impl Work for Worker {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.back.lock().unwrap().is_empty().then(|| cx.now().after(1000))
    }
}

#[test]
fn the_workqueue_serves_a_channel_that_nobody_polls() {
    let domain = Domain::default();
    let worker = Arc::new(Worker::default());
    let dev: Arc<dyn BlockDevice> = Arc::new(Holding(worker.clone()));
    let channel = domain.channel().unwrap();
    let mut io = InternalIo::new(dev.clone(), None);
    io.token = 7;
    channel.with_cx(|cx| cx.submit_internal_io(io, worker.clone()).is_ok()).then_some(()).unwrap();
    let bio = worker.held.lock().unwrap().pop().unwrap();
    // From another thread it goes home by mail, where nobody looks.
    std::thread::spawn(move || bio.end(Status::NoSpace)).join().unwrap();
    assert!(worker.back.lock().unwrap().is_empty());
    let _item = WorkItem::new(&domain, Arc::downgrade(&worker) as _).unwrap();
    until(|| !worker.back.lock().unwrap().is_empty());
    assert_eq!(*worker.back.lock().unwrap(), [(7, Status::NoSpace)]);
}

/// A work item that wants nothing, and counts what comes home.
#[derive(Default)]
struct Quiet {
    runs: AtomicUsize,
    back: AtomicUsize,
}

impl Work for Quiet {
    fn do_work(self: Arc<Self>, _: &Cx<'_>) -> Option<Nanos> {
        self.runs.fetch_add(1, SeqCst);
        None
    }
}

impl InternalIoOwner<Option<AlignedBuf>> for Quiet {
    fn io_done(self: Arc<Self>, _: &Cx<'_>, _: Box<InternalIo<Option<AlignedBuf>>>, _: Status) {
        self.back.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_control_thread_leaves_out_comes_home_though_no_work_item_is_due() {
    let domain = Domain::default();
    let quiet = Arc::new(Quiet::default());
    let _item = WorkItem::new(&domain, Arc::downgrade(&quiet) as _).unwrap();
    until(|| quiet.runs.load(SeqCst) == 1);
    let holding = Arc::new(Worker::default());
    let dev: Arc<dyn BlockDevice> = Arc::new(Holding(holding.clone()));
    assert!(
        domain.drain_with(|cx| Some(cx.submit_internal_io(InternalIo::new(dev.clone(), None), quiet.clone()).is_ok()))
    );
    let bio = holding.held.lock().unwrap().pop().unwrap();
    // It goes home by mail, to the channel that is nobody's.
    bio.end(Status::NoSpace);
    until(|| quiet.back.load(SeqCst) == 1);
    assert_eq!(quiet.runs.load(SeqCst), 1, "the work was not due");
}

/// A work item that has something to do in an hour.
#[derive(Default)]
struct Later(AtomicUsize);

impl Work for Later {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        self.0.fetch_add(1, SeqCst);
        Some(cx.now().after(3_600_000_000_000))
    }
}

#[test]
fn a_work_item_that_is_due_much_later_can_be_kicked() {
    let domain = Domain::default();
    let later = Arc::new(Later::default());
    let item = WorkItem::new(&domain, Arc::downgrade(&later) as _).unwrap();
    for n in 1..100 {
        until(|| later.0.load(SeqCst) >= n);
        item.kick();
    }
}

/// An internal I/O's memory, of each kind.
enum Kind {
    None,
    In(AlignedBuf),
    Out(Arc<AlignedBuf>),
}

impl IoMemory for Kind {
    fn buffer(&mut self) -> IoBuffer<'_> {
        match self {
            Self::None => IoBuffer::None,
            Self::In(buf) => IoBuffer::In(buf),
            Self::Out(buf) => IoBuffer::Out(buf),
        }
    }
}

#[derive(Default)]
struct Last(Mutex<Option<(Box<InternalIo<Kind>>, Status)>>);

impl InternalIoOwner<Kind> for Last {
    fn io_done(self: Arc<Self>, _: &Cx<'_>, io: Box<InternalIo<Kind>>, status: Status) {
        *self.0.lock().unwrap() = Some((io, status));
    }
}

#[test]
fn an_internal_io_lends_its_memory_and_comes_back() {
    let domain = Domain::default();
    let channel = domain.channel().unwrap();
    let dev: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(Sectors::new(8)).unwrap());
    let last = Arc::new(Last::default());
    let run = |op, at, sectors, memory| {
        let mut io = InternalIo::new(dev.clone(), memory);
        (io.op, io.sector, io.sectors) = (op, Sector::new(at), Sectors::new(sectors));
        assert!(channel.with_cx(|cx| cx.submit_internal_io(io, last.clone()).is_ok()));
        let (io, status) = last.0.lock().unwrap().take().expect("memory answers at once");
        (io.memory, status)
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
