//! One queue: chains that become bios, and bios that become used elements.
//!
//! # Invariants
//! - A bio's memory is the guest's, by address, without a copy. The [`GuestMemory`] that the addresses were found in is
//!   kept until the bio has completed, also when the front end has given the queue another one meanwhile, or has gone.
//! - A head is in flight once at most; its slot does not change while it is.
//! - After [`close`](Queue::close) nothing is written to the ring: who comes back finds its requests in the memory of
//!   what is in flight.

use super::blk::{self, kind, status};
use super::inflight::InflightQueue;
use super::memory::{GuestMemory, Piece, read_front, skip_front, take_last, write_front};
use super::ring::{Broken, Chain, Ring, fetch_to_write};
use std::sync::Arc;
use udm_base::{SECTOR_SIZE, Sector, Sectors};
use udm_io::{Attached, Channel, Completion, Op, OpFlags, Segment, Status};

/// Bytes of one read or write at most. A driver's requests are far smaller; a chain can name a page many times.
const MAX_BYTES: u64 = 1 << 30;

/// Chains that are taken in one look at most. What is done is published after each look: so the driver goes on with
/// these while the next are done, and never has to wait with all that it has.
const LOOK: u16 = 8;

/// Where a queue's bios go.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) channel: &'a Channel,
    pub(super) device: Attached,
}

/// What does not change while a queue runs. Drivers follow each other on a connection, each with features of its own:
/// so what follows from them is the queue's, never the worker's or the connection's.
#[derive(Clone, Debug)]
pub(super) struct Traits {
    /// Of every bio.
    pub(super) flags: OpFlags,
    /// The driver knows of no cache: writes are durable when they complete.
    pub(super) write_through: bool,
    pub(super) read_only: bool,
    /// The driver may discard.
    pub(super) discard: bool,
    /// The driver may write zeroes.
    pub(super) write_zeroes: bool,
    /// What `GET_ID` answers.
    pub(super) id: [u8; blk::ID],
}

/// A range of a discard or of zeroes that waits for its turn.
#[derive(Clone, Copy)]
struct Range {
    sector: Sector,
    sectors: Sectors,
    flags: OpFlags,
}

/// What belongs to a head in flight.
struct Slot {
    busy: bool,
    /// Of which memory its addresses are.
    epoch: u32,
    /// Where the status goes.
    status: *mut u8,
    /// Bytes that are written when it goes well, the status included.
    written: u32,
    segments: Vec<Segment>,
    op: Op,
    /// The next range is the last.
    ranges: Vec<Range>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            busy: false,
            epoch: 0,
            status: std::ptr::null_mut(),
            written: 0,
            segments: Vec::new(),
            op: Op::Flush,
            ranges: Vec::new(),
        }
    }
}

/// A memory that bios still refer to.
struct Retired {
    epoch: u32,
    bios: usize,
    _memory: Arc<GuestMemory>,
}

/// A queue that runs.
pub(super) struct Queue {
    pub(super) index: usize,
    traits: Traits,
    ring: Ring,
    memory: Arc<GuestMemory>,
    epoch: u32,
    /// Bios out that refer to `memory`.
    here: usize,
    retired: Vec<Retired>,
    inflight: Option<InflightQueue>,
    slots: Box<[Slot]>,
    /// Room for what is taken in one look.
    taken: Vec<(u16, Chain)>,
    /// Heads that are done and not published.
    batch: Vec<u16>,
    closed: bool,
}

