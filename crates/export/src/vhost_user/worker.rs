//! A thread that serves queues: it takes what their drivers made available, and shows them what is done.
//!
//! # Invariants
//! - Rings and what belongs to their queues are touched by this thread alone; others tell it what to do.
//! - A queue that is to stop takes nothing new, and has stopped when its last bio is back.
//! - Before it sleeps, it asks each driver to ring and looks once more: one of the two sees the other.

use super::queue::{Queue, Way};
use super::ring::Broken;
use super::{GuestMemory, Mode};
use crate::worker::mailbox::{self, Notifier, Notify};
use crate::worker::{Rest, Rested, Serve, Turn};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use udm_io::{Attached, BlockDevice, Channel, Domain, Nanos, Woken};

/// How long an adaptive worker looks for news before it sleeps, at most and to begin with. What a wake-up across CPUs
/// costs is in this order; longer would burn a CPU for less than it gains.
const SPIN_MOST: u64 = 50_000;
const SPIN_FIRST: u64 = 10_000;
/// Looks between two readings of the clock while it spins.
const LOOKS: u32 = 16;
/// Looks in vain after which a polling worker lets others have the CPU for once: some 10 microseconds, ten times what a
/// driver that polls as well needs for its next request. Where both have to share a CPU, each would spin until its time
/// slice is over.
const PATIENCE: u32 = 512;

/// Requests after which the driver is told that they are done though more is there to do. To find out whether it wants
/// to be told takes a fence; a driver that looks by itself has seen them long before.
const TELL: u16 = 16;

/// What a worker is told.
pub(super) enum Command {
    /// Serve a queue; the answer says whether its ring could be used.
    Start(Box<Start>, mpsc::Sender<Result<(), Broken>>),
    /// Stop serving a queue; the answer, when its last bio is back, is where its available ring goes on.
    Stop(usize, mpsc::Sender<u16>),
    /// Tell the driver of a queue here from now on.
    Call(usize, Option<OwnedFd>),
    /// The memory of the guest changes.
    Memory(Arc<GuestMemory>, mpsc::Sender<Result<(), Broken>>),
}

/// A queue to be served.
pub(super) struct Start {
    pub(super) queue: Queue,
    /// Rung by the driver; polled without.
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
}

/// Whether a worker can go on.
pub(super) struct Health {
    /// Why it has given a queue up, for the one who asks.
    broken: Mutex<Option<String>>,
    /// Of the one who asks: notified when a queue broke or the worker has ended.
    notifier: Arc<Notifier>,
}

impl Health {
    /// Why the front end can be served no longer, if it cannot.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn give_up(&self, reason: &str) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.to_owned());
        self.notifier.notify();
    }
}

/// The side of a worker that other threads see.
pub(super) type Handle = mailbox::Handle<Command, Health>;

struct Served {
    queue: Queue,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    stopping: Option<mpsc::Sender<u16>>,
}

