//! The transmission phase of one connection: its bytes become requests, as many as it may have under way.

use super::budget::{Budget, PIECE};
use super::extents::Survey;
use super::handover::{LongState, ReceivingState};
use super::inflight::{Device, Engine, Finished, Payload, Target, ZERO_STEP};
use super::long::{ANSWER, Kind, Long, Longs, Site, whole_len};
use super::negotiate::Started;
use super::outbox::Outbox;
use super::pool::{Buf, ChunkId, Pool};
use super::session::{Action, Durability, Session};
use crate::exports::{Client, OpenExport};
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Extent, Nanos, Op};
use udm_nbd::wire::consts::cmd_flag;
use udm_nbd::wire::request::{REQUEST_LEN, Request};
use udm_nbd::wire::{Command, NbdError, WireError, reply};

/// Bytes of buffers and replies that a connection may hold, but for one request that is larger.
const CONNECTION_BYTES: usize = 4 * 1024 * 1024;
/// Requests that a connection may have under way.
pub(super) const CONNECTION_REQUESTS: usize = 256;
/// Bytes of replies that may wait to be sent before further requests start. What waits longer than that has left the
/// cache when it is sent.
const UNSENT: usize = 256 * 1024;
/// Bytes of requests that start before those that have completed meanwhile are answered: their data is still in the
/// cache, their memory can be used for the next, and the client works on them while the server goes on.
const STRIDE: usize = 32 * 1024;
/// A request of up to so many bytes is done at once; a longer one in pieces, in turns with those of others.
const DIRECT: usize = 128 * 1024;
/// What a message of a client costs to look at, as bytes.
const LOOK: usize = 128;
/// Receive chunks that writes may pin; further payloads are copied out.
const PINNED_CHUNKS: usize = 64;
/// A payload from which on the next receive takes little more than a header, so that the payload after it lands in
/// its own buffer at once.
const LARGE: usize = 64 * 1024;

/// What a connection has under way, and the replies that it has not taken.
pub(super) struct Flow {
    /// The connection's number.
    pub(super) number: u32,
    pub(super) out: Outbox,
    /// Requests under way.
    pub(super) in_flight: usize,
    /// Their bios that a device has.
    pub(super) bios: usize,
    /// Bytes that count against the connection.
    pub(super) held: usize,
    /// Nothing more is received: the client has closed or asked to.
    pub(super) ended: bool,
    /// Nothing more can be sent: nobody takes it.
    pub(super) broken: bool,
}

impl Flow {
    pub(super) fn new(number: u32) -> Self {
        let out = Outbox::default();
        Self { number, out, in_flight: 0, bios: 0, held: 0, ended: false, broken: false }
    }

    /// Whether the connection may hold so much more. One that holds nothing always may.
    fn may_hold(&self, bytes: usize) -> bool {
        self.held == 0 || self.held + bytes <= CONNECTION_BYTES
    }

    /// Whether it may hold another piece, as far as the thread's memory goes.
    fn may_have(&self, budget: &Budget, piece: usize) -> bool {
        self.held == 0 || budget.has_another(piece)
    }

    /// Whether a piece of a read may begin, of so many bytes.
    pub(super) fn takes_data(&self, budget: &Budget, piece: usize) -> bool {
        self.out.bytes() <= UNSENT && self.may_hold(PIECE) && self.may_have(budget, piece)
    }

    /// Whether a request may start now.
    fn admits(&self, engine: &Engine, needs: Needs) -> bool {
        self.in_flight < CONNECTION_REQUESTS
            && self.out.bytes() <= UNSENT
            && self.may_hold(needs.bytes)
            && self.may_have(&engine.pool.budget, 0)
            && (!needs.whole || engine.pool.budget.has(needs.bytes))
    }

    /// Counts bytes that are held from now on.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Counts bytes that are not held any more.
    pub(super) fn release(&mut self, bytes: usize) {
        self.held -= bytes;
    }

    /// A buffer of at least `len` bytes.
    pub(super) fn take(&mut self, engine: &mut Engine, len: usize) -> Buf {
        let buf = engine.pool.take(len);
        self.hold(buf.capacity());
        buf
    }

