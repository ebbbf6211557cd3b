//! The null device at its boundary: inline, by timer, polled, shared by channels, with memory and without.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use udm_base::{Sector, Sectors};
use udm_io::*;

/// A clock that tests move.
#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::SeqCst))
    }
}

fn null(spec: &str) -> Arc<dyn BlockDevice> {
    Arc::new(NullDevice::new(spec.parse().unwrap()).unwrap())
}

fn domain() -> (Domain, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    (DomainBuilder::default().clock(hand.clone()).build(), hand)
}

fn drain(channel: &Channel) -> usize {
    channel.poll();
    std::iter::from_fn(|| channel.completed()).inspect(|c| assert_eq!(c.status, Status::Ok)).count()
}

fn submit(channel: &Channel, dev: Attached, flags: OpFlags, n: u64) {
    for token in 0..n {
        assert!(channel.submit_range(dev, Op::Discard, flags, Sector::new(token), Sectors::new(1), token));
    }
}

#[test]
fn memory_keeps_and_without_memory_reads_show_nothing_old() {
    let domain = Domain::default();
    for (spec, expect) in [("null:size=64K:memory=1", [0, 7]), ("null:size=64K", [0, 0])] {
        let io = BlockingIo::new(&domain, null(spec)).unwrap();
        let mut buf = [9; 512];
        io.read(Sector::new(127), &mut buf).unwrap();
        assert_eq!(buf, [expect[0]; 512], "{spec}");
        io.write(Sector::new(127), &[7; 512], OpFlags::FUA).unwrap();
        io.flush().unwrap();
        buf.fill(9);
        io.read(Sector::new(127), &mut buf).unwrap();
        assert_eq!(buf, [expect[1]; 512], "{spec}");
        assert_eq!(io.read(Sector::new(128), &mut buf), Err(Status::Invalid), "{spec}");
    }
    let channel = domain.channel().unwrap();
    let dev = channel.attach(null("null:size=64K"));
    let mut buf = [9; 512];
    // SAFETY: null without latency ends the bio before `submit` returns.
    assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::SCRATCH, Sector::ZERO, &mut buf, 0) });
    assert_eq!(buf, [9; 512], "memory that nobody minds is left as it is");
}

#[test]
fn without_latency_it_completes_at_once_and_with_it_by_a_timer() {
    let (domain, hand) = domain();
    let channel = domain.channel().unwrap();
    let at_once = channel.attach(null("null:size=1M"));
    submit(&channel, at_once, OpFlags::NONE, 3);
    assert_eq!(drain(&channel), 3);
    let late = channel.attach(null("null:size=1M:latency_us=5"));
    // HIPRI where there is no poll queue is served in interrupt mode.
    submit(&channel, late, OpFlags::HIPRI, 3);
    assert_eq!(drain(&channel), 0);
    hand.0.store(4_999, Ordering::SeqCst);
    assert_eq!(drain(&channel), 0);
    hand.0.store(5_000, Ordering::SeqCst);
    assert_eq!(drain(&channel), 3);
}

#[test]
fn polled_bios_complete_when_polled_after_their_time() {
    for (spec, due) in [("null:poll_queues=1:latency_us=5", 5_000), ("null:poll_queues=1", 0)] {
        let (domain, hand) = domain();
        let channel = domain.channel().unwrap();
        let dev = channel.attach(null(spec));
        submit(&channel, dev, OpFlags::HIPRI, 100);
        assert_eq!(channel.outstanding(), 100);
        hand.0.store(due, Ordering::SeqCst);
        assert_eq!(channel.outstanding(), 100, "{spec}: only a poll completes it");
        // A channel with polled bios does not sleep.
        channel.wait(None, &mut Vec::new()).unwrap();
        assert_eq!(drain(&channel), 100, "{spec}");
        submit(&channel, dev, OpFlags::NONE, 1);
        hand.0.store(due * 2, Ordering::SeqCst);
        assert_eq!(drain(&channel), 1, "{spec}: interrupt mode beside it");
    }
}

#[test]
fn a_poller_completes_what_another_channel_submitted_to_the_shared_queue() {
    let (domain, _) = domain();
    let dev = null("null:poll_queues=1");
    let (a, b) = (domain.channel().unwrap(), domain.channel().unwrap());
    let (on_a, on_b) = (a.attach(dev.clone()), b.attach(dev));
    submit(&a, on_a, OpFlags::HIPRI, 10);
    submit(&b, on_b, OpFlags::HIPRI, 1);
    assert_eq!(drain(&b), 1);
    assert_eq!(a.outstanding(), 10, "handed over by mailbox, taken in by its own channel");
    assert_eq!(drain(&a), 10);
}

#[test]
fn queues_of_their_own_are_not_polled_for_each_other() {
    let (domain, _) = domain();
    let dev = null("null:poll_queues=2");
    let (a, b) = (domain.channel().unwrap(), domain.channel().unwrap());
    let (on_a, on_b) = (a.attach(dev.clone()), b.attach(dev));
    submit(&a, on_a, OpFlags::HIPRI, 10);
    submit(&b, on_b, OpFlags::HIPRI, 1);
    assert_eq!((drain(&b), drain(&b)), (1, 0));
    assert_eq!(drain(&a), 10);
}

#[test]
fn many_threads_on_one_queue_lose_and_double_nothing() {
    let domain = Domain::default();
    let dev = null("null:size=1M:poll_queues=1:latency_us=1");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (domain, dev) = (domain.clone(), dev.clone());
            scope.spawn(move || {
                let channel = domain.channel().unwrap();
                let on = channel.attach(dev);
                let (mut started, mut seen) = (0u64, vec![0u8; 2_000]);
                while seen.contains(&0) {
                    while started < 2_000
                        && channel.outstanding() < 32
                        && channel.submit_range(on, Op::Flush, OpFlags::HIPRI, Sector::ZERO, Sectors::ZERO, started)
                    {
                        started += 1;
                    }
                    channel.poll();
                    while let Some(done) = channel.completed() {
                        assert_eq!(done.status, Status::Ok);
                        seen[done.token as usize] += 1;
                    }
                }
                assert!(seen.iter().all(|n| *n == 1));
            });
        }
    });
}

#[test]
fn its_name_loads_again() {
    let dev = null("null:size=1G:queues=2:poll_queues=1:latency_us=5");
    assert_eq!(dev.name(), "null:size=1G:queues=2:poll_queues=1:latency_us=5:memory=0");
    assert_eq!(null(&dev.name()).sectors(), Sectors::new(1 << 21));
    assert!(dev.can_poll() && !null("null:").can_poll());
    assert_ne!(dev.id(), null(&dev.name()).id());
}
