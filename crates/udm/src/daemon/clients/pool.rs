//! Threads for requests that are under way. Some are kept when there is nothing to do, so that something can be done
//! when no thread can be started.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::warn;
use udm_io::Executor;

/// Threads that are kept.
const KEPT: usize = 2;
/// As many there are at most.
const MAX: usize = 2048;
/// Not for what may wait long: other commands end what that waits for.
const RESERVED: usize = 16;
/// A thread beyond those that are kept ends when it has had nothing to do for so long.
const LINGER: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<(Work, bool)>,
    threads: usize,
    idle: usize,
    /// Works under way, or waiting for a thread, that may take long.
    long: usize,
    ended: bool,
}

/// The threads. They end when it is dropped.
pub(super) struct Pool {
    shared: Arc<Shared>,
    executor: Arc<dyn Executor>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// With the threads that are kept.
    pub(super) fn new(executor: Arc<dyn Executor>) -> Result<Self, String> {
        let pool = Self { shared: Arc::default(), executor };
        for _ in 0..KEPT {
            pool.start().map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        Ok(pool)
    }

    /// Has a thread do it, as soon as there is one. `long`: it may take long; false when too much does that already.
    pub(super) fn run(&self, work: Work, long: bool) -> bool {
        let mut state = self.shared.lock();
        if long && state.long >= MAX - RESERVED {
            return false;
        }
        state.long += usize::from(long);
        state.waiting.push_back((work, long));
        let more = state.waiting.len() > state.idle && state.threads < MAX;
        drop(state);
        self.shared.changed.notify_one();
        if more && let Err(error) = self.start() {
            warn!("no thread for a request, which waits for another: {error}");
        }
        true
    }

    fn start(&self) -> std::io::Result<()> {
        self.shared.lock().threads += 1;
        let shared = self.shared.clone();
        let started = self.executor.spawn("udm-client", Box::new(move || serve(&shared)));
        if started.is_err() {
            self.shared.lock().threads -= 1;
        }
        started.map(drop)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

/// A work that takes part in the counts until it is over, however it ends.
struct Counted<'a>(&'a Shared, bool);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.lock().long -= usize::from(self.1);
    }
}

/// As long as the thread lives.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
    }
}

fn serve(shared: &Shared) {
    let _alive = Alive(shared);
    loop {
        let mut state = shared.lock();
        let (work, long) = loop {
            if let Some(next) = state.waiting.pop_front() {
                break next;
            }
            if state.ended {
                return;
            }
            state.idle += 1;
            let (woken, timeout) = shared.changed.wait_timeout(state, LINGER).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.waiting.is_empty() && state.threads > KEPT {
                return;
            }
        };
        drop(state);
        let _counted = Counted(shared, long);
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::mpsc;
    use udm_io::{Joiner, ThreadExecutor};

    /// Starts so many threads and no more.
    struct Limited(Mutex<usize>);

    impl Executor for Limited {
        fn spawn(&self, name: &str, work: Work) -> io::Result<Joiner> {
            let mut left = self.0.lock().unwrap();
            *left = left.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
            ThreadExecutor.spawn(name, work)
        }
    }

    #[test]
    fn without_new_threads_those_that_are_kept_do_it() {
        let pool = Pool::new(Arc::new(Limited(Mutex::new(KEPT)))).unwrap();
        let (done, is_done) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            assert!(pool.run(Box::new(move || done.send(number).unwrap()), number % 2 == 0));
        }
        let mut all: Vec<i32> = is_done.iter().take(100).collect();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(Pool::new(Arc::new(Limited(Mutex::new(KEPT - 1)))).is_err());
    }

    #[test]
    fn a_work_that_panics_is_over() {
        let pool = Pool::new(Arc::new(ThreadExecutor)).unwrap();
        let (done, is_done) = mpsc::channel::<()>();
        for _ in 0..10 {
            let done = done.clone();
            pool.run(
                Box::new(move || {
                    let _done = done;
                    std::panic::resume_unwind(Box::new("as a broken command does"));
                }),
                true,
            );
        }
        drop(done);
        assert!(is_done.recv().is_err(), "all are over");
        let (done, is_done) = mpsc::channel();
        pool.run(Box::new(move || done.send(7).unwrap()), true);
        assert_eq!(is_done.recv(), Ok(7));
    }
}
