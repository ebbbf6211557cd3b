//! The domain: the set of channels that share devices, with its clock and executor, and the grace
//! periods that let devices change beneath running channels.

use crate::channel::lock::{Sections, grace_period};
use crate::channel::{
    Background, CHANNELS, CONTROL, ChannelCore, Domain, Free, IdleFn, MAX_CHANNELS, SOON, Shared, cpu_pool, none_left,
    pause,
};
use crate::polling::{PollPolicy, PollTotals};
use crate::sync::is_asymmetric;
use crate::{Channel, ChannelReport, Clock, Cx, Executor, MonotonicClock, Nanos, ThreadExecutor};
use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};

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
        Domain::of(&Arc::new(shared))
    }
}

impl Default for Domain {
    fn default() -> Self {
        DomainBuilder::default().build()
    }
}

impl Domain {
    /// The domain's background work, made at first use.
    ///
    /// # Panics
    /// When the domain has another kind of it already.
    pub fn background<T: Background + Default>(&self) -> &T {
        let background: &dyn Background = &**self.shared().background.get_or_init(|| Box::new(T::default()));
        let background: &dyn Any = background;
        background.downcast_ref().expect("a domain has one kind of background work")
    }

    /// A channel for the thread of the background work, which does not depend on how many other threads have taken.
    /// Fails when no descriptor is left.
    pub fn background_channel(&self) -> io::Result<Channel> {
        let id = self.shared().take_background_id()?;
        Ok(Channel::new(self.shared().clone(), self.shared().core_of(id)?))
    }

    /// Whether time is simulated: there are no threads, and [`Background::turn`] is called instead.
    pub fn is_simulated(&self) -> bool {
        self.shared().idle().is_some()
    }

    /// Makes sure of the channel that [`visit_background`](Self::visit_background) enters.
    pub fn open_background(&self) -> io::Result<()> {
        let shared = self.shared();
        if shared.background_id.get().is_none() {
            let id = shared.take_background_id()?;
            ChannelCore::open(shared.core_of(id)?);
            if shared.background_id.set(id).is_err() {
                shared.free(id);
            }
        }
        Ok(())
    }

