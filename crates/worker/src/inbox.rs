//! What is left for a worker, and what of it only the thread that runs it touches.
//!
//! # Two places
//! What a thread leaves while it runs the worker itself, and what it brings when it takes the lock, lies *near*: no
//! other thread looks there, so that it takes no lock. All other events lie beside, under a lock of their own, and are
//! brought near before each poll. So a thread's events stay in their order: what lies near was left before what lies
//! beside.
//!
//! # What a kick says
//! A kick says that something has happened, not what (`run_lock.rs` has the rule by which none is lost). A worker that
//! awaits an operation may be polled for an event, and find that the operation is not done: that kick is spent, and the
//! event lies near. So a worker can wait for events in one place only, [`Events::idle`], and that looks there first.

use crate::outgoing::{Awaiting, Outgoing};
use crate::run_lock::{Held, RunLock};
use crate::sync::{
    AtomicBool, Mutex,
    Ordering::{Acquire, Release},
};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use udm_io::Nanos;

/// The most turns without a pause, while threads leave more and more events: the outbox waits for a pause.
const TURNS: usize = 16;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// What a worker does, until it ends.
pub(crate) type Main = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A future beside the worker: its end is an event.
pub(crate) type Task<E> = Pin<Box<dyn Future<Output = E> + Send>>;

/// What is polled, and what the polling thread has in hand.
pub(crate) struct Runner<E: 'static> {
    pub(crate) main: Option<Main>,
    pub(crate) tasks: Vec<Task<E>>,
    /// What is being sent; empty between two runs.
    pub(crate) sending: VecDeque<Outgoing<E>>,
    /// Copies that each copier could not take yet. They go before all that are asked for later.
    pub(crate) copies: Box<[VecDeque<Awaiting>]>,
}

impl<E: 'static> Runner<E> {
    /// Takes out what is polled.
    pub(crate) fn end(&mut self) -> Option<(Main, Vec<Task<E>>)> {
        self.main.take().map(|main| (main, std::mem::take(&mut self.tasks)))
    }
}

/// What the thread that runs the worker reaches from further up its stack.
pub(crate) struct Near<E: 'static> {
    pub(crate) events: VecDeque<E>,
    pub(crate) outgoing: VecDeque<Outgoing<E>>,
    /// An operation has come back: a task may have waited for it.
    pub(crate) answered: bool,
    /// Operations that went out, less those that came back.
    pub(crate) out: isize,
}

/// The lock under which a worker is polled.
pub(crate) type Lock<E> = RunLock<Runner<E>, Near<E>>;
/// It is held by this thread.
pub(crate) type Running<'a, E> = Held<'a, Runner<E>, Near<E>>;

/// The events that have been left for a worker.
pub(crate) struct Inbox<E: 'static> {
    /// What threads have left that did not run it.
    beside: Mutex<Vec<E>>,
    /// There is something in `beside`. Written under its lock; whoever was kicked for it sees it.
    any: AtomicBool,
    /// When the worker has something to do even without an event.
    deadline: AtomicU64,
    pub(crate) run: Lock<E>,
    /// Events that lie near, and what is to be sent, when nobody runs it. For people.
    near: [AtomicUsize; 2],
}

