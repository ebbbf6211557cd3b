//! The transmission phase of one connection: its bytes become requests, as many as it may have under way.

use super::exports::{Client, Export};
use super::extents;
use super::handover::ReceivingState;
use super::inflight::{Device, Engine, Payload, Target};
use super::negotiate::{ALLOCATION_ID, Started};
use super::outbox::Outbox;
use super::pool::{Buf, ChunkId, Pool};
use super::session::{Action, Durability, Session};
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::nbd::wire::consts::cmd_flag;
use udm_io::nbd::wire::request::{REQUEST_LEN, Request};
use udm_io::nbd::wire::{Command, NbdError, WireError, reply};
use udm_io::{BlockDevice, Nanos, Op};

/// Bytes of buffers and replies that a connection may hold, but for one request that is larger.
const CONNECTION_BYTES: usize = 4 * 1024 * 1024;
/// Requests that a connection may have under way.
const CONNECTION_REQUESTS: usize = 256;
/// Bytes of replies that may wait to be sent before further requests start. What waits longer than that has left the
/// cache when it is sent.
const UNSENT: usize = 256 * 1024;
/// Bytes of requests that start before those that have completed meanwhile are answered: their data is still in the
/// cache, their memory can be used for the next, and the client works on them while the server goes on.
const STRIDE: usize = 32 * 1024;
/// Receive chunks that writes may pin; further payloads are copied out.
const PINNED_CHUNKS: usize = 64;
/// A payload from which on the next receive takes little more than a header, so that the payload after it lands in
/// its own buffer at once.
const LARGE: usize = 64 * 1024;

/// What a connection has under way, and the replies that it has not taken.
pub(super) struct Flow {
    /// The connection's number.
    pub(super) number: usize,
    pub(super) out: Outbox,
    /// Requests under way.
    pub(super) in_flight: usize,
    /// Bytes that count against the connection.
    pub(super) held: usize,
    /// Nothing more is received: the client has closed or asked to.
    pub(super) ended: bool,
}

impl Flow {
    /// Whether a request that needs `len` bytes of buffer may start now. A connection that holds nothing always may,
    /// as long as the worker has memory for it.
    fn admits(&self, engine: &Engine, len: usize) -> bool {
        let size = if len == 0 { 0 } else { Pool::size_for(len) };
        self.in_flight < CONNECTION_REQUESTS
            && self.out.bytes() <= UNSENT
            && (self.held == 0 || self.held + size <= CONNECTION_BYTES)
            && engine.has_memory(len)
    }
}

/// The part of a connection that exists only once an export was chosen.
pub(super) struct Transmission {
    pub(super) client: Client,
    pub(super) session: Session,
    pub(super) export: Box<dyn Export>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) attached: Device,
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
    /// The rest of a write's payload, of which something came last at `since`.
    Payload {
        target: Target,
        buf: Buf,
        filled: usize,
        len: usize,
        durability: Durability,
        since: Nanos,
    },
    /// The rest of the payload of a write that is refused.
    Skip {
        cookie: u64,
        left: usize,
        error: NbdError,
        message: &'static str,
    },
}

/// Bytes of a chunk, of which this is one user.
pub(super) struct Waiting {
    pub(super) chunk: ChunkId,
    pub(super) at: usize,
    pub(super) end: usize,
    /// The connection may hold no more for now; otherwise it is only the others' turn.
    pub(super) held_back: bool,
    /// Bytes of buffer that its next request needs.
    pub(super) needs: usize,
}

impl Transmission {
    pub(super) fn new(started: Started, client: Client, engine: &mut Engine, rest: &[u8]) -> Self {
        let Started { export, session } = started;
        let device = export.device();
        let attached = engine.attach(device.clone());
        // A client need not wait for the last reply of the handshake before it sends requests.
        let waiting = (!rest.is_empty()).then(|| {
            // At most one option and one receive of the handshake: less than a chunk.
            let chunk = engine.pool.open_chunk(rest.len());
            engine.pool.use_chunk(chunk);
            engine.pool.room(chunk)[..rest.len()].copy_from_slice(rest);
            let range = engine.pool.fill(chunk, rest.len());
            Waiting { chunk, at: range.start, end: range.end, held_back: false, needs: 0 }
        });
        Self {
            client,
            session,
            export,
            device,
            attached,
            receiving: Receiving::Header,
            stash: [0; REQUEST_LEN],
            stashed: 0,
            waiting,
            large: false,
            shutdown: false,
        }
    }

