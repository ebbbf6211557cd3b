//! Requests that take long, done in pieces: between two of them others have their turn, and when the client has gone
//! none follows.
//!
//! Data of a long read leaves chunk by chunk as it is read, if the client takes chunks; otherwise it is gathered. Data
//! of a long write is written piece by piece as it comes. So neither lies in memory as a whole, whatever the client
//! does meanwhile.
//!
//! # Invariants
//! - A long request is answered once, when none of its pieces is under way any more. After one has failed no other
//!   begins.
//! - What is durable is so before it is answered: pieces are written without FUA, and a flush follows the last.

use super::budget::{Budget, PIECE};
use super::extents::Survey;
use super::inflight::{Device, Engine, Finished, Outcome, Payload, Target, ZERO_STEP};
use super::negotiate::ALLOCATION_ID;
use super::pool::{Buf, Pool};
use super::session::Durability;
use super::transmission::{Flow, fail};
use crate::slots::Slots;
use std::collections::VecDeque;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Extent, Op, OpFlags, Status};
use udm_nbd::wire::reply::MAX_EXTENTS;
use udm_nbd::wire::{NbdError, reply};

/// Pieces of a read that are under way together.
const WINDOW: u32 = 4;
/// What is held for the answer to a question about a range: as many extents as are told at a time.
pub(super) const ANSWER: usize = MAX_EXTENTS * 8;
/// Bytes of its head: of a chunk, and the context's number.
const HEAD: usize = 24;
/// An answer that is longer lies in memory that is counted.
const SHORT: usize = 1024;
/// Bytes of a range that are unmapped at a time, if the device's granularity is no larger.
const UNMAP_STEP: u64 = 32 * 1024 * 1024;

/// What is to be done with the range.
pub(super) enum Kind {
    /// Read it, and answer in chunks.
    Chunks,
    /// Read it, and answer with the whole: what has come of it, by pieces, and bytes that are held for the rest.
    Whole { start: Sector, pieces: Vec<Option<Buf>>, reserved: usize },
    /// Write what is received. Whether all of it was.
    Write { received: bool },
    /// Have the device discard or zero it. `fast`: or else fail.
    Range { op: Op, flags: OpFlags, fast: bool },
    /// Write zeroes.
    Zeroes,
    /// Find out what it holds.
    Status(Survey),
}

/// A request in pieces.
pub(super) struct Long {
    pub(super) cookie: u64,
    pub(super) kind: Kind,
    /// The next piece begins here.
    pub(super) next: Sector,
    pub(super) end: Sector,
    pub(super) durability: Durability,
    /// Pieces that are under way, and the question or the flush.
    out: u32,
    flushing: bool,
    failed: Option<(NbdError, &'static str)>,
}

impl Long {
    pub(super) fn new(cookie: u64, kind: Kind, start: Sector, length: Sectors, durability: Durability) -> Self {
        let end = start + length;
        Self { cookie, kind, next: start, end, durability, out: 0, flushing: false, failed: None }
    }

    /// A read that is answered as a whole.
    pub(super) fn whole(cookie: u64, start: Sector, length: Sectors) -> Self {
        let pieces = (0..length.as_len().div_ceil(PIECE)).map(|_| None).collect();
        let kind = Kind::Whole { start, pieces, reserved: whole_len(length.as_len()) };
        Self::new(cookie, kind, start, length, Durability::Cached)
    }

    /// A write of which a piece has failed before.
    pub(super) fn failed(mut self, failed: Option<NbdError>) -> Self {
        self.failed = failed.map(|error| (error, "the device failed"));
        self
    }

    /// Bytes that are held for it from its beginning on, and are not in a buffer yet.
    pub(super) fn reserved(&self) -> usize {
        match &self.kind {
            Kind::Whole { reserved, .. } => *reserved,
            Kind::Status(survey) if !survey.is_one() => ANSWER,
            _ => 0,
        }
    }

    fn left(&self) -> Sectors {
        self.end.checked_since(self.next).unwrap_or(Sectors::ZERO)
    }

