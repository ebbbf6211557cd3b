//! In a simulated domain, which has no threads, work items are run while channels poll and wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_kcopyd::*;
use udm_sim::*;

/// Flushes a device every millisecond.
struct Flushing {
    dev: Arc<dyn BlockDevice>,
    back: AtomicU64,
}

impl Work for Flushing {
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        assert!(cx.submit_internal_io(InternalIo::new(self.dev.clone(), ()), self.clone()).is_ok());
        Some(cx.now().after(1_000_000))
    }
}

impl InternalIoOwner<()> for Flushing {
    fn io_done(self: Arc<Self>, _: &Cx<'_>, _: Box<InternalIo<()>>, status: Status) {
        assert_eq!(status, Status::Ok);
        self.back.fetch_add(1, SeqCst);
    }
}

#[test]
fn work_items_are_run_at_their_times() {
    let sim = Sim::new(1);
    let dev: Arc<dyn BlockDevice> = Arc::new(SimDevice::new(&sim, SimOptions::new(Sectors::new(8))));
    let domain = sim.domain();
    let work = Arc::new(Flushing { dev: dev.clone(), back: AtomicU64::new(0) });
    let item = WorkItem::new(&domain, Arc::downgrade(&work) as _).unwrap();
    let io = BlockingIo::new(&domain, dev).unwrap();
    let mut buf = vec![0; 512];
    while domain.clock().now() < Nanos(20_000_000) {
        io.read(Sector::ZERO, &mut buf).unwrap();
    }
    assert!((19..=21).contains(&work.back.load(SeqCst)), "{}", work.back.load(SeqCst));
    // A drain lets time pass too, and serves what the workqueue has out.
    let now = work.back.load(SeqCst);
    domain.drain(|| work.back.load(SeqCst) >= now + 3);
    drop(item);
}

/// A work item that wants nothing, and counts what comes home.
#[derive(Default)]
struct Quiet(AtomicU64);

impl Work for Quiet {
    fn do_work(self: Arc<Self>, _: &Cx<'_>) -> Option<Nanos> {
        None
    }
}

impl InternalIoOwner<()> for Quiet {
    fn io_done(self: Arc<Self>, _: &Cx<'_>, _: Box<InternalIo<()>>, status: Status) {
        assert_eq!(status, Status::Ok);
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_control_thread_leaves_out_comes_home() {
    let sim = Sim::new(1);
    let dev: Arc<dyn BlockDevice> = Arc::new(SimDevice::new(&sim, SimOptions::new(Sectors::new(8))));
    let domain = sim.domain();
    let work = Arc::new(Quiet::default());
    let _item = WorkItem::new(&domain, Arc::downgrade(&work) as _).unwrap();
    let sent =
        domain.drain_with(|cx| Some(cx.submit_internal_io(InternalIo::new(dev.clone(), ()), work.clone()).is_ok()));
    assert!(sent);
    let io = BlockingIo::new(&domain, dev).unwrap();
    let mut buf = vec![0; 512];
    (0..100).for_each(|_| io.read(Sector::ZERO, &mut buf).unwrap());
    assert_eq!(work.0.load(SeqCst), 1, "{:?}", domain.inspect());
}
