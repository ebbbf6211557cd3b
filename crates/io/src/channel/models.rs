//! The protocols between a channel's owner, remote pollers and mailers, run in every order that the memory model
//! allows.
//!
//! `cargo xtask loom` builds the crate with loom's atomics and runs these. They drive the code that ships; only the
//! barriers differ: membarrier(2) with its compiler fence on the other side is modelled as a fence on both, and so is
//! the total order of SeqCst accesses, which loom leaves out.

use super::ChannelCore;
use super::lock::{BiasedLock, Sections, grace_period};
use crate::Bio;
use crate::sync::{AtomicBool, AtomicPtr, Ordering};
use crate::{CHANNELS, Cx, Domain, MonotonicClock, Op, Source, Status};
use loom::thread;
use rustix::fd::BorrowedFd;
use std::any::TypeId;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Faults need few; more take minutes.
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// The lock itself tells the model of every section: two at a time, or one that does not see what an earlier one wrote,
/// are an error.
#[test]
fn owner_and_remote_pollers_exclude_each_other() {
    check(|| {
        let lock = Arc::new(BiasedLock::new(false));
        let remotes = [lock.clone(), lock.clone()].map(|lock| thread::spawn(move || lock.enter_remotely(|| ())));
        for _ in 0..2 {
            lock.enter();
            lock.exit();
        }
        remotes.into_iter().for_each(|t| assert!(t.join().is_ok()));
    });
}

/// What was found inside is not freed before the section is over, be it the owner's or a remote poller's.
#[test]
fn a_grace_period_waits_for_owners_and_remote_pollers() {
    for by_remote_poller in [false, true] {
        check(move || {
            let lock = Arc::new(BiasedLock::new(false));
            let values = Arc::new([0, 1].map(|_| loom::cell::UnsafeCell::new(0)));
            let slot = Arc::new(AtomicPtr::new(values[0].with_mut(|_| ptr::from_ref(&values[0]).cast_mut())));
            let reader = {
                let (lock, slot, _keep) = (lock.clone(), slot.clone(), values.clone());
                thread::spawn(move || {
                    // SAFETY: `values` lives until both threads are joined; the model watches the access.
                    let read = || unsafe { &*slot.load(Ordering::Acquire) }.with(|_| ());
                    if by_remote_poller {
                        lock.enter_remotely(read);
                    } else {
                        lock.enter();
                        read();
                        lock.exit();
                    }
                })
            };
            slot.swap(ptr::from_ref(&values[1]).cast_mut(), Ordering::AcqRel);
            grace_period(false, std::iter::once(&*lock));
            values[0].with_mut(|_| ());
            reader.join().unwrap();
        });
    }
}

/// Asked instead of waited for, by two threads: what either is told holds, and stays so.
#[test]
fn a_grace_period_that_is_asked_ends_once() {
    check(|| {
        let lock = Arc::new(BiasedLock::new(false));
        let (old, slot) = (Arc::new(loom::cell::UnsafeCell::new(0)), Arc::new(AtomicBool::new(true)));
        let reader = {
            let (lock, old, slot) = (lock.clone(), old.clone(), slot.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    lock.enter();
                    if slot.load(Ordering::Acquire) {
                        old.with(|_| ());
                    }
                    lock.exit();
                }
            })
        };
        slot.store(false, Ordering::Release);
        let sections = Arc::new(Sections::now(false, std::iter::once(lock)));
        let other = {
            let sections = sections.clone();
            thread::spawn(move || sections.are_over())
        };
        let mine = sections.are_over();
        if other.join().unwrap() || mine {
            assert!(sections.are_over(), "it stays over");
            old.with_mut(|_| ());
        }
        reader.join().unwrap();
        assert!(sections.are_over());
    });
}

fn core() -> Arc<ChannelCore> {
    Arc::new(ChannelCore::new(0, Arc::new(MonotonicClock::start()), Arc::default(), false, None))
}

/// A bio of a core, as its owner takes it.
fn take(core: &Arc<ChannelCore>) -> Bio {
    core.lock.enter();
    let this = NonNull::new(Arc::as_ptr(core).cast_mut()).unwrap();
    // SAFETY: inside; the reference ends with the expression.
    let mut bio = unsafe { core.inner() }.slabs[0].take(this).unwrap();
    bio.record_mut().op = Op::Flush;
    bio.record_mut().children = 0;
    core.lock.exit();
    bio
}

