//! A queue's thread with a driver that does what a test wants.

use super::*;
use crate::ublk::uapi::op;
use crate::worker::mailbox::Order;
use crate::worker::run;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::any::Any;
use std::sync::{Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use udm_io::{Bio, Cx, DeviceId, Limits, MemoryDevice};

const DEPTH: u16 = 4;
const BUFFER: usize = 8192;
const NOTHING: IoDescriptor = IoDescriptor { op_flags: 0, nr_sectors: 0, start_sector: 0, addr: 0 };

#[derive(Default)]
struct State {
    /// What the thread is to reap.
    given: Vec<(u16, i32)>,
    requests: Vec<IoDescriptor>,
    buffers: Vec<usize>,
    /// What it has pushed and not submitted.
    queued: Vec<(u16, Option<i32>)>,
    /// What has been submitted: slots, and their requests' results.
    submitted: Vec<(u16, Option<i32>)>,
    /// Submissions that are to fail.
    faults: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct FakePort {
    shared: Arc<Shared>,
    bell: Arc<OwnedFd>,
}

impl Port for FakePort {
    unsafe fn push(&mut self, tag: u16, result: Option<i32>, buffer: *mut u8) {
        let mut state = self.shared.state.lock().unwrap();
        state.buffers[usize::from(tag)] = buffer as usize;
        state.queued.push((tag, result));
    }

    fn submit(&mut self) -> io::Result<()> {
        let mut state = self.shared.state.lock().unwrap();
        if state.faults > 0 {
            state.faults -= 1;
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let queued = std::mem::take(&mut state.queued);
        state.submitted.extend(queued);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn reap(&mut self, into: &mut Vec<(u16, i32)>) {
        let left = !self.shared.state.lock().unwrap().queued.is_empty();
        if left {
            // As the ring does with what it could not submit.
            let _ = self.submit();
        }
        let mut state = self.shared.state.lock().unwrap();
        into.append(&mut state.given);
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    fn request(&self, tag: u16) -> IoDescriptor {
        self.shared.state.lock().unwrap().requests[usize::from(tag)]
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The driver's side, and the thread.
struct Driver {
    shared: Arc<Shared>,
    bell: Arc<OwnedFd>,
    handle: Arc<Handle>,
    thread: JoinHandle<()>,
    _memory: Arc<AlignedBuf>,
}

impl Driver {
    fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self::through(device, false)
    }

    fn through(device: Arc<dyn BlockDevice>, through: bool) -> Self {
        let shared = Arc::new(Shared::default());
        {
            let mut state = shared.state.lock().unwrap();
            (state.requests, state.buffers) = (vec![NOTHING; DEPTH.into()], vec![0; DEPTH.into()]);
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let shape = Shape { depth: DEPTH, buffer: BUFFER };
        let memory = Arc::new(AlignedBuf::zeroed(shape.bytes()));
        let port = FakePort { shared: shared.clone(), bell: bell.clone() };
        let (told, handle) = mpsc::channel();
        let lent = memory.clone();
        let thread = std::thread::spawn(move || {
            let through = Arc::new(AtomicBool::new(through));
            let worker = Worker::new(&Domain::default(), device, port, shape, lent, through).unwrap();
            told.send(worker.handle().clone()).unwrap();
            run(worker);
        });
        let this = Self { shared, bell, handle: handle.recv().unwrap(), thread, _memory: memory };
        assert_eq!(this.wait(DEPTH.into()), (0..DEPTH).map(|tag| (tag, None)).collect::<Vec<_>>());
        this
    }

    fn give(&self, tag: u16, op_flags: u32, sector: u64, sectors: u32) {
        let mut state = self.shared.state.lock().unwrap();
        state.requests[usize::from(tag)] =
            IoDescriptor { op_flags, nr_sectors: sectors, start_sector: sector, addr: 0 };
        state.given.push((tag, 0));
        drop(state);
        self.ring();
    }

    fn ring(&self) {
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes()).unwrap();
    }

    /// Waits until so much has been submitted, and takes it.
    fn wait(&self, count: usize) -> Vec<(u16, Option<i32>)> {
        let state = self.shared.state.lock().unwrap();
        let mut state = self.shared.changed.wait_while(state, |state| state.submitted.len() < count).unwrap();
        std::mem::take(&mut state.submitted)
    }

    fn ask(&self, op_flags: u32, sector: u64, sectors: u32) -> i32 {
        self.give(1, op_flags, sector, sectors);
        let answers = self.wait(1);
        assert!(matches!(answers[..], [(1, Some(_))]), "{answers:?}");
        answers[0].1.unwrap()
    }

    /// The memory of slot 1.
    fn buffer(&mut self) -> &mut [u8] {
        let at = self.shared.state.lock().unwrap().buffers[1];
        // SAFETY: the slot has no request while the test looks, and the memory stays until the driver is dropped.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, BUFFER) }
    }

    fn submitted(&self) -> usize {
        self.shared.state.lock().unwrap().submitted.len()
    }

    fn stop(self) {
        self.shared.state.lock().unwrap().given.extend((0..DEPTH).map(|tag| (tag, ABORT)));
        self.ring();
        self.thread.join().unwrap();
    }
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(Sectors::new(64)).unwrap())
}

const fn word(op: u8) -> u32 {
    op as u32
}

#[test]
fn requests() {
    let mut driver = Driver::new(memory());
    driver.buffer()[..1024].fill(0xab);
    assert_eq!(driver.ask(word(op::WRITE), 2, 2), 1024);
    driver.buffer()[..4096].fill(0);
    assert_eq!(driver.ask(word(op::READ), 0, 8), 4096);
    let read = driver.buffer()[..4096].to_vec();
    assert!(read[..1024].iter().all(|b| *b == 0) && read[1024..2048].iter().all(|b| *b == 0xab));
    assert!(read[2048..].iter().all(|b| *b == 0));
    // Words without data are answered with none.
    assert_eq!(driver.ask(word(op::FLUSH), 0, 0), 0);
    assert_eq!(driver.ask(word(op::WRITE) | op::FUA, 3, 1), 512);
    assert_eq!(driver.ask(word(op::WRITE_ZEROES), 2, 1), 0);
    assert_eq!(driver.ask(word(op::WRITE_ZEROES) | op::NOUNMAP, 3, 1), 0);
    assert_eq!(driver.ask(word(op::READ), 2, 2), 1024);
    assert!(driver.buffer()[..1024].iter().all(|b| *b == 0));
    assert_eq!(driver.ask(word(op::DISCARD), 0, 64), 0);
    // Others' flags are no concern of ours.
    assert_eq!(driver.ask(word(op::READ) | 1 << 8 | 1 << 11 | 1 << 16, 63, 1), 512);
    driver.stop();
}

#[test]
fn requests_that_are_none() {
    let driver = Driver::new(memory());
    for (request, sector, sectors, errno) in [
        // Past the end: the device says so.
        (word(op::READ), 60, 8, libc::EIO),
        (word(op::WRITE), 64, 1, libc::EIO),
        (word(op::DISCARD), 0, 65, libc::EIO),
        (word(op::READ), 1 << 54, 1, libc::EINVAL),
        (word(op::READ), u64::MAX, 1, libc::EINVAL),
        (word(op::READ), 0, 0, libc::EINVAL),
        // Longer than the slot's memory.
        (word(op::READ), 0, 17, libc::EINVAL),
        (word(op::WRITE), 0, u32::MAX, libc::EINVAL),
        (4, 0, 1, libc::EOPNOTSUPP),
        (13, 0, 1, libc::EOPNOTSUPP),
        (255, 0, 1, libc::EOPNOTSUPP),
    ] {
        assert_eq!(driver.ask(request, sector, sectors), -errno, "{request:#x} {sector}+{sectors}");
    }
    assert_eq!(driver.ask(word(op::READ), 0, 16), 8192);
    driver.stop();
}

/// Keeps its bios until it is told how they end.
#[derive(Default)]
struct Slow {
    bios: Mutex<Vec<Bio>>,
    came: Condvar,
}

impl Slow {
    fn end(&self, count: usize, status: Status) {
        let bios = self.bios.lock().unwrap();
        let mut bios = self.came.wait_while(bios, |bios| bios.len() < count).unwrap();
        bios.drain(..count).for_each(|bio| bio.end(status));
    }
}

struct SlowDevice(Arc<Slow>);

impl BlockDevice for SlowDevice {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.0.bios.lock().unwrap().push(bio);
        self.0.came.notify_all();
        None
    }
    fn sectors(&self) -> Sectors {
        Sectors::new(64)
    }
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(0)
    }
    fn name(&self) -> String {
        "slow".into()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn slow() -> (Arc<Slow>, Driver) {
    let slow = Arc::new(Slow::default());
    let driver = Driver::new(Arc::new(SlowDevice(slow.clone())));
    (slow, driver)
}

#[test]
fn errors() {
    let (slow, driver) = slow();
    for (status, errno) in [
        (Status::Io, libc::EIO),
        (Status::NoSpace, libc::ENOSPC),
        (Status::NotSupported, libc::EOPNOTSUPP),
        (Status::TimedOut, libc::ETIMEDOUT),
        // These the driver would take for something else.
        (Status::Again, libc::EIO),
        (Status::Gone, libc::EIO),
        (Status::ReadOnly, libc::EIO),
    ] {
        driver.give(1, word(op::READ), 0, 1);
        slow.end(1, status);
        assert_eq!(driver.wait(1), [(1, Some(-errno))], "{status:?}");
    }
    driver.stop();
}

#[test]
fn writes_go_through() {
    for (through, request, expect) in [
        (true, word(op::WRITE), true),
        (true, word(op::DISCARD), true),
        (true, word(op::WRITE_ZEROES), true),
        (true, word(op::READ), false),
        (false, word(op::WRITE), false),
        (false, word(op::WRITE) | op::FUA, true),
    ] {
        let slow = Arc::new(Slow::default());
        let driver = Driver::through(Arc::new(SlowDevice(slow.clone())), through);
        driver.give(1, request, 0, 1);
        let bios = slow.bios.lock().unwrap();
        let bios = slow.came.wait_while(bios, |bios| bios.is_empty()).unwrap();
        assert_eq!(bios[0].flags().contains(OpFlags::FUA), expect, "{through} {request:#x}");
        drop(bios);
        slow.end(1, Status::Ok);
        driver.wait(1);
        driver.stop();
    }
}

#[test]
fn a_submission_that_fails_is_done_again() {
    let (slow, driver) = slow();
    driver.give(1, word(op::READ), 0, 1);
    driver.shared.state.lock().unwrap().faults = 1;
    slow.end(1, Status::Ok);
    // Whatever comes next brings it.
    driver.give(2, word(op::READ), 0, 2);
    slow.end(1, Status::Ok);
    let mut answers = driver.wait(1);
    while answers.len() < 2 {
        answers.extend(driver.wait(1));
    }
    assert_eq!(answers, [(1, Some(512)), (2, Some(1024))]);
    driver.stop();
}

#[test]
fn who_leaves_finishes_first() {
    let (slow, driver) = slow();
    driver.give(1, word(op::WRITE), 0, 1);
    driver.give(2, word(op::WRITE), 0, 1);
    let (answer, paused) = mpsc::channel();
    driver.handle.order(Order::Pause(answer));
    slow.end(1, Status::Ok);
    assert_eq!(paused.try_recv(), Err(mpsc::TryRecvError::Empty), "another is under way");
    slow.end(1, Status::NoSpace);
    paused.recv().unwrap();
    assert_eq!(driver.submitted(), 0, "answers wait for the end");
    // What comes now is the next server's.
    driver.give(3, word(op::WRITE), 0, 1);
    driver.handle.order(Order::End(Nanos::default(), mpsc::channel().0));
    let mut answers = driver.wait(2);
    answers.sort_unstable();
    assert_eq!(answers, [(1, Some(512)), (2, Some(-libc::ENOSPC))]);
    driver.thread.join().unwrap();
    assert!(slow.bios.lock().unwrap().is_empty());
}

#[test]
fn who_stays_goes_on() {
    let (slow, driver) = slow();
    driver.give(1, word(op::WRITE), 0, 1);
    let (answer, paused) = mpsc::channel();
    driver.handle.order(Order::Pause(answer));
    slow.end(1, Status::Ok);
    paused.recv().unwrap();
    driver.give(2, word(op::WRITE), 0, 1);
    driver.handle.order(Order::Resume);
    slow.end(1, Status::Ok);
    let mut answers = driver.wait(1);
    while answers.len() < 2 {
        answers.extend(driver.wait(1));
    }
    assert_eq!(answers, [(1, Some(512)), (2, Some(512))]);
    driver.stop();
}

#[test]
fn a_full_queue_gives_slots_back_when_it_leaves() {
    let (slow, driver) = slow();
    (0..DEPTH).for_each(|tag| driver.give(tag, word(op::READ), 0, 1));
    let (answer, paused) = mpsc::channel();
    driver.handle.order(Order::Pause(answer));
    slow.end(DEPTH.into(), Status::Ok);
    paused.recv().unwrap();
    driver.handle.order(Order::End(Nanos::default(), mpsc::channel().0));
    // By a slot that is its own the driver learns that nobody serves any more.
    assert_eq!(driver.wait(DEPTH.into()).len(), usize::from(DEPTH));
    driver.thread.join().unwrap();
}

/// Somebody has stopped the device, and its threads have ended: who asks them to pause is not kept waiting.
#[test]
fn who_has_ended_keeps_nobody_waiting() {
    let driver = Driver::new(memory());
    let handle = driver.handle.clone();
    let (answer, answers) = mpsc::channel();
    driver.stop();
    handle.order(Order::Pause(answer));
    assert_eq!(answers.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}
