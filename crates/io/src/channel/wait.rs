//! Sleeping until a channel, or something its thread watches beside, has work.

use super::{Channel, Sleep};
use crate::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::Cell;
use std::io;
use std::time::Duration;

/// The key of the channel's own descriptors; watched ones lie below.
const OWN: u64 = u64::MAX;

/// A watched descriptor that is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Woken {
    /// The key it was watched with.
    pub key: u64,
    /// It can be read, or has an error to tell.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// The other side has closed (EPOLLRDHUP, EPOLLHUP, EPOLLERR).
    pub hangup: bool,
    /// The other side takes nothing any more either (EPOLLHUP, EPOLLERR).
    pub gone: bool,
}

/// Polls before it sleeps, at most: where a clock stands still, a budget never ends.
const LOOKS_MAX: u32 = 1 << 14;
/// Looks between two at which others may have the CPU.
const LOOKS: u32 = 32;
/// Sleeps that a budget is not spent before, at most, when it brought nothing lately.
const LET_BE_MAX: u32 = 32;

/// Whether a channel polls before it sleeps, and how that went.
#[derive(Default)]
pub(super) struct Adaptive {
    on: Cell<bool>,
    /// Sleeps before which it is not polled now, and before which it is not polled after the next failure.
    let_be: Cell<u32>,
    failures: Cell<u32>,
}

impl Adaptive {
    /// Whether to poll before this sleep.
    fn is_due(&self) -> bool {
        match self.let_be.get() {
            0 => self.on.get(),
            n => {
                self.let_be.set(n - 1);
                false
            }
        }
    }

    fn learn(&self, found: bool) {
        let failures = if found { 0 } else { (self.failures.get() + 1).min(16) };
        self.failures.set(failures);
        // A device may be late once; one that is late again and again is not worth the CPU.
        self.let_be.set(if failures < 4 { 0 } else { (1 << (failures - 3)).min(LET_BE_MAX) });
    }
}

#[derive(Default)]
pub(super) struct Waiter {
    epoll: Option<OwnedFd>,
    sources: usize,
    events: Vec<epoll::Event>,
}

impl Waiter {
    fn epoll(&mut self, channel: &Channel) -> io::Result<&OwnedFd> {
        if self.epoll.is_none() {
            let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            if let Some(wake) = channel.core().wake_fd() {
                epoll::add(&fd, wake, epoll::EventData::new_u64(OWN), epoll::EventFlags::IN)?;
            }
            self.epoll = Some(fd);
            self.events.reserve(64);
        }
        Ok(self.epoll.as_ref().expect("made above"))
    }
}

fn flags(read: bool, write: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN | epoll::EventFlags::RDHUP, read);
    flags.set(epoll::EventFlags::OUT, write);
    flags
}

impl Channel {
    /// Watches a descriptor: [`wait`](Self::wait) also ends when it is ready. `key` comes back in [`Woken`]; it
    /// must not be `u64::MAX`. With neither `read` nor `write`, it ends when the other side has [gone](Woken::gone).
    pub fn watch(&self, fd: impl AsFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        debug_assert_ne!(key, OWN, "that key is the channel's own");
        let mut waiter = self.waiter.borrow_mut();
        Ok(epoll::add(waiter.epoll(self)?, fd, epoll::EventData::new_u64(key), flags(read, write))?)
    }

