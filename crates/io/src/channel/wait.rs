//! Sleeping until a channel, or something its thread watches beside, has work.

use super::{Channel, Sleep};
use crate::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
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
    let mut flags = epoll::EventFlags::RDHUP;
    flags.set(epoll::EventFlags::IN, read);
    flags.set(epoll::EventFlags::OUT, write);
    flags
}

impl Channel {
    /// Watches a descriptor: [`wait`](Self::wait) also ends when it is ready. `key` comes back in [`Woken`]; it
    /// must not be `u64::MAX`.
    pub fn watch(&self, fd: impl AsFd, key: u64, read: bool, write: bool) -> io::Result<()> {
        debug_assert_ne!(key, OWN, "that key is the channel's own");
        let mut waiter = self.waiter.borrow_mut();
        Ok(epoll::add(waiter.epoll(self)?, fd, epoll::EventData::new_u64(key), flags(read, write))?)
    }

    /// Watches a descriptor that nobody reads: each time that it becomes readable anew is told once (EPOLLET). So an eventfd that
    /// another process rings wakes the channel without a system call for taking its count.
    pub fn watch_edges(&self, fd: impl AsFd, key: u64) -> io::Result<()> {
        debug_assert_ne!(key, OWN, "that key is the channel's own");
        let mut waiter = self.waiter.borrow_mut();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
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

    /// Sleeps until there is something to poll, a watched descriptor is ready (they are added to `woken`), a
    /// [`Waker`] is used, or `timeout` has passed. Blocks, in the kernel. Completes nothing: call
    /// [`poll`](Self::poll) afterwards. In a simulated domain time moves on instead.
    pub fn wait(&self, timeout: Option<Duration>, woken: &mut Vec<Woken>) -> io::Result<()> {
        let mut waiter = self.waiter.borrow_mut();
        let due = self.shared.keep_simulated();
        if self.shared.idle().is_none() {
            waiter.epoll(self)?;
            self.core().prepare_sleep();
            self.add_sources(&mut waiter)?;
        }
        // Looked at after the announcement: a thief that came before it has left its completions and sources here.
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
    _shared: std::sync::Arc<crate::domain::Shared>,
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
