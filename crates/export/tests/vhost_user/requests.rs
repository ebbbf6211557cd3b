//! What a driver asks, and what it gets.

use crate::device::{Recorder, Seen};
use crate::served::*;
use std::sync::Arc;
use udm_base::Sectors;
use udm_export::vhost_user::Mode;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, Kind, Part};
use udm_io::{Limits, Op, OpFlags};

/// Of a message.
const RESET_DEVICE: u32 = 34;

/// In every mode of both sides, what is written is read.
#[test]
fn write_and_read() {
    for mode in [Mode::Interrupt, Mode::Adaptive, Mode::Polled] {
        for (indirect, event_idx, polled) in
            [(true, true, false), (false, false, false), (true, false, true), (false, true, true)]
        {
            let served = Served::new(Arc::new(Sized::new()), Want { mode, ..Want::default() });
            let options = FrontOptions { indirect, event_idx, polled, ..FrontOptions::default() };
            let (front, mut queue) = served.front_with(options);
            let case = format!("{mode:?} indirect {indirect} event_idx {event_idx} polled {polled}");
            for round in 0..80u64 {
                let bytes: Vec<u8> = (0..4096).map(|i| (i as u64 + round * 7) as u8).collect();
                assert_eq!(write(&front, &mut queue, round * 8, &bytes), 0, "{case}");
                assert!(read(&front, &mut queue, round * 8, 4096) == bytes, "{case} round {round}");
            }
        }
    }
}

/// As many as the ring holds, on every queue at once, from a thread each.
#[test]
fn many_queues_at_depth() {
    let served = Served::memory();
    let options = FrontOptions { queues: 4, memory: 4 << 20, ..FrontOptions::default() };
    let (front, queues) = FrontEnd::connect(&served.path, options).unwrap();
    let front = &front;
    std::thread::scope(|scope| {
        for (number, mut queue) in queues.into_iter().enumerate() {
            scope.spawn(move || {
                let (depth, base) = (queue.depth() as u64, number as u64 * (1 << 20));
                for round in 0..20u64 {
                    let data = |slot: u64| part(front, base + slot * 4096, 4096);
                    let sector = |slot: u64| (base + slot * 4096) / 512;
                    for slot in 0..depth {
                        let bytes = vec![(slot + round + number as u64) as u8; 4096];
                        front.memory().write(front.data() + base + slot * 4096, &bytes);
                        assert!(queue.submit(Kind::Write, sector(slot), &[data(slot)], slot));
                    }
                    assert!(!queue.submit(Kind::Flush, 0, &[], 0), "the ring is full");
                    (0..depth).for_each(|_| assert_eq!(next(&mut queue).status, 0));
                    for slot in 0..depth {
                        front.memory().write(front.data() + base + slot * 4096, &[0; 4096]);
                        assert!(queue.submit(Kind::Read, sector(slot), &[data(slot)], slot));
                    }
                    for _ in 0..depth {
                        let done = next(&mut queue);
                        let bytes = front.memory().read(front.data() + base + done.token * 4096, 4096);
                        let expect = (done.token + round + number as u64) as u8;
                        assert!(done.status == 0 && bytes.iter().all(|b| *b == expect), "queue {number}: {done:?}");
                    }
                }
            });
        }
    });
}

/// Data in several parts of any length and alignment.
#[test]
fn scattered() {
    let served = Served::memory();
    let (front, mut queue) = served.front();
    let lens = [1, 4095, 512, 3, 7, 2030, 1544];
    let mut at = 5;
    let parts: Vec<Part> = lens
        .iter()
        .map(|len| {
            let part = part(&front, at, *len);
            at += u64::from(*len) + 13;
            part
        })
        .collect();
    let bytes: Vec<u8> = (0..8192u32).map(|i| (i * 31 / 7) as u8).collect();
    let mut done = 0;
    for part in &parts {
        let offset = part.guest - front.memory().guest();
        front.memory().write(offset, &bytes[done..done + part.len as usize]);
        done += part.len as usize;
    }
    assert_eq!(done, 8192);
    assert_eq!(perform(&mut queue, Kind::Write, 40, &parts).status, 0);
    assert!(read(&front, &mut queue, 40, 8192) == bytes);
    for part in &parts {
        front.memory().write(part.guest - front.memory().guest(), &vec![0; part.len as usize]);
    }
    assert_eq!(perform(&mut queue, Kind::Read, 40, &parts).status, 0);
    let back: Vec<u8> =
        parts.iter().flat_map(|p| front.memory().read(p.guest - front.memory().guest(), p.len as usize)).collect();
    assert!(back == bytes);
}

