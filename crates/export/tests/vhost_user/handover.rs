//! Front ends that go on in another server, and notice nothing.

use crate::device::Recorder;
use crate::served::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use udm_export::vhost_user::Mode;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, FrontQueue, Kind, Part};
use udm_io::Limits;

/// Requests at a time of one queue, and sectors that it has for itself.
const DEPTH: u64 = 16;
const SECTORS: u64 = 1024;

/// Writes and reads blocks of 4096 bytes at sectors from `first` on, many at a time, and checks each that it reads,
/// until `done`. Counts what is answered.
fn load(
    queue: &mut FrontQueue,
    data: &[(u64, Part)],
    front: &FrontEnd,
    first: u64,
    done: &AtomicBool,
    count: &AtomicU64,
) {
    let mut there: BTreeMap<u64, u8> = BTreeMap::new();
    let mut out: BTreeMap<u64, (u64, Option<u8>)> = BTreeMap::new();
    let mut number = 0u64;
    while !done.load(Ordering::Acquire) || !out.is_empty() {
        for (slot, (at, part)) in data.iter().enumerate() {
            let sector = first + number * 40 % SECTORS / 8 * 8;
            let is_busy = out.contains_key(&(slot as u64)) || out.values().any(|(busy, _)| *busy == sector);
            if done.load(Ordering::Acquire) || is_busy {
                continue;
            }
            let writes = number.is_multiple_of(3) || !there.contains_key(&sector);
            let byte = (number % 251) as u8 + 1;
            front.memory().write(*at, &[if writes { byte } else { 0 }; 4096]);
            let kind = if writes { Kind::Write } else { Kind::Read };
            assert!(queue.submit(kind, sector, &[*part], slot as u64));
            out.insert(slot as u64, (sector, writes.then_some(byte)));
            number += 1;
        }
        queue.kick();
        while let Some(answer) = queue.completed() {
            assert_eq!(answer.status, 0);
            let (sector, wrote) = out.remove(&answer.token).expect("each is answered once");
            match wrote {
                Some(byte) => drop(there.insert(sector, byte)),
                None => {
                    let found = front.memory().read(data[answer.token as usize].0, 4096);
                    assert!(found.iter().all(|b| *b == there[&sector]), "sector {sector}");
                }
            }
            count.fetch_add(1, Ordering::Release);
        }
        if !out.is_empty() {
            queue.wait(Duration::from_secs(60)).unwrap();
        }
    }
}

/// Several queues under a load that checks what it reads, while one server passes to the next, again and again; with
/// memory that was added later, with and without memory for what is in flight.
#[test]
fn under_load() {
    for (mode, inflight, indirect) in
        [(Mode::Interrupt, true, true), (Mode::Adaptive, false, true), (Mode::Polled, true, false)]
    {
        let device = Arc::new(Sized::new());
        let mut served = Served::new(device.clone(), Want { mode, ..Want::default() });
        let options = FrontOptions { queues: 3, inflight, indirect, ..FrontOptions::default() };
        let (mut front, queues) = FrontEnd::connect(&served.path, options).unwrap();
        let added = front.add_memory(1 << 20, 1 << 40).unwrap();
        let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for (number, mut queue) in queues.into_iter().enumerate() {
                let base = number as u64 * DEPTH * 4096;
                let at = |slot: u64| front.data() + base + slot * 4096;
                let data: Vec<(u64, Part)> =
                    (0..DEPTH).map(|slot| (at(slot), part(&front, base + slot * 4096, 4096))).collect();
                let (front, done, count) = (&front, &done, &count);
                let first = number as u64 * SECTORS;
                scope.spawn(move || load(&mut queue, &data, front, first, done, count));
            }
            for _ in 0..12 {
                let before = count.load(Ordering::Acquire);
                until("the load goes on", || count.load(Ordering::Acquire) > before + 300);
                served.pass_on();
            }
            let before = count.load(Ordering::Acquire);
            until("the load goes on", || count.load(Ordering::Acquire) > before + 300);
            done.store(true, Ordering::Release);
        });
        assert!(!front.has_hung_up(), "{mode:?}");
        assert_eq!(served.open.load(Ordering::SeqCst), 1, "open once, by the server of now");
        // What it says is heard as before, on both sockets.
        front.remove_memory(&added).unwrap();
        device.resize(SIZE / 1024);
        assert!(front.wait_for_change(Duration::from_secs(30)).unwrap());
        front.reload_config().unwrap();
        assert_eq!(front.config().sectors.get(), SIZE / 1024);
        // A server that ends finds the front end again.
        served.stop();
        until("the front end to be hung up on", || front.has_hung_up());
    }
}

