//! The domain: the set of channels that share devices, with its clock and executor, and the grace
//! periods that let devices change beneath running channels.

use crate::background::Background;
use crate::channel::ChannelCore;
use crate::channel::lock::{Sections, grace_period};
use crate::cpu_work::{CpuWork, cpu_pool};
use crate::job_pool::JobPool;
use crate::polling::{Policy, PollPolicy, PollTotals};
use crate::sync::is_asymmetric;
use crate::{Channel, ChannelReport, Clock, Cx, Executor, MonotonicClock, Nanos, ThreadExecutor};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How many numbers there are for channels. Per-channel counters of a device are arrays of this length.
pub const MAX_CHANNELS: usize = 1 << u8::BITS;

/// How many channels a domain can give to threads at a time. The other numbers are for control: a client that takes the last
/// channel must not keep anybody from suspending a device.
pub const CHANNELS: usize = MAX_CHANNELS - 1 - BACKGROUND;

/// For background work; two, because a thread of it that ends may still have bios out when the next one begins.
const BACKGROUND: usize = 2;

/// The number of the channel that control threads share.
const CONTROL: usize = MAX_CHANNELS - 1;

/// What a simulated domain does when a channel would sleep, given the channel's next timer.
type IdleFn = dyn Fn(Option<Nanos>) + Send + Sync;

pub(crate) struct Shared {
    cores: [OnceLock<Arc<ChannelCore>>; MAX_CHANNELS],
    free: Mutex<Free>,
    clock: Arc<dyn Clock>,
    executor: Arc<dyn Executor>,
    asymmetric: bool,
    policy: Arc<Policy>,
    idle: Option<Box<IdleFn>>,
    pub(crate) cpu_work: JobPool<CpuWork>,
    pub(crate) background: OnceLock<Box<dyn Background>>,
    /// The channel that a simulated domain does background work in.
    pub(crate) background_id: OnceLock<usize>,
}

/// The numbers that no channel has.
struct Free {
    threads: Vec<usize>,
    background: Vec<usize>,
}

/// A handle on a domain. Clones are the same domain.
#[derive(Clone)]
pub struct Domain(Arc<Shared>);

/// Makes a [`Domain`] with parts other than the system's.
pub struct DomainBuilder {
    clock: Arc<dyn Clock>,
    executor: Arc<dyn Executor>,
    idle: Option<Box<IdleFn>>,
    asymmetric: bool,
}

impl Default for DomainBuilder {
    fn default() -> Self {
        Self {
            clock: Arc::new(MonotonicClock::start()),
            executor: Arc::new(ThreadExecutor),
            idle: None,
            asymmetric: is_asymmetric(),
        }
    }
}

impl DomainBuilder {
    /// With another clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// With another way to start threads.
    #[must_use]
    pub fn executor(mut self, executor: Arc<dyn Executor>) -> Self {
        self.executor = executor;
        self
    }

    /// Simulated: a channel that would sleep calls `idle` with its next timer instead.
    #[must_use]
    pub fn idle(mut self, idle: impl Fn(Option<Nanos>) + Send + Sync + 'static) -> Self {
        self.idle = Some(Box::new(idle));
        // Few threads, that look at each other often: a fence on both sides is cheaper than a system call on one.
        self.asymmetric = false;
        self
    }

    /// The domain.
    pub fn build(self) -> Domain {
        let Self { clock, executor, idle, asymmetric } = self;
        let free = Free { threads: (0..CHANNELS).rev().collect(), background: (CHANNELS..CONTROL).rev().collect() };
        let free = Mutex::new(free);
        let cores = [const { OnceLock::new() }; MAX_CHANNELS];
        let cpu_work = cpu_pool(executor.clone());
        let (policy, background, background_id) = Default::default();
        let shared =
            Shared { cores, free, clock, executor, asymmetric, policy, idle, cpu_work, background, background_id };
        Domain(Arc::new(shared))
    }
}

