//! The reply stream of a server, taken apart. Data of reads goes to the bios' memory: short pieces are copied out of
//! the buffer, long ones are received in place.

use super::lost::Lost;
use crate::wire::consts::{MAX_STRING, base_allocation, chunk};
use crate::wire::reply::{
    CHUNK_LEN, ChunkHeader, EXTENT_LEN, MAX_EXTENTS, ReplyHeader, StatusExtent, block_status, error_payload,
};
use crate::wire::{Cursor, NbdError};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use udm_base::Sectors;
use udm_io::{Extent, ExtentKind, Segments};

/// Bytes of the receive buffer.
const BUFFER: usize = 256 * 1024;
/// The longest payload that must be in the buffer as a whole: a block status, or an error with a message.
const LONGEST: usize = 4 + EXTENT_LEN * MAX_EXTENTS;
/// Pieces of a bio's memory in one receive.
const PIECES: usize = 15;

const _: () = assert!(LONGEST + CHUNK_LEN <= BUFFER && MAX_STRING + 64 <= LONGEST);

/// What the server has said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Data of a read has arrived in its memory, so many bytes from its start.
    Data { cookie: u64, at: u64, bytes: u64 },
    /// A request has failed; its end may come later.
    Error { cookie: u64, error: NbdError },
    /// The extents of a metadata context.
    Status { cookie: u64, context: u32, extents: Vec<Extent> },
    /// The reply is over.
    Done { cookie: u64 },
}

/// Data that is under way.
struct Data {
    cookie: u64,
    /// Where it goes, in bytes from the start of the read.
    at: usize,
    left: usize,
    /// How long it is.
    len: usize,
    /// The reply ends with it.
    last: bool,
}

pub(super) struct Receiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    data: Option<Data>,
    /// A reply whose end is still to be told.
    done: Option<u64>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER], start: 0, end: 0, data: None, done: None }
    }

    /// Receives once, without blocking. False when nothing is there. `target` gives the memory of a read.
    pub(super) fn fill<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        target: impl FnOnce(u64) -> Option<(Segments<'a>, u64, u64)>,
    ) -> Result<bool, Lost> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let mut slices: [IoSliceMut<'_>; PIECES + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut count, mut direct) = (0, 0);
        let mut whole = true;
        if let Some(data) = &self.data {
            // Everything that was in the buffer has been copied out: what comes next belongs to the data.
            debug_assert_eq!(self.end, 0, "data is taken from the buffer first");
            let (segments, ..) = target(data.cookie).ok_or(Lost::Protocol("data for no read"))?;
            for (slice, segment) in slices[..PIECES].iter_mut().zip(segments.skip_bytes(data.at)) {
                let len = segment.len().min(data.left - direct);
                // SAFETY: the memory of a read is the device's until the bio ends, which it does not before its
                // reply has been taken in.
                *slice = IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(segment.as_ptr(), len) });
                count += 1;
                direct += len;
            }
            whole = direct == data.left;
        }
        if whole {
            slices[count] = IoSliceMut::new(&mut self.buffer[self.end..]);
            count += 1;
        }
        let got = loop {
            match recvmsg(socket, &mut slices[..count], &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
                Ok(received) if received.bytes == 0 => return Err(Lost::HungUp),
                Ok(received) => break received.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET) => return Err(Lost::HungUp),
                Err(errno) => return Err(errno.into()),
            }
        };
        let to_data = got.min(direct);
        if let Some(data) = &mut self.data {
            data.at += to_data;
            data.left -= to_data;
        }
        self.end += got - to_data;
        Ok(true)
    }

    /// The next event in what has been received; `None` when more must be received first.
    pub(super) fn next<'a>(
        &mut self,
        structured: bool,
        target: impl Fn(u64) -> Option<(Segments<'a>, u64, u64)>,
    ) -> Result<Option<Event>, Lost> {
        if let Some(cookie) = self.done.take() {
            return Ok(Some(Event::Done { cookie }));
        }
        if self.data.is_some() {
            return self.take_data(&target);
        }
        let bytes = &self.buffer[self.start..self.end];
        let Some((header, header_len)) = ReplyHeader::decode(bytes)? else { return Ok(None) };
        match header {
            ReplyHeader::Simple { error: 0, cookie } => {
                self.start += header_len;
                let Some((_, _, length)) = target(cookie) else { return Ok(Some(Event::Done { cookie })) };
                if structured {
                    return Err(Lost::Protocol("a simple reply to a read after structured replies were agreed on"));
                }
                // The payload of a bio fits the address space.
                let len = length as usize;
                self.data = Some(Data { cookie, at: 0, left: len, len, last: true });
                self.take_data(&target)
            }
            ReplyHeader::Simple { error, cookie } => {
                self.start += header_len;
                self.done = Some(cookie);
                Ok(Some(Event::Error { cookie, error: NbdError::from_wire(error) }))
            }
            ReplyHeader::Chunk(_) if !structured => Err(Lost::Protocol("a structured reply that was not agreed on")),
            ReplyHeader::Chunk(header) => self.chunk(header, &target),
        }
    }

    fn chunk<'a>(
        &mut self,
        header: ChunkHeader,
        target: &impl Fn(u64) -> Option<(Segments<'a>, u64, u64)>,
    ) -> Result<Option<Event>, Lost> {
        let ChunkHeader { flags, kind, cookie, length } = header;
        let last = flags & chunk::FLAG_DONE != 0;
        // Data need not be in the buffer as a whole, only the offset before it.
        let need = if kind == chunk::OFFSET_DATA { 8 } else { length as usize };
        if need > LONGEST {
            return Err(Lost::Protocol("a chunk that is too long"));
        }
        if kind == chunk::OFFSET_DATA && length < 9 {
            return Err(Lost::Protocol("a chunk of data without data"));
        }
        let payload_at = self.start + CHUNK_LEN;
        let Some(payload) = self.buffer[..self.end].get(payload_at..payload_at + need) else { return Ok(None) };
        let mut cursor = Cursor::new(payload);
        let event = match kind {
            chunk::OFFSET_DATA => {
                let at = place(target(cookie), cursor.u64("offset")?, u64::from(length) - 8)?;
                self.start = payload_at + need;
                let len = length as usize - 8;
                self.data = Some(Data { cookie, at, left: len, len, last });
                return self.take_data(target);
            }
            chunk::OFFSET_HOLE => {
                let (offset, len) = (cursor.u64("offset")?, u64::from(cursor.u32("length of the hole")?));
                let read = target(cookie);
                let at = place(read, offset, len)?;
                let mut left = len as usize;
                for segment in read.into_iter().flat_map(|(segments, ..)| segments.skip_bytes(at)) {
                    let now = segment.len().min(left);
                    // SAFETY: the memory of a read is the device's until the bio ends.
                    unsafe { std::ptr::write_bytes(segment.as_ptr(), 0, now) };
                    left -= now;
                }
                Some(Event::Data { cookie, at: at as u64, bytes: len })
            }
            chunk::BLOCK_STATUS => {
                let (context, found) = block_status(payload)?;
                Some(Event::Status { cookie, context, extents: in_sectors(found) })
            }
            chunk::NONE if length == 0 && last => None,
            kind if kind & chunk::ERROR_BIT != 0 => {
                let (error, message) = error_payload(kind, payload)?;
                tracing::debug!("the server answers {error:?}: {message}");
                Some(Event::Error { cookie, error })
            }
            _ => return Err(Lost::Protocol("a chunk of an unknown type")),
        };
        self.start = payload_at + need;
        match (event, last) {
            (None, _) => Ok(Some(Event::Done { cookie })),
            (event, last) => {
                self.done = last.then_some(cookie);
                Ok(event)
            }
        }
    }

    /// Moves data from the buffer to its memory.
    fn take_data<'a>(
        &mut self,
        target: &impl Fn(u64) -> Option<(Segments<'a>, u64, u64)>,
    ) -> Result<Option<Event>, Lost> {
        let Some(data) = &mut self.data else { return Ok(None) };
        let (segments, ..) = target(data.cookie).ok_or(Lost::Protocol("data for no read"))?;
        let mut from = &self.buffer[self.start..self.end];
        let total = from.len().min(data.left);
        from = &from[..total];
        for segment in segments.skip_bytes(data.at) {
            let now = segment.len().min(from.len());
            // SAFETY: the memory of a read is the device's until the bio ends; it is no part of the buffer.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), segment.as_ptr(), now) };
            from = &from[now..];
            if from.is_empty() {
                break;
            }
        }
        self.start += total;
        data.at += total;
        data.left -= total;
        if data.left > 0 {
            return Ok(None);
        }
        let (cookie, at, bytes, last) = (data.cookie, (data.at - data.len) as u64, data.len as u64, data.last);
        self.data = None;
        self.done = last.then_some(cookie);
        Ok(Some(Event::Data { cookie, at, bytes }))
    }
}

