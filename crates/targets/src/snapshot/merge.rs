//! Merging a snapshot back into its origin, in the background.
//!
//! A round takes the latest exceptions, many at a time. Writes into their chunks queue from its beginning; other snapshots
//! get their exceptions of these chunks; writes on their way to the chunks' places end; the chunks are copied to the
//! origin, which is flushed; the exceptions are taken away on the device, then here; and what queued goes to the origin.
//! At any power cut the chunk is whole in one place or both, so that the next merge goes on.

use super::body::Keep;
use super::commit::{MERGE, internal_io};
use super::flight;
use super::shared::{ByChunk, Landed, Origin, Snapshot};
use super::state::{Held, State, Todo, to_cow};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_formats::snapshot::{AreaReader, Exception, Merge, runs};
use udm_io::{Bio, Op, Status};
use udm_kcopyd::{CopyFrom, CopyTo};

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
    Flushing,
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
    writes: ByChunk<usize>,
    left: usize,
    failed: bool,
    area: Option<AreaReader>,
}

impl Merging {
    /// Whether a round is under way, or another is to follow.
    pub(super) fn is_running(&self) -> bool {
        self.on || self.phase != Phase::Idle
    }

    /// Lets it begin, or go on.
    pub(super) fn start(&mut self) {
        self.on = true;
    }

    /// Lets the round be the last.
    pub(super) fn stop(&mut self) {
        self.on = false;
    }
}

impl State {
    /// Goes on with a merge as far as that is possible now.
    pub(super) fn merge_on(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        match body.merging.phase {
            Phase::Idle if body.merging.on => self.next_round(origin, id, todo),
            Phase::Draining => self.copy_round(id, todo),
            _ => {}
        }
    }

