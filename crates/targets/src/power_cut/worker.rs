//! What writes the cache down: a worker, which does one thing after the other.

use super::cache::{Cache, Content, Piece};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_core::PowerCut;
use udm_io::{Bio, BlockDevice, Op, OpFlags, Status};
use udm_worker::{Awaited, Events, Memory, Operation, Reply, Service, Worker};

/// Writes to the device that are under way at most.
const OUT: usize = 64;
/// How much is written at once.
const PIECE: Sectors = Sectors::in_bytes(1 << 20);

/// What the worker shares with bios on their way.
pub(super) struct Shared {
    pub(super) dev: Arc<dyn BlockDevice>,
    pub(super) cache: Mutex<Cache>,
    /// Of reads of which the cache has a part, what it had when they were sent.
    pub(super) reads: Mutex<(u64, HashMap<u64, Vec<Piece>>)>,
    /// The power is gone.
    pub(super) off: AtomicBool,
    /// Where a write is torn.
    pub(super) atomic: Sectors,
    /// Bytes of memory.
    pub(super) most: u64,
}

/// What the worker is left.
pub(super) enum Event {
    /// A flush, and the number that writes before it are below.
    Flush(Bio, u64),
    /// A FUA write, its number; it points at the device.
    Fua(Bio, u64),
    /// A write that needs room, which points at the device.
    Write(Bio, Content),
    /// Write everything down: the device is still.
    Still(Reply<Result<(), Status>>),
    /// The power is gone, by this seed; and whether a record is wanted.
    Cut(u64, bool, Reply<Result<PowerCut, Status>>),
}