    /// Whether another piece may begin as far as the request itself goes.
    fn wants(&self) -> bool {
        let window = match self.kind {
            Kind::Chunks | Kind::Whole { .. } => WINDOW,
            Kind::Range { .. } | Kind::Zeroes | Kind::Status(_) => 1,
            Kind::Write { .. } => 0,
        };
        self.out < window && self.failed.is_none() && !self.left().is_zero() && !self.flushing
    }

    /// Whether nothing of it is under way, and nothing will be.
    fn is_over(&self) -> bool {
        let more = match &self.kind {
            Kind::Write { received } => !received,
            _ => self.failed.is_none() && !self.left().is_zero(),
        };
        self.out == 0 && !more
    }
}

/// What is held for a read that is answered as a whole.
pub(super) fn whole_len(len: usize) -> usize {
    let rest = len % PIECE;
    len - rest + if rest == 0 { 0 } else { Pool::size_for(rest) }
}

/// What the requests of a connection are made of.
pub(super) struct Site<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) attached: Device,
    /// Sectors that are unmapped together.
    pub(super) granularity: u64,
    pub(super) structured: bool,
}

/// The long requests of one connection.
#[derive(Default)]
pub(super) struct Longs {
    slots: Slots<Long>,
    /// Those that may begin another piece, as far as they go themselves.
    ready: VecDeque<u32>,
}

