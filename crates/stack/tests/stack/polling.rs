//! Polled bios through stacks: which queues are looked into, what is counted, and what becomes of them when polling
//! ends beneath.

use std::path::Path;
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector};
use udm_core::{MappedDevice, Polls, SuspendOptions, TableLine};
use udm_io::*;
use udm_stack::Stack;

const NULL: &str = "null:size=64M:poll_queues=1:memory=1";

fn stack(domain: &Domain, concise: &str) -> Stack {
    Stack::new(domain, &concise.replace("{null}", NULL)).unwrap_or_else(|e| panic!("{concise}: {e}"))
}

/// Adds a device to a stack.
fn add(stack: &Stack, name: &str, table: &str) -> Arc<MappedDevice> {
    let md = stack.registry().create(name, "", None).unwrap();
    load(&md, table);
    md
}

fn load(md: &Arc<MappedDevice>, table: &str) {
    let lines = TableLine::parse_all(&table.replace("{null}", NULL)).unwrap();
    md.load(&lines, false, Path::new("/")).unwrap_or_else(|e| panic!("{table}: {}", e.message));
    md.resume(SuspendOptions::default(), &|| false).unwrap();
}

fn polls(fast: u64, sub: u64, default: u64) -> Polls {
    Polls { fast, sub, default }
}

/// One thread's way to a device, with a page of memory for each of some bios.
struct Way {
    channel: Channel,
    on: Attached,
    memory: AlignedBuf,
}

impl Way {
    fn new(domain: &Domain, dev: &Arc<MappedDevice>) -> Self {
        let channel = domain.channel().unwrap();
        let on = channel.attach(dev.clone());
        Self { channel, on, memory: AlignedBuf::zeroed(2 << 20) }
    }

    /// Submits `bytes` from a byte of the device, polled for.
    fn submit(&mut self, op: Op, at: u64, bytes: usize, token: u64) {
        let memory = &mut self.memory[..bytes];
        assert!(unsafe { self.channel.submit(self.on, op, OpFlags::HIPRI, Sector::containing(at), memory, token) });
    }

    fn submit_for(&mut self, at: u64, token: u64) -> Cookie {
        let memory = &mut self.memory[..4096];
        let cookie = unsafe {
            self.channel.submit_polled(self.on, Op::Read, OpFlags::NONE, Sector::containing(at), memory, token)
        };
        cookie.expect("the channel has room")
    }

    /// Polls until `n` have completed.
    fn finish(&self, n: usize) {
        let mut done = 0;
        while done < n {
            self.channel.poll();
            while let Some(completion) = self.channel.completed() {
                assert_eq!(completion.status, Status::Ok);
                done += 1;
            }
            if !self.channel.is_polled() && done < n && self.channel.poll() == 0 {
                self.channel.wait(None, &mut Vec::new()).unwrap();
            }
        }
        assert_eq!(self.channel.outstanding(), 0);
        assert_eq!(self.channel.completed(), None, "none completes twice");
    }
}

#[test]
fn each_device_counts_by_how_its_bios_were_split() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "a,,,,0 131072 linear {null} 0;b,,,,0 131072 linear /dev/mapper/a 0;\
         s,,,,0 393216 striped 3 8 {null} 0 {null} 0 {null} 0;t,,,,0 393216 linear /dev/mapper/s 0;\
         two,,,,0 64 linear {null} 0,64 64 linear {null} 0",
    );
    for (top, at, bytes, expect) in [
        ("a", 0, 4096, polls(1, 0, 0)),
        ("b", 8192, 4096, polls(1, 0, 0)),
        ("s", 4096, 4096, polls(1, 0, 0)),
        ("s", 0, 12288, polls(0, 1, 0)),
        ("t", 0, 12288, polls(0, 1, 0)),
        ("two", 30 << 10, 4096, polls(0, 1, 0)),
        ("two", 0, 4096, polls(1, 0, 0)),
    ] {
        for (compile, clone) in [(true, false), (false, false), (false, true)] {
            let md = stack.device(top).unwrap();
            md.set_compile(compile);
            md.set_clone_always(clone);
            let before = md.totals().polls;
            let mut way = Way::new(&domain, &md);
            (0..10).for_each(|token| way.submit(Op::Read, at, bytes, token));
            assert_eq!(way.channel.outstanding(), 10, "{top}: only a poll completes them");
            way.finish(10);
            let after = md.totals().polls;
            let found = polls(after.fast - before.fast, after.sub - before.sub, after.default - before.default);
            let times = polls(expect.fast * 10, expect.sub * 10, expect.default * 10);
            assert_eq!(found, times, "{top} at {at}, compile={compile} clone_always={clone}");
        }
    }
    let a = stack.device("a").unwrap().totals().polls;
    assert_eq!(a.fast, 60, "a device beneath counts too, compiled away or not");
}