/// A request that was submitted to nobody, a message of which half was said, and a ring that does not run.
#[test]
fn in_the_middle() {
    let mut served = Served::memory();
    let options = FrontOptions { queues: 2, ..FrontOptions::default() };
    let (mut front, mut queues) = FrontEnd::connect(&served.path, options).unwrap();
    assert_eq!(write(&front, &mut queues[0], 0, &[1; 4096]), 0);
    let base = front.stop_ring(1).unwrap();
    served.pass_on_while(|| {
        assert!(queues[0].submit(Kind::Read, 0, &[part(&front, 65536, 4096)], 5));
        queues[0].kick();
        // So that the next server has to wake somebody, whom it knows of by the last one only.
        std::thread::yield_now();
    });
    assert_eq!(next(&mut queues[0]).token, 5);
    assert_eq!(front.memory().read(front.data() + 65536, 4096), [1; 4096]);
    front.start_ring(1, base).unwrap();
    assert_eq!(write(&front, &mut queues[1], 8, &[2; 4096]), 0);

    // A message in two halves: GET_FEATURES has no body, a memory region has one and a file.
    let message = [37u32, 9, 40].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    for cut in [0, 3, 12, 20] {
        let mut body = message.clone();
        body.extend([0u64, 1 << 41, 0, 1 << 41, 0].iter().flat_map(|w| w.to_ne_bytes()));
        front.say(&body[..cut]).unwrap();
        served.pass_on();
        front.say(&body[cut..]).unwrap();
        // A region without a file is refused, and the connection goes on.
        assert!(front.hear().unwrap() != 0, "{cut}");
        assert_eq!(write(&front, &mut queues[0], 0, &[3; 4096]), 0);
    }
}

/// A front end may say by what it wants to be told while a queue runs, as QEMU does when a driver masks its interrupt:
/// by that it is told after the queue was stopped for a while, and by the next server.
#[test]
fn told_by_the_last_bell() {
    const SET_VRING_CALL: u32 = 13;
    const SET_VRING_ENABLE: u32 = 18;
    let mut served = Served::memory();
    let (mut front, _queue) = served.front();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    // A queue that starts tells the driver once, in case that the server before it did not.
    let rings = |what: &str| {
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&patience)), Ok(1), "not told: {what}");
        assert_eq!(rustix::io::read(&bell, &mut [0u8; 8]), Ok(8));
    };
    front.tell(SET_VRING_CALL, &0u64.to_ne_bytes(), &[bell.as_fd()]).unwrap();
    rings("it was given");
    for on in [0u32, 1] {
        let state: Vec<u8> = [0, on].iter().flat_map(|word| word.to_ne_bytes()).collect();
        front.tell(SET_VRING_ENABLE, &state, &[]).unwrap();
    }
    rings("the queue was stopped and started");
    served.pass_on();
    rings("the next server");
}

/// Nobody is connected; and somebody comes while nobody listens.
#[test]
fn without_a_front_end() {
    let mut served = Served::memory();
    served.pass_on();
    let path = served.path.clone();
    let (sent, came) = std::sync::mpsc::channel();
    let mut thread = None;
    served.pass_on_while(|| {
        thread = Some(std::thread::spawn(move || {
            sent.send(()).unwrap();
            FrontEnd::connect(&path, FrontOptions::default()).map(|_| ())
        }));
        came.recv().unwrap();
    });
    thread.unwrap().join().unwrap().unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&served.path).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(stream);
    served.pass_on();
    let (front, mut queue) = served.front();
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
}

