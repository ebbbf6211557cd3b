//! Entries for fuzzers: a ring whose memory holds any bytes, and a connection that says any, without threads and
//! without a listener.
//!
//! Whatever comes, nothing must panic, every request must come to an end, and nothing outside of the memory must be
//! touched.

use super::blk;
use super::front::SharedMemory;
use super::inflight::{InflightQueue, part_bytes};
use super::memory::{GuestMemory, Region};
use super::queue::{Queue, Traits, Way};
use super::ring::{Ring, RingAddresses};
use super::server::Options;
use super::session::{Session, Surroundings};
use super::wire::RegionSpec;
use super::{Mode, wire};
use crate::exports::{NamedDevice, OpenExport};
use crate::worker::mailbox::Notifier;
use rustix::fd::OwnedFd;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use udm_base::Sectors;
use udm_files::ForeignMemory;
use udm_io::{BlockDevice, Domain, MemoryDevice, OpFlags};

/// Bytes of the guest's memory.
pub const MEMORY: u64 = 1 << 16;
/// Entries of the ring. Its descriptors begin at 0, the available ring at 256, the used ring at 512.
pub const ENTRIES: u16 = 16;

fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(Domain::default)
}

fn device() -> Arc<dyn BlockDevice> {
    static DEVICE: OnceLock<Arc<dyn BlockDevice>> = OnceLock::new();
    let make = || -> Arc<dyn BlockDevice> {
        Arc::new(MemoryDevice::new(Sectors::in_bytes(1 << 20)).expect("a megabyte can be had"))
    };
    DEVICE.get_or_init(make).clone()
}

/// Serves a ring. The first byte chooses features, the second where the available ring goes on; what follows is the
/// guest's memory from its start, and, with bit 4 of the first, at its end what was in flight.
///
/// # Panics
/// When the queue breaks a promise, or the system has no memory or descriptors left.
pub fn ring(bytes: &[u8]) {
    let (chosen, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let (taken, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let has = |bit: u8| chosen & 1 << bit != 0;
    let shared = SharedMemory::new(MEMORY, 0, true).expect("memory");
    let content = &bytes[..bytes.len().min(MEMORY as usize)];
    shared.write(0, content);
    let spec = RegionSpec { guest: 0, size: MEMORY, user: 1 << 32, offset: 0 };
    let file = shared.file().try_clone().expect("a descriptor");
    let region = Region::map(spec, file).expect("the memory can be mapped");
    let memory = Arc::new(GuestMemory::new(vec![region]).expect("one region"));
    let addresses = RingAddresses { desc: 1 << 32, avail: (1 << 32) + 256, used: (1 << 32) + 512 };
    let ring = Ring::new(&memory, addresses, ENTRIES, u16::from(*taken), (has(0), has(1))).expect("the ring fits");
    let inflight = has(4).then(|| {
        let part = part_bytes(ENTRIES);
        let record = SharedMemory::new(part as u64, 0, true).expect("memory");
        record.write(0, &content[content.len() - content.len().min(part)..]);
        let map = ForeignMemory::map(record.file(), 0, part as u64).expect("the memory can be mapped");
        InflightQueue::new(Arc::new(map), 0, ENTRIES, ENTRIES).ok()
    });
    let channel = domain().channel().expect("a channel can be had");
    channel.set_depth(ENTRIES.into());
    let attached = channel.attach(device());
    let traits = Traits {
        flags: OpFlags::NONE,
        write_through: has(2),
        read_only: has(3),
        discard: !has(5),
        write_zeroes: !has(6),
        id: [0x5a; blk::ID],
    };
    let way = Way { channel: &channel, device: attached };
    let mut queue = Queue::new(0, traits, ring, memory, inflight.flatten());
    let mut broken = queue.resume(way).is_err();
    for _ in 0..4 {
        if !broken {
            broken = queue.take(way).is_err();
        }
        while let Some(done) = channel.completed() {
            queue.completed(done.token as u16, done, way);
        }
        queue.publish();
        queue.wants_to_be_told();
        broken |= queue.ask_for_kicks().is_err();
        queue.decline_kicks();
    }
    queue.close();
    while let Some(done) = channel.completed() {
        queue.completed(done.token as u16, done, way);
    }
    assert_eq!(queue.out(), 0, "memory keeps no bio");
    channel.detach(attached);
}

/// Says these bytes to a server, as a front end that then hangs up.
///
/// # Panics
/// As [`ring`].
pub fn messages(bytes: &[u8]) {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.set_nonblocking(true).expect("a socket can be made not to block");
    ours.set_nonblocking(true).expect("a socket can be made not to block");
    let around = Surroundings {
        domain: domain().clone(),
        options: Options { queues: 2, queue_size: 256, threads: 1, mode: Mode::Interrupt },
        notifier: Arc::new(Notifier::new().expect("a descriptor")),
        stop: OnceLock::new(),
    };
    let export = OpenExport::new(Arc::new(NamedDevice("disk".into(), device()))).expect("anybody may open it");
    let mut session = Session::new(Arc::new(around), OwnedFd::from(theirs), export);
    for piece in bytes.chunks(4096) {
        // What does not fit is not said.
        let _ = ours.write(piece);
        // It handles some messages at a time, and a piece holds more.
        match (0..8).try_for_each(|_| session.receive()) {
            Ok(()) => {}
            Err(wire::WireError::Closed) => unreachable!("it has not hung up"),
            Err(_) => break,
        }
    }
    drop(ours);
    session.look_at_size();
    let left = session.end();
    assert!(left.is_over(), "no queue can run without memory");
    left.finish();
}