#[test]
fn without_the_fast_path_bios_count_as_split() {
    let domain = Domain::default();
    let stack = stack(&domain, "a,,,,0 131072 linear {null} 0");
    domain.poll_as(PollPolicy { fast_path: false, ..PollPolicy::default() });
    let md = stack.device("a").unwrap();
    let mut way = Way::new(&domain, &md);
    way.submit(Op::Read, 0, 4096, 0);
    way.finish(1);
    assert_eq!(md.totals().polls, polls(0, 1, 0));
}

#[test]
fn parts_that_meet_other_queues_are_looked_for_everywhere() {
    let domain = Domain::default();
    let stack = stack(&domain, "s,,,,0 131072 striped 2 8 {null} 0 {null} 0");
    let md = stack.device("s").unwrap();
    let mut way = Way::new(&domain, &md);
    // More parts than a channel has clones: the rest is submitted when some have come home.
    way.submit(Op::Write, 0, 2 << 20, 0);
    assert!(md.set_poll_queues(3));
    way.finish(1);
    assert_eq!(md.totals().polls, polls(0, 0, 1));
}

#[test]
fn what_cannot_be_polled_completes_by_interrupt() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "i,,,,0 131072 linear null:size=64M:latency_us=100 0;m,,,,0 64 linear {null} 0,64 64 linear null:size=64M:latency_us=100 0;\
         off,,,,0 131072 linear null:size=64M:poll_queues=1:latency_us=100 0;above,,,,0 131072 linear /dev/mapper/off 0",
    );
    stack.device("off").unwrap().set_io_poll(false).unwrap();
    for name in ["i", "m", "off", "above"] {
        let md = stack.device(name).unwrap();
        assert!(!md.can_poll(), "{name}");
        let mut way = Way::new(&domain, &md);
        way.submit(Op::Read, 32 << 10, 4096, 7);
        assert!(!way.channel.is_polled(), "{name}: it may sleep");
        way.finish(1);
        assert_eq!(md.totals().polls, Polls::default(), "{name}");
    }
}

#[test]
fn io_poll_holds_when_every_device_beneath_can() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "a,,,,0 131072 linear {null} 0;b,,,,0 131072 linear /dev/mapper/a 0;r,,,,0 8192 ram;\
         mix,,,,0 8192 linear /dev/mapper/r 0,8192 8192 linear /dev/mapper/b 0;z,,,,0 8 zero",
    );
    let md = |name: &str| stack.device(name).unwrap();
    let can = |names: &[&str]| names.iter().map(|name| md(name).can_poll()).collect::<Vec<_>>();
    let names = ["a", "b", "r", "mix", "z"];
    assert_eq!(can(&names), [true, true, true, true, false]);
    md("a").set_io_poll(false).unwrap();
    assert_eq!(can(&names), [false, false, true, false, false]);
    for (name, part) in
        [("b", "a, whose io_poll is 0,"), ("mix", "a, whose io_poll is 0,"), ("z", "z cannot be polled")]
    {
        let error = md(name).set_io_poll(true).unwrap_err().message;
        assert!(error.contains(part), "{name}: {error}");
    }
    md("a").set_io_poll(true).unwrap();
    assert_eq!(can(&names), [true, true, true, true, false]);
    load(&md("a"), "0 131072 linear null:size=64M 0");
    assert_eq!(can(&names), [false, false, true, false, false], "asked again when the table changes");
    let error = md("mix").set_io_poll(true).unwrap_err().message;
    assert!(error.contains("null:size=64M"), "{error}");
    load(&md("a"), "0 131072 linear {null} 0");
    assert_eq!(can(&names), [true, true, true, true, false]);
    assert!(md("mix").set_poll_queues(0), "found beneath");
    assert_eq!(can(&names), [false, false, true, false, false]);
}

