//! What turns: the requests of a disk, its head, and what it holds.

use super::elevator::{Elevator, Request};
use super::model::{DiskModel, Head};
use crate::Image;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Nanos, Op};

/// What of its content a disk keeps in memory. What it does not keep reads as zeroes.
#[derive(Clone)]
pub enum Keep {
    /// Everything.
    All,
    /// Nothing.
    Nothing,
    /// The sectors for which this is true: metadata, say. Asked for the first of every eight, which go together.
    Only(Arc<dyn Fn(Sector) -> bool + Send + Sync>),
}

/// What a modelled disk is like.
#[derive(Clone)]
pub struct RotatingOptions {
    /// Its size.
    pub size: Sectors,
    /// Its mechanics.
    pub model: DiskModel,
    /// Requests that the elevator sorts, of reads and of writes each. 128, as `nr_requests` of Linux 2.6.27.
    pub requests: usize,
    /// The longest request that neighbours are merged into. 512 KiB, as `max_sectors_kb` of that kernel.
    pub merge: Sectors,
    /// What it keeps.
    pub keep: Keep,
}

impl RotatingOptions {
    /// A [desktop disk](DiskModel::desktop) of `size` that keeps everything.
    pub fn desktop(size: Sectors) -> Self {
        let merge = Sectors::in_bytes(512 << 10);
        Self { size, model: DiskModel::desktop(size), requests: 128, merge, keep: Keep::All }
    }
}

/// What a disk did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskStats {
    /// Bios.
    pub bios: u64,
    /// Requests that they were merged into.
    pub requests: u64,
    /// How often the head had to go elsewhere than where it was.
    pub seeks: u64,
    /// Tracks that it crossed then.
    pub tracks: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Time for commands.
    pub command_ns: u64,
    /// Time to get to tracks.
    pub seek_ns: u64,
    /// Time for sectors to come round.
    pub rotation_ns: u64,
    /// Time with data passing.
    pub transfer_ns: u64,
}

/// What it does, and what it holds.
#[derive(Default)]
pub(super) struct State {
    pub(super) elevator: Elevator,
    pub(super) head: Head,
    /// The request that the disk is busy with, and when it is done.
    pub(super) busy: Option<(Nanos, Request)>,
    pub(super) stats: DiskStats,
    pub(super) content: Image,
}

/// What the world turns.
pub(crate) struct Spindle {
    pub(super) options: Arc<RotatingOptions>,
    pub(super) state: Arc<Mutex<State>>,
}

impl Spindle {
    /// Begins the next request, if it is free, and says when the one under way is done.
    pub(crate) fn turn(&self, now: Nanos) -> Option<Nanos> {
        let (state, options) = (&mut *lock(&self.state), &*self.options);
        if state.busy.is_none() && !state.elevator.is_empty() {
            let request = state.elevator.next(state.head.0, options.requests, options.merge)?;
            let (service, head) = options.model.service(state.head, now.0, request.sector, request.sectors);
            state.head = head;
            let stats = &mut state.stats;
            stats.requests += 1;
            stats.seeks += u64::from(service.moved);
            stats.tracks += if service.moved { service.crossed } else { 0 };
            stats.command_ns += service.command_ns;
            stats.seek_ns += service.seek_ns;
            stats.rotation_ns += service.rotation_ns;
            stats.transfer_ns += service.transfer_ns;
            state.busy = Some((now.after(service.ns()), request));
        }
        state.busy.as_ref().map(|(at, _)| *at)
    }

    /// The bios that are done by `now`.
    pub(crate) fn done(&self, now: Nanos) -> Vec<Bio> {
        let state = &mut *lock(&self.state);
        if state.busy.as_ref().is_none_or(|(at, _)| *at > now) {
            return Vec::new();
        }
        let (_, request) = state.busy.take().expect("just seen");
        for bio in &request.bios {
            let bytes = bio.sectors().bytes();
            match bio.op() {
                Op::Read => {
                    state.stats.bytes_read += bytes;
                    read(&state.content, &self.options.keep, bio);
                }
                _ => {
                    state.stats.bytes_written += bytes;
                    write(&mut state.content, &self.options.keep, bio);
                }
            }
        }
        request.bios
    }

    /// Every bio that is here, when the power goes.
    pub(crate) fn cut(&self) -> Vec<Bio> {
        let mut state = lock(&self.state);
        let busy = state.busy.take().map(|(_, request)| request.bios).unwrap_or_default();
        busy.into_iter().chain(state.elevator.drain()).collect()
    }
}

/// Sectors that are kept or not together: a page of an image.
const TOGETHER: u64 = 8;

fn read(content: &Image, keep: &Keep, bio: &Bio) {
    if matches!(keep, Keep::Nothing) {
        bio.fill(0);
        return;
    }
    let mut buf = vec![0; bio.sectors().as_len()];
    content.read(bio.sector(), &mut buf);
    bio.copy_in(0, &buf);
}

fn write(content: &mut Image, keep: &Keep, bio: &Bio) {
    let keeps = |sector| match keep {
        Keep::All => true,
        Keep::Nothing => false,
        Keep::Only(wanted) => wanted(sector),
    };
    let (mut at, end) = (bio.sector(), bio.sector() + bio.sectors());
    while at < end {
        let page = Sector::new(at.get() / TOGETHER * TOGETHER);
        let next = (page + Sectors::new(TOGETHER)).min(end);
        if keeps(page) {
            let mut buf = vec![0; (next - at).as_len()];
            if bio.op() == Op::Write {
                bio.copy_out((at - bio.sector()).as_len(), &mut buf);
            }
            content.write(at, &buf);
        }
        at = next;
    }
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
