//! The workqueue: it goes on with work when no submitting thread comes by.
//!
//! A worker here is a state machine that submitters and completions drive. When those stop (the submitter has its
//! result, and its thread does other things), completions lie in rings that no thread polls, and deadlines pass
//! unnoticed. So each domain with work items has one workqueue: a thread that sleeps until it is kicked or a work item
//! is due, and then runs work items. While internal bios are out, it also serves the channels whose threads are
//! elsewhere and those without an owner. A simulated domain, which has no threads, does the same whenever a channel is
//! polled or waits.

use crate::job::CopyOptions;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;
use udm_io::{Background, Cx, Domain, Nanos, Waker};

/// Work that has to go on even if no thread submits.
pub trait Work: Send + Sync {
    /// Does the work that can be done now, inside a channel of the workqueue. Returns the latest time for the next
    /// call; `None`: only when it is kicked. Must not block.
    ///
    /// As long as that time is within 20 ms, kicks cost nothing and change nothing. So a work item that is busy now and
    /// then should return such a time for a while. With a later time, which is for a deadline, a kick runs the work
    /// item at once.
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos>;

    /// Whether it waits for other clients' bios, which may be out on any channel: then every channel whose thread is
    /// elsewhere is served. Called after [`attend`](Self::attend) has returned a time.
    fn waits_for_others(&self) -> bool {
        false
    }
}

/// No time.
const NEVER: u64 = u64::MAX;
/// How often channels with internal bios out are served, whether a work item is due or not.
const ATTENTION_NS: u64 = 10_000_000;

/// A work item that is run within this time need not be kicked.
const SOON_NS: u64 = 20_000_000;

struct Entry {
    work: Weak<dyn Work>,
    /// Kicked, or run soon anyway.
    kicked: AtomicBool,
    next: AtomicU64,
    /// `kicked` was set by the workqueue only because the item runs soon anyway, when `next` was set. Written by the
    /// workqueue.
    soon: AtomicBool,
}

impl Entry {
    /// Whether it was kicked and the kick matters. `next` is the entry's.
    fn is_kicked(&self, next: u64) -> bool {
        (next == NEVER || !self.soon.load(Ordering::Relaxed)) && self.kicked.load(Ordering::SeqCst)
    }
}

/// The workqueue of a domain.
#[derive(Default)]
pub struct Workqueue {
    state: Mutex<State>,
    /// The options of every copier of the domain, whatever its creator asks for.
    copies: Mutex<Option<CopyOptions>>,
}

#[derive(Default)]
struct State {
    entries: Vec<Arc<Entry>>,
    /// The thread's waker, while there is a thread.
    waker: Option<Waker>,
}

/// A work item in the workqueue, until this is dropped. The work item's internal bios hold it, through the work item.
pub struct WorkItem {
    entry: Arc<Entry>,
    domain: Domain,
}

impl WorkItem {
    /// Makes the workqueue run the work item soon. Costs a load if it is about to run or has been kicked already,
    /// otherwise a system call. From anywhere.
    pub fn kick(&self) {
        // Either the workqueue sees the reason for the kick, or this load sees that the workqueue has begun to look.
        fence(Ordering::SeqCst);
        if self.entry.kicked.load(Ordering::SeqCst) || self.entry.kicked.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(waker) = &Workqueue::of(&self.domain).lock().waker {
            waker.wake();
        }
    }
}

impl WorkItem {
    /// Makes the workqueue run the work item at once, even if it has a later time. Costs a system call. From anywhere.
    pub fn kick_now(&self) {
        self.entry.next.store(0, Ordering::SeqCst);
        self.entry.kicked.store(true, Ordering::SeqCst);
        if let Some(waker) = &Workqueue::of(&self.domain).lock().waker {
            waker.wake();
        }
    }
}

impl Drop for WorkItem {
    fn drop(&mut self) {
        let mut state = Workqueue::of(&self.domain).lock();
        state.entries.retain(|e| !Arc::ptr_eq(e, &self.entry));
        if let (true, Some(waker)) = (state.entries.is_empty(), &state.waker) {
            waker.wake();
        }
    }
}

impl WorkItem {
    /// Adds a work item to the workqueue of `domain`, and kicks it. Starts the workqueue's thread for the first item,
    /// and fails when that fails. May block briefly.
    pub fn new(domain: &Domain, work: Weak<dyn Work>) -> io::Result<Self> {
        let entry = Arc::new(Entry {
            work,
            kicked: AtomicBool::new(true),
            next: AtomicU64::new(NEVER),
            soon: AtomicBool::new(false),
        });
        let mut state = Workqueue::of(domain).lock();
        if domain.is_simulated() {
            domain.open_background()?;
        } else if state.waker.is_none() {
            let (ready, started) = mpsc::channel();
            let there = domain.clone();
            let thread = move || run(&there, &ready);
            domain.executor().spawn("udm-workqueue", Box::new(thread))?;
            let gone = || io::Error::other("the workqueue's thread has ended before it began");
            state.waker = Some(started.recv().map_err(|_| gone())??);
        }
        state.entries.push(entry.clone());
        if let Some(waker) = &state.waker {
            waker.wake();
        }
        drop(state);
        Ok(Self { entry, domain: domain.clone() })
    }
}