#[test]
fn polling_that_ends_beneath_completes_what_is_in_flight() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "a,,,,0 131072 linear null:size=64M:poll_queues=2:latency_us=50:memory=1 0;b,,,,0 131072 linear /dev/mapper/a 0",
    );
    let (a, b) = (stack.device("a").unwrap(), stack.device("b").unwrap());
    let mut way = Way::new(&domain, &b);
    for off in [0, 1, 2] {
        (0..8).for_each(|token| way.submit(Op::Read, token * 4096, 4096, token));
        let switch = |on: bool| match off {
            0 => a.set_io_poll(on).unwrap(),
            1 => b.set_io_poll(on).unwrap(),
            _ => assert!(b.set_poll_queues(2 * u32::from(on))),
        };
        switch(false);
        assert!(!b.can_poll());
        (8..16).for_each(|token| way.submit(Op::Read, token * 4096, 4096, token));
        way.finish(16);
        switch(true);
        assert!(b.can_poll());
    }
    assert_eq!(b.totals().polls, polls(24, 0, 0), "those that were submitted while it could be polled");
}

#[test]
fn stale_and_foreign_cookies_lose_nothing() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "a,,,,0 131072 linear {null} 0;b,,,,0 131072 linear {null} 0;i,,,,0 8 linear null:size=4K:latency_us=20 0",
    );
    let (a, b) = (stack.device("a").unwrap(), stack.device("b").unwrap());
    let (mut one, mut two) = (Way::new(&domain, &a), Way::new(&domain, &b));
    let stale = one.submit_for(0, 0);
    assert_eq!(stale.path(), Some(PollPath::Fast));
    one.finish(1);
    let foreign = two.submit_for(0, 0);
    let of_a_stack_that_is_gone = {
        let domain = Domain::default();
        let stack = Stack::new(&domain, &format!("x,,,,0 8 linear {NULL} 0")).unwrap();
        let mut way = Way::new(&domain, &stack.device("x").unwrap());
        let cookie = way.submit_for(0, 0);
        way.finish(1);
        cookie
    };
    let cookies = [stale, foreign, of_a_stack_that_is_gone, Cookie::NONE];
    for cookie in cookies {
        let right = one.submit_for(4096, 1);
        assert_ne!(right, foreign);
        let mut rounds = 0;
        while one.channel.completed().is_none() {
            one.channel.poll_for(cookie);
            rounds += 1;
            assert!(rounds < 1000, "{cookie:?} finds it by and by");
        }
    }
    // The right one finds it at once, also beside another that is in flight elsewhere.
    let right = one.submit_for(0, 2);
    assert_eq!(one.channel.poll_for(right), 1);
    assert_eq!(one.channel.completed().unwrap().token, 2);
    two.finish(1);
    // One that completes by interrupt has no queue, and is found all the same.
    let i = stack.device("i").unwrap();
    let mut three = Way::new(&domain, &i);
    let none = three.submit_for(0, 3);
    assert_eq!(none.path(), None);
    while three.channel.completed().is_none() {
        three.channel.poll_for(none);
    }
}