impl<E: 'static> Inbox<E> {
    /// For a worker with so many copiers.
    pub(crate) fn new(copiers: usize) -> Arc<Self> {
        let copies = (0..copiers).map(|_| VecDeque::new()).collect();
        let runner = Runner { main: None, tasks: Vec::new(), sending: VecDeque::new(), copies };
        let near = Near { events: VecDeque::new(), outgoing: VecDeque::new(), answered: false, out: 0 };
        Arc::new(Self {
            beside: Mutex::new(Vec::new()),
            any: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            run: RunLock::new(runner, near),
            near: Default::default(),
        })
    }

    fn beside(&self) -> MutexGuardOf<'_, E> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves an event. Kick the worker afterwards.
    pub(crate) fn leave(&self, event: E) {
        match self.run.near() {
            Some(mut near) => near.events.push_back(event),
            None => self.leave_beside(event),
        }
    }

    fn leave_beside(&self, event: E) {
        let mut beside = self.beside();
        beside.push(event);
        self.any.store(true, Release);
    }

    /// Leaves an event, and kicks the worker. Some: this thread is to run it.
    pub(crate) fn post(&self, event: E) -> Option<Running<'_, E>> {
        if let Some(mut near) = self.run.near() {
            near.events.push_back(event);
        } else if let Some(mut held) = self.run.try_lock() {
            self.bring_near(&mut held);
            held.near().events.push_back(event);
            return Some(held);
        } else {
            self.leave_beside(event);
        }
        self.run.kick()
    }

    /// Brings near what lies beside.
    fn bring_near(&self, held: &mut Running<'_, E>) {
        if self.any.load(Acquire) {
            let mut beside = self.beside();
            held.near().events.extend(beside.drain(..));
            self.any.store(false, Release);
        }
    }

    /// Before each poll: takes the kicks until now, and brings near what they were for.
    #[inline]
    pub(crate) fn begin(&self, held: &mut Running<'_, E>) {
        held.begin();
        self.bring_near(held);
    }

    /// When the worker has ended: puts beside what lies near, where [`forget`](Self::forget) finds it.
    pub(crate) fn retire(&self, held: &mut Running<'_, E>) {
        let mut beside = self.beside();
        beside.extend(held.near().events.drain(..));
    }

    /// Drops events of a kind that were left for a worker which has ended.
    pub(crate) fn forget(&self, what: impl Fn(&E) -> bool) {
        let forgotten: Vec<E> = self.beside().extract_if(.., |event| what(event)).collect();
        // Without the lock: dropping an event may answer a caller, which may then leave another event.
        drop(forgotten);
    }

    /// Before the lock is let go of: notes for people what lies near.
    #[inline]
    pub(crate) fn note(&self, held: &mut Running<'_, E>) {
        let near = held.near();
        let [events, outgoing] = &self.near;
        events.store(near.events.len(), Relaxed);
        outgoing.store(near.outgoing.len(), Relaxed);
    }

    /// How many events wait; `None` if another thread has the lock.
    pub(crate) fn len(&self) -> Option<usize> {
        let beside = self.beside.try_lock().ok()?.len();
        Some(beside + self.near[0].load(Relaxed))
    }

    /// How much waits to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.near[1].load(Relaxed)
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        Some(self.deadline.load(Relaxed)).filter(|at| *at != NEVER).map(Nanos)
    }
}

#[cfg(not(loom))]
type MutexGuardOf<'a, E> = MutexGuard<'a, Vec<E>>;
#[cfg(loom)]
type MutexGuardOf<'a, E> = loom::sync::MutexGuard<'a, Vec<E>>;

/// A worker's end of its inbox: events, in turns.
///
/// A turn consists of the events that were there when it began, and those that the worker has put back since. After a
/// turn the worker does work that is due (a commit for all of the turn), and calls [`idle`](Self::idle).
pub struct Events<E: 'static> {
    inbox: Arc<Inbox<E>>,
    turn: VecDeque<E>,
    /// There is more to do after this turn, whether events come or not.
    goes_on: bool,
    /// Turns since the last pause.
    turns: usize,
}

impl<E: 'static> Events<E> {
    pub(crate) fn new(inbox: Arc<Inbox<E>>) -> Self {
        Self { inbox, turn: VecDeque::new(), goes_on: false, turns: 0 }
    }

    fn take_in(&mut self) {
        if let Some(mut near) = self.inbox.run.near() {
            self.turn.append(&mut near.events);
        }
    }

    /// The next event of this turn.
    #[expect(clippy::should_implement_trait, reason = "it does not end with the first None")]
    pub fn next(&mut self) -> Option<E> {
        self.turn.pop_front()
    }

    /// Puts events back into this turn, before all others and in their order.
    pub fn put_first(&mut self, events: impl IntoIterator<Item = E, IntoIter: DoubleEndedIterator>) {
        events.into_iter().rev().for_each(|event| self.turn.push_front(event));
    }

    /// Puts events back into this turn, after all others.
    pub fn put_last(&mut self, events: impl IntoIterator<Item = E>) {
        self.turn.extend(events);
    }

    /// Ends the turn: waits until something happens, at most until `deadline`, unless there is more to do already.
    /// Anything that happens meanwhile begins another turn, even without events.
    pub async fn idle(&mut self, deadline: Option<Nanos>) {
        // A kick that came while something else was awaited is used up: its event is seen here.
        self.take_in();
        self.turns += 1;
        if !std::mem::take(&mut self.goes_on) && self.turn.is_empty() {
            self.inbox.deadline.store(deadline.map_or(NEVER, |at| at.0), Relaxed);
            self.turns = 0;
            pause().await;
        } else if self.turns == TURNS {
            self.turns = 0;
            self.give_way().await;
        }
        self.take_in();
    }

    /// Makes the polling thread send the outbox before the worker goes on.
    pub async fn give_way(&mut self) {
        self.goes_on = true;
        self.inbox.run.want();
        pause().await;
    }
}

/// Pending once.
struct Pause(bool);

/// Waits until the worker is polled again, for any reason; the caller then checks its condition.
pub(crate) fn pause() -> impl Future<Output = ()> + Send {
    Pause(false)
}

impl Future for Pause {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}