impl Service for Shared {
    type Event = Event;
    const NAME: &'static str = "cache";
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what is left, until the worker is stopped.
pub(super) async fn run(worker: Arc<Worker<Shared>>, mut events: Events<Event>) {
    loop {
        while let Some(event) = events.next() {
            match event {
                Event::Flush(bio, _) | Event::Fua(bio, _) | Event::Write(bio, _) if worker.off.load(SeqCst) => {
                    bio.end(Status::Io);
                }
                Event::Flush(bio, number) => bio.end(status_of(flush(&worker, number).await)),
                Event::Fua(bio, number) => {
                    let mut memory = AlignedBuf::zeroed(bio.sectors().as_len());
                    bio.copy_out(0, &mut memory);
                    let range = (bio.sector(), bio.sectors());
                    bio.end(status_of(fua(&worker, range, memory, number).await));
                }
                Event::Write(bio, content) => {
                    let (range, flags) = ((bio.sector(), bio.sectors()), bio.flags());
                    bio.end(status_of(write(&worker, range, flags, content).await));
                }
                Event::Still(reply) => {
                    let number = lock(&worker.cache).number();
                    reply.give(flush(&worker, number).await);
                }
                Event::Cut(seed, record, reply) => reply.give(cut(&worker, seed, record).await),
            }
        }
        events.idle(None).await;
    }
}

fn status_of(done: Result<(), Status>) -> Status {
    done.err().unwrap_or(Status::Ok)
}

/// What is older than `number` becomes durable.
async fn flush(worker: &Worker<Shared>, number: u64) -> Result<(), Status> {
    let pieces = lock(&worker.cache).older(number);
    write_down(worker, pieces, false).await?;
    flush_device(worker).await?;
    lock(&worker.cache).forget(number);
    Ok(())
}

async fn flush_device(worker: &Worker<Shared>) -> Result<(), Status> {
    submit(worker, Operation::flush(&worker.dev), Memory::None).await
}

async fn submit(worker: &Worker<Shared>, operation: Operation, memory: Memory) -> Result<(), Status> {
    match worker.submit(operation, memory).await.0 {
        Status::Ok => Ok(()),
        status => Err(status),
    }
}

/// Makes one write durable, and nothing else.
async fn fua(worker: &Worker<Shared>, range: (Sector, Sectors), memory: AlignedBuf, number: u64) -> Result<(), Status> {
    let limits = worker.dev.limits();
    let flags = if limits.fua { OpFlags::FUA } else { OpFlags::NONE };
    let operation = Operation { flags, ..Operation::new(&worker.dev, Op::Write, range) };
    submit(worker, operation, Memory::Buffer(memory)).await?;
    if limits.write_cache && !limits.fua {
        flush_device(worker).await?;
    }
    lock(&worker.cache).durable(number, range.0, range.1);
    Ok(())
}

/// Makes room for a write, and takes it.
async fn write(
    worker: &Worker<Shared>,
    range: (Sector, Sectors),
    flags: OpFlags,
    content: Content,
) -> Result<(), Status> {
    loop {
        let (number, pieces) = {
            let mut cache = lock(&worker.cache);
            if cache.has_room(&content, worker.most) {
                cache.add(range.0, range.1, content);
                break;
            }
            let number = cache.excess(&content, worker.most);
            (number, cache.older(number))
        };
        write_down(worker, pieces, false).await?;
        lock(&worker.cache).forget(number);
    }
    if flags.contains(OpFlags::FUA) {
        let number = lock(&worker.cache).number();
        flush(worker, number).await?;
    }
    Ok(())
}

/// The power is gone: what chance leaves is written, and the rest forgotten.
async fn cut(worker: &Worker<Shared>, seed: u64, with_record: bool) -> Result<PowerCut, Status> {
    let (left, report) = {
        let cache = lock(&worker.cache);
        let left = cache.cut(seed, worker.atomic);
        let [whole, torn, lost] = left.counts;
        let record = with_record.then(|| cache.record(worker.atomic));
        let report = PowerCut { seed, writes: cache.len(), whole, torn, lost, sectors: left.sectors, record };
        (left, report)
    };
    write_down(worker, left.pieces, true).await?;
    flush_device(worker).await?;
    *lock(&worker.cache) = Cache::default();
    Ok(report)
}

/// Writes pieces that do not overlap. All that was sent has come back when this returns. `zero`: a discard makes
/// zeroes, wherever that can be, so that it is known what is there.
async fn write_down(worker: &Worker<Shared>, pieces: Vec<Piece>, zero: bool) -> Result<(), Status> {
    let limits = worker.dev.limits();
    let mut out: VecDeque<Awaited<(Status, Memory)>> = VecDeque::new();
    let mut status = Ok(());
    for piece in pieces {
        let zeroes = !limits.max_write_zeroes.is_zero();
        let (op, most) = match piece.data() {
            Some(_) => (Op::Write, limits.max_sectors.min(PIECE)),
            None if piece.is_discard() && !(zero && zeroes) => (Op::Discard, limits.max_discard),
            None if zeroes => (Op::WriteZeroes, limits.max_write_zeroes),
            None => (Op::Write, limits.max_sectors.min(PIECE)),
        };
        let block = Sectors::in_bytes(limits.logical_block_size.into()).get();
        let most = Sectors::new((most.get() / block * block).max(block));
        let (mut done, all) = (Sectors::ZERO, piece.sectors());
        while done < all {
            let len = most.min(all - done);
            let memory = match (op, piece.data()) {
                (Op::Write, data) => {
                    let mut memory = AlignedBuf::zeroed(len.as_len());
                    if let Some(data) = data {
                        memory.copy_from_slice(&data[done.as_len()..][..len.as_len()]);
                    }
                    Memory::Buffer(memory)
                }
                _ => Memory::None,
            };
            while out.len() >= OUT {
                wait(&mut out, &mut status).await;
            }
            out.push_back(worker.submit(Operation::new(&worker.dev, op, (piece.sector() + done, len)), memory));
            done += len;
        }
    }
    while !out.is_empty() {
        wait(&mut out, &mut status).await;
    }
    status
}

async fn wait(out: &mut VecDeque<Awaited<(Status, Memory)>>, status: &mut Result<(), Status>) {
    let Some(awaited) = out.pop_front() else { return };
    let (ended, _) = awaited.await;
    if !ended.is_ok() && status.is_ok() {
        *status = Err(ended);
    }
}
