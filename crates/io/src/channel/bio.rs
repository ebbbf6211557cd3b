//! The bio: an owning handle to a record of its channel's slab.

use super::core::ChannelCore;
use super::cx::Cx;
use super::device::BlockDevice;
use super::record::{FRAMES, Frame, FrameFn, Record};
use crate::bio::{Op, OpFlags, Segments, Status};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use udm_base::{Sector, Sectors};

/// One request on its way: 8 bytes, owned, ended exactly once.
///
/// [`end`](Self::end) consumes it, so that it cannot complete twice. Dropped without, it fails with
/// EIO, and asserts in debug builds. It may be sent to and ended on any thread; it completes on
/// the channel it was taken from.
pub struct Bio(NonNull<Record>);

// SAFETY: the handle owns its record alone; the record's channel is only reached through its mailbox
// unless the thread is inside that channel.
unsafe impl Send for Bio {}

impl Bio {
    #[inline]
    pub(crate) const fn from_record(record: NonNull<Record>) -> Self {
        Self(record)
    }

    #[inline]
    pub(crate) fn into_record(self) -> NonNull<Record> {
        ManuallyDrop::new(self).0
    }

    /// Gives up the handle for an address, as the user data of a ring's request. Without
    /// [`from_raw`](Self::from_raw) the bio never ends.
    #[inline]
    pub fn into_raw(self) -> NonNull<()> {
        self.into_record().cast()
    }

    /// The bio of an address.
    ///
    /// # Safety
    /// The address came from [`into_raw`](Self::into_raw), and is given back once.
    #[inline]
    pub const unsafe fn from_raw(raw: NonNull<()>) -> Self {
        Self(raw.cast())
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record {
        // SAFETY: the handle owns the record, which lives as long as its slab, which outlives it.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn record_mut(&mut self) -> &mut Record {
        // SAFETY: as above, and the handle is unique.
        unsafe { self.0.as_mut() }
    }

    /// What it asks for.
    #[inline]
    pub fn op(&self) -> Op {
        self.record().op
    }

    /// How it is to be done.
    #[inline]
    pub fn flags(&self) -> OpFlags {
        self.record().flags
    }

    /// Changes how it is to be done, as when a device beneath takes over a duty.
    #[inline]
    pub fn set_flags(&mut self, flags: OpFlags) {
        self.record_mut().flags = flags;
    }

    /// The first sector, on the device that has the bio now.
    #[inline]
    pub fn sector(&self) -> Sector {
        self.record().sector
    }

    /// Moves the bio, as a target does when it maps.
    #[inline]
    pub fn set_sector(&mut self, sector: Sector) {
        self.record_mut().sector = sector;
    }

    /// How long it is; 0 for a flush.
    #[inline]
    pub fn sectors(&self) -> Sectors {
        self.record().sectors
    }

    /// The sector after its last.
    #[inline]
    pub fn end_sector(&self) -> Sector {
        self.sector() + self.sectors()
    }

    /// The status so far: the first error that was met.
    #[inline]
    pub fn status(&self) -> Status {
        self.record().status
    }

    /// Notes an error without ending the bio; the first stays.
    #[inline]
    pub fn fail(&mut self, status: Status) {
        let record = self.record_mut();
        if record.status.is_ok() {
            record.status = status;
        }
    }

    /// Cuts the bio off at `sectors`, for a device that has served the rest: a read that goes past what lies beneath.
    pub fn truncate(&mut self, sectors: Sectors) {
        debug_assert!(sectors <= self.sectors(), "a bio gets shorter only");
        self.record_mut().sectors = sectors;
    }

    /// Replaces the status, as a target may that has taken the bio back.
    pub fn set_status(&mut self, status: Status) {
        self.record_mut().status = status;
    }

    /// Pushes a word, with the sector that the bio has now, for [`take_context`](Self::take_context). Returns false
    /// when there is no room.
    pub fn push_context(&mut self, context: u64) -> bool {
        // SAFETY: the function ignores its word.
        unsafe { self.push_frame(pass, context as usize as *const ()) }
    }

    /// Takes the word that was pushed last, and with it the sector that the bio had then.
    ///
    /// # Safety
    /// The uppermost frame is one of [`push_context`](Self::push_context).
    pub unsafe fn take_context(&mut self) -> u64 {
        self.pop_frame().map_or(0, |frame| frame.word as usize as u64)
    }

    /// Turns a bio whose write is done into a flush, for a device that emulates FUA.
    pub fn become_flush(&mut self) {
        let record = self.record_mut();
        record.op = Op::Flush;
        record.sector = Sector::ZERO;
        record.sectors = Sectors::ZERO;
    }

    /// Takes the status back to Ok, for who has dealt with the error and submits the bio again.
    pub fn clear_status(&mut self) {
        self.record_mut().status = Status::Ok;
    }

    /// The memory of a read or write; nothing for other operations.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        let record = self.record();
        let bytes = if record.op.has_payload() { record.sectors.as_len() } else { 0 };
        // SAFETY: checked at submission: the list holds skip + bytes; it lives until completion.
        unsafe { Segments::new(record.segs, record.skip, bytes) }
    }

