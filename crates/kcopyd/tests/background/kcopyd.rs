//! kcopyd over the system's clock and threads: it goes on when the submitter's thread does other things.

use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_kcopyd::*;

#[derive(Default)]
struct Done(Mutex<Vec<Status>>);

impl Copied for Done {
    fn copied(self: Arc<Self>, _: &Cx<'_>, job: Box<CopyJob>) {
        self.0.lock().unwrap().push(job.status());
    }
}

#[test]
fn copies_go_on_though_nobody_polls() {
    let domain = Domain::default();
    let copier = Kcopyd::new(&domain, CopyOptions::default()).unwrap();
    let done = Arc::new(Done::default());
    let null: Arc<dyn BlockDevice> =
        Arc::new(NullDevice::new("null:size=16M:latency_us=50:memory=1".parse().unwrap()).unwrap());
    let memory: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(Sectors::new(32768)).unwrap());
    let io = BlockingIo::new(&domain, null.clone()).unwrap();
    let data: Vec<u8> = (0..64 * 512u32).map(|i| (i / 7) as u8).collect();
    io.write(Sector::new(1000), &data, OpFlags::NONE).unwrap();
    let channel = domain.channel().unwrap();
    channel.with_cx(|cx| {
        // There and back.
        let there = CopyTo::new(memory.clone(), Sector::new(8));
        let job = CopyJob::new(CopyFrom::Device(null.clone(), Sector::new(1000)), Sectors::new(64), vec![there]);
        assert!(copier.copy(cx, job, done.clone()).is_ok());
    });
    while done.0.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(*done.0.lock().unwrap(), [Status::Ok]);
    let mut back = vec![0; data.len()];
    BlockingIo::new(&domain, memory).unwrap().read(Sector::new(8), &mut back).unwrap();
    assert!(back == data);
}