    /// Gives a buffer back.
    pub(super) fn give(&mut self, engine: &mut Engine, buf: Buf) {
        self.release(buf.capacity());
        engine.pool.give(buf);
    }
}

/// What a request needs to start.
#[derive(Clone, Copy, Default)]
pub(super) struct Needs {
    /// Bytes of buffers.
    bytes: usize,
    /// They are needed together: what is short of memory does not begin with less.
    whole: bool,
}

/// The part of a connection that exists only once an export was chosen.
pub(super) struct Transmission {
    pub(super) client: Client,
    pub(super) session: Session,
    pub(super) export: OpenExport,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) attached: Device,
    /// Sectors that the device unmaps together.
    granularity: u64,
    pub(super) longs: Longs,
    pub(super) receiving: Receiving,
    /// The front of a header.
    pub(super) stash: [u8; REQUEST_LEN],
    pub(super) stashed: usize,
    /// Received bytes that wait because the connection may hold no more.
    pub(super) waiting: Option<Waiting>,
    /// The last payload was a large one.
    pub(super) large: bool,
    pub(super) shutdown: bool,
}

/// What the next bytes are.
pub(super) enum Receiving {
    Header,
    Payload(Incoming),
    /// The rest of the payload of a write that is refused.
    Skip {
        cookie: u64,
        left: usize,
        error: NbdError,
        message: &'static str,
    },
}

/// A write whose payload is being received.
pub(super) struct Incoming {
    cookie: u64,
    /// Where the piece goes that is being received, and how long it is.
    start: Sector,
    piece: Sectors,
    /// What of the request comes after it.
    rest: Sectors,
    durability: Durability,
    /// The long request, if it is done in pieces.
    long: Option<u32>,
    /// `None` while the connection may hold no more.
    buf: Option<Buf>,
    filled: usize,
    /// When something came last.
    pub(super) since: Nanos,
}

/// Bytes of a chunk, of which this is one user.
pub(super) struct Waiting {
    pub(super) chunk: ChunkId,
    pub(super) at: usize,
    pub(super) end: usize,
    /// The connection may hold no more for now; otherwise it is only the others' turn.
    pub(super) held_back: bool,
    /// What its next request needs.
    pub(super) needs: Needs,
}

impl Waiting {
    pub(super) fn new(chunk: ChunkId, range: std::ops::Range<usize>) -> Self {
        Self { chunk, at: range.start, end: range.end, held_back: false, needs: Needs::default() }
    }

    /// Bytes that came by another way: less than a chunk, since they came with one receive at most and what is left of
    /// an option.
    fn keep(bytes: &[u8], engine: &mut Engine) -> Option<Self> {
        (!bytes.is_empty()).then(|| {
            let chunk = engine.pool.open_chunk(bytes.len());
            engine.pool.use_chunk(chunk);
            engine.pool.room(chunk)[..bytes.len()].copy_from_slice(bytes);
            Self::new(chunk, engine.pool.fill(chunk, bytes.len()))
        })
    }
}

impl Transmission {
    pub(super) fn new(started: Started, client: Client, engine: &mut Engine, rest: &[u8]) -> Self {
        let Started { export, session } = started;
        let device = export.device();
        let attached = engine.attach(device.clone());
        // A client need not wait for the last reply of the handshake before it sends requests.
        let waiting = Waiting::keep(rest, engine);
        let limits = device.limits();
        Self {
            client,
            session,
            export,
            device,
            attached,
            granularity: u64::from(limits.discard_granularity) >> 9,
            longs: Longs::default(),
            receiving: Receiving::Header,
            stash: [0; REQUEST_LEN],
            stashed: 0,
            waiting,
            large: false,
            shutdown: false,
        }
    }

