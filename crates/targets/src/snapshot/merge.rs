//! Merging a snapshot back into its origin, in the background.
//!
//! A round takes the latest exceptions, many at a time. Writes into their chunks queue from its beginning; other
//! snapshots get their exceptions of these chunks; writes on their way to the chunks' places end; the chunks are copied
//! to the origin, which is flushed; the exceptions are taken away on the device, then here; and what queued goes to the
//! origin. At any power cut the chunk is whole in one place or both, so that the next merge goes on.

use super::body::Keep;
use super::flight;
use super::shared::{Event, Shared, Snapshot};
use super::state::{Held, State, to_cow};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_formats::snapshot::{AreaReader, Exception, Merge, runs};
use udm_io::{Bio, BlockDevice, Op, Status};
use udm_kcopyd::{CopyFrom, CopyTo};
use udm_worker::{Memory, Operation, Worker};

/// Chunks of a round at most, and their bytes unless one is more.
const ROUND: usize = 256;
const ROUND_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Phase {
    #[default]
    Idle,
    /// An area is being read.
    Loading,
    /// Other snapshots get their exceptions.
    Holding,
    /// Writes on their way to the chunks' places end.
    Draining,
    Copying,
    /// The origin is flushed, and the exceptions are taken away on the device.
    Committing,
}

/// A merge.
#[derive(Default)]
pub(super) struct Merging {
    /// It is to go on.
    on: bool,
    phase: Phase,
    round: Vec<Exception>,
    chunks: HashSet<u64>,
    queued: Vec<Bio>,
    /// Writes on their way to places of chunks.
    writes: HashMap<u64, usize>,
    left: usize,
    failed: bool,
}

impl Merging {
    /// Whether a round is under way, or another is to follow.
    pub(super) fn is_running(&self) -> bool {
        self.on || self.phase != Phase::Idle
    }

    /// Lets the round be the last.
    pub(super) fn stop(&mut self) {
        self.on = false;
    }
}

impl State {
    /// Lets a merge begin, or go on.
    pub(super) fn start_merge(&mut self, id: u64) {
        self.body(id).into_iter().for_each(|body| body.merging.on = true);
        self.merge_on(id);
    }

    /// Goes on with a merge as far as that is possible now.
    pub(super) fn merge_on(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        match body.merging.phase {
            Phase::Idle if body.merging.on => self.next_round(id),
            Phase::Draining => self.copy_round(id),
            _ => {}
        }
    }

    fn next_round(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let it = body.snapshot.clone();
        if !it.valid.load(SeqCst) || it.merge_failed.load(SeqCst) {
            body.merging.on = false;
            return;
        }
        if !body.pending.is_empty() || body.commit.is_some() || body.copies > 0 {
            return;
        }
        let Keep::Persistent(store) = &mut body.keep else { return };
        let most = ROUND.min((ROUND_BYTES / it.chunk.sectors().bytes()).max(1) as usize);
        match store.merge(most) {
            Err(_) => self.merge_fails(id),
            Ok(Merge::Done) => {
                body.merging.on = false;
                body.event();
            }
            Ok(Merge::Load(area)) => {
                body.merging.phase = Phase::Loading;
                let worker = self.worker.clone();
                self.worker.spawn(async move { Event::Loaded(id, load(&worker, &it.cow, area).await) });
            }
            Ok(Merge::Window(round)) => {
                body.merging.round = round.to_vec();
                body.merging.chunks = round.iter().map(|e| e.old).collect();
                body.merging.phase = Phase::Holding;
                let mut sorted = body.merging.round.clone();
                let runs = runs(&mut sorted);
                body.merging.left = runs.len();
                for run in runs {
                    let sector = it.chunk.start(run.old);
                    let sectors = within(&it, sector, run.len);
                    self.require(sector, sectors, Held::Merge(id));
                }
            }
        }
    }

    /// An area has been read, or cannot be.
    pub(super) fn merge_loaded(&mut self, id: u64, area: Option<AreaReader>) {
        let Some(body) = self.body(id) else { return };
        let Keep::Persistent(store) = &mut body.keep else { return };
        body.merging.phase = Phase::Idle;
        if area.is_none_or(|area| store.merge_loaded(area).is_err()) {
            self.merge_fails(id);
        }
        self.merge_on(id);
    }

    /// Other snapshots have their exceptions of one more run.
    pub(super) fn merge_free(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        body.merging.left -= 1;
        if body.merging.left == 0 {
            body.merging.phase = Phase::Draining;
            self.copy_round(id);
        }
    }

    fn copy_round(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let merging = &mut body.merging;
        if merging.chunks.iter().any(|chunk| merging.writes.contains_key(chunk)) {
            return;
        }
        merging.phase = Phase::Copying;
        let it = body.snapshot.clone();
        let mut sorted = body.merging.round.clone();
        let runs = runs(&mut sorted);
        body.merging.left = runs.len();
        for run in runs {
            let sector = it.chunk.start(run.old);
            let sectors = within(&it, sector, run.len);
            let from = CopyFrom::Device(it.cow.clone(), it.chunk.start(run.new));
            let to = CopyTo::new(it.origin.dev.clone(), sector);
            self.copy_back(id, from, sectors, to);
        }
    }

