//! The queue and the hand-over of what is found for others, run in every order that the memory model allows. See
//! `channel/models.rs` for how.

use super::queue::{Batch, DeviceQueue, Driver, Polled};
use super::{Cookie, PollPath, Polls, QueueSet};
use crate::channel::ChannelCore;
use crate::{Bio, OpFlags};
use crate::{Cx, MonotonicClock, Nanos, Op};
use loom::thread;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// A device that has done everything when it is asked.
#[derive(Default)]
struct Done(VecDeque<Bio>);

impl Driver for Done {
    fn take_in(&mut self, bio: Bio) {
        self.0.push_back(bio);
    }

    fn reap(&mut self, _: Nanos, batch: &mut Batch) {
        while !batch.is_full()
            && let Some(bio) = self.0.pop_front()
        {
            batch.push(bio);
        }
    }
}

fn core(id: usize) -> Arc<ChannelCore> {
    Arc::new(ChannelCore::new(id, Arc::new(MonotonicClock::start()), Arc::default(), false, None))
}

/// Works inside a channel, as its owner.
fn inside<T>(core: &Arc<ChannelCore>, work: impl FnOnce(&Cx<'_>) -> T) -> T {
    core.lock.enter();
    let out = work(&Cx::new(core));
    core.lock.exit();
    out
}

/// A polled bio of a channel, as its owner takes it.
fn take(core: &Arc<ChannelCore>) -> Bio {
    inside(core, |_| {
        let this = NonNull::new(Arc::as_ptr(core).cast_mut()).unwrap();
        // SAFETY: inside; the reference ends with the expression.
        let mut bio = unsafe { core.inner() }.slabs[0].take(this).unwrap();
        let record = bio.record_mut();
        (record.op, record.flags, record.children) = (Op::Flush, OpFlags::HIPRI, 0);
        record.polled = super::cookie::Polled::NONE;
        bio
    })
}

/// Submits a polled bio and polls until it is there; how often something completed in all.
fn submit_and_poll(core: &Arc<ChannelCore>, set: &Arc<QueueSet>, bio: Bio) -> usize {
    inside(core, |cx| {
        assert!(Polls::of(cx).push(cx, set, bio).is_ok());
        assert!(Polls::of(cx).is_polled());
    });
    loop {
        let done = completed(core);
        if done > 0 {
            return done;
        }
        // Held by the other, who ends what is done.
        thread::yield_now();
    }
}

fn completed(core: &Arc<ChannelCore>) -> usize {
    inside(core, |_| {
        core.poll();
        // SAFETY: inside; the reference ends with the expression.
        unsafe { core.inner() }.completions.drain(..).count()
    })
}

/// Two channels on one queue: each bio completes once, on its own channel, whoever finds it, and nobody waits for a
/// lock.
#[test]
fn bios_are_handed_over_and_complete_once() {
    for skip in [true, false] {
        check(move || {
            let set = QueueSet::new(1, || Ok(Done::default()));
            // Before the threads: of what makes it once the model knows nothing.
            assert!(set.queue(0).is_some());
            let cores = [core(0), core(1)];
            cores.iter().for_each(|core| {
                let policy = crate::PollPolicy { skip_busy: skip, ..crate::PollPolicy::default() };
                core.policy.set(policy);
            });
            let bios = cores.each_ref().map(take);
            let mut bios = bios.into_iter();
            let (mine, others) = (bios.next().unwrap(), bios.next().unwrap());
            let other = {
                let (core, set) = (cores[1].clone(), set.clone());
                thread::spawn(move || submit_and_poll(&core, &set, others))
            };
            assert_eq!(submit_and_poll(&cores[0], &set, mine), 1);
            assert_eq!(other.join().unwrap(), 1);
            for core in &cores {
                assert_eq!(completed(core), 0, "none completes twice");
                inside(core, |cx| assert!(!Polls::of(cx).is_polled(), "none is left on a queue"));
            }
            let totals = cores.each_ref().map(|core| core.polls.totals());
            assert_eq!(totals[0].found + totals[1].found, 2);
            assert!(if skip { totals.iter().all(|t| t.waited == 0) } else { totals.iter().all(|t| t.skipped == 0) });
        });
    }
}

/// The queue is held by one poller at a time, whether tried or waited for, and what one did with it the next one sees.
#[test]
fn a_queue_is_held_by_one_at_a_time() {
    check(|| {
        let queue = Arc::new(DeviceQueue::new(Done::default()));
        let pollers = [true, false].map(|skip| {
            let queue = queue.clone();
            thread::spawn(move || inside(&core(0), |cx| queue.poll(cx, Nanos(0), skip)))
        });
        let mine = inside(&core(1), |cx| queue.poll(cx, Nanos(0), false));
        assert!(matches!(mine, Polled::Done { found: 0, .. }), "who waits gets its turn");
        for (poller, skips) in pollers.into_iter().zip([true, false]) {
            assert!(matches!((poller.join().unwrap(), skips), (Polled::Done { .. }, _) | (Polled::Skipped, true)));
        }
    });
}

/// A bio of a sleeping owner that a remote poller polls for in its place comes to rest in the owner's channel, and its
/// cookie names the queue until then.
#[test]
fn a_remote_poller_polls_in_the_owners_place() {
    check(|| {
        let set = QueueSet::new(1, || Ok(Done::default()));
        let core = core(0);
        let bio = take(&core);
        inside(&core, |cx| {
            assert!(Polls::of(cx).push(cx, &set, bio).is_ok());
        });
        let remote = {
            let core = core.clone();
            thread::spawn(move || core.poll_remotely())
        };
        let mine = completed(&core);
        remote.join().unwrap();
        assert_eq!(mine + completed(&core), 1);
        inside(&core, |cx| assert!(!Polls::of(cx).is_polled()));
    });
}

/// The number of queues changes between two bios, and while the first is being polled for: each is found, the first by
/// a cookie that names a queue out of use.
#[test]
fn queues_change_under_a_poller() {
    check(|| {
        let set = QueueSet::new(2, || Ok(Done::default()));
        // The channel maps to the second of two, and to the first of one.
        let core = core(1);
        let (first, second) = (take(&core), take(&core));
        let record: *const _ = first.record();
        let cookie = inside(&core, |cx| {
            assert!(Polls::of(cx).push(cx, &set, first).is_ok());
            // SAFETY: inside; the slot stays as long as its core.
            unsafe { (*record).polled.cookie }
        });
        assert_eq!(cookie.path(), Some(PollPath::Fast));
        let changing = {
            let set = set.clone();
            thread::spawn(move || set.set_len(1))
        };
        inside(&core, |cx| assert!(Polls::of(cx).push(cx, &set, second).is_ok()));
        inside(&core, |_| core.poll_for(cookie));
        changing.join().unwrap();
        inside(&core, |_| core.poll_for(Cookie::NONE));
        inside(&core, |_| core.poll_for(cookie));
        // SAFETY: inside; the reference ends with the expression.
        assert_eq!(inside(&core, |_| unsafe { core.inner() }.completions.drain(..).count()), 2);
    });
}