    /// Copies the memory of a write, or of a read that has come home, from its byte `skip` on, into `buf`. Returns how
    /// many bytes there were.
    pub fn copy_out(&self, skip: usize, buf: &mut [u8]) -> usize {
        let mut at = 0;
        for seg in self.segments().skip_bytes(skip).take_bytes(buf.len()) {
            let into = buf[at..at + seg.len()].as_mut_ptr();
            // SAFETY: the contract of Segment::new: valid for reads until completion; `into` has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(seg.as_ptr(), into, seg.len()) };
            at += seg.len();
        }
        at
    }

    /// Copies `data` into a read's memory, from its byte `skip` on, as far as that goes.
    pub fn copy_in(&self, skip: usize, data: &[u8]) {
        assert!(self.op() == Op::Read, "only a read's memory is the device's to write");
        let mut at = 0;
        for seg in self.segments().skip_bytes(skip).take_bytes(data.len()) {
            let from = data[at..at + seg.len()].as_ptr();
            // SAFETY: the contract of Segment::new: valid for writes until completion; `from` has as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, seg.as_ptr(), seg.len()) };
            at += seg.len();
        }
    }

    /// Fills the memory of a read with one byte.
    pub fn fill(&self, byte: u8) {
        assert!(self.op() == Op::Read, "only a read's memory is the device's to write");
        for seg in self.segments() {
            // SAFETY: the contract of Segment::new: valid for writes until completion.
            unsafe { std::ptr::write_bytes(seg.as_ptr(), byte, seg.len()) }
        }
    }

    /// The device that the bio is for now, which whoever submitted it keeps until it has completed.
    #[inline]
    pub fn device(&self) -> NonNull<dyn BlockDevice> {
        self.record().dev.expect("a submitted bio has a device")
    }

    /// Redirects the bio to another device, to be returned from [`BlockDevice::submit`] or submitted
    /// through [`Cx::submit`].
    ///
    /// # Safety
    /// The device must stay alive until the bio has completed.
    #[inline]
    pub unsafe fn redirect(&mut self, dev: &dyn BlockDevice) {
        // SAFETY: only the lifetime is erased; the caller vouches for it.
        let dev: &'static dyn BlockDevice = unsafe { std::mem::transmute(dev) };
        self.record_mut().dev = Some(NonNull::from(dev));
    }

    /// Whether another completion frame fits.
    #[inline]
    pub fn has_frame(&self) -> bool {
        (self.record().frames as usize) < FRAMES
    }

    /// How many completion frames fit.
    #[inline]
    pub fn frames_left(&self) -> usize {
        FRAMES - self.record().frames as usize
    }

    /// Pushes a completion frame: `func` is called with `word` when the bio has come back to this level,
    /// with its sector restored. Returns false when there is no room: clone instead.
    ///
    /// # Safety
    /// `word` must be what `func` expects, and valid until the frame has run.
    #[inline]
    pub unsafe fn push_frame(&mut self, func: FrameFn, word: *const ()) -> bool {
        let record = self.record_mut();
        let n = record.frames as usize;
        if n == FRAMES {
            return false;
        }
        record.stack[n] = MaybeUninit::new(Frame { func, word, sector: record.sector });
        record.frames = n as u8 + 1;
        true
    }

    /// Ends the bio. On its own channel its frames run at once; from elsewhere it goes home by mailbox.
    #[inline]
    pub fn end(mut self, status: Status) {
        if !status.is_ok() {
            self.fail(status);
        }
        let channel = self.record().channel;
        // SAFETY: the channel's core outlives every bio of its slab.
        let core = unsafe { channel.as_ref() };
        if core.lock.is_inside() { core.complete(self) } else { ChannelCore::mail(channel, self) }
    }

    #[inline]
    pub(crate) fn pop_frame(&mut self) -> Option<Frame> {
        let record = self.record_mut();
        if record.frames == 0 {
            return None;
        }
        record.frames -= 1;
        // SAFETY: frames below the count were written by push_frame.
        let frame = unsafe { record.stack[record.frames as usize].assume_init() };
        record.sector = frame.sector;
        Some(frame)
    }

    /// A free word of the record for the device or target that has the bio now.
    #[inline]
    pub fn word(&self) -> u64 {
        self.record().word
    }

    /// Sets the free word.
    #[inline]
    pub fn set_word(&mut self, word: u64) {
        self.record_mut().word = word;
    }

    /// Half a free word more, for who needs it beside [`word`](Self::word).
    pub fn note(&self) -> u32 {
        self.record().note
    }

    /// Sets the half word.
    pub fn set_note(&mut self, note: u32) {
        self.record_mut().note = note;
    }
}

/// The frame of a context: nobody took it.
///
/// # Safety
/// Safe to call with any word.
unsafe fn pass(_: &Cx<'_>, bio: Bio, _: *const ()) -> Option<Bio> {
    Some(bio)
}

const _: () = assert!(usize::BITS == 64, "a context is a pointer's size");

impl Drop for Bio {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a bio was dropped without being ended");
        Self(self.0).end(Status::Io);
    }
}

impl std::fmt::Debug for Bio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}+{}", self.op(), self.sector(), self.sectors())
    }
}

const _: () = assert!(std::mem::size_of::<Option<Bio>>() == 8, "a bio is a word, also when it may be none");
