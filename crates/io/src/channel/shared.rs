//! What all channels of a domain share.

use super::background::Background;
use super::core::ChannelCore;
use super::cpu_work::CpuWork;
use crate::clock::{Clock, Nanos};
use crate::executor::Executor;
use crate::job_pool::JobPool;
use crate::polling::Policy;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How many numbers there are for channels. Per-channel counters of a device are arrays of this length.
pub const MAX_CHANNELS: usize = 1 << u8::BITS;

/// How many channels a domain can give to threads at a time. The other numbers are for control: a client that takes the
/// last channel must not keep anybody from suspending a device.
pub const CHANNELS: usize = MAX_CHANNELS - 1 - BACKGROUND;

/// For background work; two, because a thread of it that ends may still have bios out when the next one begins.
pub(crate) const BACKGROUND: usize = 2;

/// The number of the channel that control threads share.
pub(crate) const CONTROL: usize = MAX_CHANNELS - 1;

/// What a simulated domain does when a channel would sleep, given the channel's next timer.
pub(crate) type IdleFn = dyn Fn(Option<Nanos>) + Send + Sync;

pub(crate) struct Shared {
    pub(crate) cores: [OnceLock<Arc<ChannelCore>>; MAX_CHANNELS],
    pub(crate) free: Mutex<Free>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) asymmetric: bool,
    pub(crate) policy: Arc<Policy>,
    pub(crate) idle: Option<Box<IdleFn>>,
    pub(crate) cpu_work: JobPool<CpuWork>,
    pub(crate) background: OnceLock<Box<dyn Background>>,
    /// The channel that a simulated domain does background work in.
    pub(crate) background_id: OnceLock<usize>,
}

/// The numbers that no channel has.
pub(crate) struct Free {
    pub(crate) threads: Vec<usize>,
    pub(crate) background: Vec<usize>,
}

/// A handle on a domain. Clones are the same domain.
#[derive(Clone)]
pub struct Domain(Arc<Shared>);

impl PartialEq for Domain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Domain {
    pub(crate) fn of(shared: &Arc<Shared>) -> Self {
        Self(shared.clone())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    /// See [`Background::left_behind`].
    pub(crate) fn leave_behind(&self) {
        if let Some(background) = self.background.get() {
            background.left_behind();
        }
    }

    /// In a simulated domain: background work has its turn. Gives the time of what is due next. Not from inside a
    /// channel.
    pub(crate) fn simulate_background(self: &Arc<Self>) -> Option<Nanos> {
        self.idle()?;
        if self.cpu_work.run_queued() {
            return Some(self.clock().now());
        }
        self.background.get()?.turn(&Domain::of(self))
    }
}

impl Shared {
    pub(crate) fn lock_free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core of a number that was taken; it is given back on an error.
    pub(crate) fn core_of(&self, id: usize) -> io::Result<&Arc<ChannelCore>> {
        if self.cores[id].get().is_none() {
            let wake = match self.idle {
                Some(_) => Ok(None),
                None => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Some),
            };
            let wake = wake.inspect_err(|_| self.free(id))?;
            self.cores[id].get_or_init(|| self.new_core(id, wake));
        }
        Ok(self.cores[id].get().expect("made above"))
    }

    pub(crate) fn new_core(&self, id: usize, wake: Option<OwnedFd>) -> Arc<ChannelCore> {
        let (clock, policy) = (self.clock.clone(), self.policy.clone());
        Arc::new(ChannelCore::new(id, clock, policy, self.asymmetric, wake))
    }

    /// The core that control threads share: nobody's channel, served as one whose thread is elsewhere. Nobody sleeps on
    /// it, so it needs no descriptor to be woken by.
    pub(crate) fn control(&self) -> &ChannelCore {
        self.cores[CONTROL].get_or_init(|| {
            let core = self.new_core(CONTROL, None);
            ChannelCore::open(&core);
            core
        })
    }

    pub(crate) fn take_background_id(&self) -> io::Result<usize> {
        let mut free = self.lock_free();
        free.background.pop().or_else(|| free.threads.pop()).ok_or_else(none_left)
    }

    pub(crate) fn core(&self, id: usize) -> &ChannelCore {
        self.cores[id].get().expect("taken before")
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn cores(&self) -> impl Iterator<Item = &ChannelCore> {
        self.counted_cores().map(|c| &**c)
    }

    pub(crate) fn counted_cores(&self) -> impl Iterator<Item = &Arc<ChannelCore>> {
        self.cores.iter().filter_map(|c| c.get())
    }

    pub(crate) fn free(&self, id: usize) {
        let mut free = self.lock_free();
        if id < CHANNELS { free.threads.push(id) } else { free.background.push(id) }
    }

    pub(crate) fn idle(&self) -> Option<&IdleFn> {
        self.idle.as_deref()
    }

    pub(crate) fn idle_or(self: &Arc<Self>, otherwise: impl FnOnce()) {
        let due = self.simulate_background();
        match &self.idle {
            Some(idle) => idle(due),
            None => otherwise(),
        }
    }
}

/// Rounds of waiting that only let others have the CPU.
pub(crate) const SOON: u32 = 64;

/// Lets others have the CPU after so many rounds of waiting for what they are to bring about. What does not come soon
/// may not come for hours, and each look makes every thread pass a barrier: so the longer it has taken, the longer the
/// next look can wait.
pub(crate) fn pause(rounds: u32) {
    match rounds.checked_sub(SOON) {
        None => std::thread::yield_now(),
        Some(late) => std::thread::sleep(Duration::from_micros(100 * u64::from(late / SOON + 1).min(100))),
    }
}

pub(crate) fn none_left() -> io::Error {
    io::Error::other(format!(
        "{CHANNELS} channels are in use, which is all there can be; end some jobs, exports or connections"
    ))
}
