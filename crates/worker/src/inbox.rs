//! What is left for a worker, and the rule by which it never misses any of it.
//!
//! # No kick is lost
//! A thread that has something for the worker leaves it (in the inbox, in the slot of an operation) and *kicks*: it
//! sets `wanted`, and tries the runner's lock. The thread that has the lock clears `wanted` before it polls the worker,
//! and takes it once more after it has let go of the lock. So either the kicker gets the lock, or the holder sees
//! `wanted`: both exchange it, and the later exchange sees what was before the earlier.
//!
//! A kick says that something has happened, not what. A worker that awaits an operation may be polled for an event, and
//! find that the operation is not done: that kick is spent, and the event lies in the inbox. So a worker can wait for
//! events in one place only, [`Events::idle`], and that looks into the inbox first.

use crate::lock;
use crate::sync::{
    AtomicBool, Mutex,
    Ordering::{Acquire, Release, SeqCst},
};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use udm_io::Nanos;

/// Turns without a pause, while others leave more and more: what is in the outbox waits for a pause.
const TURNS: usize = 16;
/// No deadline.
const NEVER: u64 = u64::MAX;

/// What has been left for a worker.
pub(crate) struct Inbox<E> {
    left: std::sync::Mutex<Vec<E>>,
    /// There is something in `left`. Written under its lock; whoever was kicked for it sees it.
    any: AtomicBool,
    /// Something was left since the worker was polled last.
    wanted: AtomicBool,
    /// When the worker has something to do that no event brings.
    deadline: AtomicU64,
}

impl<E> Inbox<E> {
    pub(crate) fn new() -> Arc<Self> {
        let deadline = AtomicU64::new(NEVER);
        let (any, wanted) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { left: std::sync::Mutex::default(), any, wanted, deadline })
    }

    pub(crate) fn leave(&self, event: E) {
        let mut left = lock(&self.left);
        left.push(event);
        self.any.store(true, Release);
    }

    /// Takes what has been left.
    fn take(&self, into: &mut VecDeque<E>) {
        if self.any.load(Acquire) {
            let mut left = lock(&self.left);
            into.extend(left.drain(..));
            self.any.store(false, Release);
        }
    }

    /// Drops events of a kind.
    pub(crate) fn forget(&self, what: impl Fn(&E) -> bool) {
        let forgotten: Vec<E> = lock(&self.left).extract_if(.., |event| what(event)).collect();
        // Without the lock: whoever is answered by that may leave something.
        drop(forgotten);
    }

    /// How many events wait, unless somebody has them in hand.
    pub(crate) fn len(&self) -> Option<usize> {
        self.left.try_lock().ok().map(|left| left.len())
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        Some(self.deadline.load(Relaxed)).filter(|at| *at != NEVER).map(Nanos)
    }

    /// Has the worker polled once more before it counts as idle.
    pub(crate) fn want(&self) {
        self.wanted.swap(true, SeqCst);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    /// By the thread that has the runner, before it polls the worker: what is left from here on is for another time.
    pub(crate) fn begin(&self) {
        // Not a store: one that had not seen a kick would take it back. Whoever swaps sees what was left before.
        self.wanted.swap(false, SeqCst);
    }

    /// Does `work` with the runner, if nobody else does, until nothing more is wanted or `work` breaks off. `work`
    /// calls [`begin`](Self::begin) before it looks at anything. None: somebody else has the runner, and will look
    /// again.
    pub(crate) fn run<R, B>(
        &self,
        runner: &Mutex<R>,
        mut work: impl FnMut(&mut R) -> ControlFlow<B>,
    ) -> Option<ControlFlow<B>> {
        loop {
            // Also again: what was taken below may have been for a thread that has got the runner since.
            self.want();
            let mut held = runner.try_lock().ok()?;
            let done = work(&mut held);
            drop(held);
            if done.is_break() || !self.wanted.swap(false, SeqCst) {
                return Some(done);
            }
        }
    }
}

/// A worker's end of its inbox: events, in turns.
///
/// A turn is what was there when it began, and what the worker itself has put back since. After it the worker does what
/// is due (a commit for all of the turn), and calls [`idle`](Self::idle).
pub struct Events<E> {
    inbox: Arc<Inbox<E>>,
    turn: VecDeque<E>,
    /// This turn had something to do.
    busy: bool,
    /// Turns since the last pause.
    turns: usize,
}

impl<E> Events<E> {
    pub(crate) fn new(inbox: Arc<Inbox<E>>) -> Self {
        Self { inbox, turn: VecDeque::new(), busy: false, turns: 0 }
    }

    fn take_in(&mut self) {
        self.inbox.take(&mut self.turn);
    }

    /// The next event of this turn.
    #[expect(clippy::should_implement_trait, reason = "it does not end with the first None")]
    pub fn next(&mut self) -> Option<E> {
        let next = self.turn.pop_front();
        self.busy |= next.is_some();
        next
    }

    /// Puts events back, before all others and in their order: for this turn.
    pub fn put_first(&mut self, events: impl IntoIterator<Item = E, IntoIter: DoubleEndedIterator>) {
        events.into_iter().rev().for_each(|event| self.turn.push_front(event));
    }

    /// Puts events back, after all others of this turn.
    pub fn put_last(&mut self, events: impl IntoIterator<Item = E>) {
        self.turn.extend(events);
    }

    /// Ends the turn: waits for something to happen, at most until `deadline`, unless there is more to do already.
    /// Whatever happens meanwhile begins another turn, also one without events.
    pub async fn idle(&mut self, deadline: Option<Nanos>) {
        // A kick while something else was awaited has only told that: what it was for is seen here.
        self.take_in();
        self.turns += 1;
        let busy = std::mem::take(&mut self.busy) || !self.turn.is_empty();
        if !busy {
            self.inbox.deadline.store(deadline.map_or(NEVER, |at| at.0), Relaxed);
            self.turns = 0;
            pause().await;
        } else if self.turns == TURNS {
            self.turns = 0;
            self.give_way().await;
        }
        self.take_in();
    }

    /// Has what is in the outbox sent before the worker goes on.
    pub async fn give_way(&mut self) {
        self.busy = true;
        self.inbox.want();
        pause().await;
    }
}

/// Pending once.
struct Pause(bool);

/// Waits until the worker is polled again, for whatever reason: to look whether it was for what is waited for.
pub(crate) fn pause() -> impl Future<Output = ()> + Send {
    Pause(false)
}

impl Future for Pause {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}
