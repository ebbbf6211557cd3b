//! A modelled rotating disk: a sibling of [`SimDevice`](crate::SimDevice) for questions about order and seeks.
//!
//! Its times come from [`DiskModel`] and from an elevator, and from nothing else: no chance, no clock. The same
//! requests at the same times take the same time, on every machine. What is submitted at one moment of simulated time
//! is sorted together. A write is durable when it completes; there is no cache, and power cuts are `SimDevice`'s
//! business.

mod elevator;
mod model;

pub use model::{DiskModel, Head, Service};

use crate::{Image, Sim};
use elevator::{Elevator, Request};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, BlockDevice, Cx, DeviceId, Limits, Nanos, Op, Status};

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

/// A modelled disk. Clones are the same disk.
#[derive(Clone)]
pub struct RotatingDisk {
    sim: Sim,
    number: usize,
    options: Arc<RotatingOptions>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    elevator: Elevator,
    head: Head,
    /// The request that the disk is busy with, and when it is done.
    busy: Option<(Nanos, Request)>,
    stats: DiskStats,
    content: Image,
}

impl RotatingDisk {
    /// A disk of a world, all zeroes.
    pub fn new(sim: &Sim, options: RotatingOptions) -> Self {
        let state = Arc::default();
        let mut world = sim.lock();
        let number = world.rotating.len();
        let disk = Self { sim: sim.clone(), number, options: Arc::new(options), state };
        world.rotating.push(Spindle { options: disk.options.clone(), state: disk.state.clone() });
        drop(world);
        disk
    }

    /// What it did since it was made.
    pub fn stats(&self) -> DiskStats {
        lock(&self.state).stats
    }

    /// What it is like.
    pub fn options(&self) -> &RotatingOptions {
        &self.options
    }

    /// Bytes of memory that its content takes.
    pub fn allocated(&self) -> u64 {
        lock(&self.state).content.allocated()
    }
}

impl BlockDevice for RotatingDisk {
    fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
        let beyond = bio.sector().checked_add(bio.sectors()).is_none_or(|end| end > self.options.size.from_start());
        let refused = if self.sim.is_off() {
            Some(Status::Gone)
        } else if beyond {
            Some(Status::Invalid)
        } else if matches!(bio.op(), Op::Discard) {
            Some(Status::NotSupported)
        } else if bio.sectors().is_zero() {
            // Without a cache there is nothing to flush.
            Some(Status::Ok)
        } else {
            None
        };
        if let Some(status) = refused {
            bio.end(status);
            return None;
        }
        let mut state = lock(&self.state);
        state.stats.bios += 1;
        state.elevator.add(bio, self.options.requests, self.options.merge);
        None
    }

    fn sectors(&self) -> Sectors {
        self.options.size
    }

    fn limits(&self) -> Limits {
        // It makes no zeroes by itself: they are written, and take as long as data.
        Limits { max_discard: Sectors::ZERO, max_write_zeroes: Sectors::ZERO, ..Limits::default() }
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(Arc::as_ptr(&self.state) as usize)
    }

    fn name(&self) -> String {
        format!("disk:{}", self.number)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What the world turns.
pub(crate) struct Spindle {
    options: Arc<RotatingOptions>,
    state: Arc<Mutex<State>>,
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
