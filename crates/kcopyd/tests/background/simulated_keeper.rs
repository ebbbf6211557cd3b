//! In a simulated domain, which has no threads, duties are attended to while channels poll and wait.

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

impl Duty for Flushing {
    fn attend(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos> {
        assert!(cx.send(Errand::new(self.dev.clone(), ()), self.clone()).is_ok());
        Some(cx.now().after(1_000_000))
    }
}

impl Sender<()> for Flushing {
    fn back(self: Arc<Self>, _: &Cx<'_>, _: Box<Errand<()>>, status: Status) {
        assert_eq!(status, Status::Ok);
        self.back.fetch_add(1, SeqCst);
    }
}

#[test]
fn duties_are_attended_to_at_their_times() {
    let sim = Sim::new(1);
    let dev: Arc<dyn BlockDevice> = Arc::new(SimDevice::new(&sim, SimOptions::new(Sectors::new(8))));
    let domain = sim.domain();
    let duty = Arc::new(Flushing { dev: dev.clone(), back: AtomicU64::new(0) });
    let kept = Kept::new(&domain, Arc::downgrade(&duty) as _).unwrap();
    let io = BlockingIo::new(&domain, dev).unwrap();
    let mut buf = vec![0; 512];
    while domain.clock().now() < Nanos(20_000_000) {
        io.read(Sector::ZERO, &mut buf).unwrap();
    }
    assert!((19..=21).contains(&duty.back.load(SeqCst)), "{}", duty.back.load(SeqCst));
    // A drain lets time pass too, and serves what the keeper has out.
    let now = duty.back.load(SeqCst);
    domain.drain(|| duty.back.load(SeqCst) >= now + 3);
    drop(kept);
}

/// A duty that wants nothing, and counts what comes home.
#[derive(Default)]
struct Quiet(AtomicU64);

impl Duty for Quiet {
    fn attend(self: Arc<Self>, _: &Cx<'_>) -> Option<Nanos> {
        None
    }
}

impl Sender<()> for Quiet {
    fn back(self: Arc<Self>, _: &Cx<'_>, _: Box<Errand<()>>, status: Status) {
        assert_eq!(status, Status::Ok);
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn what_a_control_thread_leaves_out_comes_home() {
    let sim = Sim::new(1);
    let dev: Arc<dyn BlockDevice> = Arc::new(SimDevice::new(&sim, SimOptions::new(Sectors::new(8))));
    let domain = sim.domain();
    let duty = Arc::new(Quiet::default());
    let _kept = Kept::new(&domain, Arc::downgrade(&duty) as _).unwrap();
    let sent = domain.drain_with(|cx| Some(cx.send(Errand::new(dev.clone(), ()), duty.clone()).is_ok()));
    assert!(sent);
    let io = BlockingIo::new(&domain, dev).unwrap();
    let mut buf = vec![0; 512];
    (0..100).for_each(|_| io.read(Sector::ZERO, &mut buf).unwrap());
    assert_eq!(duty.0.load(SeqCst), 1, "{:?}", domain.inspect());
}
