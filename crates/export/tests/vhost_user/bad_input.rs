//! Nonsense: the connection ends or the request does, and the server serves the next one.

use crate::served::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use udm_export::node::fuse::{FuseServer, Owner};
use udm_export::vhost_user::Mode;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, FrontQueue, Kind, Part, RawDesc};

/// The server still serves.
fn still_there(served: &Served) {
    let (front, mut queue) = served.front();
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
}

/// What a driver does to its ring ends its connection.
fn breaks(what: &str, nonsense: impl Fn(&FrontEnd, &mut FrontQueue)) {
    for mode in [Mode::Interrupt, Mode::Polled] {
        for indirect in [true, false] {
            let served = Served::new(std::sync::Arc::new(Sized::new()), Want { mode, ..Want::default() });
            let (mut front, mut queue) = served.front_with(FrontOptions { indirect, ..FrontOptions::default() });
            assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
            nonsense(&front, &mut queue);
            queue.ring();
            until(what, || front.has_hung_up());
            drop((front, queue));
            still_there(&served);
        }
    }
}

#[test]
fn rings() {
    let desc = |addr, len, flags, next| RawDesc { addr, len, flags, next };
    breaks("a head beyond the ring", |_, queue| queue.offer_raw(128));
    breaks("more than the ring has", |_, queue| queue.skip_available(129));
    breaks("an index far away", |_, queue| queue.skip_available(30_000));
    breaks("a descriptor outside of memory", |_, queue| {
        queue.write_desc(9, desc(0x10, 512, 0, 0));
        queue.offer_raw(9);
    });
    breaks("a descriptor that ends outside of memory", |front, queue| {
        queue.write_desc(9, desc(front.memory().guest() + front.memory().len() - 16, 17, 0, 0));
        queue.offer_raw(9);
    });
    breaks("a descriptor around the end of all addresses", |_, queue| {
        queue.write_desc(9, desc(u64::MAX - 10, u32::MAX, 0, 0));
        queue.offer_raw(9);
    });
    breaks("a loop", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 16, 1, 10));
        queue.write_desc(10, desc(front.data_guest(0), 16, 1, 9));
        queue.offer_raw(9);
    });
    breaks("a loop of nothing", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 0, 1, 9));
        queue.offer_raw(9);
    });
    breaks("a chain that leaves the ring", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 16, 1, 999));
        queue.offer_raw(9);
    });
    breaks("no status", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 16, 0, 0));
        queue.offer_raw(9);
    });
    breaks("to be read after to be written", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 16, 3, 10));
        queue.write_desc(10, desc(front.data_guest(0), 16, 0, 0));
        queue.offer_raw(9);
    });
    for (what, len) in [("an empty table", 0), ("half a descriptor", 24), ("a huge table", u32::MAX - 15)] {
        breaks(what, |front, queue| {
            queue.write_desc(9, desc(front.data_guest(0), len, 4, 0));
            queue.offer_raw(9);
        });
    }
    breaks("a table outside of memory", |_, queue| {
        queue.write_desc(9, desc(0x10, 32, 4, 0));
        queue.offer_raw(9);
    });
    breaks("a table that is not aligned", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(3), 32, 4, 0));
        queue.offer_raw(9);
    });
    breaks("a table that goes on in the ring", |front, queue| {
        queue.write_desc(9, desc(front.data_guest(0), 32, 5, 10));
        queue.offer_raw(9);
    });
    breaks("a table within a table", |front, queue| {
        let mut inner = (front.data_guest(64)).to_le_bytes().to_vec();
        inner.extend(32u32.to_le_bytes());
        inner.extend(4u16.to_le_bytes());
        inner.extend(0u16.to_le_bytes());
        front.memory().write(front.data(), &inner);
        queue.write_desc(9, desc(front.data_guest(0), 16, 4, 0));
        queue.offer_raw(9);
    });
}

