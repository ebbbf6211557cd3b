//! The domain's workqueue: threads for work on bios that takes the CPU longer than a channel's section may.
//!
//! There are at most as many threads as CPUs. They are started as work comes, and end after a while without any. A simulated domain, which
//! has no threads, does the work when a channel is polled or waits.

use crate::Domain;
use crate::bio::Bio;
use crate::domain::Shared;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What is done with a bio, which it ends; the word is the caller's.
///
/// # Safety
/// Called once, outside of channels, with the word that was given along.
pub type CpuWorkFn = unsafe fn(Bio, *const ());

/// How long a thread waits for more.
const LINGER: Duration = Duration::from_secs(1);
/// Threads at most, whatever the number of CPUs.
const THREADS_MAX: usize = 32;

struct Item {
    bio: Bio,
    func: CpuWorkFn,
    word: *const (),
}

// SAFETY: whoever queues it promises that the word may be used where the function is called.
unsafe impl Send for Item {}

impl Item {
    fn run(self) {
        // SAFETY: the promise of `WorkQueue::push`.
        unsafe { (self.func)(self.bio, self.word) }
    }
}

impl Domain {
    /// Has `func` called with the bio and `word` on a thread of the domain's own, outside of channels: for what takes the CPU
    /// longer than a section may. `func` ends the bio. Threads are started as they are needed, at most one for each CPU, and end when
    /// there is nothing to do; where none can be started at all, `func` is called at once. May be called from inside a channel.
    ///
    /// # Safety
    /// `word` is what `func` expects, and stays valid until that has ended the bio.
    pub unsafe fn queue_cpu_work(&self, bio: Bio, func: CpuWorkFn, word: *const ()) {
        // SAFETY: the caller's promise.
        unsafe { self.shared().work.push(self.shared(), bio, func, word) }
    }
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    threads: usize,
    idle: usize,
}

/// The queue and its threads.
#[derive(Default)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    more: Condvar,
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues one.
    ///
    /// # Safety
    /// As `Domain::queue_cpu_work`.
    pub(crate) unsafe fn push(self: &Arc<Self>, shared: &Shared, bio: Bio, func: CpuWorkFn, word: *const ()) {
        let mut state = self.lock();
        state.items.push_back(Item { bio, func, word });
        if shared.idle().is_some() {
            return;
        }
        if state.items.len() <= state.idle || state.threads >= threads() {
            drop(state);
            return self.more.notify_one();
        }
        state.threads += 1;
        drop(state);
        let queue = self.clone();
        if let Err(error) = shared.executor().spawn("udm-work", Box::new(move || queue.serve())) {
            tracing::debug!(%error, "no thread for work on bios");
            let mut state = self.lock();
            state.threads -= 1;
            let stranded = if state.threads == 0 { std::mem::take(&mut state.items) } else { VecDeque::new() };
            drop(state);
            stranded.into_iter().for_each(Item::run);
        }
    }

    /// A thread's work, until there has been none for a while.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                drop(state);
                item.run();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (back, waited) = self.more.wait_timeout(state, LINGER).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.items.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    /// In a simulated domain: does what is queued. Whether there was something. Not from inside a channel.
    pub(crate) fn run_all(&self) -> bool {
        let mut any = false;
        loop {
            let item = self.lock().items.pop_front();
            let Some(item) = item else { return any };
            item.run();
            any = true;
        }
    }
}

fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX))
}