    /// Goes on where another process left off. All that it says has been checked.
    pub(super) fn resume(
        started: Started,
        client: Client,
        engine: &mut Engine,
        flow: &mut Flow,
        (receiving, longs): (&ReceivingState, Vec<LongState>),
        rest: &[u8],
    ) -> Self {
        let payload = matches!(receiving, ReceivingState::Payload { .. });
        let mut this = Self::new(started, client, engine, if payload { &[] } else { rest });
        for state in longs {
            this.longs.add(state.begin(), engine, flow);
        }
        match *receiving {
            ReceivingState::Header => {}
            ReceivingState::Payload { cookie, start, length, durability, failed } => {
                let failed = failed.map(NbdError::from_wire);
                let (start, length) = (Sector::new(start), Sectors::new(length));
                this.begin_write(cookie, (start, length), durability, failed, engine, flow);
                let mut rest = rest;
                while !rest.is_empty() && matches!(this.receiving, Receiving::Payload(_)) {
                    let taken = this.fill(rest, engine);
                    rest = &rest[taken..];
                    this.advance(taken, engine, flow);
                    // What was received by the other process may be more than the connection would be let hold here.
                    this.go_on_receiving(true, engine, flow);
                }
                // The end of a payload that had to wait there has come with what follows it.
                this.waiting = Waiting::keep(rest, engine);
            }
            ReceivingState::Skip { cookie, left, error } => {
                let (error, message) = (NbdError::from_wire(error), "the write was refused");
                if left == 0 {
                    // Its answer waits for nothing more.
                    fail(&mut flow.out, this.session.structured, cookie, error, message);
                } else {
                    this.receiving = Receiving::Skip { cookie, left, error, message };
                }
            }
        }
        this
    }

    /// What has been received of the next request, for another process; see [`forget_input`](Self::forget_input).
    pub(super) fn input(&self, pool: &Pool) -> (ReceivingState, Vec<u8>) {
        match &self.receiving {
            Receiving::Payload(Incoming { cookie, start, piece, rest, durability, long, buf, filled, .. }) => {
                let (cookie, start, length, durability) = (*cookie, start.get(), (*piece + *rest).get(), *durability);
                let failed = long.and_then(|long| self.longs.failure(long)).map(NbdError::to_wire);
                let mut bytes = buf.as_ref().map_or(Vec::new(), |buf| buf[..*filled].to_vec());
                bytes.extend(self.waiting_bytes(pool));
                (ReceivingState::Payload { cookie, start, length, durability, failed }, bytes)
            }
            Receiving::Skip { cookie, left, error, .. } => {
                let (cookie, left, error) = (*cookie, *left, error.to_wire());
                (ReceivingState::Skip { cookie, left, error }, self.waiting_bytes(pool))
            }
            Receiving::Header => {
                let mut bytes = self.stash[..self.stashed].to_vec();
                bytes.extend(self.waiting_bytes(pool));
                (ReceivingState::Header, bytes)
            }
        }
    }

    fn waiting_bytes(&self, pool: &Pool) -> Vec<u8> {
        let waiting = self.waiting.as_ref();
        waiting.map(|w| pool.filled(w.chunk, w.at..w.end).to_vec()).unwrap_or_default()
    }

