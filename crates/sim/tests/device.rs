//! The simulated device at its boundary: what it promises, and that it breaks everything else.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::*;
use udm_sim::*;

fn device(sim: &Sim, sectors: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::new(sim, SimOptions::new(Sectors::new(sectors))))
}

fn io(sim: &Sim, dev: &Arc<SimDevice>) -> BlockingIo {
    BlockingIo::new(&sim.domain(), dev.clone()).unwrap()
}

fn first_bytes(image: &Image, sectors: u64) -> Vec<u8> {
    let mut buf = vec![0; Sectors::new(sectors).as_len()];
    image.read(Sector::ZERO, &mut buf);
    buf.chunks(512).map(|s| s[0]).collect()
}

/// Submits writes of one sector each, all at once, and returns the order in which they completed.
fn shuffled(sim: &Sim, dev: &Arc<SimDevice>, n: u64) -> Vec<u64> {
    let channel = sim.domain().channel().unwrap();
    let on = channel.attach(dev.clone());
    let mut memory: Vec<[u8; 512]> = (0..n).map(|i| [i as u8 + 1; 512]).collect();
    for (i, buf) in memory.iter_mut().enumerate() {
        assert!(unsafe { channel.submit(on, Op::Write, OpFlags::NONE, Sector::new(i as u64), buf, i as u64) });
    }
    let mut order = Vec::new();
    while order.len() < n as usize {
        channel.wait(None, &mut Vec::new()).unwrap();
        channel.poll();
        order.extend(std::iter::from_fn(|| channel.completed()).map(|c| c.token));
    }
    order
}

#[test]
fn a_seed_gives_one_world() {
    let run = |seed| {
        let sim = Sim::new(seed);
        let dev = device(&sim, 64);
        let order = shuffled(&sim, &dev, 32);
        (order, first_bytes(&sim.power_cut()[0], 32), sim.clock().now())
    };
    let (order, image, _) = run(1);
    assert_eq!(run(1), run(1));
    assert_ne!(order, (0..32).collect::<Vec<_>>(), "completed out of order");
    assert_ne!((order, image), (run(2).0, run(2).1));
}

#[test]
fn unflushed_sectors_are_kept_lost_and_torn_and_flushed_ones_are_not() {
    let (mut all, mut none, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..300 {
        let sim = Sim::new(seed);
        let dev = device(&sim, 64);
        let io = io(&sim, &dev);
        io.write(Sector::new(32), &[9; 512 * 8], OpFlags::NONE).unwrap();
        io.flush().unwrap();
        io.write(Sector::ZERO, &[1; 512 * 8], OpFlags::NONE).unwrap();
        io.write(Sector::new(40), &[2; 512], OpFlags::FUA).unwrap();
        io.write(Sector::new(8), &[3; 512], OpFlags::NONE).unwrap();
        assert_eq!(dev.unflushed(), 2);
        let bytes = first_bytes(&sim.power_cut()[0], 64);
        assert_eq!((&bytes[32..41], &bytes[41..]), (&[9, 9, 9, 9, 9, 9, 9, 9, 2][..], &[0; 23][..]));
        match bytes[..8].iter().filter(|b| **b == 1).count() {
            8 => all += 1,
            0 => {
                none += 1;
                reordered += i32::from(bytes[8] == 3);
            }
            _ => torn += 1,
        }
        assert_eq!(io.read(Sector::ZERO, &mut [0; 512]), Err(Status::Gone));
    }
    assert!(all > 30 && none > 30 && torn > 30 && reordered > 10, "{all} {none} {torn} {reordered}");
}

#[test]
fn fua_over_an_unflushed_write_is_never_taken_back() {
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let dev = device(&sim, 64);
        let io = io(&sim, &dev);
        io.write(Sector::ZERO, &[1; 512 * 8], OpFlags::NONE).unwrap();
        io.write(Sector::new(2), &[2; 512 * 2], OpFlags::FUA).unwrap();
        let bytes = first_bytes(&sim.power_cut()[0], 8);
        assert_eq!(bytes[2..4], [2, 2], "seed {seed}");
    }
}

#[test]
fn without_a_cache_what_completed_is_durable() {
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let options = SimOptions { limits: Limits::default(), ..SimOptions::new(Sectors::new(64)) };
        let dev = Arc::new(SimDevice::new(&sim, options));
        io(&sim, &dev).write(Sector::ZERO, &[1; 512 * 64], OpFlags::NONE).unwrap();
        assert_eq!(dev.unflushed(), 0);
        assert_eq!(first_bytes(&sim.power_cut()[0], 64), [1; 64]);
    }
}

