//! What would block a submitter, done by threads of a file's own.

use crate::backing::Backing;
use crate::extents;
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Executor, ExtentsReply, JobPool, JobPoolOptions, Status};

/// Threads that a file has at most. They stay as long as the file: to start one takes memory, which may be what a write
/// is to free.
const THREADS: JobPoolOptions = JobPoolOptions { name: "udm-file", threads: 4, linger: None };

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

/// A file's threads. Whoever holds bios there holds the file.
pub(crate) type Worker = JobPool<Job>;

/// Threads for `server`, which they do not keep open, nor locked, once its device is gone.
pub(crate) fn worker<T: Serve>(executor: Arc<dyn Executor>, server: &Arc<T>) -> Worker {
    let server = Arc::downgrade(server);
    JobPool::new(THREADS, executor, move |job| serve(&server, job))
}

fn serve<T: Serve>(server: &Weak<T>, job: Job) {
    // The file is let go before the bio is: once that is home, its holder may close the file and open it again.
    match job {
        Job::Bio(bio) => {
            let status = server.upgrade().map_or(Status::Gone, |server| server.serve(&bio));
            bio.end(status);
        }
        Job::Extents(sector, sectors, reply) => {
            let found = server.upgrade().map(|server| extents::of(server.backing(), sector, sectors));
            reply.give(found.unwrap_or_default());
        }
    }
}