    fn site<'a>(device: &'a dyn BlockDevice, attached: Device, granularity: u64, session: &Session) -> Site<'a> {
        Site { device, attached, granularity, structured: session.structured }
    }

    /// Forgets what has been received of requests that did not start.
    pub(super) fn forget_input(&mut self, engine: &mut Engine, flow: &mut Flow) {
        if let Some(waiting) = self.waiting.take() {
            engine.pool.leave_chunk(waiting.chunk);
        }
        if let Receiving::Payload(incoming) = std::mem::replace(&mut self.receiving, Receiving::Header) {
            if let Some(buf) = incoming.buf {
                flow.give(engine, buf);
            }
            if let Some(long) = incoming.long {
                let site = Self::site(&*self.device, self.attached, self.granularity, &self.session);
                self.longs.cut_short(long, &site, engine, flow);
            }
        }
    }

    /// Gives up all requests that have nothing under way, and lets the others come to nothing.
    pub(super) fn abandon(&mut self, engine: &mut Engine, flow: &mut Flow) {
        self.forget_input(engine, flow);
        self.longs.abandon(engine, flow);
    }

    /// Begins one piece of a long request, if one may begin. Returns whether more may at once.
    pub(super) fn go_on(&mut self, engine: &mut Engine, flow: &mut Flow) {
        let site = Self::site(&*self.device, self.attached, self.granularity, &self.session);
        self.longs.advance(&site, engine, flow);
    }

    /// A piece of a long request has come back.
    pub(super) fn finish(&mut self, long: u32, finished: Finished, engine: &mut Engine, flow: &mut Flow) {
        let site = Self::site(&*self.device, self.attached, self.granularity, &self.session);
        self.longs.finish(long, finished, &site, engine, flow);
    }

    /// The device has told what a range holds; nothing, if it took too long.
    pub(super) fn answered(&mut self, long: u32, extents: &[Extent], engine: &mut Engine, flow: &mut Flow) {
        let site = Self::site(&*self.device, self.attached, self.granularity, &self.session);
        self.longs.answered(long, extents, &site, engine, flow);
    }

    /// Handles the bytes that wait: starts requests until the bytes are used up or no more may start.
    pub(super) fn parse(&mut self, engine: &mut Engine, flow: &mut Flow) -> Result<(), WireError> {
        self.go_on_receiving(false, engine, flow);
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        let before = engine.cost();
        let result = loop {
            if engine.cost().wrapping_sub(before) >= STRIDE {
                self.waiting = Some(Waiting { held_back: false, ..waiting });
                return Ok(());
            }
            match self.parse_one(&mut waiting, engine, flow) {
                Ok(Parsed::One) => {}
                Ok(Parsed::NeedsInput) => break Ok(()),
                Ok(Parsed::MustWait(needs)) => {
                    self.waiting = Some(Waiting { held_back: true, needs, ..waiting });
                    return Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        engine.pool.leave_chunk(waiting.chunk);
        result
    }

    fn parse_one(&mut self, waiting: &mut Waiting, engine: &mut Engine, flow: &mut Flow) -> Result<Parsed, WireError> {
        engine.charge(LOOK);
        match &mut self.receiving {
            Receiving::Skip { cookie, left, error, message } => {
                let skipped = (*left).min(waiting.end - waiting.at);
                waiting.at += skipped;
                *left -= skipped;
                if *left > 0 {
                    return Ok(Parsed::NeedsInput);
                }
                fail(&mut flow.out, self.session.structured, *cookie, *error, message);
                self.receiving = Receiving::Header;
            }
            Receiving::Payload(incoming) if waiting.at < waiting.end => {
                let Some(buf) = &mut incoming.buf else { return Ok(Parsed::MustWait(Needs::default())) };
                let bytes = engine.pool.filled(waiting.chunk, waiting.at..waiting.end);
                let taken = bytes.len().min(incoming.piece.as_len() - incoming.filled);
                buf[incoming.filled..][..taken].copy_from_slice(&bytes[..taken]);
                waiting.at += taken;
                engine.charge(taken);
                self.advance(taken, engine, flow);
                return Ok(Parsed::One);
            }
            _ => {}
        }
        if waiting.at == waiting.end || flow.ended {
            return Ok(Parsed::NeedsInput);
        }
        let bytes = engine.pool.filled(waiting.chunk, waiting.at..waiting.end);
        let Some(header) = bytes.first_chunk::<REQUEST_LEN>() else {
            self.stash[..bytes.len()].copy_from_slice(bytes);
            self.stashed = bytes.len();
            return Ok(Parsed::NeedsInput);
        };
        let request = Request::decode(header)?;
        let mut action = self.session.decide(&request);
        if self.shutdown && action != Action::Disconnect {
            action = Action::Fail(NbdError::Shutdown, "the server is shutting down");
        }
        let chunks = self.session.structured && request.flags & cmd_flag::DF == 0;
        let needs = needs(&action, chunks);
        if !flow.admits(engine, needs) {
            return Ok(Parsed::MustWait(needs));
        }
        waiting.at += REQUEST_LEN;
        self.start(&request, action, waiting, engine, flow);
        Ok(Parsed::One)
    }

    fn start(
        &mut self,
        request: &Request,
        action: Action,
        waiting: &mut Waiting,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let cookie = request.cookie;
        match action {
            Action::Read(start, length) => self.read(request, start, length, engine, flow),
            Action::Write(start, length, durability) => {
                self.write(cookie, (start, length), durability, waiting, engine, flow);
            }
            Action::Range(op, flags, start, length, durability) => {
                let fast = request.flags & cmd_flag::FAST_ZERO != 0;
                let written = op == Op::WriteZeroes && !self.session.fast_zero;
                // What is written out goes in steps in any case.
                if length.bytes() > if written { ZERO_STEP as u64 } else { DIRECT as u64 } {
                    let kind = if written { Kind::Zeroes } else { Kind::Range { op, flags, fast } };
                    self.longs.add(Long::new(cookie, kind, start, length, durability), engine, flow);
                    return;
                }
                flow.in_flight += 1;
                flow.bios += 1;
                let target = self.target(cookie, start, length, flow);
                match written {
                    true => engine.write_zeroes(target, durability),
                    false => engine.range(target, op, flags, durability, fast),
                }
            }
            Action::Status(start, length, one) => {
                let kind = Kind::Status(Survey::new(start, length, one));
                self.longs.add(Long::new(cookie, kind, start, length, Durability::Cached), engine, flow);
            }
            Action::Done => {
                let read = Command::from_wire(request.kind) == Some(Command::Read);
                flow.out.put(|out| match read && self.session.structured {
                    true => out.extend_from_slice(&reply::none_chunk(cookie)),
                    false => out.extend_from_slice(&reply::simple(None, cookie)),
                });
            }
            Action::Fail(error, message) => {
                let payload = Command::from_wire(request.kind) == Some(Command::Write);
                let left = if payload { request.length as usize } else { 0 };
                self.receiving = Receiving::Skip { cookie, left, error, message };
            }
            Action::Disconnect => flow.ended = true,
        }
    }

    fn target(&self, cookie: u64, start: Sector, length: Sectors, flow: &Flow) -> Target {
        Target { conn: flow.number, part: None, cookie, device: self.attached, start, length }
    }

    fn read(&mut self, request: &Request, start: Sector, length: Sectors, engine: &mut Engine, flow: &mut Flow) {
        let (cookie, len) = (request.cookie, length.as_len());
        if len <= DIRECT && engine.pool.budget.has(Pool::size_for(len)) {
            let buf = flow.take(engine, len);
            flow.in_flight += 1;
            flow.bios += 1;
            return engine.read(self.target(cookie, start, length, flow), buf);
        }
        let long = if self.session.structured && request.flags & cmd_flag::DF == 0 {
            Long::new(cookie, Kind::Chunks, start, length, Durability::Cached)
        } else {
            Long::whole(cookie, start, length)
        };
        self.longs.add(long, engine, flow);
    }

    fn write(
        &mut self,
        cookie: u64,
        (start, length): (Sector, Sectors),
        durability: Durability,
        waiting: &mut Waiting,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let len = length.as_len();
        self.large = len >= LARGE;
        if len <= waiting.end - waiting.at && engine.pool.chunks_in_use() <= PINNED_CHUNKS {
            let range = waiting.at..waiting.at + len;
            waiting.at += len;
            engine.pool.use_chunk(waiting.chunk);
            let payload = Payload::Chunk(waiting.chunk, range);
            flow.hold(payload.held());
            flow.in_flight += 1;
            flow.bios += 1;
            return engine.write(self.target(cookie, start, length, flow), payload, durability);
        }
        // What is here of the payload is taken next.
        self.begin_write(cookie, (start, length), durability, None, engine, flow);
    }

    /// Begins to receive a payload: as a whole if it is short and there is memory, else in pieces. `failed`: an earlier
    /// piece has failed with that.
    fn begin_write(
        &mut self,
        cookie: u64,
        (start, length): (Sector, Sectors),
        durability: Durability,
        failed: Option<NbdError>,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let len = length.as_len();
        let (mut piece, mut long) = (length, None);
        if len > PIECE || !engine.pool.budget.has(Pool::size_for(len)) || failed.is_some() {
            piece = Sectors::in_bytes(engine.pool.budget.piece(len) as u64);
            let kind = Kind::Write { received: false };
            let new = Long::new(cookie, kind, start, length, durability).failed(failed);
            long = Some(self.longs.add(new, engine, flow));
        }
        let buf = Some(flow.take(engine, piece.as_len()));
        let (rest, since) = (length - piece, engine.channel.now());
        let incoming = Incoming { cookie, start, piece, rest, durability, long, buf, filled: 0, since };
        self.receiving = Receiving::Payload(incoming);
    }

    /// Copies what fits into the piece that is being received. Returns how much that was.
    fn fill(&mut self, bytes: &[u8], engine: &mut Engine) -> usize {
        let Some(missing) = self.missing() else { return 0 };
        let taken = bytes.len().min(missing.len());
        missing[..taken].copy_from_slice(&bytes[..taken]);
        engine.charge(taken);
        taken
    }

    /// The part of a piece's buffer that is still to be received.
    pub(super) fn missing(&mut self) -> Option<&mut [u8]> {
        match &mut self.receiving {
            Receiving::Payload(Incoming { buf: Some(buf), filled, piece, .. }) => {
                Some(&mut buf[*filled..piece.as_len()])
            }
            _ => None,
        }
    }

    /// Whether a payload is to be received that the connection has no room for now.
    pub(super) fn is_starved(&self) -> bool {
        matches!(&self.receiving, Receiving::Payload(Incoming { buf: None, .. }))
    }

    /// Takes note of `got` bytes of the payload; writes the piece when it is complete.
    pub(super) fn advance(&mut self, got: usize, engine: &mut Engine, flow: &mut Flow) {
        let Receiving::Payload(incoming) = &mut self.receiving else { return };
        incoming.filled += got;
        incoming.since = engine.channel.now();
        let Some(buf) = incoming.buf.take_if(|_| incoming.filled == incoming.piece.as_len()) else { return };
        let Incoming { cookie, start, piece, rest, durability, long, .. } = *incoming;
        let site = Self::site(&*self.device, self.attached, self.granularity, &self.session);
        let Some(long) = long else {
            self.receiving = Receiving::Header;
            flow.in_flight += 1;
            flow.bios += 1;
            let target = Target { conn: flow.number, part: None, cookie, device: self.attached, start, length: piece };
            return engine.write(target, Payload::Buf(buf), durability);
        };
        (incoming.start, incoming.piece, incoming.filled) = (start + piece, Sectors::ZERO, 0);
        if rest.is_zero() {
            self.receiving = Receiving::Header;
        }
        self.longs.write(long, buf, (start, piece), &site, engine, flow);
        if rest.is_zero() {
            return self.longs.received(long, &site, engine, flow);
        }
        self.go_on_receiving(false, engine, flow);
    }

    /// Makes room for the next piece of a payload, if the connection may hold it, or has to.
    fn go_on_receiving(&mut self, must: bool, engine: &mut Engine, flow: &mut Flow) {
        let Receiving::Payload(incoming) = &mut self.receiving else { return };
        if incoming.buf.is_some() {
            return;
        }
        let left = incoming.piece + incoming.rest;
        let len = engine.pool.budget.piece(left.as_len());
        if must || flow.may_hold(Pool::size_for(len)) && flow.may_have(&engine.pool.budget, len) {
            incoming.piece = Sectors::in_bytes(len as u64);
            incoming.rest = left - incoming.piece;
            incoming.buf = Some(flow.take(engine, len));
        }
    }
}

enum Parsed {
    One,
    NeedsInput,
    MustWait(Needs),
}

/// What an action takes to begin. `chunks`: a read may be answered in several.
fn needs(action: &Action, chunks: bool) -> Needs {
    match action {
        Action::Read(_, length) if chunks => Needs { bytes: Pool::size_for(length.as_len().min(DIRECT)), whole: false },
        Action::Read(_, length) if length.as_len() <= DIRECT => {
            Needs { bytes: Pool::size_for(length.as_len()), whole: true }
        }
        Action::Read(_, length) => Needs { bytes: whole_len(length.as_len()), whole: true },
        Action::Status(.., false) => Needs { bytes: ANSWER, whole: false },
        Action::Write(_, length, _) => Needs { bytes: Pool::size_for(length.as_len().min(PIECE)), whole: false },
        _ => Needs::default(),
    }
}

impl Needs {
    /// Whether they wait for memory of the thread's, which others hold.
    pub(super) fn lack(self, engine: &Engine) -> bool {
        self.whole && !engine.pool.budget.has(self.bytes)
    }
}

/// Appends an error reply.
pub(super) fn fail(out: &mut Outbox, structured: bool, cookie: u64, error: NbdError, message: &str) {
    out.put(|out| match structured {
        true => reply::put_error_chunk(out, cookie, error, message),
        false => out.extend_from_slice(&reply::simple(Some(error), cookie)),
    });
}
