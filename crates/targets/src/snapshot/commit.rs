//! Committing exceptions: one batch at a time for each snapshot, each with as many as are ready.

use super::body::{CowStore, Dropped};
use super::shared::{Event, Shared, ZEROES};
use super::state::State;
use std::sync::Arc;
use udm_formats::snapshot::{AreaWrite, Batch, Content, Exception};
use udm_io::{BlockDevice, Op, OpFlags};
use udm_kcopyd::{CopyFrom, CopyJob, CopyTo};
use udm_worker::{Memory, Operation, Worker};

/// This many exceptions do not wait for others once half of them are ready; the larger number never waits.
const SOME: u64 = 64;
const ENOUGH: u64 = 1024;

/// The content of a batch.
enum BatchKind {
    /// The exceptions of runs.
    Exceptions(Vec<u32>),
    /// The snapshot is invalid.
    Invalid,
    /// The latest exceptions are merged, and gone.
    Merged,
}

/// A batch on its way to the COW device.
pub(super) struct Commit {
    batch: Batch,
    kind: BatchKind,
}

impl State {
    /// Begins a batch, if there is anything for it.
    ///
    /// Ready exceptions are committed when no copy is out any more, as in the kernel: so all waiting writers share a
    /// batch, and a single one waits for nobody. They are also committed when there are many, so that heavy writers do
    /// not stop for each batch.
    pub(super) fn start_commit(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let (CowStore::Persistent(store), None) = (&mut body.cow_store, &body.commit) else { return };
        if body.dropped == Dropped::Wanted {
            let batch = store.invalidate();
            return self.begin_batch(id, batch, BatchKind::Invalid);
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
        let CowStore::Persistent(store) = &mut body.cow_store else { return };
        let batch = store.commit(&exceptions);
        self.begin_batch(id, batch, BatchKind::Exceptions(runs));
    }

    /// The latest exceptions have been merged into the origin, and are to be removed.
    pub(super) fn commit_merge(&mut self, id: u64, merged: usize) {
        let Some(body) = self.body(id) else { return };
        let CowStore::Persistent(store) = &mut body.cow_store else { return };
        let batch = store.merge_commit(merged);
        self.begin_batch(id, batch, BatchKind::Merged);
    }

    fn begin_batch(&mut self, id: u64, mut batch: Batch, kind: BatchKind) {
        let Some(body) = self.body(id) else { return };
        let cow = body.snapshot.cow.clone();
        let first = std::mem::take(&mut batch.first);
        let AreaWrite { sector, sectors, content } = &mut batch.last;
        let content = std::mem::replace(content, Content::Zeroes);
        let last = AreaWrite { sector: *sector, sectors: *sectors, content };
        body.commit = Some(Commit { batch, kind });
        let worker = self.worker.clone();
        self.worker.spawn(async move { Event::Committed(id, write(&worker, &cow, first, last).await) });
    }

    /// A batch is on the device, or could not be written.
    pub(super) fn committed(&mut self, id: u64, good: bool) {
        let Some(body) = self.body(id) else { return };
        let Some(Commit { batch, kind }) = body.commit.take() else { return };
        if let CowStore::Persistent(store) = &mut body.cow_store {
            store.finish(&batch, good);
        }
        match kind {
            BatchKind::Invalid => self.has_dropped(id),
            BatchKind::Merged => self.merged(id, good),
            BatchKind::Exceptions(_) if !good => self.invalidate(id),
            BatchKind::Exceptions(runs) => runs.into_iter().for_each(|run| self.complete(id, run)),
        }
        self.advance(id);
    }
}

/// Writes a batch so that it takes effect with its last write. Returns whether that write is durable on the device.
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
    // Every write is awaited, even if another one fails, so nothing is out afterwards.
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