    fn next_round(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
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
            Err(_) => self.merge_fails(id, todo),
            Ok(Merge::Done) => {
                body.merging.on = false;
                todo.events.push(body.md.clone());
            }
            Ok(Merge::Load(area)) => {
                body.merging.phase = Phase::Loading;
                self.load(id, area, todo);
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
                    self.require(origin, sector, sectors, Held::Merge(id), None, todo);
                }
            }
        }
    }

    /// Reads on in an area.
    fn load(&mut self, id: u64, area: AreaReader, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let Some(piece) = area.want() else {
            let Keep::Persistent(store) = &mut body.keep else { return };
            let loaded = store.merge_loaded(area);
            body.merging.phase = Phase::Idle;
            if loaded.is_err() {
                self.merge_fails(id, todo);
            }
            return;
        };
        let memory = AlignedBuf::zeroed(piece.sectors.as_len());
        let cow = body.snapshot.cow.clone();
        body.merging.area = Some(area);
        todo.ios.push(internal_io(&cow, id, MERGE, Op::Read, (piece.sector, piece.sectors), Some(memory)));
    }

    /// Other snapshots have their exceptions of one more run.
    pub(super) fn merge_free(&mut self, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        body.merging.left -= 1;
        if body.merging.left == 0 {
            body.merging.phase = Phase::Draining;
            self.copy_round(id, todo);
        }
    }

    fn copy_round(&mut self, id: u64, todo: &mut Todo) {
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
            self.copy_back(id, from, sectors, to, todo);
        }
    }

    /// A run of chunks has been copied.
    pub(super) fn merge_copied(&mut self, origin: &Origin, id: u64, status: Status, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        let merging = &mut body.merging;
        merging.left -= 1;
        merging.failed |= !status.is_ok();
        if merging.left > 0 {
            return;
        }
        if std::mem::take(&mut merging.failed) {
            self.merge_fails(id, todo);
        } else if origin.dev.limits().write_cache {
            merging.phase = Phase::Flushing;
            let nothing = (Sector::ZERO, Sectors::ZERO);
            todo.ios.push(internal_io(&origin.dev, id, MERGE, Op::Flush, nothing, None));
        } else {
            self.take_away(origin, id, todo);
        }
    }

    fn take_away(&mut self, origin: &Origin, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        body.merging.phase = Phase::Committing;
        let count = body.merging.round.len();
        self.commit_merge(origin, id, count, todo);
    }

    /// An internal I/O of the merge is back.
    pub(super) fn merge_io_done(
        &mut self,
        origin: &Origin,
        id: u64,
        memory: Option<&[u8]>,
        status: Status,
        todo: &mut Todo,
    ) {
        let Some(body) = self.body(id) else { return };
        match (body.merging.phase, body.merging.area.take(), memory) {
            (_, _, _) if !status.is_ok() => self.merge_fails(id, todo),
            (Phase::Loading, Some(mut area), Some(bytes)) => match area.feed(bytes) {
                Ok(()) => self.load(id, area, todo),
                Err(_) => self.merge_fails(id, todo),
            },
            _ => self.take_away(origin, id, todo),
        }
        self.merge_on(origin, id, todo);
    }

    /// The exceptions of the round are gone on the device, or could not be taken away.
    pub(super) fn merged(&mut self, origin: &Origin, id: u64, good: bool, todo: &mut Todo) {
        if !good {
            return self.merge_fails(id, todo);
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
            todo.events.push(body.md.clone());
        }
        let queued = std::mem::take(&mut body.merging.queued);
        queued.into_iter().for_each(|bio| self.origin_write(origin, bio, todo));
    }

    /// The merge stops for good. Bios are served as before, but for those that wait.
    fn merge_fails(&mut self, id: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        body.snapshot.merge_failed.store(true, SeqCst);
        body.merging.phase = Phase::Idle;
        body.merging.on = false;
        body.merging.round.clear();
        body.merging.chunks.clear();
        todo.ends.extend(body.merging.queued.drain(..).map(|bio| (bio, Status::Io)));
        todo.events.push(body.md.clone());
    }

    /// A write through a snapshot that is being merged. Its sector is the origin's.
    pub(super) fn merge_write(&mut self, origin: &Arc<Origin>, id: u64, mut bio: Bio, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return todo.ends.push((bio, Status::Io)) };
        let it = body.snapshot.clone();
        let chunk = it.chunk.of(bio.sector());
        flight::point(&mut bio, &*it.origin.dev);
        let entry = it.exceptions.get(chunk).filter(|_| it.valid.load(SeqCst));
        let Some(entry) = entry else { return self.origin_write(origin, bio, todo) };
        if body.merging.chunks.contains(&chunk) {
            return body.merging.queued.push(bio);
        }
        *body.merging.writes.entry(chunk).or_default() += 1;
        let mut bio = to_cow(&it, entry.new, bio);
        flight::watch(&mut bio, origin, Landed::Merging(id, chunk));
        todo.bios.push(bio);
    }

    /// A write to a chunk's place is done.
    pub(super) fn merging_written(&mut self, origin: &Origin, id: u64, chunk: u64, todo: &mut Todo) {
        let Some(body) = self.body(id) else { return };
        if let Some(count) = body.merging.writes.get_mut(&chunk) {
            *count -= 1;
            if *count == 0 {
                body.merging.writes.remove(&chunk);
            }
        }
        self.merge_on(origin, id, todo);
    }
}

/// How much of so many chunks is the snapshot's, and lies on the origin. The chunk in which it ends may have been copied when the
/// origin ended there, too: what lies in its place after that is nobody's, and on the origin somebody else's by now.
fn within(it: &Snapshot, sector: Sector, chunks: u64) -> Sectors {
    let end = sector + Sectors::new(it.chunk.sectors().get() * chunks);
    let size = Sector::new(it.sectors.load(SeqCst));
    let ends_in_last = size < end && size + it.chunk.sectors() > end;
    let end = if ends_in_last { size } else { end };
    let end = end.min(it.origin.dev.sectors().from_start());
    end.checked_since(sector).unwrap_or(Sectors::ZERO)
}
