//! Threads for what would block a submitter: started when there is work, few, and gone with their file.

use crate::backing::Backing;
use crate::extents;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Executor, ExtentsReply, Status};

/// Threads that a file has at most.
const THREADS: usize = 4;

/// What a worker does its work on.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Does what a bio asks for; may block. The worker ends the bio afterwards.
    fn serve(&self, bio: &Bio) -> Status;

    /// The file.
    fn backing(&self) -> &Backing;
}

/// What may block.
pub(crate) enum Job {
    Bio(Bio),
    /// To ask the file system what a range holds.
    Extents(Sector, Sectors, ExtentsReply),
}

/// Does jobs on threads of its own. Dropped, it lets its threads go; who holds bios there holds the file.
pub(crate) struct Worker<T: Serve> {
    executor: Arc<dyn Executor>,
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    /// Weak, so that an idle thread does not keep a file open, and locked, whose device is gone.
    server: Weak<T>,
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Serve> Worker<T> {
    pub(crate) fn new(executor: Arc<dyn Executor>, server: &Arc<T>) -> Self {
        let shared = Shared { server: Arc::downgrade(server), queue: Mutex::default(), more: Condvar::new() };
        Self { executor, shared: Arc::new(shared) }
    }

    /// Has a job done. Where no thread can be had at all, it is done at once: slow, but done.
    pub(crate) fn give(&self, job: Job) {
        let mut queue = self.shared.lock();
        queue.jobs.push_back(job);
        if queue.jobs.len() <= queue.idle {
            drop(queue);
            return self.shared.more.notify_one();
        }
        if queue.threads == THREADS {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let shared = self.shared.clone();
        if let Err(error) = self.executor.spawn("udm-file", Box::new(move || run(&shared))) {
            let mut queue = self.shared.lock();
            queue.threads -= 1;
            let stranded = if queue.threads == 0 { std::mem::take(&mut queue.jobs) } else { VecDeque::new() };
            drop(queue);
            tracing::debug!(%error, "no thread for blocking file operations");
            stranded.into_iter().for_each(|job| serve(&self.shared, job));
        }
    }
}

impl<T: Serve> Drop for Worker<T> {
    fn drop(&mut self) {
        // Not joined: the last bio of an orphaned channel may drop the file on one of these threads.
        self.shared.lock().closed = true;
        self.shared.more.notify_all();
    }
}

fn serve<T: Serve>(shared: &Shared<T>, job: Job) {
    // The file is let go before the bio is: once that is home, its holder may close the file and open it again.
    match job {
        Job::Bio(bio) => {
            let status = shared.server.upgrade().map_or(Status::Gone, |server| server.serve(&bio));
            bio.end(status);
        }
        Job::Extents(sector, sectors, reply) => {
            let found = shared.server.upgrade().map(|server| extents::of(server.backing(), sector, sectors));
            reply.give(found.unwrap_or_default());
        }
    }
}

fn run<T: Serve>(shared: &Shared<T>) {
    let mut queue = shared.lock();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            serve(shared, job);
            queue = shared.lock();
        } else if queue.closed {
            queue.threads -= 1;
            return;
        } else {
            queue.idle += 1;
            queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}