/// A head that is in flight must not come again.
#[test]
fn a_head_twice() {
    let recorder = std::sync::Arc::new(crate::device::Recorder::new(SIZE, udm_io::Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    recorder.hold();
    assert!(queue.submit(Kind::Read, 0, &[part(&front, 0, 512)], 1));
    queue.kick();
    recorder.await_held(1);
    queue.offer_raw(0);
    queue.ring();
    until("it hangs up", || front.has_hung_up());
    recorder.release_in_reverse();
    drop((front, queue));
    still_there(&served);
}

/// Requests that are wrong are answered, and the queue goes on.
#[test]
fn requests() {
    let served = Served::memory();
    let (front, mut queue) = served.front();
    let at = |len| [Part { guest: front.data_guest(0), len }];
    for (what, data, status) in [
        (Kind::Read, &at(100)[..], 1),
        (Kind::Read, &[], 1),
        (Kind::Other(u32::MAX), &at(512), 2),
        (Kind::WriteZeroes, &at(15), 1),
    ] {
        let done = perform(&mut queue, what, 0, data);
        assert_eq!((done.status, done.written), (status, 1), "{what:?}");
    }
    // The same page, many times over.
    let page = vec![Part { guest: front.data_guest(0), len: 1 << 20 }; 10];
    assert_eq!(perform(&mut queue, Kind::Read, 0, &page).status, 0);
    // A head of a request that is too short.
    let desc = |addr, len, flags, next| RawDesc { addr, len, flags, next };
    queue.write_desc(9, desc(front.data_guest(0), 15, 1, 10));
    queue.write_desc(10, desc(front.data_guest(64), 1, 2, 0));
    front.memory().write(front.data() + 64, &[0xff]);
    queue.offer_raw(9);
    queue.ring();
    until("the request to be refused", || front.memory().read(front.data() + 64, 1) == [1]);
}

/// Messages that no front end would send: refused with an answer, and the next one is looked at.
#[test]
fn messages() {
    let served = Served::memory();
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    let longs = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    let small = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&small, 4096).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let (mut front, mut queue) = served.front();
    let region = |guest: u64, size: u64, user: u64, offset: u64| longs(&[0, guest, size, user, offset]);
    type Row<'a> = (&'a str, u32, Vec<u8>, Option<rustix::fd::BorrowedFd<'a>>);
    let rows: Vec<Row<'_>> = vec![
        ("an unknown request", 999, vec![], None),
        ("features that were not offered", 2, longs(&[u64::MAX]), None),
        ("too short", 2, vec![1, 2], None),
        ("a queue that there is not", 8, words(&[4, 128]), None),
        ("a ring that is changed while it runs", 8, words(&[0, 128]), None),
        ("a size that is no power of two", 8, words(&[1, 100]), None),
        ("a ring of nothing", 8, words(&[1, 0]), None),
        ("a ring that is too large", 8, words(&[1, 512]), None),
        ("no descriptor", 12, longs(&[1]), None),
        ("a queue that there is not", 12, longs(&[0xff]), Some(file.as_fd())),
        ("more memory than the file has", 37, region(1 << 50, 8192, 0, 0), Some(small.as_fd())),
        ("memory at an end that there is not", 37, region(1 << 50, 4096, 0, u64::MAX), Some(small.as_fd())),
        ("memory beyond all addresses", 37, region(u64::MAX, 4096, 0, 0), Some(small.as_fd())),
        ("no memory at all", 37, region(1 << 50, 0, 0, 0), Some(small.as_fd())),
        ("memory of a device", 37, region(1 << 50, 4096, 0, 0), Some(file.as_fd())),
        ("memory that is not there", 38, region(1, 2, 3, 4), None),
        ("a table without files", 5, [words(&[1, 0]), longs(&[0; 4])].concat(), None),
        ("a table of more than it says", 5, words(&[u32::MAX, 0]), None),
        (
            "memory for what is in flight while queues run",
            32,
            [longs(&[4096, 0]), words(&[128 << 16 | 1, 0])].concat(),
            Some(small.as_fd()),
        ),
        ("configuration cannot be written", 25, words(&[0, 1, 0, 0]), None),
        ("a log", 9, [words(&[1, 1]), longs(&[0; 4])].concat(), None),
    ];
    for (what, request, body, fd) in rows {
        let fds: Vec<_> = fd.into_iter().collect();
        assert!(front.tell(request, &body, &fds).is_err(), "{what}");
        assert!(!front.has_hung_up(), "{what}");
        assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0, "{what}");
    }
    // A ring outside of memory, and one before its memory.
    let state = |n: u32| words(&[1, n]);
    front.tell(8, &state(128), &[]).unwrap();
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert!(front.tell(12, &longs(&[1]), &[bell.as_fd()]).is_ok(), "nothing runs before it is enabled");
    assert!(front.tell(18, &state(1), &[]).is_err(), "no addresses");
    front.tell(9, &[words(&[1, 0]), longs(&[16, 32, 48, 0])].concat(), &[]).unwrap();
    assert!(front.tell(18, &state(1), &[]).is_err(), "outside of memory");
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
}

/// Bytes that are no messages, whole and in pieces, and connections that say nothing.
#[test]
fn strangers() {
    let served = Served::memory();
    let message = |request: u32, flags: u32, size: u32| {
        [request, flags, size].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>()
    };
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 64],
        vec![0xff; 5000],
        message(1, 1, u32::MAX),
        message(1, 1, 4097),
        message(1, 2, 0),
        message(1, 5, 0),
        message(999, 1, 0),
        message(2, 1, 4),
    ] {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        // It may be hung up on before it has said all.
        let _ = stream.write_all(&bytes);
        let _ = stream.write_all(&[0; 8]);
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("{bytes:?}: {other:?}"),
        }
    }
    let mut half = UnixStream::connect(&served.path).unwrap();
    half.write_all(&message(1, 1, 8)[..7]).unwrap();
    drop(half);
    still_there(&served);
}

