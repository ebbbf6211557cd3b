//! Work on bios that takes the CPU longer than a channel's section may, on threads of the domain's own.
//!
//! There are at most as many threads as CPUs. They are started as work comes, and end after a while without any. A
//! simulated domain, which has no threads, does the work when a channel is polled or waits.

use super::bio::Bio;
use super::shared::Domain;
use crate::executor::Executor;
use crate::job_pool::{JobPool, JobPoolOptions};
use std::sync::{Arc, OnceLock};
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

/// One bio to be worked on.
pub(crate) struct CpuWork {
    bio: Bio,
    func: CpuWorkFn,
    word: *const (),
}

// SAFETY: whoever queues it promises that the word may be used where the function is called.
unsafe impl Send for CpuWork {}

/// The threads of a domain for such work.
pub(crate) fn cpu_pool(executor: Arc<dyn Executor>) -> JobPool<CpuWork> {
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    let options = JobPoolOptions { name: "udm-work", threads: cpus.min(THREADS_MAX), linger: Some(LINGER) };
    // SAFETY: the promise of `Domain::queue_cpu_work`.
    JobPool::new(options, executor, |work: CpuWork| unsafe { (work.func)(work.bio, work.word) })
}

impl Domain {
    /// Has `func` called with the bio and `word` on a thread of the domain's own, outside of channels: for what takes
    /// the CPU longer than a section may. `func` ends the bio. Threads are started as they are needed, at most one for
    /// each CPU, and end when there is nothing to do; where none can be started at all, `func` is called at once. May
    /// be called from inside a channel.
    ///
    /// # Safety
    /// `word` is what `func` expects, and stays valid until that has ended the bio.
    pub unsafe fn queue_cpu_work(&self, bio: Bio, func: CpuWorkFn, word: *const ()) {
        let (pool, work) = (&self.shared().cpu_work, CpuWork { bio, func, word });
        if self.is_simulated() { pool.queue(work) } else { pool.give(work) }
    }
}
