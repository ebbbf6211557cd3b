//! Channels that poll before they sleep.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use udm_base::{Sector, Sectors};
use udm_io::*;

/// A clock that goes on by a microsecond whenever somebody looks: time passes with work, and not with the machine's
/// load.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        Nanos(self.0.fetch_add(1_000, Ordering::SeqCst))
    }
}

/// A device with a budget of its own over another.
struct Budget(NullDevice, Option<Duration>);

impl BlockDevice for Budget {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        self.0.submit(cx, bio)
    }
    fn sectors(&self) -> Sectors {
        self.0.sectors()
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn id(&self) -> DeviceId {
        self.0.id()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn poll_budget(&self) -> Option<Duration> {
        self.1
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Whether a wait completes a bio of a device with a latency of 50 µs by polling, rather than to sleep until it is due.
fn polls(adaptive: bool, domain_us: u64, device_us: Option<u64>) -> bool {
    let domain = DomainBuilder::default().clock(Arc::new(Ticking::default())).build();
    domain.poll_as(PollPolicy { budget: Duration::from_micros(domain_us), ..PollPolicy::default() });
    let channel = domain.channel().unwrap();
    channel.set_adaptive(adaptive);
    let null = NullDevice::new("null:size=1M:latency_us=50".parse().unwrap()).unwrap();
    let on = channel.attach(Arc::new(Budget(null, device_us.map(Duration::from_micros))));
    assert!(channel.submit_range(on, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 1));
    channel.wait(None, &mut Vec::new()).unwrap();
    let polled = channel.completed().is_some();
    if !polled {
        while channel.completed().is_none() {
            channel.poll();
        }
    }
    polled
}

#[test]
fn a_channel_polls_for_as_long_as_its_budget_says() {
    for (adaptive, domain_us, device_us, expect) in [
        (false, 1_000, None, false),
        (true, 1_000, None, true),
        (true, 5, None, false),
        (true, 0, None, false),
        (true, 1_000, Some(5), false),
        (true, 0, Some(1_000), true),
    ] {
        let what = format!("adaptive {adaptive}, {domain_us} µs, the device {device_us:?}");
        assert_eq!(polls(adaptive, domain_us, device_us), expect, "{what}");
    }
}

#[test]
fn what_never_pays_is_left_out_for_a_while() {
    let clock = Arc::new(Ticking::default());
    let domain = DomainBuilder::default().clock(clock.clone()).build();
    let channel = domain.channel().unwrap();
    channel.set_adaptive(true);
    let null = NullDevice::new("null:size=1M:latency_us=60000000".parse().unwrap()).unwrap();
    let on = channel.attach(Arc::new(null));
    assert!(channel.submit_range(on, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, 1));
    let looks = || {
        let before = clock.0.load(Ordering::SeqCst);
        channel.wait(Some(Duration::from_nanos(1)), &mut Vec::new()).unwrap();
        (clock.0.load(Ordering::SeqCst) - before) / 1_000
    };
    let polled = (0..200).filter(|_| looks() > 10).count();
    assert!((4..40).contains(&polled), "{polled} of 200 sleeps");
    // In time for the channel's end.
    clock.0.store(u64::MAX / 2, Ordering::SeqCst);
}