/// Memory that is cut off while it is in use: the connection ends, the process does not.
#[test]
fn memory_that_is_cut_off() {
    for mode in [Mode::Interrupt, Mode::Polled] {
        let served = Served::new(std::sync::Arc::new(Sized::new()), Want { mode, ..Want::default() });
        let (mut front, mut queue) = served.front_with(FrontOptions { sealed: false, ..FrontOptions::default() });
        assert_eq!(write(&front, &mut queue, 0, &[1; 4096]), 0);
        // The rings stay, the data goes.
        assert!(queue.submit(Kind::Write, 8, &[part(&front, 8192, 4096)], 1));
        ftruncate(front.memory().file(), front.data() + 4096).unwrap();
        queue.ring();
        until("it hangs up", || front.has_hung_up());
        assert_eq!(queue.completed(), None, "a write of memory that had gone is not acknowledged");
        drop((front, queue));

        let (mut front, mut queue) = served.front_with(FrontOptions { sealed: false, ..FrontOptions::default() });
        assert_eq!(write(&front, &mut queue, 0, &[1; 4096]), 0);
        ftruncate(front.memory().file(), 0).unwrap();
        queue.ring();
        until("it hangs up", || front.has_hung_up());
        drop((front, queue));
        still_there(&served);
    }
}

/// A front end that goes in the middle of everything.
#[test]
fn gone_in_the_middle() {
    let served = Served::memory();
    for round in 0..50 {
        let (front, mut queue) = served.front();
        for token in 0..(round % 7) * 5 {
            assert!(queue.submit(Kind::Read, token, &[part(&front, 0, 4096)], token));
            if token % 3 == 0 {
                queue.kick();
            }
        }
        queue.kick();
    }
    still_there(&served);
}

/// What a worker would wait for, were it given: files, whose servers may be the front end itself.
#[test]
fn descriptors_that_can_make_others_wait() {
    const SET_VRING_KICK: u32 = 12;
    const SET_VRING_CALL: u32 = 13;
    const ADD_MEM_REG: u32 = 37;
    let served = Served::memory();
    let (mut front, mut queue) = served.front();
    let file = tempfile::tempfile().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for request in [SET_VRING_KICK, SET_VRING_CALL] {
        for fd in [file.as_fd(), null.as_fd()] {
            assert!(front.tell(request, &1u64.to_ne_bytes(), &[fd]).is_err(), "request {request}");
        }
    }
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0, "the queue notices nothing");
    let dir = tempfile::tempdir().unwrap();
    let owner = Owner { uid: 0, gid: 0, time: 0 };
    let fuse = match FuseServer::start(&udm_io::Domain::default(), &dir.path().join("dev"), 1, owner) {
        Ok(fuse) => fuse,
        Err(error) => return println!("SKIP nothing can be mounted here: {error}"),
    };
    fuse.add("memory", Box::new(Ram)).unwrap();
    let remote = std::fs::OpenOptions::new().read(true).write(true).open(fuse.path("memory")).unwrap();
    let region = [0u64, 1 << 41, 4096, 1 << 41, 0].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    assert!(front.tell(ADD_MEM_REG, &region, &[remote.as_fd()]).is_err());
    let local = memfd_create("udm-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&local, 4096).unwrap();
    front.tell(ADD_MEM_REG, &region, &[local.as_fd()]).unwrap();
}

/// A clock by which a second goes by whenever somebody looks.
struct Hasty(AtomicU64);

impl udm_io::Clock for Hasty {
    fn now(&self) -> udm_io::Nanos {
        udm_io::Nanos(self.0.fetch_add(1_000_000_000, Ordering::SeqCst))
    }
}

/// A worker has to ring a bell that is full, and that its front end has made one to wait for after it was checked. The
/// server ends all the same.
#[test]
fn a_bell_that_keeps_who_rings_it() {
    const SET_VRING_CALL: u32 = 13;
    let domain = udm_io::DomainBuilder::default().clock(std::sync::Arc::new(Hasty(1.into()))).build();
    let mut served = Served::of(domain, std::sync::Arc::new(Sized::new()), Want::default());
    let (mut front, mut queue) = served.front_with(FrontOptions { event_idx: false, ..FrontOptions::default() });
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    front.tell(SET_VRING_CALL, &0u64.to_ne_bytes(), &[bell.as_fd()]).unwrap();
    until("it is told of the new bell", || rustix::io::read(&bell, &mut [0u8; 8]) == Ok(8));
    assert_eq!(rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()), Ok(8));
    rustix::fs::fcntl_setfl(&bell, rustix::fs::OFlags::empty()).unwrap();
    assert!(queue.submit(Kind::Flush, 0, &[], 1));
    queue.kick();
    until("the request to be done", || queue.completed().is_some());
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        served.stop();
        ended.send(()).unwrap();
        served
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(50)), Ok(()), "the server waits for its front end");
    // So that its thread ends.
    assert_eq!(rustix::io::read(&bell, &mut [0u8; 8]), Ok(8));
}

/// A page of memory as a node.
struct Ram;

impl udm_export::Export for Ram {
    fn device(&self) -> std::sync::Arc<dyn udm_io::BlockDevice> {
        static DEVICE: std::sync::OnceLock<std::sync::Arc<dyn udm_io::BlockDevice>> = std::sync::OnceLock::new();
        DEVICE
            .get_or_init(|| std::sync::Arc::new(udm_io::MemoryDevice::new(udm_base::Sectors::new(8)).unwrap()))
            .clone()
    }
    fn name(&self) -> String {
        "memory".into()
    }
}
