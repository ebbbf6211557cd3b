//! Operations that would block a submitter, done by threads of the file.

use crate::backing::Backing;
use crate::extents;
use std::sync::{Arc, Weak};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Executor, ExtentsReply, JobPool, JobPoolOptions, Status};

/// The most threads of a file. They live as long as the file: starting one takes memory, and the write may be needed to
/// free memory.
const THREADS: JobPoolOptions = JobPoolOptions { name: "udm-file", threads: 4, linger: None };

/// The object that a worker works for.
pub(crate) trait Serve: Send + Sync + 'static {
    /// Does a bio's operation; may block. The worker ends the bio afterwards.
    fn serve(&self, bio: &Bio) -> Status;

    /// The file.
    fn backing(&self) -> &Backing;
}

/// A job that may block.
pub(crate) enum Job {
    Bio(Bio),
    /// Ask the file system what a range holds.
    Extents(Sector, Sectors, ExtentsReply),
}

/// A file's threads. A submitter with bios there holds the file.
pub(crate) type Worker = JobPool<Job>;

/// Threads for `server`. They do not keep it open or locked once its device is gone.
pub(crate) fn worker<T: Serve>(executor: Arc<dyn Executor>, server: &Arc<T>) -> Worker {
    let server = Arc::downgrade(server);
    JobPool::new(THREADS, executor, move |job| serve(&server, job))
}

fn serve<T: Serve>(server: &Weak<T>, job: Job) {
    // The file is released before the bio is ended: after that, the submitter may close the file and open it again.
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