impl Default for Domain {
    fn default() -> Self {
        DomainBuilder::default().build()
    }
}

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

    /// A channel for this thread. Fails when [`CHANNELS`] are in use, or no descriptor is left.
    pub fn channel(&self) -> io::Result<Channel> {
        let id = self.0.lock_free().threads.pop().ok_or_else(none_left)?;
        Ok(Channel::new(self.0.clone(), self.0.core_of(id)?))
    }

    /// Runs `work` inside the channel that control threads share. It is always there: nothing is allocated for it that could
    /// run out. `None` when another thread is inside, which it is not for long. What `work` submits there is looked after by
    /// [`drain`](Self::drain), and by the [`Background`] while internal bios are out. Must not be called from inside a channel; `work`
    /// must not block.
    pub fn visit<T>(&self, work: impl FnOnce(&Cx<'_>) -> T) -> Option<T> {
        let core = self.0.control();
        core.lock.enter_remotely(|| work(&Cx::new(core)))
    }

    /// Runs `work` inside the channel that control threads share, again and again until it gives something, and meanwhile
    /// [drains](Self::drain): what a control thread asks of a worker is done though no channel is left. Blocks. Must not be
    /// called from inside a channel.
    ///
    /// Internal bios that are still out there then are left to the [`Background`].
    pub fn drain_with<T>(&self, mut work: impl FnMut(&Cx<'_>) -> Option<T>) -> T {
        let mut found = None;
        self.drain(|| {
            found = self.visit(&mut work).flatten();
            found.is_some()
        });
        if self.0.control().has_internal() {
            self.0.leave_behind();
        }
        found.expect("it is drained until something is found")
    }

    /// The domain's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// The domain's way to start threads.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.0.executor
    }

    /// How the domain's channels poll, from now on.
    pub fn poll_as(&self, policy: PollPolicy) {
        self.0.policy.set(policy);
    }

    /// How the domain's channels poll.
    pub fn poll_policy(&self) -> PollPolicy {
        self.0.policy.get()
    }

    /// What polling came to, in all channels since the domain was made.
    pub fn poll_totals(&self) -> PollTotals {
        let mut sum = PollTotals::default();
        self.0.cores().for_each(|core| sum += core.polls.totals());
        sum
    }

    /// What lies in every channel that there has been, for people. Never waits for a thread that is inside one. Must not be
    /// called from inside a channel.
    pub fn inspect(&self) -> Vec<ChannelReport> {
        self.0.cores().map(ChannelCore::inspect).collect()
    }

    /// How many channels threads could still have.
    pub fn channels_left(&self) -> usize {
        self.0.lock_free().threads.len()
    }

    /// Waits until every channel has left the section it is in now, its owner's or a drainer's: afterwards none uses a pointer that was
    /// unpublished before. Sections are short, since nothing in them blocks. Must not be called from inside a channel.
    pub fn synchronize(&self) {
        grace_period(self.0.asymmetric, self.0.cores().map(|core| &core.lock));
    }

    /// As [`synchronize`](Self::synchronize) for who must not wait: a grace period that is asked later whether it is over.
    /// May be begun and asked anywhere, from inside a channel too; then it also waits for the section that it was begun
    /// in, and is over after the thread has left that one. Costs a membarrier(2), about 1 µs; never blocks.
    pub fn grace(&self) -> Grace {
        Grace(Sections::now(self.0.asymmetric, self.0.counted_cores().cloned()))
    }

    /// As [`grace`](Self::grace), but for the section that `inside` is proof of: the caller answers for it that nothing
    /// further up its stack uses what it has found before. On a channel that is alone, it is over at once.
    pub fn grace_beside(&self, inside: &Cx<'_>) -> Grace {
        let others = self.0.counted_cores().filter(|core| core.id() != inside.id());
        Grace(Sections::now(self.0.asymmetric, others.cloned()))
    }

    /// Runs the timers of `owner` now ([`Cx::at_for`]), whenever they are due. One that is set in a section that begins later
    /// is not among them. Waits for threads that are inside a channel, which they are not for long. Must not be called from inside a
    /// channel.
    pub fn expire(&self, owner: usize) {
        self.0.cores().for_each(|core| core.expire(owner));
    }

    /// Waits until `done` holds, which bios in flight are to bring about. Meanwhile the mailboxes, rings and timers of
    /// channels whose threads sleep elsewhere are served from here. Must not be called from inside a channel.
    pub fn drain(&self, mut done: impl FnMut() -> bool) {
        let mut rounds = 0u32;
        while !done() {
            let mut moved = false;
            for core in self.0.cores() {
                moved |= core.poll_remotely();
            }
            let due = self.0.simulate_background();
            match &self.0.idle {
                Some(idle) => idle(due),
                None => pause(rounds),
            }
            // Where something has moved more may follow.
            rounds = if moved { rounds.min(SOON) } else { rounds.saturating_add(1) };
        }
    }
}

/// A grace period that nobody waits for: see [`Domain::grace`].
pub struct Grace(Sections<Arc<ChannelCore>>);

impl Grace {
    /// Whether every channel has left the section that it was in when the period began: from then on, none uses a pointer
    /// that was unpublished before, and what they did in these sections is visible. Once over, it stays over. Costs a
    /// load for each section that was open; never waits.
    pub fn is_over(&self) -> bool {
        self.0.are_over()
    }
}

impl Shared {
    fn lock_free(&self) -> MutexGuard<'_, Free> {
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

    fn new_core(&self, id: usize, wake: Option<OwnedFd>) -> Arc<ChannelCore> {
        let (clock, policy) = (self.clock.clone(), self.policy.clone());
        Arc::new(ChannelCore::new(id, clock, policy, self.asymmetric, wake))
    }

    /// The core that control threads share: nobody's channel, served as one whose thread is elsewhere. Nobody sleeps on it, so
    /// it needs no descriptor to be woken by.
    fn control(&self) -> &ChannelCore {
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

    fn counted_cores(&self) -> impl Iterator<Item = &Arc<ChannelCore>> {
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
const SOON: u32 = 64;

/// Lets others have the CPU after so many rounds of waiting for what they are to bring about. What does not come soon may not come
/// for hours, and each look makes every thread pass a barrier: so the longer it has taken, the longer the next look can wait.
pub(crate) fn pause(rounds: u32) {
    match rounds.checked_sub(SOON) {
        None => std::thread::yield_now(),
        Some(late) => std::thread::sleep(Duration::from_micros(100 * u64::from(late / SOON + 1).min(100))),
    }
}

fn none_left() -> io::Error {
    io::Error::other(format!(
        "{CHANNELS} channels are in use, which is all there can be; end some jobs, exports or connections"
    ))
}

#[cfg(all(test, loom))]
impl Domain {
    /// For the models: what an orphan keeps, with the number of channels that can be had.
    pub(crate) fn shared_and_left(&self) -> (Arc<Shared>, usize) {
        (self.0.clone(), self.0.lock_free().threads.len())
    }
}