    /// Watches a descriptor that nobody reads: each time that it becomes readable anew is told once (EPOLLET). So an
    /// eventfd that another process rings wakes the channel without a system call for taking its count.
    pub fn watch_edges(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        debug_assert_ne!(key, OWN, "that key is the channel's own");
        let mut waiter = self.waiter.borrow_mut();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(waiter.epoll(self)?, fd, epoll::EventData::new_u64(key), flags)?)
    }

    /// Watches a descriptor that several channels watch, each with its own thread: when it becomes readable one of
    /// those that sleep is woken, not all (EPOLLEXCLUSIVE). Who is woken and takes nothing must see to it that another
    /// does.
    pub fn watch_shared(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        debug_assert_ne!(key, OWN, "that key is the channel's own");
        let mut waiter = self.waiter.borrow_mut();
        // The kernel takes no EPOLLRDHUP beside it.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(waiter.epoll(self)?, fd, epoll::EventData::new_u64(key), flags)?)
    }

    /// Changes what is watched for.
    pub fn rewatch(&self, fd: impl AsFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        let mut waiter = self.waiter.borrow_mut();
        Ok(epoll::modify(waiter.epoll(self)?, fd, epoll::EventData::new_u64(key), flags(read, write))?)
    }

    /// Stops watching a descriptor.
    pub fn unwatch(&self, fd: impl AsFd) -> io::Result<()> {
        let mut waiter = self.waiter.borrow_mut();
        Ok(epoll::delete(waiter.epoll(self)?, fd)?)
    }

    /// A handle by which any thread ends this channel's [`wait`](Self::wait).
    pub fn waker(&self) -> Waker {
        Waker { core: self.core, _shared: self.shared.clone() }
    }

    /// Polls before it sleeps from now on, or not: while bios are out, [`wait`](Self::wait) polls for as long as the
    /// devices' budgets say, or else the domain's ([`PollPolicy::budget`](crate::PollPolicy::budget)), and sleeps only
    /// then. When that brought nothing several times in a row it is left out for some sleeps.
    pub fn set_adaptive(&self, on: bool) {
        self.adaptive.on.set(on);
    }

    /// Polls for as long as the budget lasts. Whether something moved.
    fn poll_briefly(&self) -> bool {
        let budget = self.inside(|core, _| {
            // SAFETY: inside; a device's budget does not reach the channel.
            let attached = unsafe { core.inner() }.attached.iter().flatten();
            attached.filter_map(|held| held.device().poll_budget()).max().unwrap_or_else(|| core.policy.budget())
        });
        if budget.is_zero() {
            return false;
        }
        let end = self.now().after(u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX));
        for look in 1..=LOOKS_MAX {
            if self.poll() > 0 {
                return true;
            }
            if self.now() >= end {
                break;
            }
            if look % LOOKS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        false
    }

    /// Sleeps until there is something to poll, a watched descriptor is ready (they are added to `woken`), a [`Waker`]
    /// is used, or `timeout` has passed. Blocks, in the kernel. Completes nothing: call [`poll`](Self::poll)
    /// afterwards. An [adaptive](Self::set_adaptive) channel polls first. In a simulated domain time moves on instead.
    pub fn wait(&self, timeout: Option<Duration>, woken: &mut Vec<Woken>) -> io::Result<()> {
        let polls = self.shared.idle().is_none() && timeout != Some(Duration::ZERO) && self.adaptive.is_due();
        if polls && self.outstanding() > 0 {
            let found = self.poll_briefly();
            self.adaptive.learn(found);
            if found {
                return Ok(());
            }
        }
        let mut waiter = self.waiter.borrow_mut();
        let due = self.shared.simulate_background();
        if self.shared.idle().is_none() {
            waiter.epoll(self)?;
            self.core().prepare_sleep();
            self.add_sources(&mut waiter)?;
        }
        // Looked at after the announcement: a remote poller that came before it has left its completions and sources
        // here.
        let (ready, timer, sleeper) = self.inside(|core, _| {
            // SAFETY: inside; the sources' flags, and their ways to sleep, do not reach the channel.
            let inner = unsafe { core.inner() };
            let must_poll = inner.sources.iter().any(|(_, s)| s.must_poll());
            let ready = must_poll || core.has_mail() || !inner.completions.is_empty();
            let epoll = waiter.epoll.as_ref().filter(|_| !ready);
            let mut busy = inner.sources.iter().enumerate().filter(|(_, (_, s))| s.is_busy());
            let sleeper =
                epoll.and_then(|epoll| busy.find_map(|(i, (_, s))| Some((i, s.prepare_sleep(epoll.as_fd())?))));
            (ready, inner.timers.next(), sleeper)
        });
        if let Some(idle) = self.shared.idle() {
            if !ready {
                let until = timeout.map(|timeout| self.now().after(timeout.as_nanos() as u64));
                idle(due.into_iter().chain(timer).chain(until).min());
            }
            return Ok(());
        }
        let mut timeout = if ready { Some(Duration::ZERO) } else { earlier(timeout, timer, self.now()) };
        if !ready && timer.is_some() {
            wake_on_time();
        }
        if let Some((source, Sleep { fd, queued, sleep })) = sleeper {
            let slept = sleep(fd, queued, timeout);
            // SAFETY: inside; the source does not reach the channel.
            let others = self.inside(|core, _| unsafe { core.inner() }.sources[source].1.after_sleep());
            if slept.is_err() || !others {
                self.core().awake();
                return slept;
            }
            timeout = Some(Duration::ZERO);
        }
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let Waiter { epoll: Some(fd), events, .. } = &mut *waiter else { unreachable!("made above") };
        events.clear();
        let result = sleep(fd, timeout)
            .and_then(|timeout| epoll::wait(&*fd, rustix::buffer::spare_capacity(events), timeout.as_ref()));
        self.core().awake();
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in events.iter() {
            let (key, flags) = (event.data.u64(), event.flags);
            let is = |f| flags.intersects(f);
            if key == OWN {
                self.drain_wake();
                continue;
            }
            use epoll::EventFlags as F;
            woken.push(Woken {
                key,
                readable: is(F::IN | F::RDHUP | F::HUP | F::ERR),
                writable: is(F::OUT | F::HUP | F::ERR),
                hangup: is(F::RDHUP | F::HUP | F::ERR),
                gone: is(F::HUP | F::ERR),
            });
        }
        Ok(())
    }

    fn add_sources(&self, waiter: &mut Waiter) -> io::Result<()> {
        self.inside(|core, _| {
            // SAFETY: inside; a source's descriptor does not reach the channel.
            let sources = &unsafe { core.inner() }.sources;
            let epoll = waiter.epoll.as_ref().expect("made before");
            for (_, source) in &sources[waiter.sources..] {
                if let Some(fd) = source.fd() {
                    // Its own readiness is all that is asked for; poll() looks at every source.
                    epoll::add(epoll, fd, epoll::EventData::new_u64(OWN), epoll::EventFlags::IN)?;
                }
            }
            waiter.sources = sources.len();
            Ok(())
        })
    }

    fn drain_wake(&self) {
        if let Some(fd) = self.core().wake_fd() {
            // Empty means that the event was a source's.
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
    }
}