#[test]
fn what_is_told() {
    let limits = Limits {
        logical_block_size: 4096,
        physical_block_size: 4096,
        max_discard: Sectors::new(1 << 20),
        ..Limits::default()
    };
    let served = Served::new(Arc::new(Recorder::new(SIZE, limits)), Want::default());
    let (front, mut queue) = served.front();
    let config = *front.config();
    assert_eq!((config.sectors.bytes(), config.block_size, config.queues), (SIZE, 4096, 4));
    assert_eq!((config.seg_max, config.max_discard, config.read_only), (126, 1 << 20, false));
    let done = perform(&mut queue, Kind::Id, 0, &[part(&front, 0, 20)]);
    assert_eq!((done.status, done.written), (0, 21));
    assert_eq!(front.memory().read(front.data(), 20), b"disk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

    let without = Limits { max_discard: Sectors::ZERO, ..Limits::default() };
    let served = Served::new(Arc::new(Recorder::new(SIZE, without)), Want::default());
    let (front, _queue) = served.front();
    assert_eq!(front.config().max_discard, 0);
}

/// Each operation as the device sees it.
#[test]
fn operations() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (front, mut queue) = served.front();
    let mut check = |what: Kind, data: &[u8], expect: u8, seen: &[(Op, u64, u64, OpFlags)]| {
        recorder.seen.lock().unwrap().clear();
        front.memory().write(front.data(), data);
        let parts = [part(&front, 0, data.len() as u32)];
        let done = perform(&mut queue, what, 8, if data.is_empty() { &[] } else { &parts });
        assert_eq!(done.status, expect, "{what:?}");
        let seen: Vec<_> = seen
            .iter()
            .map(|(op, sector, sectors, flags)| Seen { op: *op, flags: *flags, sector: *sector, sectors: *sectors })
            .collect();
        assert_eq!(*recorder.seen.lock().unwrap(), seen, "{what:?}");
    };
    let none = OpFlags::NONE;
    check(Kind::Flush, &[], 0, &[(Op::Flush, 0, 0, none)]);
    check(Kind::Write, &[1; 512], 0, &[(Op::Write, 8, 1, none)]);
    check(Kind::Discard, &range(64, 8, 0), 0, &[(Op::Discard, 64, 8, none)]);
    check(Kind::WriteZeroes, &range(64, 8, 0), 0, &[(Op::WriteZeroes, 64, 8, OpFlags::NO_UNMAP)]);
    check(Kind::WriteZeroes, &range(64, 8, 1), 0, &[(Op::WriteZeroes, 64, 8, none)]);
    let two = [range(0, 8, 0), range(100, 1, 0)].concat();
    check(Kind::Discard, &two, 0, &[(Op::Discard, 0, 8, none), (Op::Discard, 100, 1, none)]);
    check(Kind::Discard, &range(5, 0, 0), 0, &[]);
    check(Kind::Flush, &[], 0, &[(Op::Flush, 0, 0, none)]);
    // What is wrong never reaches the device.
    check(Kind::Discard, &range(64, 8, 1), 2, &[]);
    check(Kind::WriteZeroes, &range(64, 8, 2), 2, &[]);
    check(Kind::Discard, &range(SIZE / 512, 1, 0), 1, &[]);
    check(Kind::Discard, &range(u64::MAX, 1, 0), 1, &[]);
    check(Kind::Discard, &[0; 17], 1, &[]);
    check(Kind::Discard, &[0; 16 * 65], 1, &[]);
    check(Kind::Discard, &[], 1, &[]);
    check(Kind::Write, &[], 1, &[]);
    check(Kind::Write, &[1; 513], 1, &[]);
    check(Kind::Other(99), &[1; 512], 2, &[]);
    // The first range is done, the second is refused: so is the request.
    let half = [range(0, 8, 0), range(SIZE / 512, 1, 0)].concat();
    check(Kind::Discard, &half, 1, &[(Op::Discard, 0, 8, none)]);
}

/// A driver that knows of no cache has its writes durable at once.
#[test]
fn write_through() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (front, mut queue) = served.front_with(FrontOptions { write_through: true, ..FrontOptions::default() });
    assert_eq!(write(&front, &mut queue, 8, &[1; 512]), 0);
    front.memory().write(front.data(), &range(64, 8, 1));
    assert_eq!(perform(&mut queue, Kind::WriteZeroes, 0, &[part(&front, 0, 16)]).status, 0);
    let seen = recorder.seen.lock().unwrap();
    assert!(seen.len() == 2 && seen.iter().all(|s| s.flags.contains(OpFlags::FUA)), "{seen:?}");
}