    /// Goes on where another process left off. `receiving` and `rest` have been checked.
    pub(super) fn resume(
        started: Started,
        client: Client,
        engine: &mut Engine,
        flow: &mut Flow,
        receiving: &ReceivingState,
        rest: &[u8],
    ) -> Self {
        let payload = matches!(receiving, ReceivingState::Payload { .. });
        let mut this = Self::new(started, client, engine, if payload { &[] } else { rest });
        match *receiving {
            ReceivingState::Header => {}
            ReceivingState::Payload { cookie, start, length, durability } => {
                let (start, length) = (Sector::new(start), Sectors::new(length));
                let target = Target { conn: flow.number, cookie, device: this.attached, start, length };
                let len = length.as_len();
                let mut buf = engine.pool.take(len);
                flow.held += buf.capacity();
                buf[..rest.len()].copy_from_slice(rest);
                let since = engine.channel.now();
                this.large = len >= LARGE;
                this.receiving = Receiving::Payload { target, buf, filled: rest.len(), len, durability, since };
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
            Receiving::Payload { target, buf, filled, durability, .. } => {
                let Target { cookie, start, length, .. } = *target;
                let (start, length, durability) = (start.get(), length.get(), *durability);
                (ReceivingState::Payload { cookie, start, length, durability }, buf[..*filled].to_vec())
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

    /// Forgets what has been received of requests that did not start.
    pub(super) fn forget_input(&mut self, pool: &mut Pool, held: &mut usize) {
        if let Some(waiting) = self.waiting.take() {
            pool.leave_chunk(waiting.chunk);
        }
        if let Receiving::Payload { buf, .. } = std::mem::replace(&mut self.receiving, Receiving::Header) {
            *held -= buf.capacity();
            pool.give(buf);
        }
    }

    /// Handles the bytes that wait: starts requests until the bytes are used up or no more may start.
    pub(super) fn parse(&mut self, engine: &mut Engine, flow: &mut Flow) -> Result<(), WireError> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        let held = flow.held;
        let result = loop {
            if flow.held >= held + STRIDE {
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
        if let Receiving::Skip { cookie, left, error, message } = &mut self.receiving {
            let skipped = (*left).min(waiting.end - waiting.at);
            waiting.at += skipped;
            *left -= skipped;
            if *left > 0 {
                return Ok(Parsed::NeedsInput);
            }
            fail(&mut flow.out, self.session.structured, *cookie, *error, message);
            self.receiving = Receiving::Header;
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
        let needs = buffer_len(&action);
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
        let device = self.attached;
        let target = |start: Sector, length: Sectors| Target { conn: flow.number, cookie, device, start, length };
        match action {
            Action::Read(start, length) => {
                let target = target(start, length);
                flow.in_flight += 1;
                flow.held += engine.read(target);
            }
            Action::Write(start, length, durability) => {
                let target = target(start, length);
                self.write(target, durability, waiting, engine, flow);
            }
            Action::Range(op, flags, start, length, durability) => {
                let target = target(start, length);
                flow.in_flight += 1;
                let fast = request.flags & cmd_flag::FAST_ZERO != 0;
                if op == Op::WriteZeroes && !self.session.fast_zero {
                    engine.write_zeroes(target, durability);
                } else {
                    engine.range(target, op, flags, durability, fast);
                }
            }
            Action::Status(start, length, one) => {
                let found = extents::collect(&engine.channel, &*self.device, start, length, one);
                flow.out.put(|out| reply::put_block_status(out, cookie, ALLOCATION_ID, &found));
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

    fn write(
        &mut self,
        target: Target,
        durability: Durability,
        waiting: &mut Waiting,
        engine: &mut Engine,
        flow: &mut Flow,
    ) {
        let len = target.length.as_len();
        let here = len.min(waiting.end - waiting.at);
        let range = waiting.at..waiting.at + here;
        waiting.at += here;
        self.large = len >= LARGE;
        if here == len && engine.pool.chunks_in_use() <= PINNED_CHUNKS {
            engine.pool.use_chunk(waiting.chunk);
            let payload = Payload::Chunk(waiting.chunk, range);
            flow.held += payload.held();
            flow.in_flight += 1;
            return engine.write(target, payload, durability);
        }
        let mut buf = engine.pool.take(len);
        flow.held += buf.capacity();
        buf[..here].copy_from_slice(engine.pool.filled(waiting.chunk, range));
        if here == len {
            flow.in_flight += 1;
            engine.write(target, Payload::Buf(buf), durability);
        } else {
            let since = engine.channel.now();
            self.receiving = Receiving::Payload { target, buf, filled: here, len, durability, since };
        }
    }
}

impl Receiving {
    /// The part of a payload's buffer that is still to be received.
    pub(super) fn missing(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Payload { buf, filled, len, .. } => Some(&mut buf[*filled..*len]),
            _ => None,
        }
    }

    /// Takes note of `got` bytes of the payload; starts the write when it is complete.
    pub(super) fn advance(&mut self, got: usize, engine: &mut Engine, flow: &mut Flow) {
        if let Self::Payload { filled, len, since, .. } = self {
            *filled += got;
            *since = engine.channel.now();
            if filled < len {
                return;
            }
            if let Self::Payload { target, buf, durability, .. } = std::mem::replace(self, Self::Header) {
                flow.in_flight += 1;
                engine.write(target, Payload::Buf(buf), durability);
            }
        }
    }
}

enum Parsed {
    One,
    NeedsInput,
    /// For this many bytes of buffer, among other things.
    MustWait(usize),
}

/// Bytes of buffer that an action takes.
fn buffer_len(action: &Action) -> usize {
    match action {
        Action::Read(_, length) | Action::Write(_, length, _) => length.as_len(),
        _ => 0,
    }
}

/// Appends an error reply.
pub(super) fn fail(out: &mut Outbox, structured: bool, cookie: u64, error: NbdError, message: &str) {
    out.put(|out| match structured {
        true => reply::put_error_chunk(out, cookie, error, message),
        false => out.extend_from_slice(&reply::simple(Some(error), cookie)),
    });
}