/// Sleeps out a timeout that is not whole milliseconds, which is all that epoll_wait knows before epoll_pwait2 (5.11);
/// ppoll has always known nanoseconds. Returns what is left for epoll_wait to sleep.
fn sleep(epoll: &OwnedFd, timeout: Option<Timespec>) -> rustix::io::Result<Option<Timespec>> {
    match timeout {
        Some(t) if t.tv_nsec % 1_000_000 != 0 => {
            rustix::event::poll(&mut [PollFd::new(epoll, PollFlags::IN)], Some(&t))?;
            Ok(Some(Timespec { tv_sec: 0, tv_nsec: 0 }))
        }
        whole => Ok(whole),
    }
}

/// Has the kernel end this thread's sleeps when they are due, and not up to 50 µs later: a device's latency is a few of
/// these.
fn wake_on_time() {
    thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
    if !ASKED.replace(true) {
        // Refused, sleeps are late and nothing is wrong.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

fn earlier(timeout: Option<Duration>, timer: Option<Nanos>, now: Nanos) -> Option<Duration> {
    let timer = timer.map(|at| Duration::from_nanos(at.since(now)));
    match (timeout, timer) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Ends a channel's wait from another thread.
pub struct Waker {
    core: std::ptr::NonNull<super::ChannelCore>,
    _shared: std::sync::Arc<super::shared::Shared>,
}

// SAFETY: a core is Sync, and `_shared` keeps it.
unsafe impl Send for Waker {}
// SAFETY: as above.
unsafe impl Sync for Waker {}

impl Waker {
    /// Ends the channel's current or next wait. Costs a system call.
    pub fn wake(&self) {
        // SAFETY: `_shared` keeps the core.
        unsafe { self.core.as_ref() }.wake();
    }
}