/// Firmware that knows of no cache, then a system that does, and the other way round: each has what it agreed upon,
/// also by the next server.
#[test]
fn drivers_that_follow_each_other() {
    for passes in [false, true] {
        let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
        let mut served = Served::new(recorder.clone(), Want::default());
        let (mut front, mut queue) = served.front_with(FrontOptions { write_through: true, ..FrontOptions::default() });
        for write_through in [true, false, true, false] {
            front.change_driver(write_through).unwrap();
            if passes {
                served.pass_on();
            }
            recorder.seen.lock().unwrap().clear();
            assert_eq!(write(&front, &mut queue, 8, &[1; 512]), 0);
            let flags = if write_through { OpFlags::FUA } else { OpFlags::NONE };
            let seen = recorder.seen.lock().unwrap().iter().map(|s| (s.op, s.flags)).collect::<Vec<_>>();
            assert_eq!(seen, [(Op::Write, flags)], "write-through {write_through}, passed on {passes}");
        }
    }
}

/// Features hold for as long as a queue runs, and what was not agreed upon is not done.
#[test]
fn features_and_queues() {
    const DISCARD: u64 = 1 << 13;
    const WRITE_ZEROES: u64 = 1 << 14;
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    let all = front.features();
    front.set_features(all).unwrap();
    assert!(front.set_features(all & !DISCARD).is_err(), "a queue runs");
    front.memory().write(front.data(), &range(64, 8, 0));
    let mut ask = |front: &FrontEnd, kind| perform(&mut queue, kind, 0, &[part(front, 0, 16)]).status;
    assert_eq!((ask(&front, Kind::Discard), ask(&front, Kind::WriteZeroes)), (0, 0));
    let base = front.stop_ring(0).unwrap();
    front.set_features(all & !DISCARD & !WRITE_ZEROES).unwrap();
    front.start_ring(0, base).unwrap();
    recorder.seen.lock().unwrap().clear();
    assert_eq!((ask(&front, Kind::Discard), ask(&front, Kind::WriteZeroes)), (2, 2), "unsupported");
    assert!(recorder.seen.lock().unwrap().is_empty());
    // After a reset nothing is agreed upon.
    front.tell(RESET_DEVICE, &[], &[]).unwrap();
    assert!(front.start_ring(0, base + 2).is_err(), "it has no features yet");
    front.set_features(all).unwrap();
    front.start_ring(0, base + 2).unwrap();
    assert_eq!(ask(&front, Kind::Discard), 0);
}

/// A table without discards is loaded between the greeting and the driver: what was offered still is.
#[test]
fn what_was_offered_stays_so() {
    let device = Arc::new(Sized::new());
    let served = Served::new(device.clone(), Want::default());
    let (mut front, mut queue) = served.front();
    device.forbid_discards();
    front.change_driver(false).unwrap();
    assert_eq!(write(&front, &mut queue, 8, &[1; 512]), 0);
}

#[test]
fn places() {
    let served = Served::memory();
    let (front, mut queue) = served.front();
    let last = SIZE / 512 - 1;
    for (sector, sectors, status) in
        [(last, 1, 0), (last, 2, 1), (last + 1, 1, 1), (u64::MAX, 1, 1), (1 << 54, 1, 1), ((1 << 54) - 1, 1, 1)]
    {
        for what in [Kind::Read, Kind::Write] {
            let done = perform(&mut queue, what, sector, &[part(&front, 0, 512 * sectors)]);
            assert_eq!(done.status, status, "{what:?} {sectors} at {sector}");
        }
    }
}

#[test]
fn read_only() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want { read_only: true, ..Want::default() });
    let (front, mut queue) = served.front();
    assert!(front.config().read_only);
    front.memory().write(front.data(), &range(0, 1, 0));
    for (what, len) in [(Kind::Write, 512), (Kind::Discard, 16), (Kind::WriteZeroes, 16)] {
        assert_eq!(perform(&mut queue, what, 0, &[part(&front, 0, len)]).status, 1, "{what:?}");
    }
    assert!(recorder.seen.lock().unwrap().is_empty());
    read(&front, &mut queue, 0, 4096);
}

/// A device that has bios out while others complete: the driver hears of each, whatever the order.
#[test]
fn out_of_order() {
    let recorder = Arc::new(Recorder::new(SIZE, Limits::default()));
    let served = Served::new(recorder.clone(), Want::default());
    let (front, mut queue) = served.front();
    recorder.hold();
    for token in 0..10 {
        assert!(queue.submit(Kind::Read, token, &[part(&front, token * 512, 512)], token));
    }
    queue.kick();
    recorder.await_held(10);
    recorder.release_in_reverse();
    let mut tokens: Vec<u64> = (0..10).map(|_| next(&mut queue).token).collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..10));
}