/// A device that does not finish: the server goes on as before.
#[test]
fn a_pause_that_fails() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let options = FrontOptions { queues: 2, ..FrontOptions::default() };
    let (front, mut queues) = FrontEnd::connect(&served.path, options).unwrap();
    recorder.hold();
    assert!(queues[0].submit(Kind::Read, 0, &[part(&front, 0, 512)], 1));
    queues[0].kick();
    recorder.await_held(1);
    let server = served.server.as_ref().unwrap();
    assert!(!server.pause(Duration::from_millis(1)));
    // Both queues take what comes.
    assert!(queues[0].submit(Kind::Read, 8, &[part(&front, 4096, 512)], 2));
    queues[0].kick();
    recorder.await_held(2);
    assert!(queues[1].submit(Kind::Read, 16, &[part(&front, 8192, 512)], 3));
    queues[1].kick();
    recorder.await_held(3);
    recorder.release_in_reverse();
    let mut tokens = [next(&mut queues[0]).token, next(&mut queues[0]).token];
    tokens.sort_unstable();
    assert_eq!((tokens, next(&mut queues[1]).token), ([1, 2], 3));
    // And once more, with nothing in the way.
    assert!(server.pause(Duration::from_secs(60)));
    assert!(queues[0].submit(Kind::Flush, 0, &[], 4));
    queues[0].kick();
    server.resume();
    assert_eq!(next(&mut queues[0]).token, 4);
}

/// What another process says is checked.
#[test]
fn what_is_wrong_is_refused() {
    let mut served = Served::memory();
    let (_front, _queue) = served.front();
    let server = served.server.take().unwrap();
    assert!(server.pause(Duration::from_secs(60)));
    let handed = server.hand_over().unwrap();
    let session = handed.session.unwrap();
    let good = serde_json::to_value(&session.state).unwrap();
    let prepare = |change: &dyn Fn(&mut serde_json::Value), input: &[u8], fds: usize| {
        let mut state = good.clone();
        change(&mut state);
        let state = serde_json::from_value(state).map_err(|e| e.to_string())?;
        let fds = session.fds.iter().map(|fd| fd.try_clone().unwrap()).take(fds).collect();
        served.prepare(udm_export::vhost_user::HandedSession { state, input: input.to_vec(), fds })
    };
    let all = session.fds.len();
    let nothing = |_: &mut serde_json::Value| {};
    assert!(prepare(&nothing, &[], all).is_ok());
    assert!(prepare(&nothing, &[], all - 1).is_err(), "a descriptor is missing");
    assert!(prepare(&nothing, &[0; 12], all).is_err(), "no message begins so");
    assert!(prepare(&nothing, &[1; 5000], all).is_err(), "longer than a message");
    type Change<'a> = (&'a str, &'a dyn Fn(&mut serde_json::Value));
    let changes: [Change<'_>; 8] = [
        ("fewer descriptors than came", &|s| s["backend"] = false.into()),
        ("no queues", &|s| s["vrings"] = serde_json::json!([])),
        ("a size that cannot be", &|s| s["vrings"][0]["size"] = 100.into()),
        ("a size beyond the most", &|s| s["vrings"][0]["size"] = 512.into()),
        ("memory beyond the file", &|s| s["regions"][0]["size"] = (1u64 << 40).into()),
        ("memory in flight beyond the most", &|s| s["inflight"]["bytes"] = (1u64 << 40).into()),
        ("an unknown field", &|s| s["more"] = 1.into()),
        ("descriptors of a message that is none", &|s| s["input_fds"] = 1000.into()),
    ];
    for (what, change) in changes {
        assert!(prepare(change, &[], all).is_err(), "{what}");
    }
    assert_eq!(served.open.load(Ordering::SeqCst), 0);
}