/// The workqueue's thread.
fn run(domain: &Domain, ready: &mpsc::Sender<io::Result<Waker>>) {
    let channel = match domain.background_channel() {
        Ok(channel) => channel,
        Err(e) => return drop(ready.send(Err(e))),
    };
    if ready.send(Ok(channel.waker())).is_err() {
        return;
    }
    loop {
        let Some(entries) = Workqueue::of(domain).entries_or_end() else { return };
        channel.poll();
        let next = channel.with_cx(|cx| round(&entries, cx));
        let next = serve_elsewhere(domain, &entries, next);
        drop(entries);
        let timeout = next.map(|at| Duration::from_nanos(at.since(channel.now())));
        if channel.wait(timeout, &mut Vec::new()).is_err() {
            std::thread::yield_now();
        }
    }
}

/// The work of a workqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkqueueReport {
    /// Its work items.
    pub items: usize,
    /// Those that are to run at once.
    pub kicked: usize,
    /// When the first of the others is due.
    pub next: Option<Nanos>,
}

impl Workqueue {
    /// The domain's.
    pub fn of(domain: &Domain) -> &Self {
        domain.background()
    }

    /// The work that it has, for people.
    pub fn inspect(&self) -> WorkqueueReport {
        let state = self.lock();
        let kicked = state.entries.iter().filter(|e| e.is_kicked(e.next.load(Ordering::Relaxed))).count();
        WorkqueueReport { items: state.entries.len(), kicked, next: next_due(&state.entries) }
    }

    /// See [`Kcopyd::copy_as`](crate::Kcopyd::copy_as).
    pub(crate) fn copies(&self) -> MutexGuard<'_, Option<CopyOptions>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The work items to run; when there are none, the thread ends.
    fn entries_or_end(&self) -> Option<Vec<Arc<Entry>>> {
        let mut state = self.lock();
        if state.entries.is_empty() {
            let waker = state.waker.take();
            drop(state);
            // It may be the last reference to the domain except for the thread's own.
            drop(waker);
            return None;
        }
        Some(state.entries.clone())
    }
}

/// Runs the items that have been kicked or are due. Returns when the next is due.
fn round(entries: &[Arc<Entry>], cx: &Cx<'_>) -> Option<Nanos> {
    let now = cx.now();
    for entry in entries {
        let next = entry.next.load(Ordering::Relaxed);
        if !entry.is_kicked(next) && next > now.0 {
            continue;
        }
        // Before it looks: a later kick is for another round.
        entry.next.store(NEVER, Ordering::SeqCst);
        entry.kicked.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = entry.work.upgrade().and_then(|work| work.do_work(cx));
        if let Some(at) = next {
            // Unless it has to run at once.
            let at = at.0.min(NEVER - 1);
            let soon = at <= cx.now().after(SOON_NS).0;
            entry.soon.store(soon, Ordering::Relaxed);
            let _ = entry.next.compare_exchange(NEVER, at, Ordering::SeqCst, Ordering::Relaxed);
            if soon {
                entry.kicked.store(true, Ordering::SeqCst);
            }
        }
    }
    next_due(entries)
}

fn wait_for_others(entries: &[Arc<Entry>]) -> bool {
    let scheduled = entries.iter().filter(|e| e.next.load(Ordering::Relaxed) != NEVER);
    scheduled.filter_map(|e| e.work.upgrade()).any(|work| work.waits_for_others())
}

fn next_due(entries: &[Arc<Entry>]) -> Option<Nanos> {
    entries.iter().map(|e| e.next.load(Ordering::Relaxed)).filter(|at| *at != NEVER).min().map(Nanos)
}

/// After a round, with the next item due at `next`: serves channels whose threads are elsewhere. Returns when to look
/// again: internal bios come home (by mail, from a source, or at their time) even if no work item is due.
fn serve_elsewhere(domain: &Domain, entries: &[Arc<Entry>], next: Option<Nanos>) -> Option<Nanos> {
    domain.poll_remotely(next.is_some() && wait_for_others(entries));
    let soon = domain.has_internal().then(|| domain.clock().now().after(ATTENTION_NS));
    next.into_iter().chain(soon).min()
}

impl Background for Workqueue {
    fn left_behind(&self) {
        if let Some(waker) = &self.lock().waker {
            waker.wake();
        }
    }

    fn turn(&self, domain: &Domain) -> Option<Nanos> {
        let entries = self.lock().entries.clone();
        domain.visit_background(|cx| round(&entries, cx));
        let next = serve_elsewhere(domain, &entries, next_due(&entries));
        let kicked = entries.iter().any(|e| e.is_kicked(e.next.load(Ordering::Relaxed)));
        if kicked { Some(domain.clock().now()) } else { next }
    }
}
