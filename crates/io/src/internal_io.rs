//! Internal I/Os: internal bios with all that they need, for workers that have no `unsafe`.
//!
//! An [`InternalIo`] owns the memory that it reads into or writes from, and comes back as a whole; a worker that keeps
//! it for the next one allocates nothing. What it cannot do is [`Cx::submit_internal`]'s: lists of several pieces.

use crate::{BlockDevice, Cx, Op, OpFlags, Segment, Status};
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};

/// The memory of an internal I/O.
pub enum IoBuffer<'a> {
    /// There is none: flushes, discards, zeroes.
    None,
    /// To be read into; it can be written from as well.
    In(&'a mut [u8]),
    /// To be written from only.
    Out(&'a [u8]),
}

/// What can lend memory to an internal I/O. Nobody asks it for anything else until the internal I/O is done.
pub trait IoMemory: Send + 'static {
    /// The memory: one piece, that stays where it is.
    fn buffer(&mut self) -> IoBuffer<'_>;
}

impl IoMemory for () {
    fn buffer(&mut self) -> IoBuffer<'_> {
        IoBuffer::None
    }
}

impl IoMemory for AlignedBuf {
    fn buffer(&mut self) -> IoBuffer<'_> {
        IoBuffer::In(self)
    }
}

impl IoMemory for Option<AlignedBuf> {
    fn buffer(&mut self) -> IoBuffer<'_> {
        self.as_deref_mut().map_or(IoBuffer::None, IoBuffer::In)
    }
}

/// Who sends internal I/Os.
pub trait InternalIoOwner<M: IoMemory>: Send + Sync {
    /// An internal I/O is back. Called inside the channel that it was sent on, maybe before [`Cx::submit_internal_io`]
    /// has returned. Must not block.
    fn io_done(self: Arc<Self>, cx: &Cx<'_>, io: Box<InternalIo<M>>, status: Status);
}

/// One operation on a device, with its memory.
pub struct InternalIo<M: IoMemory> {
    /// The device. Its sender holds it too, so that the last hold is not let go of inside a channel.
    pub dev: Arc<dyn BlockDevice>,
    /// What is asked for.
    pub op: Op,
    /// How.
    pub flags: OpFlags,
    /// Where.
    pub sector: Sector,
    /// How much. The memory of a read or write has at least as much.
    pub sectors: Sectors,
    /// What it reads into or writes from.
    pub memory: M,
    /// The sender's own.
    pub token: u64,
    segs: [Segment; 1],
    owner: Option<Arc<dyn InternalIoOwner<M>>>,
}

impl<M: IoMemory> InternalIo<M> {
    /// An internal I/O of nothing yet: a flush of `dev`.
    pub fn new(dev: Arc<dyn BlockDevice>, memory: M) -> Box<Self> {
        Box::new(Self {
            dev,
            op: Op::Flush,
            flags: OpFlags::NONE,
            sector: Sector::ZERO,
            sectors: Sectors::ZERO,
            memory,
            token: 0,
            segs: [Segment::EMPTY],
            owner: None,
        })
    }
}

impl Cx<'_> {
    /// Sends an internal I/O: an internal bio. Given back when the channel's reserve for the device's level is used up,
    /// or the channel gives none: see [`when_internal`](Self::when_internal). Does not block, and allocates nothing.
    ///
    /// A range past the device's end, and memory that is too short or only to be written from for a read, end with
    /// [`Status::Invalid`].
    pub fn submit_internal_io<M: IoMemory>(
        &self,
        mut io: Box<InternalIo<M>>,
        owner: Arc<dyn InternalIoOwner<M>>,
    ) -> Result<(), Box<InternalIo<M>>> {
        io.owner = Some(owner);
        let level = Self::internal_level(&*io.dev);
        let raw = Box::into_raw(io);
        // SAFETY: the internal I/O is this function's until it is submitted. The borrow of its memory lasts, as raw
        // pointers, until `back` makes a box of it again: nobody else knows the internal I/O.
        let seg = match unsafe { &mut (*raw).memory }.buffer() {
            IoBuffer::None => Segment::EMPTY,
            // SAFETY: the memory is lent until `back`, for reading and writing.
            IoBuffer::In(bytes) => unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) },
            // SAFETY: as above, for a write, which only reads it: another operation gets nothing.
            IoBuffer::Out(bytes) if unsafe { (*raw).op } == Op::Write => unsafe {
                Segment::new(bytes.as_ptr().cast_mut(), bytes.len())
            },
            IoBuffer::Out(_) => Segment::EMPTY,
        };
        // SAFETY: as above; other fields than the memory.
        let submitted = unsafe {
            (*raw).segs = [seg];
            let (op, flags, range) = ((*raw).op, (*raw).flags, ((*raw).sector, (*raw).sectors));
            let dev: *const dyn BlockDevice = Arc::as_ptr(&(*raw).dev);
            let segs = std::slice::from_raw_parts((&raw const (*raw).segs).cast(), 1);
            self.submit_internal(level, &*dev, op, flags, range, segs, back::<M>, raw.cast())
        };
        if submitted {
            return Ok(());
        }
        // SAFETY: it was not submitted, so that it is this function's still.
        let mut io = unsafe { Box::from_raw(raw) };
        io.owner = None;
        Err(io)
    }
}

/// # Safety
/// `word` is an internal I/O that [`Cx::submit_internal_io`] has submitted, and that nobody else knows.
unsafe fn back<M: IoMemory>(cx: &Cx<'_>, status: Status, word: *const ()) {
    // SAFETY: the contract.
    let mut io = unsafe { Box::from_raw(word.cast_mut().cast::<InternalIo<M>>()) };
    let owner = io.owner.take().expect("an internal I/O that is out has a owner");
    owner.io_done(cx, io, status);
}