// SAFETY: the addresses are of mappings that `memory`, `retired` and `inflight` keep; who has the queue is alone with
// them, as far as this process goes.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(
        index: usize,
        traits: Traits,
        ring: Ring,
        memory: Arc<GuestMemory>,
        inflight: Option<InflightQueue>,
    ) -> Self {
        let slots = std::iter::repeat_with(Slot::new).take(ring.size().into()).collect();
        Self {
            index,
            traits,
            ring,
            memory,
            epoch: 0,
            here: 0,
            retired: Vec::new(),
            inflight,
            slots,
            taken: std::iter::repeat_with(Default::default).take(LOOK.into()).collect(),
            batch: Vec::new(),
            closed: false,
        }
    }

    /// Requests at a time.
    pub(super) fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Where the available ring goes on.
    pub(super) fn taken(&self) -> u16 {
        self.ring.taken()
    }

    /// Bios that are out.
    pub(super) fn out(&self) -> usize {
        self.here + self.retired.iter().map(|r| r.bios).sum::<usize>()
    }

    /// Writes nothing to the ring any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the front end took memory away that is in use.
    pub(super) fn is_torn(&self) -> bool {
        self.memory.is_torn() || self.inflight.as_ref().is_some_and(InflightQueue::is_torn)
    }

    /// From now on the guest's memory is `memory`. What is in flight keeps the one before.
    pub(super) fn change_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), Broken> {
        self.ring.move_to(&memory)?;
        let before = std::mem::replace(&mut self.memory, memory);
        if self.here > 0 {
            self.retired.push(Retired { epoch: self.epoch, bios: std::mem::take(&mut self.here), _memory: before });
        }
        self.epoch = self.epoch.wrapping_add(1);
        Ok(())
    }

    /// Submits what was in flight when a back end before this one ended, oldest first.
    pub(super) fn resume(&mut self, way: Way<'_>) -> Result<(), Broken> {
        let Some(inflight) = &mut self.inflight else { return Ok(()) };
        let heads = inflight.recover(self.ring.published())?;
        // What was taken is in the used ring or in flight: so the front end need not know where to go on.
        let taken = self.ring.published().wrapping_add(heads.len() as u16);
        self.ring.set_taken(taken);
        let chain = &mut Chain::default();
        heads.into_iter().try_for_each(|head| {
            self.ring.chain(head, chain)?;
            self.start(head, chain, way)
        })
    }

    /// Takes what the driver has made available, some chains at a time. Returns how many.
    ///
    /// Memory that the driver has just written takes long to come from its CPU, and one part of a chain tells where the
    /// next is. So all chains are known before the first bio goes out, and while bios go out the parts of the chains
    /// behind them are asked for, one after the other. Between the copies of two bios little is done, and the CPU
    /// begins the second while it waits for the first.
    #[inline]
    pub(super) fn take(&mut self, way: Way<'_>) -> Result<usize, Broken> {
        let waiting = self.ring.waiting()?.min(LOOK);
        if waiting == 0 {
            return Ok(0);
        }
        let mut taken = std::mem::take(&mut self.taken);
        let result = self.take_into(&mut taken[..waiting.into()], way);
        self.taken = taken;
        result.map(|()| waiting.into())
    }

    #[inline(always)]
    fn take_into(&mut self, taken: &mut [(u16, Chain)], way: Way<'_>) -> Result<(), Broken> {
        // What comes before nonsense is done.
        let mut known = 0;
        let mut result = Ok(());
        for (head, chain) in &mut *taken {
            match self.ring.take_head().and_then(|next| self.ring.chain(next, chain).map(|()| next)) {
                Ok(next) => *head = next,
                Err(broken) => {
                    result = Err(broken);
                    break;
                }
            }
            if let Some(first) = chain.readable.first() {
                fetch_to_write(first.ptr);
            }
            known += 1;
        }
        for (number, (head, chain)) in taken[..known].iter_mut().enumerate() {
            match number {
                0 => self.ring.fetch_descs(LOOK),
                2 => self.ring.fetch_tables(LOOK),
                4 => self.ring.fetch_heads(LOOK),
                _ => {}
            }
            self.start(*head, chain, way)?;
        }
        result
    }

    #[inline(always)]
    fn start(&mut self, head: u16, chain: &mut Chain, way: Way<'_>) -> Result<(), Broken> {
        let slot = &mut self.slots[usize::from(head)];
        if slot.busy {
            return Err(Broken(format!("descriptor {head} is made available again while it is in flight")));
        }
        let Some(at) = take_last(&mut chain.writable) else {
            return Err(Broken("a request has no room for its status".into()));
        };
        if let Some(inflight) = &mut self.inflight {
            inflight.begin(head);
        }
        slot.status = at;
        slot.written = 1;
        slot.busy = true;
        slot.epoch = self.epoch;
        self.here += 1;
        if let Err(status) = begin(slot, chain, &self.traits, self.index, head, way) {
            self.end(head, status);
        }
        Ok(())
    }

    /// A bio of the queue has completed.
    #[inline]
    pub(super) fn completed(&mut self, head: u16, done: Completion, way: Way<'_>) {
        let slot = &mut self.slots[usize::from(head)];
        if done.status.is_ok() && !self.closed && next_range(slot, self.index, head, way) {
            return;
        }
        let status = match done.status {
            Status::Ok => status::OK,
            Status::NotSupported => status::UNSUPP,
            _ => status::IOERR,
        };
        self.end(head, status);
    }

    #[inline]
    fn end(&mut self, head: u16, status: u8) {
        let slot = &mut self.slots[usize::from(head)];
        slot.busy = false;
        if slot.epoch == self.epoch {
            self.here -= 1;
        } else {
            let at = self.retired.iter().position(|r| r.epoch == slot.epoch).expect("kept until its last bio is back");
            self.retired[at].bios -= 1;
            if !self.closed {
                // SAFETY: the status lies in the memory of its epoch, which is kept until below.
                unsafe { slot.status.write_volatile(status) };
            }
            if self.retired[at].bios == 0 {
                self.retired.swap_remove(at);
            }
            return self.note(head, status);
        }
        if !self.closed {
            // SAFETY: the status lies in the memory of this epoch, which is kept.
            unsafe { slot.status.write_volatile(status) };
        }
        self.note(head, status);
    }

    #[inline]
    fn note(&mut self, head: u16, status: u8) {
        if self.closed {
            return;
        }
        let written = self.slots[usize::from(head)].written;
        self.ring.done(head, if status == status::OK { written } else { 1 });
        if let Some(inflight) = &mut self.inflight {
            inflight.batch(head);
            self.batch.push(head);
        }
    }

    /// Shows the driver what is done.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.ring.pending() == 0 || self.closed {
            return;
        }
        self.ring.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(&self.batch, self.ring.published());
            self.batch.clear();
        }
    }

    /// How much was published since it was asked last whether the driver wants to be told.
    #[inline]
    pub(super) fn untold(&self) -> u16 {
        self.ring.untold()
    }

    /// Whether the driver wants to be told of what was published.
    #[inline]
    pub(super) fn wants_to_be_told(&mut self) -> bool {
        self.untold() > 0 && !self.closed && self.ring.wants_to_be_told()
    }

    /// Asks to be rung. Whether there is something already.
    pub(super) fn ask_for_kicks(&self) -> Result<bool, Broken> {
        self.ring.ask_for_kicks()
    }

    /// Tells the driver not to ring.
    pub(super) fn decline_kicks(&self) {
        self.ring.decline_kicks();
    }
}

