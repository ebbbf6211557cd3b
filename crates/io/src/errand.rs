//! Errands: bios of one's own with all that they need, for workers that have no `unsafe`.
//!
//! An [`Errand`] owns the memory that it reads into or writes from, and comes back as a whole; a worker that keeps it for
//! the next one allocates nothing. What it cannot do is [`Cx::submit_own`]'s: lists of several pieces.

use crate::{BlockDevice, Cx, Op, OpFlags, Segment, Status};
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};

/// The memory of an errand.
pub enum Bytes<'a> {
    /// There is none: flushes, discards, zeroes.
    None,
    /// To be read into; it can be written from as well.
    In(&'a mut [u8]),
    /// To be written from only.
    Out(&'a [u8]),
}

/// What can lend memory to an errand. Nobody asks it for anything else until the errand is done.
pub trait Lend: Send + 'static {
    /// The memory: one piece, that stays where it is.
    fn lend(&mut self) -> Bytes<'_>;
}

impl Lend for () {
    fn lend(&mut self) -> Bytes<'_> {
        Bytes::None
    }
}

impl Lend for AlignedBuf {
    fn lend(&mut self) -> Bytes<'_> {
        Bytes::In(self)
    }
}

impl Lend for Option<AlignedBuf> {
    fn lend(&mut self) -> Bytes<'_> {
        self.as_deref_mut().map_or(Bytes::None, Bytes::In)
    }
}

/// Who sends errands.
pub trait Sender<M: Lend>: Send + Sync {
    /// An errand is back. Called inside the channel that it was sent on, maybe before [`Cx::send`] has returned. Must not
    /// block.
    fn back(self: Arc<Self>, cx: &Cx<'_>, errand: Box<Errand<M>>, status: Status);
}

/// One operation on a device, with its memory.
pub struct Errand<M: Lend> {
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
    sender: Option<Arc<dyn Sender<M>>>,
}

impl<M: Lend> Errand<M> {
    /// An errand of nothing yet: a flush of `dev`.
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
            sender: None,
        })
    }
}

impl Cx<'_> {
    /// Sends an errand: a bio of one's own. Given back when the channel's reserve for the device's level is used up, or
    /// the channel gives none: see [`when_own`](Self::when_own). Does not block, and allocates nothing.
    ///
    /// A range past the device's end, and memory that is too short or only to be written from for a read, end with
    /// [`Status::Invalid`].
    pub fn send<M: Lend>(&self, mut errand: Box<Errand<M>>, sender: Arc<dyn Sender<M>>) -> Result<(), Box<Errand<M>>> {
        errand.sender = Some(sender);
        let level = Self::own_level(&*errand.dev);
        let raw = Box::into_raw(errand);
        // SAFETY: the errand is this function's until it is submitted. The borrow of its memory lasts, as raw pointers,
        // until `back` makes a box of it again: nobody else knows the errand.
        let seg = match unsafe { &mut (*raw).memory }.lend() {
            Bytes::None => Segment::EMPTY,
            // SAFETY: the memory is lent until `back`, for reading and writing.
            Bytes::In(bytes) => unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) },
            // SAFETY: as above, for a write, which only reads it: another operation gets nothing.
            Bytes::Out(bytes) if unsafe { (*raw).op } == Op::Write => unsafe {
                Segment::new(bytes.as_ptr().cast_mut(), bytes.len())
            },
            Bytes::Out(_) => Segment::EMPTY,
        };
        // SAFETY: as above; other fields than the memory.
        let submitted = unsafe {
            (*raw).segs = [seg];
            let (op, flags, range) = ((*raw).op, (*raw).flags, ((*raw).sector, (*raw).sectors));
            let dev: *const dyn BlockDevice = Arc::as_ptr(&(*raw).dev);
            let segs = std::slice::from_raw_parts((&raw const (*raw).segs).cast(), 1);
            self.submit_own(level, &*dev, op, flags, range, segs, back::<M>, raw.cast())
        };
        if submitted {
            return Ok(());
        }
        // SAFETY: it was not submitted, so that it is this function's still.
        let mut errand = unsafe { Box::from_raw(raw) };
        errand.sender = None;
        Err(errand)
    }
}

/// # Safety
/// `word` is an errand that [`Cx::send`] has submitted, and that nobody else knows.
unsafe fn back<M: Lend>(cx: &Cx<'_>, status: Status, word: *const ()) {
    // SAFETY: the contract.
    let mut errand = unsafe { Box::from_raw(word.cast_mut().cast::<Errand<M>>()) };
    let sender = errand.sender.take().expect("an errand that is out has a sender");
    sender.back(cx, errand, status);
}