#[test]
fn a_thin_volume_a_snapshot_and_its_origin_are_polled() {
    let domain = Domain::default();
    let stack = stack(
        &domain,
        "meta,,,,0 32768 linear null:size=16M:memory=1 0;data,,,,0 65536 linear {null} 0;\
         pool,,,,0 65536 thin-pool /dev/mapper/meta /dev/mapper/data 128 0;\
         real,,,,0 65536 linear {null} 0;cow,,,,0 65536 linear {null} 0;\
         origin,,,,0 65536 snapshot-origin /dev/mapper/real;snap,,,,0 65536 snapshot /dev/mapper/real /dev/mapper/cow P 16",
    );
    stack.device("pool").unwrap().message(Sector::ZERO, &["create_thin", "0"]).unwrap();
    let thin = add(&stack, "thin", "0 16384 thin /dev/mapper/pool 0");
    let data =
        [(&thin, "thin"), (&stack.device("snap").unwrap(), "snap"), (&stack.device("origin").unwrap(), "origin")];
    for (md, name) in data {
        assert!(md.can_poll(), "{name}");
        let mut way = Way::new(&domain, md);
        // The first write allocates or copies: some of it by interrupt.
        way.memory.fill(7);
        way.submit(Op::Write, 0, 65536, 0);
        way.finish(1);
        way.submit(Op::Write, 8192, 4096, 0);
        way.finish(1);
        let before = md.totals().polls;
        (0..10).for_each(|token| way.submit(Op::Read, token * 4096, 4096, token));
        way.finish(10);
        let after = md.totals().polls;
        let found = (after.fast - before.fast, after.sub - before.sub, after.default - before.default);
        assert_eq!(found, (10, 0, 0), "{name}: reads of what is mapped");
        assert!(way.memory[..4096].iter().all(|b| *b == 7), "{name}");
        (0..10).for_each(|token| way.submit(Op::Write, token * 4096, 4096, token));
        way.finish(10);
        assert_eq!(md.totals().polls.fast - after.fast, 10, "{name}: writes to what is mapped");
    }
}

#[test]
fn ram_beneath_has_nothing_to_poll_for() {
    let domain = Domain::default();
    let stack = stack(&domain, "r,,,,0 8192 ram;s,,,,0 16384 striped 2 8 /dev/mapper/r 0 {null} 0");
    let (r, s) = (stack.device("r").unwrap(), stack.device("s").unwrap());
    let mut way = Way::new(&domain, &r);
    way.submit(Op::Read, 0, 4096, 0);
    assert!(way.channel.completed().is_some(), "done at once");
    let mut way = Way::new(&domain, &s);
    way.submit(Op::Read, 0, 8192, 0);
    way.finish(1);
    assert_eq!((r.totals().polls, s.totals().polls), (polls(0, 0, 0), polls(1, 0, 0)), "one part was on a queue");
}

#[test]
fn three_channels_on_one_queue_skip_and_hand_over() {
    const BIOS: u64 = 5_000;
    for skip_busy in [true, false] {
        let domain = Domain::default();
        domain.poll_as(PollPolicy { skip_busy, ..PollPolicy::default() });
        let stack = stack(&domain, "a,,,,0 131072 linear null:size=64M:poll_queues=1:latency_us=1 0");
        let md = stack.device("a").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut way = Way::new(&domain, &md);
                    let (mut started, mut seen) = (0, vec![0u8; BIOS as usize]);
                    while seen.contains(&0) {
                        while started < BIOS && way.channel.outstanding() < 16 {
                            way.submit(Op::Read, started % 1000 * 4096, 4096, started);
                            started += 1;
                        }
                        way.channel.poll();
                        while let Some(done) = way.channel.completed() {
                            assert_eq!(done.status, Status::Ok);
                            seen[done.token as usize] += 1;
                        }
                    }
                    assert!(seen.iter().all(|n| *n == 1), "each completes once");
                });
            }
        });
        let totals = domain.poll_totals();
        assert_eq!(totals.found, 3 * BIOS, "{totals:?}");
        assert!(totals.handed_over <= totals.found);
        assert!(if skip_busy { totals.waited == 0 } else { totals.skipped == 0 }, "{totals:?}");
        assert_eq!(md.totals().polls, polls(3 * BIOS, 0, 0));
    }
}