/// Of which queue and head a bio is.
#[inline(always)]
pub(super) fn token(index: usize, head: u16) -> u64 {
    (index as u64) << 16 | u64::from(head)
}

/// Begins a request whose chain has been found and whose status has been cut off. Fails with the status of one that is
/// none.
#[inline(always)]
fn begin(slot: &mut Slot, chain: &mut Chain, traits: &Traits, index: usize, head: u16, way: Way<'_>) -> Result<(), u8> {
    let mut bytes = [0; blk::HEAD];
    // SAFETY: the pieces were found in the memory of the slot's epoch, which is kept.
    if !unsafe { read_front(&chain.readable, &mut bytes) } {
        return Err(status::IOERR);
    }
    let (word, rest) = bytes.split_at(8);
    let kind = u32::from_le_bytes(word[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(rest.try_into().expect("eight bytes"));
    let Traits { flags, write_through, read_only, .. } = *traits;
    let durable = if write_through { flags.with(OpFlags::FUA) } else { flags };
    if read_only && matches!(kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES) {
        return Err(status::IOERR);
    }
    match kind {
        kind::IN => read_write(slot, &chain.writable, Op::Read, flags, sector, index, head, way),
        kind::OUT => {
            skip_front(&mut chain.readable, blk::HEAD);
            read_write(slot, &chain.readable, Op::Write, durable, sector, index, head, way)
        }
        kind::FLUSH => {
            slot.op = Op::Flush;
            submit_range(Op::Flush, Range { sector: Sector::ZERO, sectors: Sectors::ZERO, flags }, index, head, way);
            Ok(())
        }
        kind::GET_ID => {
            // SAFETY: as above.
            slot.written += unsafe { write_front(&chain.writable, &traits.id) } as u32;
            Err(status::OK)
        }
        // What was not agreed upon is not known (virtio 1.2, 5.2.6.2).
        kind::DISCARD if !traits.discard => Err(status::UNSUPP),
        kind::WRITE_ZEROES if !traits.write_zeroes => Err(status::UNSUPP),
        kind::DISCARD | kind::WRITE_ZEROES => {
            skip_front(&mut chain.readable, blk::HEAD);
            slot.op = if kind == kind::DISCARD { Op::Discard } else { Op::WriteZeroes };
            ranges(slot, &chain.readable, if kind == kind::DISCARD { flags } else { durable })?;
            match next_range(slot, index, head, way) {
                true => Ok(()),
                false => Err(status::OK),
            }
        }
        _ => Err(status::UNSUPP),
    }
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn read_write(
    slot: &mut Slot,
    pieces: &[Piece],
    op: Op,
    flags: OpFlags,
    sector: u64,
    index: usize,
    head: u16,
    way: Way<'_>,
) -> Result<(), u8> {
    let bytes: u64 = pieces.iter().map(|piece| piece.len as u64).sum();
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_SIZE as u64) || bytes > MAX_BYTES {
        return Err(status::IOERR);
    }
    if op == Op::Read {
        slot.written += bytes as u32;
    }
    let sector = place(sector)?;
    slot.op = op;
    let token = token(index, head);
    let taken = if let [piece] = pieces {
        // SAFETY: the piece lies in the memory of the slot's epoch, which is kept until the completion; the guest may
        // change what is there meanwhile, and gets what it deserves: devices copy by raw pointers.
        unsafe { way.channel.submit_at(way.device, op, flags, sector, (piece.ptr, piece.len), token) }
    } else {
        slot.segments.clear();
        // SAFETY: as above.
        slot.segments.extend(pieces.iter().map(|piece| unsafe { Segment::new(piece.ptr, piece.len) }));
        let sectors = Sectors::in_bytes(bytes);
        // SAFETY: as above; the list stays, since the slot is busy until the completion.
        unsafe { way.channel.submit_vectored(way.device, op, flags, sector, sectors, &slot.segments, token) }
    };
    assert!(taken, "the channel has room for every descriptor");
    Ok(())
}

/// A sector that a driver named. Devices check it against their size; here only what could not be counted in bytes is
/// refused.
fn place(sector: u64) -> Result<Sector, u8> {
    if sector < 1 << 54 { Ok(Sector::new(sector)) } else { Err(status::IOERR) }
}

/// Reads the ranges of a discard or of zeroes; last first, as they are taken from the end.
fn ranges(slot: &mut Slot, pieces: &[Piece], flags: OpFlags) -> Result<(), u8> {
    let bytes: usize = pieces.iter().map(|piece| piece.len).sum();
    if bytes == 0 || !bytes.is_multiple_of(blk::RANGE) || bytes > blk::RANGE * blk::MAX_RANGES {
        return Err(status::IOERR);
    }
    let mut list = [0; blk::RANGE * blk::MAX_RANGES];
    let list = &mut list[..bytes];
    // SAFETY: the pieces were found in the memory of the slot's epoch, which is kept.
    if !unsafe { read_front(pieces, list) } {
        return Err(status::IOERR);
    }
    slot.ranges.clear();
    for range in list.chunks_exact(blk::RANGE).rev() {
        let word = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("four bytes"));
        let sector = place(u64::from(word(4)) << 32 | u64::from(word(0)))?;
        let (sectors, bits) = (Sectors::new(word(8).into()), word(12));
        let flags = match slot.op {
            Op::Discard if bits == 0 => flags,
            Op::WriteZeroes if bits == 0 => flags.with(OpFlags::NO_UNMAP),
            Op::WriteZeroes if bits == blk::UNMAP => flags,
            // Flags that the device does not know (virtio 1.2, 5.2.6.2).
            _ => return Err(status::UNSUPP),
        };
        if !sectors.is_zero() {
            slot.ranges.push(Range { sector, sectors, flags });
        }
    }
    Ok(())
}

/// Submits the next range of a request, one after the other: so a head has one bio out at most. False when none is
/// left.
fn next_range(slot: &mut Slot, index: usize, head: u16, way: Way<'_>) -> bool {
    if !matches!(slot.op, Op::Discard | Op::WriteZeroes) {
        return false;
    }
    let Some(range) = slot.ranges.pop() else { return false };
    submit_range(slot.op, range, index, head, way);
    true
}

fn submit_range(op: Op, range: Range, index: usize, head: u16, way: Way<'_>) {
    let Range { sector, sectors, flags } = range;
    let taken = way.channel.submit_range(way.device, op, flags, sector, sectors, token(index, head));
    assert!(taken, "the channel has room for every descriptor");
}
