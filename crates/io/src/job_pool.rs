//! Threads for jobs that would keep a submitter waiting: started as jobs come, few, and gone when nothing comes any
//! more.

use crate::Executor;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a pool's threads are made, and when they end.
#[derive(Clone, Copy, Debug)]
pub struct JobPoolOptions {
    /// The name of its threads.
    pub name: &'static str,
    /// Threads at most.
    pub threads: usize,
    /// How long a thread waits for more; `None`: as long as the pool is there.
    pub linger: Option<Duration>,
}

/// A queue of jobs and the threads that do them. Dropped, it lets its threads go: they do what is queued first, and
/// nobody waits for them.
pub struct JobPool<J: Send + 'static> {
    options: JobPoolOptions,
    executor: Arc<dyn Executor>,
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    queue: Mutex<Queue<J>>,
    more: Condvar,
    work: Box<dyn Fn(J) + Send + Sync>,
}

struct Queue<J> {
    jobs: VecDeque<J>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl<J: Send + 'static> JobPool<J> {
    /// A pool without a thread yet, whose jobs `work` does. It may block.
    pub fn new(options: JobPoolOptions, executor: Arc<dyn Executor>, work: impl Fn(J) + Send + Sync + 'static) -> Self {
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), threads: 0, idle: 0, closed: false });
        Self { options, executor, shared: Arc::new(Shared { queue, more: Condvar::new(), work: Box::new(work) }) }
    }

    /// Has a job done on a thread. Where none can be had at all, it is done at once: slow, but done.
    pub fn give(&self, job: J) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back(job);
        if queue.jobs.len() <= queue.idle {
            drop(queue);
            return self.shared.more.notify_one();
        }
        if queue.threads >= self.options.threads {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let (shared, linger) = (self.shared.clone(), self.options.linger);
        if let Err(error) = self.executor.spawn(self.options.name, Box::new(move || shared.serve(linger))) {
            let mut queue = self.shared.lock();
            queue.threads -= 1;
            let stranded = if queue.threads == 0 { std::mem::take(&mut queue.jobs) } else { VecDeque::new() };
            drop(queue);
            tracing::debug!(%error, "no thread {:?}", self.options.name);
            stranded.into_iter().for_each(|job| (self.shared.work)(job));
        }
    }

    /// Queues a job that waits for [`run_queued`](Self::run_queued), where there are no threads.
    pub(crate) fn queue(&self, job: J) {
        self.shared.lock().jobs.push_back(job);
    }

    /// Does what is queued on this thread. Whether there was something.
    pub(crate) fn run_queued(&self) -> bool {
        let mut any = false;
        loop {
            let job = self.shared.lock().jobs.pop_front();
            let Some(job) = job else { return any };
            (self.shared.work)(job);
            any = true;
        }
    }
}

impl<J: Send + 'static> Drop for JobPool<J> {
    fn drop(&mut self) {
        // Not joined: one of these threads may be the one that drops it.
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

impl<J> Shared<J> {
    fn lock(&self) -> MutexGuard<'_, Queue<J>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's work.
    fn serve(&self, linger: Option<Duration>) {
        let mut queue = self.lock();
        let mut late = false;
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                (self.work)(job);
                queue = self.lock();
                late = false;
            } else if queue.closed || late {
                queue.threads -= 1;
                return;
            } else {
                queue.idle += 1;
                queue = match linger {
                    None => self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    Some(linger) => {
                        let (queue, waited) =
                            self.more.wait_timeout(queue, linger).unwrap_or_else(PoisonError::into_inner);
                        late = waited.timed_out();
                        queue
                    }
                };
                queue.idle -= 1;
            }
        }
    }
}
