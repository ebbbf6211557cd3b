//! Requests under way: from the first bio to the reply. A long request is several here, its parts.

use super::budget::Budget;
use super::pool::{Buf, ChunkId, Pool};
use super::session::Durability;
use crate::slots::Slots;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_io::{Attached, BlockDevice, Channel, Completion, Domain, Extent, Nanos, Op, OpFlags, Question, Questions};
use udm_io::{Segment, Status};
use udm_nbd::wire::NbdError;

/// The channel's slots. Connections bound their requests, so that those of a suspended device leave room for others.
const DEPTH: usize = 1 << 20;
/// Zeroes that are written at a time for a device that cannot make them itself.
pub(super) const ZERO_STEP: usize = 1024 * 1024;
const ZERO_PIECE: usize = 64 * 1024;
/// What a request costs besides its bytes, as bytes.
const EACH: usize = 256;
/// What it costs at most to unmap a range.
const UNMAP: usize = 1024 * 1024;
/// How long a device may take to say what a range holds before it counts as data.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What a request has still to do.
enum Work {
    Read(Buf),
    Write(Payload, Durability),
    Range(Op, OpFlags, Durability),
    /// Zeroes are being written out.
    Zeroes(Durability),
    Flush,
}

/// Where the data of a write is.
pub(super) enum Payload {
    /// In a receive chunk, of which this is one user.
    Chunk(ChunkId, Range<usize>),
    /// In a buffer of its own.
    Buf(Buf),
}

impl Payload {
    fn release(self, pool: &mut Pool) -> usize {
        match self {
            Self::Chunk(id, range) => {
                pool.leave_chunk(id);
                range.len()
            }
            Self::Buf(buf) => {
                let freed = buf.capacity();
                pool.give(buf);
                freed
            }
        }
    }

    /// Bytes that it counts for against its connection.
    pub(super) fn held(&self) -> usize {
        match self {
            Self::Chunk(_, range) => range.len(),
            Self::Buf(buf) => buf.capacity(),
        }
    }
}

/// A request and who waits for it.
struct Request {
    target: Target,
    work: Work,
    /// Zeroes must be made by the device or not at all.
    fast_zero: bool,
    /// Bytes given back before its end.
    freed: usize,
}

/// A request that is over.
pub(super) struct Finished {
    /// What it was.
    pub(super) target: Target,
    /// Bytes that no longer count against the connection.
    pub(super) freed: usize,
    /// How its last bio ended.
    pub(super) status: Status,
    /// How it ended.
    pub(super) outcome: Outcome,
}

/// How a request ended.
pub(super) enum Outcome {
    /// Nothing to say.
    Done,
    /// The data of a read.
    Data(Buf, usize),
    /// An error.
    Failed(NbdError, &'static str),
}

/// A device that is attached to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device(u32);

/// An attachment, and the requests that use it.
struct Use {
    attached: Attached,
    requests: usize,
}

/// A worker's channel, its memory and what is under way between them.
pub(super) struct Engine {
    pub(super) channel: Channel,
    pub(super) pool: Pool,
    /// What was started since it was asked last, as bytes.
    cost: usize,
    questions: Questions,
    /// What was asked: by which connection, for which of its long requests, and when.
    asked: Vec<(Question, u32, u32, Nanos)>,
    devices: Slots<Use>,
    requests: Slots<Request>,
    zeroes: Option<Zeroes>,
}

/// Zero bytes, and a list that gives them many times over.
struct Zeroes {
    _memory: AlignedBuf,
    list: Vec<Segment>,
}

impl Zeroes {
    fn new() -> Self {
        let memory = AlignedBuf::zeroed(ZERO_PIECE);
        // SAFETY: only used for writes, which read; the memory lives beside the list, in the engine.
        let piece = unsafe { Segment::new(memory.as_ptr(), ZERO_PIECE) };
        Self { _memory: memory, list: vec![piece; ZERO_STEP / ZERO_PIECE] }
    }
}

/// An operation on whole sectors.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The connection's number.
    pub(super) conn: u32,
    /// The long request that it is a part of.
    pub(super) part: Option<u32>,
    /// The request's cookie.
    pub(super) cookie: u64,
    /// The device.
    pub(super) device: Device,
    /// First sector.
    pub(super) start: Sector,
    /// Sectors.
    pub(super) length: Sectors,
}

impl Engine {
    pub(super) fn new(domain: &Domain, memory: usize) -> io::Result<Self> {
        let channel = domain.channel()?;
        channel.set_depth(DEPTH);
        channel.set_adaptive(true);
        Ok(Self {
            questions: Questions::new(&channel),
            channel,
            pool: Pool::new(Budget::new(memory)),
            cost: 0,
            asked: Vec::new(),
            devices: Slots::default(),
            requests: Slots::default(),
            zeroes: None,
        })
    }

