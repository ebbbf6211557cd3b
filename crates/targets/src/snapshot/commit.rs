//! Making exceptions true: one batch at a time for each snapshot, each with as many as are ready.

use super::body::{Dropped, Keep};
use super::shared::Origin;
use super::state::{Outgoing, State, Todo};
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_formats::snapshot::{AreaWrite, Batch, Content, Exception};
use udm_io::{BlockDevice, InternalIo, Op, OpFlags, Status};
use udm_kcopyd::CopyTo;

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    First,
    Before,
    Last,
    After,
}

/// A batch on its way to the COW device.
pub(super) struct Commit {
    batch: Batch,
    makes: Makes,
    step: Step,
    left: usize,
    failed: bool,
}

/// An internal I/O's number says whose it is and what for.
pub(super) const COMMIT: u64 = 0;
pub(super) const MERGE: u64 = 1;

/// An operation on a device, for a snapshot.
pub(super) fn internal_io(
    dev: &Arc<dyn BlockDevice>,
    id: u64,
    what: u64,
    op: Op,
    (sector, sectors): (Sector, Sectors),
    memory: Option<AlignedBuf>,
) -> Outgoing {
    let mut io = InternalIo::new(dev.clone(), memory);
    (io.op, io.sector, io.sectors, io.token) = (op, sector, sectors, id << 1 | what);
    io
}

impl State {
    /// Begins a batch, if there is something for it.
    ///
    /// Those that are ready go when no copy is out any more, as in the kernel, so that all who wait share a batch and a single
    /// one waits for nobody; or when they are many, so that those who write much do not stop for each batch.
    pub(super) fn start_commit(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let (Keep::Persistent(store), None) = (&mut body.keep, &body.commit) else { return };
        if body.dropped == Dropped::Wanted {
            let batch = store.invalidate();
            return self.begin_batch(origin, id, batch, Makes::Invalid, todo);
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
        self.begin_batch(origin, id, batch, Makes::Exceptions(runs), todo);
    }

    /// The latest exceptions are in the origin: they are to go.
    pub(super) fn commit_merge(&mut self, origin: &Origin, id: u64, merged: usize, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let Keep::Persistent(store) = &mut body.keep else { return };
        let batch = store.merge_commit(merged);
        self.begin_batch(origin, id, batch, Makes::Merged, todo);
    }

    fn begin_batch(&mut self, origin: &Origin, id: u64, mut batch: Batch, makes: Makes, todo: &mut Todo) {
        let first = std::mem::take(&mut batch.first);
        let Some(body) = self.body(id) else { return };
        let cow = body.snapshot.cow.clone();
        body.commit = Some(Commit { batch, makes, step: Step::First, left: first.len() + 1, failed: false });
        for AreaWrite { sector, sectors, content } in first {
            match content {
                Content::Bytes(bytes) => {
                    todo.ios.push(internal_io(&cow, id, COMMIT, Op::Write, (sector, sectors), Some(bytes)));
                }
                Content::Zeroes => self.zero(id, CopyTo::new(cow.clone(), sector), sectors, todo),
            }
        }
        self.commit_step(origin, id, Status::Ok, todo);
    }

    /// Something that the batch of a snapshot waited for is done.
    pub(super) fn commit_step(&mut self, origin: &Origin, id: u64, status: Status, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let cow = body.snapshot.cow.clone();
        let Some(commit) = &mut body.commit else { return };
        commit.failed |= !status.is_ok();
        commit.left -= 1;
        if commit.left > 0 {
            return;
        }
        let limits = cow.limits();
        let nothing = (Sector::ZERO, Sectors::ZERO);
        loop {
            commit.step = match commit.step {
                _ if commit.failed => break,
                Step::First => Step::Before,
                Step::Before => Step::Last,
                Step::Last => Step::After,
                Step::After => break,
            };
            match commit.step {
                Step::Last => {
                    let last = &mut commit.batch.last;
                    let Content::Bytes(bytes) = std::mem::replace(&mut last.content, Content::Zeroes) else { break };
                    let mut io = internal_io(&cow, id, COMMIT, Op::Write, (last.sector, last.sectors), Some(bytes));
                    if limits.write_cache && limits.fua {
                        io.flags = OpFlags::FUA;
                    }
                    todo.ios.push(io);
                }
                Step::Before if limits.write_cache => {
                    todo.ios.push(internal_io(&cow, id, COMMIT, Op::Flush, nothing, None));
                }
                Step::After if limits.write_cache && !limits.fua => {
                    todo.ios.push(internal_io(&cow, id, COMMIT, Op::Flush, nothing, None));
                }
                _ => continue,
            }
            commit.left = 1;
            return;
        }
        self.committed(origin, id, todo);
    }

    /// A batch is on the device, or could not be written.
    fn committed(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let Some(Commit { batch, makes, failed, .. }) = body.commit.take() else { return };
        if let Keep::Persistent(store) = &mut body.keep {
            store.finish(&batch, !failed);
        }
        match makes {
            Makes::Invalid => self.has_dropped(origin, id, todo),
            Makes::Merged => self.merged(origin, id, !failed, todo),
            Makes::Exceptions(_) if failed => self.invalidate(origin, id, todo),
            Makes::Exceptions(runs) => runs.into_iter().for_each(|run| self.complete(origin, id, run, todo)),
        }
        self.advance(origin, id, todo);
    }

    /// An internal I/O is back.
    pub(super) fn internal_io_done(&mut self, origin: &Origin, io: &Outgoing, status: Status, todo: &mut Todo) {
        let id = io.token >> 1;
        match io.token & 1 {
            COMMIT => self.commit_step(origin, id, status, todo),
            _ => self.merge_io_done(origin, id, io.memory.as_deref(), status, todo),
        }
    }
}