/// The extents of a block status as runs of whole sectors: a server may end them anywhere. A sector of which a part is
/// data is data, and so is one in which two extents meet.
fn in_sectors(found: impl Iterator<Item = StatusExtent>) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    let mut end = Sectors::ZERO;
    let mut run_to = |to: Sectors, kind| {
        if to <= end {
            return;
        }
        let sectors = to - std::mem::replace(&mut end, to);
        match runs.last_mut() {
            Some(last) if last.kind == kind => last.sectors += sectors,
            _ => runs.push(Extent { sectors, kind }),
        }
    };
    let mut told = 0;
    for extent in found {
        let kind = match extent.flags & (base_allocation::STATE_HOLE | base_allocation::STATE_ZERO) {
            0b11 => ExtentKind::Hole,
            base_allocation::STATE_ZERO => ExtentKind::Zero,
            // A hole whose contents are not known to be zeroes must be read like data.
            _ => ExtentKind::Data,
        };
        run_to(Sectors::covering(told), ExtentKind::Data);
        told += u64::from(extent.length);
        run_to(if kind == ExtentKind::Data { Sectors::covering(told) } else { Sectors::in_bytes(told) }, kind);
    }
    runs
}

/// Where in a read the range lies, in bytes from its start.
fn place(read: Option<(Segments<'_>, u64, u64)>, offset: u64, len: u64) -> Result<usize, Lost> {
    let (_, start, length) = read.ok_or(Lost::Protocol("data for no read"))?;
    let at = offset.checked_sub(start).filter(|at| at.checked_add(len).is_some_and(|end| end <= length));
    // A bio's payload fits the address space.
    at.map(|at| at as usize).filter(|_| len > 0).ok_or(Lost::Protocol("data outside of its read"))
}

#[cfg(test)]
mod tests;