#[test]
fn the_power_goes_at_any_write() {
    for n in 1..=5 {
        let sim = Sim::new(n);
        let dev = device(&sim, 64);
        sim.cut_at_write(n);
        let io = io(&sim, &dev);
        for i in 1..=5 {
            let expect = if i < n { Ok(()) } else { Err(Status::Gone) };
            assert_eq!(io.write(Sector::new(i), &[i as u8; 512], OpFlags::FUA), expect, "write {i}, cut at {n}");
        }
        assert!(sim.is_off());
        assert_eq!(sim.writes(), n - 1);
        let bytes = first_bytes(&sim.power_cut()[0], 6);
        for i in 1..=5 {
            let allowed = if i < n { &[i as u8][..] } else { &[0, i as u8] };
            assert!(allowed.contains(&bytes[i as usize]) && (i <= n || bytes[i as usize] == 0), "{n} {i} {bytes:?}");
        }
        // Life goes on from what was left.
        let next = Sim::new(99);
        let dev = SimDevice::with_image(&next, SimOptions::new(Sectors::new(64)), sim.power_cut().remove(0));
        assert_eq!(first_bytes(&dev.content(), 6), bytes);
    }
}

#[test]
fn all_devices_lose_power_together() {
    let sim = Sim::new(7);
    let (a, b) = (device(&sim, 8), device(&sim, 16));
    io(&sim, &a).write(Sector::ZERO, &[1; 512], OpFlags::FUA).unwrap();
    io(&sim, &b).write(Sector::ZERO, &[2; 512], OpFlags::FUA).unwrap();
    let images = sim.power_cut();
    assert_eq!(images.iter().map(|i| first_bytes(i, 1)[0]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(sim.power_cut(), images);
    assert_eq!(io(&sim, &a).flush(), Err(Status::Gone));
}

#[test]
fn faults() {
    let sim = Sim::new(3);
    let dev = device(&sim, 64);
    let io = io(&sim, &dev);
    let (range, one) = (Sector::new(8)..Sector::new(16), [5; 512]);
    dev.inject(Fault::new(Status::Io).on(Op::Write).within(range).after(1).times(2).partial(Sectors::new(3)));
    assert_eq!(io.write(Sector::new(7), &one, OpFlags::NONE), Ok(()), "outside");
    assert_eq!(io.read(Sector::new(8), &mut [0; 512]), Ok(()), "another operation");
    assert_eq!(io.write(Sector::new(7), &[1; 1024], OpFlags::NONE), Ok(()), "the first is let through");
    assert_eq!(io.write(Sector::new(8), &[6; 512 * 8], OpFlags::NONE), Err(Status::Io));
    assert_eq!(first_bytes(&dev.content(), 16)[7..], [1, 6, 6, 6, 0, 0, 0, 0, 0], "done in part");
    assert_eq!(io.write(Sector::new(15), &one, OpFlags::NONE), Err(Status::Io));
    assert_eq!(io.write(Sector::new(15), &one, OpFlags::NONE), Ok(()), "twice only");
    dev.inject(Fault::new(Status::NoSpace).on(Op::Flush));
    assert_eq!(io.flush(), Err(Status::NoSpace));
    assert_ne!(dev.unflushed(), 0, "a flush that failed has flushed nothing");
    dev.heal();
    assert_eq!(io.flush(), Ok(()));
    assert_eq!((dev.unflushed(), dev.durable()), (0, dev.content()));
    assert_eq!(io.write(Sector::new(63), &[0; 1024], OpFlags::NONE), Err(Status::Invalid));
}

#[test]
fn large_and_forgetful() {
    let sim = Sim::new(5);
    let size = Sectors::in_bytes(16 << 40);
    let options = SimOptions { discard_payload: true, ..SimOptions::new(size) };
    let dev = Arc::new(SimDevice::new(&sim, options));
    let io = io(&sim, &dev);
    io.write(Sector::new(size.get() - 2048), &vec![1; 1 << 20], OpFlags::NONE).unwrap();
    io.range(Op::Discard, OpFlags::NONE, Sector::ZERO, size).unwrap();
    let mut back = [9; 512];
    io.read(Sector::new(size.get() - 1), &mut back).unwrap();
    assert_eq!((back, dev.content().allocated(), sim.writes()), ([0; 512], 0, 2));
    assert_eq!(sim.power_cut()[0].allocated(), 0);
}

#[test]
fn no_threads_and_no_hangs() {
    let sim = Sim::new(1);
    assert!(sim.domain().executor().spawn("x", Box::new(|| ())).is_err());
    let channel = sim.domain().channel().unwrap();
    let stuck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        loop {
            channel.wait(None, &mut Vec::new()).unwrap();
        }
    }));
    assert!(stuck.is_err());
}

#[test]
fn timers_move_the_clock() {
    let sim = Sim::new(1);
    let null: NullSpec = "null:latency_us=60000000".parse().unwrap();
    let io = BlockingIo::new(&sim.domain(), Arc::new(NullDevice::new(null).unwrap())).unwrap();
    io.flush().unwrap();
    assert_eq!(sim.clock().now(), Nanos(60_000_000_000), "a minute, at once");
}