impl Longs {
    /// One more. It goes on with the connection's next turn. What is reserved for it is held from now on.
    pub(super) fn add(&mut self, long: Long, engine: &mut Engine, flow: &mut Flow) -> u32 {
        flow.in_flight += 1;
        flow.hold(long.reserved());
        engine.pool.budget.take_all(long.reserved());
        let wants = long.wants();
        let number = self.slots.insert(long);
        if wants {
            self.ready.push_back(number);
        }
        number
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Long> {
        self.slots.iter().map(|(_, long)| long)
    }

    /// Whether one of them may go on now.
    pub(super) fn is_ready(&self, flow: &Flow, budget: &Budget) -> bool {
        let Some(first) = self.ready.front() else { return false };
        match self.slots.get(*first) {
            Some(long) if matches!(long.kind, Kind::Chunks) => {
                flow.takes_data(budget, budget.piece(long.left().as_len()))
            }
            _ => true,
        }
    }

    /// Begins one piece of the first that may go on, if one may.
    pub(super) fn advance(&mut self, site: &Site<'_>, engine: &mut Engine, flow: &mut Flow) {
        if !self.is_ready(flow, &engine.pool.budget) {
            return;
        }
        let Some(&number) = self.ready.front() else { return };
        let long = &mut self.slots[number];
        if !long.wants() {
            debug_assert!(false, "what begins nothing more is not ready");
            self.ready.pop_front();
            return;
        }
        let left = long.left();
        let step = match &long.kind {
            Kind::Chunks => Sectors::in_bytes(engine.pool.budget.piece(left.as_len()) as u64),
            Kind::Whole { .. } => left.min(Sectors::in_bytes(PIECE as u64)),
            Kind::Zeroes => left.min(Sectors::in_bytes(ZERO_STEP as u64)),
            Kind::Range { op: Op::WriteZeroes, flags, .. } if flags.contains(OpFlags::NO_UNMAP) => {
                left.min(Sectors::in_bytes(ZERO_STEP as u64))
            }
            Kind::Range { .. } => {
                // Up to a border that nothing is unmapped across.
                let unit = (UNMAP_STEP >> 9).next_multiple_of(site.granularity.max(1));
                let border = (long.next.get() / unit).saturating_add(1).saturating_mul(unit);
                left.min(Sectors::new(border - long.next.get()))
            }
            Kind::Write { .. } | Kind::Status(_) => left,
        };
        let target = Target {
            conn: flow.number,
            part: Some(number),
            cookie: long.cookie,
            device: site.attached,
            start: long.next,
            length: step,
        };
        long.out += 1;
        if !matches!(long.kind, Kind::Status(_)) {
            long.next += step;
        }
        if !long.wants() {
            self.ready.pop_front();
        }
        match &mut long.kind {
            Kind::Chunks => {
                let buf = flow.take(engine, step.as_len());
                flow.bios += 1;
                engine.read(target, buf);
            }
            Kind::Whole { reserved, .. } => {
                // It is held already.
                let buf = engine.pool.take_counted(step.as_len());
                *reserved -= buf.capacity();
                flow.bios += 1;
                engine.read(target, buf);
            }
            Kind::Range { op, flags, fast } => {
                flow.bios += 1;
                engine.range(target, *op, *flags, Durability::Cached, *fast);
            }
            Kind::Zeroes => {
                flow.bios += 1;
                engine.write_zeroes(target, Durability::Cached);
            }
            Kind::Status(survey) => engine.ask(site.device, flow.number, number, survey.question()),
            Kind::Write { .. } => {}
        }
    }

    /// Writes a piece that was received. After a failure it is only given back.
    pub(super) fn write(
        &mut self,
        number: u32,
        buf: Buf,
        (start, length): (Sector, Sectors),
        site: &Site<'_>,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let long = &mut self.slots[number];
        if long.failed.is_some() {
            return flow.give(engine, buf);
        }
        long.out += 1;
        flow.bios += 1;
        let (conn, cookie, device) = (flow.number, long.cookie, site.attached);
        let target = Target { conn, part: Some(number), cookie, device, start, length };
        engine.write(target, Payload::Buf(buf), Durability::Cached);
    }

    /// The last piece of a write was received.
    pub(super) fn received(&mut self, number: u32, site: &Site<'_>, engine: &mut Engine, flow: &mut Flow) {
        self.slots[number].kind = Kind::Write { received: true };
        self.go_on(number, site, engine, flow);
    }

    /// What a piece of a write has failed with.
    pub(super) fn failure(&self, number: u32) -> Option<NbdError> {
        self.slots.get(number).and_then(|long| long.failed).map(|failed| failed.0)
    }

    /// A piece has come back.
    pub(super) fn finish(
        &mut self,
        number: u32,
        finished: Finished,
        site: &Site<'_>,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let long = &mut self.slots[number];
        long.out -= 1;
        let unable = finished.status == Status::NotSupported;
        match (finished.outcome, &mut long.kind) {
            // The device can zero nothing here: from here on zeroes are written, if anybody waits for them.
            (Outcome::Failed(..), kind @ Kind::Range { op: Op::WriteZeroes, fast: false, .. })
                if unable && !flow.broken =>
            {
                *kind = Kind::Zeroes;
                long.next = finished.target.start;
            }
            (Outcome::Failed(error, message), _) => long.failed = long.failed.or(Some((error, message))),
            (Outcome::Data(buf, len), Kind::Chunks) if long.failed.is_none() && !flow.broken => {
                let (cookie, offset) = (long.cookie, finished.target.start.bytes());
                let last = long.is_over();
                // A piece is at most 1 MiB.
                flow.out.put(|out| out.extend_from_slice(&reply::data_chunk(cookie, offset, len as u32, last)));
                flow.out.put_data(buf, len);
            }
            (Outcome::Data(buf, _), Kind::Whole { start, pieces, .. }) => {
                let piece = (finished.target.start.bytes() - start.bytes()) / PIECE as u64;
                pieces[piece as usize] = Some(buf);
            }
            (Outcome::Data(buf, _), _) => flow.give(engine, buf),
            (Outcome::Done, _) => {}
        }
        if long.failed.is_some() {
            self.ready.retain(|ready| *ready != number);
        }
        self.go_on(number, site, engine, flow);
    }

    /// A device has answered, or has taken too long, and there are no runs.
    pub(super) fn answered(
        &mut self,
        number: u32,
        extents: &[Extent],
        site: &Site<'_>,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let long = &mut self.slots[number];
        long.out -= 1;
        if let Kind::Status(survey) = &mut long.kind
            && survey.answer(extents)
        {
            long.next = long.end;
        }
        self.go_on(number, site, engine, flow);
    }

    /// After something of it has come back: it goes on, becomes durable, or is answered.
    fn go_on(&mut self, number: u32, site: &Site<'_>, engine: &mut Engine, flow: &mut Flow) {
        let long = &mut self.slots[number];
        if !long.is_over() {
            if long.wants() && !self.ready.contains(&number) {
                self.ready.push_back(number);
            }
            return;
        }
        if long.durability != Durability::Cached && long.failed.is_none() && !long.flushing {
            (long.flushing, long.out) = (true, 1);
            flow.bios += 1;
            let (conn, cookie, device) = (flow.number, long.cookie, site.attached);
            let (start, length) = (Sector::ZERO, Sectors::ZERO);
            let target = Target { conn, part: Some(number), cookie, device, start, length };
            return engine.range(target, Op::Flush, OpFlags::NONE, Durability::Cached, false);
        }
        if let Some(long) = self.remove(number, flow) {
            answer(long, site.structured, engine, flow);
        }
    }

    fn remove(&mut self, number: u32, flow: &mut Flow) -> Option<Long> {
        let long = self.slots.remove(number);
        self.ready.retain(|ready| *ready != number);
        flow.in_flight -= 1;
        long
    }

    /// Nobody waits for the answers: nothing more begins. What is under way comes back, and is then over.
    pub(super) fn abandon(&mut self, engine: &mut Engine, flow: &mut Flow) {
        engine.forget_questions(flow.number);
        self.ready.clear();
        for number in self.slots.numbers() {
            let Some(long) = self.slots.get_mut(number) else { continue };
            match &mut long.kind {
                Kind::Write { received } => *received = true,
                Kind::Status(_) => long.out = 0,
                _ => {}
            }
            (long.next, long.durability) = (long.end, Durability::Cached);
            if long.out == 0
                && let Some(long) = self.remove(number, flow)
            {
                give_back(long, engine, flow);
            }
        }
    }

    /// No more will be received of a write: what came of it is written, and it is answered with an error.
    pub(super) fn cut_short(&mut self, number: u32, site: &Site<'_>, engine: &mut Engine, flow: &mut Flow) {
        let long = &mut self.slots[number];
        long.failed = long.failed.or(Some((NbdError::Shutdown, "the write was not received whole")));
        self.received(number, site, engine, flow);
    }
}

/// Answers a request that is over.
fn answer(long: Long, structured: bool, engine: &mut Engine, flow: &mut Flow) {
    let cookie = long.cookie;
    if flow.broken {
        return give_back(long, engine, flow);
    }
    if let Some((error, message)) = long.failed {
        fail(&mut flow.out, structured, cookie, error, message);
        return give_back(long, engine, flow);
    }
    let_go(&long, engine, flow);
    match long.kind {
        // The last chunk was the end of the reply.
        Kind::Chunks => {}
        Kind::Whole { start, pieces, .. } => {
            let len = (long.end.bytes() - start.bytes()) as usize;
            flow.out.put(|out| match structured {
                // A payload is at most 32 MiB.
                true => out.extend_from_slice(&reply::only_data_chunk(cookie, start.bytes(), len as u32)),
                false => out.extend_from_slice(&reply::simple(None, cookie)),
            });
            let mut left = len;
            for buf in pieces.into_iter().flatten() {
                let piece = left.min(PIECE);
                left -= piece;
                flow.out.put_data(buf, piece);
            }
        }
        Kind::Status(survey) => {
            let mut bytes = Vec::new();
            reply::put_block_status(&mut bytes, cookie, ALLOCATION_ID, &survey.found());
            // The head first: what follows it is at most what was reserved.
            let (head, rest) = bytes.split_at(if bytes.len() <= SHORT { bytes.len() } else { HEAD });
            flow.out.put(|out| out.extend_from_slice(head));
            if !rest.is_empty() {
                let mut buf = flow.take(engine, rest.len());
                buf[..rest.len()].copy_from_slice(rest);
                flow.out.put_data(buf, rest.len());
            }
        }
        Kind::Write { .. } | Kind::Range { .. } | Kind::Zeroes => {
            flow.out.put(|out| out.extend_from_slice(&reply::simple(None, cookie)));
        }
    }
}

/// Lets go of what is reserved for a request that is over.
fn let_go(long: &Long, engine: &mut Engine, flow: &mut Flow) {
    flow.release(long.reserved());
    engine.pool.budget.give_all(long.reserved());
}

/// Gives back what a request that is not answered holds.
fn give_back(long: Long, engine: &mut Engine, flow: &mut Flow) {
    let_go(&long, engine, flow);
    if let Kind::Whole { pieces, .. } = long.kind {
        pieces.into_iter().flatten().for_each(|buf| flow.give(engine, buf));
    }
}