impl Served {
    /// Tells the driver what it was shown, if it wants to be told.
    #[inline]
    fn tell(&mut self) {
        if self.queue.wants_to_be_told()
            && let Some(call) = &self.call
        {
            // Full means that it was told and has not looked yet.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }

    fn takes(&self) -> bool {
        self.stopping.is_none() && !self.queue.is_closed()
    }
}

pub(super) struct Worker {
    channel: Channel,
    device: Attached,
    mode: Mode,
    handle: Arc<Handle>,
    /// By number; a place is free when its queue is not served here.
    queues: Vec<Option<Served>>,
    /// Of queues that no driver rings for.
    unrung: usize,
    paused: bool,
    ending: bool,
    /// How long it looks for news before it sleeps, in ns.
    spin: u64,
    /// Turns in vain since it has done something.
    quiet: u32,
    /// When it began to look in vain.
    since: Option<Nanos>,
    /// When it went to sleep.
    asleep_since: Nanos,
}

impl Worker {
    /// A worker for the calling thread. `notifier` is told when somebody should ask how it is.
    pub(super) fn new(
        domain: &Domain,
        device: Arc<dyn BlockDevice>,
        mode: Mode,
        notifier: Arc<Notifier>,
    ) -> io::Result<Self> {
        let channel = domain.channel()?;
        let device = channel.attach(device);
        let handle = Arc::new(Handle::new(&channel, Health { broken: Mutex::default(), notifier }));
        Ok(Self {
            channel,
            device,
            mode,
            handle,
            queues: Vec::new(),
            unrung: 0,
            paused: false,
            ending: false,
            spin: SPIN_FIRST,
            quiet: 0,
            since: None,
            asleep_since: Nanos::default(),
        })
    }

    /// Whether to look again rather than sleep.
    #[inline]
    fn spins(&mut self) -> bool {
        let quiet = self.quiet;
        let polls = (self.mode == Mode::Polled || self.unrung > 0) && !self.paused;
        let polls = polls && self.queues.iter().flatten().any(Served::takes);
        if polls {
            if quiet.is_multiple_of(PATIENCE) || quiet > 16 * PATIENCE {
                if self.queues.iter().flatten().any(|q| q.queue.is_torn()) {
                    self.give_up(&torn());
                }
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            return true;
        }
        // With bios out their device decides when there is news.
        if self.mode != Mode::Adaptive || self.spin == 0 || self.channel.outstanding() > 0 {
            return false;
        }
        std::hint::spin_loop();
        if quiet % LOOKS != 1 {
            return true;
        }
        // Whoever else wants the CPU, the driver before all, gets it.
        std::thread::yield_now();
        let now = self.channel.now();
        now.since(*self.since.get_or_insert(now)) < self.spin
    }

    /// Takes, completes and publishes what there is. Returns how much that was.
    #[inline]
    fn work(&mut self) -> usize {
        let mut moved = 0;
        let way = Way { channel: &self.channel, device: self.device };
        let mut fault = None;
        let takes = !self.paused;
        for served in self.queues.iter_mut().flatten().filter(|served| takes && served.takes()) {
            match served.queue.take(way) {
                Ok(n) => moved += n,
                Err(broken) => fault = Some(broken),
            }
        }
        if self.channel.outstanding() > 0 {
            moved += self.channel.poll();
        }
        let mut finished = 0;
        while let Some(done) = self.channel.completed() {
            finished += 1;
            let (index, head) = ((done.token >> 16) as usize, done.token as u16);
            let served = self.queues.get_mut(index).and_then(Option::as_mut).expect("a queue outlives its bios");
            served.queue.completed(head, done, way);
        }
        moved += finished;
        if moved > 0 {
            for served in self.queues.iter_mut().flatten() {
                // Nothing is acknowledged whose memory had gone.
                match served.queue.is_torn() {
                    false => served.queue.publish(),
                    true => fault = Some(torn()),
                }
                if served.queue.untold() >= TELL {
                    served.tell();
                }
            }
        } else {
            self.queues.iter_mut().flatten().for_each(Served::tell);
        }
        if let Some(broken) = fault {
            self.give_up(&broken);
        }
        moved
    }

    /// The front end can be served no longer.
    #[cold]
    fn give_up(&mut self, broken: &Broken) {
        self.queues.iter_mut().flatten().for_each(|served| served.queue.close());
        self.handle.status.give_up(&broken.0);
    }

    /// Answers for queues whose last bio is back.
    fn stop_queues(&mut self) {
        for at in 0..self.queues.len() {
            let Some(served) = &mut self.queues[at] else { continue };
            if served.queue.out() > 0 || !(self.ending || served.stopping.is_some()) {
                continue;
            }
            if let Some(answer) = served.stopping.take() {
                // Who asked may have given up.
                let _ = answer.send(served.queue.taken());
            }
            if let Some(kick) = &served.kick {
                // Fails only when it was never watched.
                let _ = self.channel.unwatch(kick);
            }
            self.unrung -= usize::from(served.kick.is_none());
            self.queues[at] = None;
        }
    }

    fn start(&mut self, start: Start) -> Result<(), Broken> {
        let Start { queue, kick, call } = start;
        let index = queue.index;
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        if let Some(kick) = &kick {
            self.channel
                .watch_edges(kick, index as u64)
                .map_err(|e| Broken(format!("the descriptor to ring queue {index} with cannot be watched: {e}")))?;
        }
        self.unrung += usize::from(kick.is_none());
        let served = self.queues[index].insert(Served { queue, kick, call, stopping: None });
        served.queue.decline_kicks();
        let depth = self.queues.iter().flatten().map(|served| served.queue.depth()).sum();
        self.channel.set_depth(depth);
        let way = Way { channel: &self.channel, device: self.device };
        let served = self.queues[index].as_mut().expect("put there above");
        let result = served.queue.resume(way);
        // One before may have ended between showing the driver something and telling it.
        if let Some(call) = &served.call {
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
        if let Err(broken) = &result {
            self.give_up(broken);
        }
        result
    }
}

impl Serve for Worker {
    type Command = Command;
    type Status = Health;
    const CLIENTS: &'static str = "the driver of a virtual machine";

    fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn channel(&self) -> &Channel {
        &self.channel
    }

    fn command(&mut self, command: Command) {
        // Whoever asked has gone when it does not listen, and will tell us to end.
        match command {
            Command::Start(start, answer) => drop(answer.send(self.start(*start))),
            Command::Stop(index, answer) => match self.queues.get_mut(index).and_then(Option::as_mut) {
                Some(served) => served.stopping = Some(answer),
                None => drop(answer),
            },
            Command::Call(index, call) => {
                if let Some(served) = self.queues.get_mut(index).and_then(Option::as_mut) {
                    served.call = call;
                    // The one before may have been rung by nobody.
                    if let Some(call) = &served.call {
                        let _ = rustix::io::write(call, &1u64.to_ne_bytes());
                    }
                }
            }
            Command::Memory(memory, answer) => {
                let mut queues = self.queues.iter_mut().flatten();
                let result = queues.try_for_each(|served| served.queue.change_memory(memory.clone()));
                if let Err(broken) = &result {
                    self.give_up(broken);
                }
                let _ = answer.send(result);
            }
        }
    }

    /// It is over when it was told to end and its last bio is back.
    #[inline]
    fn turn(&mut self) -> io::Result<Turn> {
        if self.work() > 0 {
            (self.quiet, self.since) = (0, None);
            return Ok(Turn::Again);
        }
        self.stop_queues();
        if self.ending && self.queues.iter().all(Option::is_none) {
            return Ok(Turn::Over);
        }
        self.quiet = self.quiet.saturating_add(1);
        let rest = Rest { more: false, linger: 0, timeout: None };
        Ok(if self.spins() { Turn::Again } else { Turn::Rest(rest) })
    }

    fn may_sleep(&mut self) -> bool {
        (self.quiet, self.since) = (0, None);
        let takes = !self.paused;
        for served in self.queues.iter().flatten().filter(|served| takes && served.takes()) {
            // What is wrong is found, and told, when the queue is looked at next.
            if !matches!(served.queue.ask_for_kicks(), Ok(false)) {
                return false;
            }
        }
        if self.queues.iter().flatten().any(|q| q.queue.is_torn()) {
            self.give_up(&torn());
        }
        self.asleep_since = self.channel.now();
        true
    }

    /// Learns how long it is worth while to look for news.
    fn rested(&mut self, _: Rest, how: Rested, woken: &[Woken]) {
        if how == Rested::Awake {
            return;
        }
        let slept = self.channel.now().since(self.asleep_since);
        // As KVM's halt polling: what came soon would have been found by looking longer, what came late by no looking.
        if woken.iter().any(|w| w.readable) {
            self.spin = match slept < SPIN_MOST {
                true => (self.spin * 2).clamp(SPIN_FIRST, SPIN_MOST),
                false => self.spin / 2,
            };
            if self.spin < SPIN_FIRST / 8 {
                self.spin = 0;
            }
        }
        self.queues.iter().flatten().for_each(|served| served.queue.decline_kicks());
    }

    fn pause(&mut self) {
        self.paused = true;
    }

    fn is_quiet(&self) -> bool {
        self.queues.iter().flatten().all(|served| served.queue.out() == 0)
    }

    fn resume(&mut self) {
        self.paused = false;
    }

    /// Touches no ring any more. It waits for the last bio, however long that takes.
    fn end(&mut self, _: Nanos) {
        self.queues.iter_mut().flatten().for_each(|served| served.queue.close());
        self.ending = true;
    }

    fn cannot_wait(&mut self, error: &io::Error) -> bool {
        self.give_up(&Broken(format!("a thread cannot sleep: {error}")));
        true
    }
}

fn torn() -> Broken {
    Broken("the front end has taken memory away that it shares".into())
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.handle.status.notifier.notify();
    }
}