    /// Polls a channel that is no thread's, and runs `work` inside it: how a simulated domain, which has no threads,
    /// does background work. `None` when it was not [opened](Self::open_background), or another thread is inside. Not
    /// from inside a channel; `work` must not block.
    pub fn visit_background<T>(&self, work: impl FnOnce(&Cx<'_>) -> T) -> Option<T> {
        let core = self.shared().core(*self.shared().background_id.get()?);
        core.lock.enter_remotely(|| {
            core.poll();
            work(&Cx::new(core))
        })
    }

    /// Polls the channels with internal I/O out, or `all`, whose threads are elsewhere. Not from inside a channel.
    pub fn poll_remotely(&self, all: bool) {
        for core in self.shared().cores().filter(|core| all || core.has_internal()) {
            core.poll_remotely();
        }
    }

    /// Whether internal I/O is out, on any channel.
    pub fn has_internal(&self) -> bool {
        self.shared().cores().any(ChannelCore::has_internal)
    }

    /// A channel for this thread. Fails when [`CHANNELS`] are in use, or no descriptor is left.
    pub fn channel(&self) -> io::Result<Channel> {
        let id = self.shared().lock_free().threads.pop().ok_or_else(none_left)?;
        Ok(Channel::new(self.shared().clone(), self.shared().core_of(id)?))
    }

    /// Runs `work` inside the channel that control threads share. It is always there: nothing is allocated for it that
    /// could run out. `None` when another thread is inside, which it is not for long. What `work` submits there is
    /// looked after by [`drain`](Self::drain), and by the [`Background`] while internal bios are out. Must not be
    /// called from inside a channel; `work` must not block.
    pub fn visit<T>(&self, work: impl FnOnce(&Cx<'_>) -> T) -> Option<T> {
        let core = self.shared().control();
        core.lock.enter_remotely(|| work(&Cx::new(core)))
    }

    /// Runs `work` inside the channel that control threads share, again and again until it gives something, and
    /// meanwhile [drains](Self::drain): what a control thread asks of a worker is done though no channel is left.
    /// Blocks. Must not be called from inside a channel.
    ///
    /// Internal bios that are still out there then are left to the [`Background`].
    pub fn drain_with<T>(&self, mut work: impl FnMut(&Cx<'_>) -> Option<T>) -> T {
        let mut found = None;
        self.drain(|| {
            found = self.visit(&mut work).flatten();
            found.is_some()
        });
        if self.shared().control().has_internal() {
            self.shared().leave_behind();
        }
        found.expect("it is drained until something is found")
    }

    /// The domain's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared().clock
    }

    /// The domain's way to start threads.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.shared().executor
    }

    /// How the domain's channels poll, from now on.
    pub fn poll_as(&self, policy: PollPolicy) {
        self.shared().policy.set(policy);
    }

    /// How the domain's channels poll.
    pub fn poll_policy(&self) -> PollPolicy {
        self.shared().policy.get()
    }

    /// What polling came to, in all channels since the domain was made.
    pub fn poll_totals(&self) -> PollTotals {
        let mut sum = PollTotals::default();
        self.shared().cores().for_each(|core| sum += core.polls.totals());
        sum
    }

    /// What lies in every channel that there has been, for people. Never waits for a thread that is inside one. Must
    /// not be called from inside a channel.
    pub fn inspect(&self) -> Vec<ChannelReport> {
        self.shared().cores().map(ChannelCore::inspect).collect()
    }

    /// How many channels threads could still have.
    pub fn channels_left(&self) -> usize {
        self.shared().lock_free().threads.len()
    }

    /// Waits until every channel has left the section it is in now, its owner's or a drainer's: afterwards none uses a
    /// pointer that was unpublished before. Sections are short, since nothing in them blocks. Must not be called from
    /// inside a channel.
    pub fn synchronize(&self) {
        grace_period(self.shared().asymmetric, self.shared().cores().map(|core| &core.lock));
    }

    /// As [`synchronize`](Self::synchronize) for who must not wait: a grace period that is asked later whether it is
    /// over. May be begun and asked anywhere, from inside a channel too; then it also waits for the section that it was
    /// begun in, and is over after the thread has left that one. Costs a membarrier(2), about 1 µs; never blocks.
    pub fn grace(&self) -> Grace {
        Grace(Sections::now(self.shared().asymmetric, self.shared().counted_cores().cloned()))
    }

    /// As [`grace`](Self::grace), but for the section that `inside` is proof of: the caller answers for it that nothing
    /// further up its stack uses what it has found before. On a channel that is alone, it is over at once.
    pub fn grace_beside(&self, inside: &Cx<'_>) -> Grace {
        let others = self.shared().counted_cores().filter(|core| core.id() != inside.id());
        Grace(Sections::now(self.shared().asymmetric, others.cloned()))
    }

    /// Runs the timers of `owner` now ([`Cx::at_for`]), whenever they are due. One that is set in a section that begins
    /// later is not among them. Waits for threads that are inside a channel, which they are not for long. Must not be
    /// called from inside a channel.
    pub fn expire(&self, owner: usize) {
        self.shared().cores().for_each(|core| core.expire(owner));
    }

    /// Waits until `done` holds, which bios in flight are to bring about. Meanwhile the mailboxes, rings and timers of
    /// channels whose threads sleep elsewhere are served from here. Must not be called from inside a channel.
    pub fn drain(&self, mut done: impl FnMut() -> bool) {
        let mut rounds = 0u32;
        while !done() {
            let mut moved = false;
            for core in self.shared().cores() {
                moved |= core.poll_remotely();
            }
            let due = self.shared().simulate_background();
            match &self.shared().idle {
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
    /// Whether every channel has left the section that it was in when the period began: from then on, none uses a
    /// pointer that was unpublished before, and what they did in these sections is visible. Once over, it stays over.
    /// Costs a load for each section that was open; never waits.
    pub fn is_over(&self) -> bool {
        self.0.are_over()
    }
}

#[cfg(all(test, loom))]
impl Domain {
    /// For the models: what an orphan keeps, with the number of channels that can be had.
    pub(crate) fn shared_and_left(&self) -> (Arc<Shared>, usize) {
        (self.shared().clone(), self.shared().lock_free().threads.len())
    }
}