    /// What was started so far, as bytes; only differences mean something.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// Something was done that cost as much as so many bytes.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.cost = self.cost.wrapping_add(bytes);
    }

    /// Asks the device of a connection what a range holds, for one of its long requests.
    pub(super) fn ask(&mut self, device: &dyn BlockDevice, conn: u32, part: u32, (start, length): (Sector, Sectors)) {
        self.charge(32 * EACH);
        let question = self.questions.ask(&self.channel, device, start, length);
        self.asked.push((question, conn, part, self.channel.now()));
    }

    /// The next answer of a device, with who asked: connection and long request. No runs at all when the device took
    /// too long.
    pub(super) fn next_answer(&mut self) -> Option<(u32, u32, Vec<Extent>)> {
        while let Some((question, extents)) = self.questions.next_answer() {
            // Others have been given up.
            if let Some(asked) = self.asked.iter().position(|asked| asked.0 == question) {
                let (_, conn, part, _) = self.asked.swap_remove(asked);
                return Some((conn, part, extents));
            }
        }
        None
    }

    /// A question that a device has not answered in time; it is given up.
    pub(super) fn next_late(&mut self, now: Nanos) -> Option<(u32, u32)> {
        let late = self.asked.iter().position(|asked| now.since(asked.3) >= PATIENCE_NS)?;
        let (_, conn, part, _) = self.asked.swap_remove(late);
        Some((conn, part))
    }

    /// Whether devices have been asked and have not answered.
    pub(super) fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Gives up what a connection has asked.
    pub(super) fn forget_questions(&mut self, conn: u32) {
        self.asked.retain(|asked| asked.1 != conn);
    }

    /// Holds a device, so that requests can be made of it.
    pub(super) fn attach(&mut self, device: Arc<dyn BlockDevice>) -> Device {
        Device(self.devices.insert(Use { attached: self.channel.attach(device), requests: 0 }))
    }

    /// Lets go of a device.
    ///
    /// # Panics
    /// When requests of it are under way.
    pub(super) fn detach(&mut self, device: Device) {
        let Some(Use { attached, requests }) = self.devices.remove(device.0) else { return };
        assert_eq!(requests, 0, "a device is let go while requests of it are under way");
        // SAFETY: every bio to this attachment belongs to one of its requests, of which there are none.
        unsafe { self.channel.detach_idle(attached) };
    }

    /// Requests under way, those included whose completion has not been taken.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether completions wait to be taken.
    pub(super) fn has_completions(&self) -> bool {
        self.len() > self.channel.outstanding()
    }

    /// Starts a read into a buffer that is long enough.
    pub(super) fn read(&mut self, target: Target, buf: Buf) {
        self.charge(target.length.as_len());
        self.start(target, Work::Read(buf), false);
    }

    /// Starts a write. The payload is at least as long as the range.
    pub(super) fn write(&mut self, target: Target, payload: Payload, durability: Durability) {
        self.charge(target.length.as_len());
        self.start(target, Work::Write(payload, durability), false);
    }

    /// Starts an operation without payload. `fast_zero`: zeroes must not be written out. A part that the device cannot
    /// zero fails with [`Status::NotSupported`]; for a request, zeroes are written, for which it must be short enough.
    pub(super) fn range(&mut self, target: Target, op: Op, flags: OpFlags, durability: Durability, fast_zero: bool) {
        let unmaps = op == Op::Discard || op == Op::WriteZeroes && !flags.contains(OpFlags::NO_UNMAP);
        let bytes = usize::try_from(target.length.bytes()).unwrap_or(usize::MAX);
        self.charge(if unmaps { bytes.min(UNMAP) } else { bytes });
        let work = if op == Op::Flush { Work::Flush } else { Work::Range(op, flags, durability) };
        self.start(target, work, fast_zero);
    }

    /// Starts to write zeroes for a device that cannot make them: at most [`ZERO_STEP`] bytes.
    pub(super) fn write_zeroes(&mut self, target: Target, durability: Durability) {
        self.charge(target.length.as_len());
        self.start(target, Work::Zeroes(durability), false);
    }

    fn start(&mut self, target: Target, work: Work, fast_zero: bool) {
        self.charge(EACH);
        self.devices[target.device.0].requests += 1;
        let slot = self.requests.insert(Request { target, work, fast_zero, freed: 0 });
        self.submit(slot);
    }

    /// Submits the bio that the request needs next.
    fn submit(&mut self, slot: u32) {
        let request = &self.requests[slot];
        let Target { start, length, device, .. } = request.target;
        let device = self.devices[device.0].attached;
        let (channel, token, bytes) = (&self.channel, slot.into(), length.as_len());
        let submitted = match &request.work {
            Work::Read(buf) => {
                // SAFETY: the buffer holds at least `bytes`, belongs to the request, and is touched by nobody until
                // its completion has been taken; `Engine::drop` sees to it when the worker ends before.
                unsafe {
                    let memory = std::slice::from_raw_parts_mut(buf.as_ptr(), bytes);
                    channel.submit(device, Op::Read, OpFlags::NONE, start, memory, token)
                }
            }
            Work::Write(payload, durability) => {
                let flags = if *durability == Durability::Fua { OpFlags::FUA } else { OpFlags::NONE };
                let ptr = match payload {
                    Payload::Chunk(id, range) => self.pool.filled_ptr(*id, range.clone()),
                    Payload::Buf(buf) => buf.as_ptr(),
                };
                // SAFETY: as above; a write only reads the memory, and the payload is a user of its chunk.
                unsafe {
                    let memory = std::slice::from_raw_parts_mut(ptr, bytes);
                    channel.submit(device, Op::Write, flags, start, memory, token)
                }
            }
            Work::Range(op, flags, _) => channel.submit_range(device, *op, *flags, start, length, token),
            Work::Zeroes(_) => {
                let zeroes = self.zeroes.get_or_insert_with(Zeroes::new);
                assert!(bytes <= ZERO_STEP, "more zeroes than are written at a time");
                // SAFETY: the list and its memory live in the engine, and nobody writes them.
                unsafe { channel.submit_vectored(device, Op::Write, OpFlags::NONE, start, length, &zeroes.list, token) }
            }
            Work::Flush => channel.submit_range(device, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, token),
        };
        // One bio a request, and no more requests than the channel has slots.
        assert!(submitted, "the channel has a slot for each request");
    }

    /// Takes completions until one ends its request; `None` when there are no more. A request that needs another bio
    /// gets it here.
    pub(super) fn next_finished(&mut self) -> Option<Finished> {
        while let Some(Completion { token, status }) = self.channel.completed() {
            // Tokens are slots.
            let slot = token as u32;
            let request = &mut self.requests[slot];
            if let Some(work) = next_work(request, status) {
                if let Work::Write(payload, _) = std::mem::replace(&mut request.work, work) {
                    request.freed += payload.release(&mut self.pool);
                }
                self.submit(slot);
            } else if let Some(request) = self.requests.remove(slot) {
                self.devices[request.target.device.0].requests -= 1;
                return Some(self.finish(request, status));
            }
        }
        None
    }

    fn finish(&mut self, request: Request, status: Status) -> Finished {
        let Request { target, work, fast_zero, mut freed } = request;
        let failed = failure(status, fast_zero);
        let outcome = match (work, failed) {
            (Work::Read(buf), None) => Outcome::Data(buf, target.length.as_len()),
            (Work::Read(buf), Some(outcome)) => {
                freed += Payload::Buf(buf).release(&mut self.pool);
                outcome
            }
            // A discard is a hint: that the device has none for this range is no error.
            (Work::Range(Op::Discard, ..), Some(_)) if status == Status::NotSupported => Outcome::Done,
            (Work::Write(payload, _), failed) => {
                freed += payload.release(&mut self.pool);
                failed.unwrap_or(Outcome::Done)
            }
            (_, failed) => failed.unwrap_or(Outcome::Done),
        };
        Finished { target, freed, status, outcome }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.channel.outstanding() > 0 {
            // A device still has bios, and it may write to their memory: it stays, with all that is beside it.
            tracing::warn!("{} requests were still under way; their memory is not freed", self.channel.outstanding());
            std::mem::forget(std::mem::take(&mut self.pool));
            std::mem::forget(std::mem::take(&mut self.requests));
            std::mem::forget(self.zeroes.take());
        }
    }
}