    /// A run of chunks has been copied.
    pub(super) fn merge_copied(&mut self, id: u64, status: Status) {
        let Some(body) = self.body(id) else { return };
        let merging = &mut body.merging;
        merging.left -= 1;
        merging.failed |= !status.is_ok();
        if merging.left > 0 {
            return;
        }
        merging.phase = Phase::Committing;
        if std::mem::take(&mut merging.failed) {
            self.merge_fails(id);
        } else if self.worker.dev.limits().write_cache {
            let flush = Operation::flush(&self.worker.dev);
            self.worker.submit_for(flush, id, Event::Flushed);
        } else {
            self.take_away(id);
        }
    }

    fn take_away(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        let count = body.merging.round.len();
        self.commit_merge(id, count);
    }

    /// What has been copied to the origin is durable, or cannot be made so.
    pub(super) fn merge_flushed(&mut self, id: u64, status: Status) {
        if status.is_ok() {
            self.take_away(id)
        } else {
            self.merge_fails(id)
        }
        self.merge_on(id);
    }

    /// The exceptions of the round are gone on the device, or could not be taken away.
    pub(super) fn merged(&mut self, id: u64, good: bool) {
        if !good {
            return self.merge_fails(id);
        }
        let Some(body) = self.body(id) else { return };
        for exception in std::mem::take(&mut body.merging.round) {
            body.forget(exception.old);
        }
        body.merging.chunks.clear();
        body.merging.phase = Phase::Idle;
        if matches!(&body.keep, Keep::Persistent(store) if store.committed() == 0) {
            // Told now: who has seen it in the status may suspend the device at once, and there is no next round.
            body.merging.on = false;
            body.event();
        }
        let queued = std::mem::take(&mut body.merging.queued);
        queued.into_iter().for_each(|bio| self.origin_write(bio));
    }

    /// The merge stops for good. Bios are served as before, but for those that wait.
    fn merge_fails(&mut self, id: u64) {
        let Some(body) = self.body(id) else { return };
        body.snapshot.merge_failed.store(true, SeqCst);
        body.merging.phase = Phase::Idle;
        body.merging.on = false;
        body.merging.round.clear();
        body.merging.chunks.clear();
        body.merging.queued.drain(..).for_each(|bio| bio.end(Status::Io));
        body.event();
    }

    /// A write through a snapshot that is being merged. Its sector is the origin's.
    pub(super) fn merge_write(&mut self, id: u64, mut bio: Bio) {
        let Some(body) = self.body(id) else { return bio.end(Status::Io) };
        let it = body.snapshot.clone();
        let chunk = it.chunk.of(bio.sector());
        flight::point(&mut bio, &*it.origin.dev);
        let entry = it.exceptions.get(chunk).filter(|_| it.valid.load(SeqCst));
        let Some(entry) = entry else { return self.origin_write(bio) };
        if body.merging.chunks.contains(&chunk) {
            return body.merging.queued.push(bio);
        }
        *body.merging.writes.entry(chunk).or_default() += 1;
        let mut bio = to_cow(&it, entry.new, bio);
        self.worker.watch(&mut bio, move |bio| (Event::MergingWritten(id, chunk), Some(bio)));
        self.worker.forward(bio);
    }

    /// A write to a chunk's place is done.
    pub(super) fn merging_written(&mut self, id: u64, chunk: u64) {
        let Some(body) = self.body(id) else { return };
        if let Some(count) = body.merging.writes.get_mut(&chunk) {
            *count -= 1;
            if *count == 0 {
                body.merging.writes.remove(&chunk);
            }
        }
        self.merge_on(id);
    }
}

/// Reads an area. None when it cannot be read, or cannot be one.
async fn load(worker: &Worker<Shared>, cow: &Arc<dyn BlockDevice>, mut area: AreaReader) -> Option<AreaReader> {
    while let Some(piece) = area.want() {
        let read = Operation::new(cow, Op::Read, (piece.sector, piece.sectors));
        let memory = Memory::Buffer(AlignedBuf::zeroed(piece.sectors.as_len()));
        let (Status::Ok, Memory::Buffer(bytes)) = worker.submit(read, memory).await else { return None };
        area.feed(&bytes).ok()?;
    }
    Some(area)
}

/// How much of so many chunks is the snapshot's, and lies on the origin. The chunk in which it ends may have been
/// copied when the origin ended there, too: what lies in its place after that is nobody's, and on the origin somebody
/// else's by now.
fn within(it: &Snapshot, sector: Sector, chunks: u64) -> Sectors {
    let end = sector + Sectors::new(it.chunk.sectors().get() * chunks);
    let size = Sector::new(it.sectors.load(SeqCst));
    let ends_in_last = size < end && size + it.chunk.sectors() > end;
    let end = if ends_in_last { size } else { end };
    let end = end.min(it.origin.dev.sectors().from_start());
    end.checked_since(sector).unwrap_or(Sectors::ZERO)
}
