//! The workqueue: who goes on with work when no thread that submits comes by.
//!
//! A worker here is a state machine that submitters and completions drive. When those stop (the submitter has what it
//! wanted, and its thread does other things), completions lie in rings that nobody looks at, and what is due at some
//! time has nobody to do it. So each domain that has work items has one workqueue: a thread that sleeps until it is
//! kicked or something is due, runs the work items, and serves the channels whose threads are elsewhere, and those that
//! are nobody's, while internal bios are out on them. A simulated domain, which has no threads, does the same whenever
//! a channel is polled or waits.

use crate::job::CopyOptions;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;
use udm_io::{Background, Cx, Domain, Nanos, Waker};

/// Work that has to go on though nobody submits.
pub trait Work: Send + Sync {
    /// Does what can be done now, inside a channel of the workqueue's. Says when it wants to be called again at the
    /// latest; `None`: when it is kicked. Must not block.
    ///
    /// As long as a time is given within 20 ms, kicks cost nothing and change nothing: a work item that is busy off and
    /// on gives one for a while longer. One that is farther off is for what is due then; kicked, it is run at once.
    fn do_work(self: Arc<Self>, cx: &Cx<'_>) -> Option<Nanos>;

    /// Whether it waits for bios of others, on whatever channel they are out: then every channel whose thread is
    /// elsewhere is served. Asked after [`attend`](Self::attend), when that gave a time.
    fn waits_for_others(&self) -> bool {
        false
    }
}

/// No time.
const NEVER: u64 = u64::MAX;
/// How long internal bios that are out anywhere wait to be looked after, whether a work item is due or not.
const ATTENTION_NS: u64 = 10_000_000;

/// A work item that is run within this time need not be kicked.
const SOON_NS: u64 = 20_000_000;

struct Entry {
    work: Weak<dyn Work>,
    /// Rung, or run soon anyway.
    kicked: AtomicBool,
    next: AtomicU64,
    /// That it was run soon anyway is all that `kicked` said when `next` was set. Written by the workqueue.
    soon: AtomicBool,
}

impl Entry {
    /// Whether somebody has kicked it, and it matters. `next` is that of the entry.
    fn is_kicked(&self, next: u64) -> bool {
        (next == NEVER || !self.soon.load(Ordering::Relaxed)) && self.kicked.load(Ordering::SeqCst)
    }
}

/// The workqueue of a domain.
#[derive(Default)]
pub struct Workqueue {
    state: Mutex<State>,
    /// How every copier of the domain works, whatever its maker asks for.
    copies: Mutex<Option<CopyOptions>>,
}

#[derive(Default)]
struct State {
    entries: Vec<Arc<Entry>>,
    /// Of the thread, while there is one.
    waker: Option<Waker>,
}

/// A work item that is being kept, until this is dropped. Internal bios of the work item's hold it, by way of the work
/// item.
pub struct WorkItem {
    entry: Arc<Entry>,
    domain: Domain,
}

impl WorkItem {
    /// Has the work item run soon. Cheap when it is about to be or has been kicked already: a load; otherwise a
    /// system call. From anywhere.
    pub fn kick(&self) {
        // Either the workqueue sees what it is kicked for, or this sees that the workqueue has begun to look.
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
    /// Has the work item run at once, also when it is on a schedule. A system call. From anywhere.
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
    /// Has a work item of `domain` run from now on; it is kicked at once. Starts the workqueue's thread for the first
    /// one, and fails when that fails. May block briefly.
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

/// What a workqueue has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkqueueReport {
    /// Its work items.
    pub items: usize,
    /// Those that want to be run at once.
    pub kicked: usize,
    /// When the first of the others is due.
    pub next: Option<Nanos>,
}

impl Workqueue {
    /// The domain's.
    pub fn of(domain: &Domain) -> &Self {
        domain.background()
    }

    /// What it has to do, for people.
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

    /// What there is to run; or, when there is nothing, the end of the thread.
    fn entries_or_end(&self) -> Option<Vec<Arc<Entry>>> {
        let mut state = self.lock();
        if state.entries.is_empty() {
            let waker = state.waker.take();
            drop(state);
            // It may be the last hold on the domain but for the thread's own.
            drop(waker);
            return None;
        }
        Some(state.entries.clone())
    }
}

/// Runs what has been kicked or is due. Returns when the next is due.
fn round(entries: &[Arc<Entry>], cx: &Cx<'_>) -> Option<Nanos> {
    let now = cx.now();
    for entry in entries {
        let next = entry.next.load(Ordering::Relaxed);
        if !entry.is_kicked(next) && next > now.0 {
            continue;
        }
        // Before it looks: what kicks afterwards is for another round.
        entry.next.store(NEVER, Ordering::SeqCst);
        entry.kicked.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = entry.work.upgrade().and_then(|work| work.do_work(cx));
        if let Some(at) = next {
            // Unless it is to be at once.
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

/// After a round of which the next is due at `next`: serves channels whose threads are elsewhere. Returns when there is
/// something to be looked at again: no work item need be due for internal bios to come home, by mail, from a source, or
/// at their time.
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