/// What a request needs after a bio has ended with `status`; `None` when it is over.
fn next_work(request: &Request, status: Status) -> Option<Work> {
    match (&request.work, status) {
        (Work::Write(_, Durability::FlushAfter) | Work::Range(_, _, Durability::FlushAfter), Status::Ok) => {
            Some(Work::Flush)
        }
        (Work::Range(Op::WriteZeroes, _, durability), Status::NotSupported)
            if !request.fast_zero && request.target.part.is_none() =>
        {
            Some(Work::Zeroes(*durability))
        }
        (Work::Zeroes(Durability::Fua | Durability::FlushAfter), Status::Ok) => Some(Work::Flush),
        _ => None,
    }
}

/// What a client is told of a status; `None` when it went well.
fn failure(status: Status, fast_zero: bool) -> Option<Outcome> {
    let (error, message) = match status {
        Status::Ok => return None,
        Status::Invalid => (NbdError::Inval, "the device cannot take this request"),
        Status::NoSpace => (NbdError::NoSpc, "no space is left on the device"),
        Status::ReadOnly => (NbdError::Perm, "the device is read-only"),
        // The protocol knows ENOTSUP as the answer to a fast zero alone.
        Status::NotSupported if fast_zero => (NbdError::NotSup, "the device cannot zero this fast"),
        Status::NotSupported => (NbdError::Inval, "the device does not do this"),
        Status::Gone => (NbdError::Io, "the device has gone"),
        Status::TimedOut => (NbdError::Io, "the device took too long"),
        Status::Io | Status::Again | Status::Requeue => (NbdError::Io, "the device failed"),
    };
    Some(Outcome::Failed(error, message))
}
