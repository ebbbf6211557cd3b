//! Front ends, servers, memory and sizes that come and go.

use crate::device::Recorder;
use crate::served::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use udm_base::Sectors;
use udm_export::vhost_user::front::{FrontEnd, FrontError, FrontOptions, Kind, Part};
use udm_export::vhost_user::{Mode, Server};
use udm_io::{Limits, Op};
use udm_testing::Sleeper;

#[test]
fn a_resize_is_told() {
    let device = Arc::new(Sized::new());
    let served = Served::new(device.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    let half = SIZE / 1024;
    device.resize(half);
    assert!(front.wait_for_change(Duration::from_secs(30)).unwrap());
    front.reload_config().unwrap();
    assert_eq!(front.config().sectors, Sectors::new(half));
    device.resize(half * 2);
    assert!(front.wait_for_change(Duration::from_secs(30)).unwrap());
    assert_eq!(write(&front, &mut queue, half * 2 - 8, &[3; 4096]), 0, "it grew");
}

/// A server ends with requests out; the next one does them again, in their order, and nothing is lost or done twice at
/// a time.
#[test]
fn what_was_in_flight_is_done_by_the_next_server() {
    for mode in [Mode::Interrupt, Mode::Adaptive, Mode::Polled] {
        let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
        let mut served = Served::new(recorder.clone(), Want { mode, ..Want::default() });
        let (mut front, mut queue) = served.front();
        assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
        recorder.hold();
        let order = [40, 8, 24, 16, 32];
        for (number, sector) in order.into_iter().enumerate() {
            let offset = number as u64 * 512;
            front.memory().write(front.data() + offset, &[number as u8 + 10; 512]);
            assert!(queue.submit(Kind::Write, sector, &[part(&front, offset, 512)], sector));
            queue.kick();
            recorder.await_held(number + 1);
        }
        served.stop();
        until("the front end to be hung up on", || front.has_hung_up());
        assert_eq!(queue.completed(), None, "nothing is answered for a server that has gone");
        // Submitted while nobody listens.
        assert!(queue.submit(Kind::Flush, 0, &[], 99));
        recorder.release_in_reverse();
        recorder.seen.lock().unwrap().clear();
        served.start();
        front.reconnect(&served.path).unwrap();
        let mut tokens: Vec<u64> = (0..6).map(|_| next(&mut queue).token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [8, 16, 24, 32, 40, 99], "{mode:?}");
        let seen: Vec<_> = recorder.seen.lock().unwrap().iter().map(|s| (s.op, s.sector)).collect();
        let again: Vec<_> = order.iter().map(|sector| (Op::Write, *sector)).collect();
        assert_eq!(seen[..5], again, "{mode:?}: the oldest first");
        assert_eq!(seen[5], (Op::Flush, 0));
        for (number, sector) in order.into_iter().enumerate() {
            assert!(read(&front, &mut queue, sector, 512).iter().all(|b| *b == number as u8 + 10));
        }
    }
}

/// A front end that comes back is not served before what it left behind is done.
#[test]
fn a_front_end_comes_back() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (front, mut queue) = served.front();
    recorder.hold();
    assert!(queue.submit(Kind::Write, 0, &[part(&front, 0, 512)], 1));
    queue.kick();
    recorder.await_held(1);
    drop((front, queue));
    let path = served.path.clone();
    let (waits, connecting) = Sleeper::new();
    let next_one = std::thread::spawn(move || {
        waits.now();
        FrontEnd::connect(&path, FrontOptions::default()).map(|(f, mut q)| (f, q.remove(0)))
    });
    // It stands in the queue: its export is not opened while the first is open.
    connecting.until_asleep();
    assert_eq!((served.open.load(Ordering::SeqCst), recorder.held()), (1, 1));
    recorder.release_in_reverse();
    let (front, mut queue) = next_one.join().unwrap().unwrap();
    assert_eq!(write(&front, &mut queue, 0, &[9; 512]), 0);
    drop((front, queue));
    until("the export to be closed", || served.open.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_second_front_end_is_refused() {
    let served = Served::memory();
    let (front, mut queue) = served.front();
    match FrontEnd::connect(&served.path, FrontOptions::default()) {
        Err(FrontError::Closed | FrontError::System(..)) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("two have the disk"),
    }
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0, "the first does not notice");
    assert!(served.server.as_ref().unwrap().is_connected());
    drop((front, queue));
    assert!(served.server.as_ref().unwrap().reap_hangups());
    assert_eq!(served.open.load(Ordering::SeqCst), 0, "reaped when that was asked for");
    let (front, mut queue) = served.front();
    assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
}

#[test]
fn memory_comes_and_goes() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    let guest = 1 << 40;
    let more = front.add_memory(1 << 20, guest).unwrap();
    more.write(4096, &[5; 4096]);
    let there = [Part { guest: guest + 4096, len: 4096 }];
    assert_eq!(perform(&mut queue, Kind::Write, 0, &there).status, 0);
    assert!(read(&front, &mut queue, 0, 4096).iter().all(|b| *b == 5));
    // Beside another: a request that goes over the border.
    let beside = front.add_memory(1 << 20, guest + (1 << 20)).unwrap();
    let border = [Part { guest: guest + (1 << 20) - 2048, len: 4096 }];
    assert_eq!(perform(&mut queue, Kind::Read, 0, &border).status, 0);
    assert_eq!((more.read((1 << 20) - 2048, 2048), beside.read(0, 2048)), (vec![5; 2048], vec![5; 2048]));
    // Taken away while a request is out in it: the mapping stays until the request is done.
    recorder.hold();
    assert!(queue.submit(Kind::Read, 0, &[Part { guest, len: 4096 }], 3));
    queue.kick();
    recorder.await_held(1);
    front.remove_memory(&more).unwrap();
    recorder.release_in_reverse();
    assert_eq!(next(&mut queue).status, 0);
    assert_eq!(more.read(0, 4096), vec![5; 4096]);
    assert_eq!(perform(&mut queue, Kind::Read, 0, &[Part { guest: guest + (1 << 20), len: 512 }]).status, 0);
    assert!(front.remove_memory(&more).is_err(), "it is not there any more");
    assert!(front.add_memory(4096, guest + (1 << 20) + 4096).is_err(), "regions must not overlap");
    // What names memory that is gone breaks the queue.
    assert!(queue.submit(Kind::Read, 0, &[Part { guest, len: 512 }], 4));
    queue.kick();
    until("the front end to be hung up on", || front.has_hung_up());
}