/// Takes what has completed.
fn completed(core: &ChannelCore) -> usize {
    core.lock.enter();
    core.poll();
    // SAFETY: inside; the reference ends with the expression.
    let n = unsafe { core.inner() }.completions.drain(..).count();
    core.lock.exit();
    n
}

/// What `Channel::wait` looks at once it has announced its sleep.
fn is_ready(core: &ChannelCore) -> bool {
    core.lock.enter();
    // SAFETY: inside; the reference ends with the expression.
    let ready = core.has_mail() || !unsafe { core.inner() }.completions.is_empty();
    core.lock.exit();
    ready
}

/// An owner that has announced its sleep and found nothing is woken by who mails.
#[test]
fn mail_wakes_who_sleeps() {
    check(|| {
        let core = core();
        let bio = take(&core);
        let mailer = thread::spawn(move || bio.end(Status::Ok));
        core.prepare_sleep();
        let ready = is_ready(&core);
        mailer.join().unwrap();
        assert!(ready || core.wakes.load(Relaxed) > 0, "it would sleep on");
        assert_eq!(completed(&core), 1);
    });
}

/// A ring with a completion in it. Its descriptor would wake the owner as long as it is there.
struct Ring(Arc<Mutex<Option<Bio>>>);

impl Source for Ring {
    fn poll(&self, _: &Cx<'_>) -> usize {
        let bio = self.0.lock().unwrap().take();
        bio.map_or(0, |bio| {
            bio.end(Status::Ok);
            1
        })
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn is_busy(&self) -> bool {
        false
    }
}

/// A remote poller that has taken what would have woken the owner wakes it.
#[test]
fn a_remote_poller_wakes_who_sleeps() {
    check(|| {
        let core = core();
        let there = Arc::new(Mutex::new(Some(take(&core))));
        core.lock.enter();
        // SAFETY: inside; the reference ends with the expression.
        unsafe { core.inner() }.sources.push((TypeId::of::<Ring>(), Box::new(Ring(there.clone()))));
        core.lock.exit();
        let remote = {
            let core = core.clone();
            thread::spawn(move || core.poll_remotely())
        };
        core.prepare_sleep();
        let ready = is_ready(&core);
        remote.join().unwrap();
        let readable = there.lock().unwrap().is_some();
        assert!(ready || readable || core.wakes.load(Relaxed) > 0, "it would sleep on");
        assert_eq!(completed(&core), 1);
    });
}

/// Every bio of an orphan comes home, its core is given back once, and no one is in it any more.
#[test]
fn orphans_come_home_once() {
    for with_drain in [false, true] {
        check(move || {
            let (domain, core) = (Domain::default(), core());
            let bios = if with_drain { vec![take(&core)] } else { vec![take(&core), take(&core)] };
            let enders: Vec<_> = bios.into_iter().map(|b| thread::spawn(move || b.end(Status::Ok))).collect();
            let drain = with_drain.then(|| {
                let core = core.clone();
                thread::spawn(move || core.poll_remotely())
            });
            leave(&core, &domain);
            enders.into_iter().for_each(|t| t.join().unwrap());
            drain.map(|t| t.join().unwrap());
            assert_eq!(domain.shared_and_left().1, CHANNELS + 1, "given back once");
            core.lock.enter();
            // SAFETY: inside; the reference ends with the expression.
            assert_eq!(unsafe { core.inner() }.out(), 0);
            core.lock.exit();
        });
    }
}

fn leave(core: &ChannelCore, domain: &Domain) {
    let (shared, _) = domain.shared_and_left();
    core.lock.enter();
    let remains = core.take_apart(&shared);
    core.lock.exit();
    core.give_back(remains, &shared);
}

/// A frame of an orphan's bio that asks for another round gets none, and does not wait for itself.
#[test]
fn an_orphan_submits_nothing() {
    unsafe fn again(_: &Cx<'_>, bio: Bio, _: *const ()) -> Option<Bio> {
        bio.resubmit();
        None
    }
    check(|| {
        let (domain, core) = (Domain::default(), core());
        let mut bio = take(&core);
        // SAFETY: the frame ignores its word.
        assert!(unsafe { bio.push_frame(again, ptr::null()) });
        let ender = thread::spawn(move || bio.end(Status::Ok));
        leave(&core, &domain);
        ender.join().unwrap();
        assert_eq!(domain.shared_and_left().1, CHANNELS + 1);
    });
}
