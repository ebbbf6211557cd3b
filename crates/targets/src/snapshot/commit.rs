//! Making exceptions true: one batch at a time for each snapshot, each with as many as are ready.

use super::body::{Dropped, Keep};
use super::shared::{Event, Shared, ZEROES};
use super::state::State;
use std::sync::Arc;
use udm_formats::snapshot::{AreaWrite, Batch, Content, Exception};
use udm_io::{BlockDevice, Op, OpFlags};
use udm_kcopyd::{CopyFrom, CopyJob, CopyTo};
use udm_worker::{Memory, Operation, Worker};

/// So many exceptions do not wait for others when as many are ready as are not, and so many never do.
const SOME: u64 = 64;
const ENOUGH: u64 = 1024;

/// What a batch makes true.
enum Makes {
    /// Those of runs.
    Exceptions(Vec<usize>),
    /// The snapshot is invalid.
    Invalid,
    /// The latest exceptions are merged, and gone.
    Merged,
}

/// A batch on its way to the COW device.
pub(super) struct Commit {
    batch: Batch,
    makes: Makes,
}

impl State {
    /// Begins a batch, if there is something for it.
    ///
    /// Those that are ready go when no copy is out any more, as in the kernel, so that all who wait share a batch and a
    /// single one waits for nobody; or when they are many, so that those who write much do not stop for each batch.
    pub(super) fn start_commit(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let (Keep::Persistent(store), None) = (&mut body.keep, &body.commit) else { return };
        if body.dropped == Dropped::Wanted {
            let batch = store.invalidate();
            return self.begin_batch(id, batch, Makes::Invalid);
        }
        let ready = body.ready_chunks();
        let many = ready >= ENOUGH || (ready >= SOME && ready >= body.copies);
        if ready == 0 || (body.copies > 0 && !many) {
            return;
        }
        let runs = body.take_ready();
        let exceptions: Vec<Exception> = (runs.iter().filter_map(|at| body.pending.get(*at)))
            .flat_map(|run| run.chunks().map(|old| Exception { old, new: run.place(old) }))
            .collect();
        let Keep::Persistent(store) = &mut body.keep else { return };
        let batch = store.commit(&exceptions);
        self.begin_batch(id, batch, Makes::Exceptions(runs));
    }

    /// The latest exceptions are in the origin: they are to go.
    pub(super) fn commit_merge(&mut self, id: u64, merged: usize) {
        let Some(body) = self.body(id) else { return };
        let Keep::Persistent(store) = &mut body.keep else { return };
        let batch = store.merge_commit(merged);
        self.begin_batch(id, batch, Makes::Merged);
    }

    fn begin_batch(&mut self, id: u64, mut batch: Batch, makes: Makes) {
        let Some(body) = self.body(id) else { return };
        let cow = body.snapshot.cow.clone();
        let first = std::mem::take(&mut batch.first);
        let AreaWrite { sector, sectors, content } = &mut batch.last;
        let content = std::mem::replace(content, Content::Zeroes);
        let last = AreaWrite { sector: *sector, sectors: *sectors, content };
        body.commit = Some(Commit { batch, makes });
        let worker = self.worker.clone();
        self.worker.spawn(async move { Event::Committed(id, write(&worker, &cow, first, last).await) });
    }

    /// A batch is on the device, or could not be written.
    pub(super) fn committed(&mut self, id: u64, good: bool) {
        let Some(body) = self.body(id) else { return };
        let Some(Commit { batch, makes }) = body.commit.take() else { return };
        if let Keep::Persistent(store) = &mut body.keep {
            store.finish(&batch, good);
        }
        match makes {
            Makes::Invalid => self.has_dropped(id),
            Makes::Merged => self.merged(id, good),
            Makes::Exceptions(_) if !good => self.invalidate(id),
            Makes::Exceptions(runs) => runs.into_iter().for_each(|run| self.complete(id, run)),
        }
        self.advance(id);
    }
}

/// Writes a batch, so that it becomes true with its last write. Whether that is on the device, and durable.
async fn write(worker: &Worker<Shared>, cow: &Arc<dyn BlockDevice>, first: Vec<AreaWrite>, last: AreaWrite) -> bool {
    let (mut writes, mut zeroes) = (Vec::new(), Vec::new());
    for AreaWrite { sector, sectors, content } in first {
        match content {
            Content::Bytes(bytes) => {
                let write = Operation::new(cow, Op::Write, (sector, sectors));
                writes.push(worker.submit(write, Memory::Buffer(bytes)));
            }
            Content::Zeroes => {
                let job = CopyJob::new(CopyFrom::Zeroes, sectors, vec![CopyTo::new(cow.clone(), sector)]);
                zeroes.push(worker.copy_and_wait(ZEROES, job));
            }
        }
    }
    // Every one is awaited, whatever becomes of the others: nothing is out afterwards.
    let mut good = true;
    for write in writes {
        good &= write.await.0.is_ok();
    }
    for zero in zeroes {
        good &= zero.await.0.is_ok();
    }
    let limits = cow.limits();
    let (caches, fua) = (limits.write_cache, limits.fua);
    if good && caches {
        good = worker.submit(Operation::flush(cow), Memory::None).await.0.is_ok();
    }
    let Content::Bytes(bytes) = last.content else { return good };
    if !good {
        return false;
    }
    let mut write = Operation::new(cow, Op::Write, (last.sector, last.sectors));
    if caches && fua {
        write.flags = OpFlags::FUA;
    }
    good = worker.submit(write, Memory::Buffer(bytes)).await.0.is_ok();
    if good && caches && !fua {
        good = worker.submit(Operation::flush(cow), Memory::None).await.0.is_ok();
    }
    good
}