/// No front end waits to be hung up on until requests of another one are done.
#[test]
fn several_end_together() {
    let recorders = [(); 3].map(|()| Arc::new(Recorder::new(SIZE, Limits::default())));
    let all = recorders.each_ref().map(|recorder| Served::new(recorder.clone(), Want::default()));
    let mut fronts = all.each_ref().map(Served::front);
    for (recorder, (front, queue)) in recorders.iter().zip(&mut fronts) {
        recorder.hold();
        assert!(queue.submit(Kind::Write, 0, &[part(front, 0, 512)], 1));
        queue.kick();
        recorder.await_held(1);
    }
    let servers = || all.iter().filter_map(|served| served.server.as_ref());
    // Each would wait in vain; all go on afterwards.
    assert!(Server::pause_all(servers(), Duration::ZERO).is_err_and(|loud| servers().any(|s| std::ptr::eq(s, loud))));
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| Server::shut_down_all(servers(), Duration::from_secs(60)));
        until("all to be hung up on", || fronts.iter_mut().all(|(front, _)| front.has_hung_up()));
        assert!(!ended.is_finished(), "requests are out");
        recorders.iter().for_each(|recorder| recorder.release_in_reverse());
        ended.join().unwrap();
    });
    assert!(all.iter().all(|served| served.open.load(Ordering::SeqCst) == 0));
}

/// A queue that is stopped takes nothing, and goes on where it was.
#[test]
fn stop_and_go() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    for round in 0..3u16 {
        assert_eq!(write(&front, &mut queue, 0, &[1; 512]), 0);
        assert!(queue.submit(Kind::Flush, 0, &[], 1));
        queue.ring();
        let base = front.stop_ring(0).unwrap();
        assert!(base == round * 2 + 1 || base == round * 2 + 2, "{base} in round {round}");
        front.start_ring(0, base).unwrap();
        assert_eq!(next(&mut queue).token, 1);
    }
    // Stopping waits for what is out.
    recorder.hold();
    assert!(queue.submit(Kind::Read, 0, &[part(&front, 0, 512)], 5));
    queue.kick();
    recorder.await_held(1);
    std::thread::scope(|scope| {
        let (waits, stopping) = Sleeper::new();
        let stopped = scope.spawn(|| {
            waits.now();
            front.stop_ring(0).unwrap()
        });
        stopping.until_asleep();
        assert!(!stopped.is_finished());
        recorder.release_in_reverse();
        assert_eq!(stopped.join().unwrap(), 7);
    });
    assert_eq!(queue.completed().unwrap().token, 5);
}

/// The queue goes on while the memory table is sent again.
#[test]
fn more_memory_under_load() {
    let served = Served::memory();
    let (mut front, mut queue) = served.front();
    let data = [part(&front, 0, 4096)];
    std::thread::scope(|scope| {
        let load = scope
            .spawn(|| (0..20_000).for_each(|n| assert_eq!(perform(&mut queue, Kind::Read, n % 64, &data).status, 0)));
        let mut added = Vec::new();
        let mut n = 0u64;
        while !load.is_finished() {
            added.push(front.add_memory(4096, (1 << 40) + n * 4096).unwrap());
            n += 1;
            if added.len() > 4 {
                front.remove_memory(&added.remove(0)).unwrap();
            }
        }
    });
}
