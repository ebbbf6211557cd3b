//! One connection: what it has sent of a request so far, and the replies that it has not taken yet.

use super::exports::{Client, Export, Exports};
use super::inflight::{Device, Engine, Finished, Outcome, Payload, Target};
use super::negotiate::{Negotiation, Started, Step};
use super::outbox::{Outbox, Sent};
use super::pool::{Buf, CHUNK, ChunkId, Pool};
use super::session::{Action, Durability, Session};
use super::{extents, negotiate};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::nbd::wire::consts::MAX_OPTION_DATA;
use udm_io::nbd::wire::option::OPTION_LEN;
use udm_io::nbd::wire::request::{REQUEST_LEN, Request};
use udm_io::nbd::wire::{Command, NbdError, WireError, reply};
use udm_io::{BlockDevice, Nanos, Op};

/// Bytes of buffers and replies that a connection may hold, but for one request that is larger.
pub(super) const CONNECTION_BYTES: usize = 4 * 1024 * 1024;
/// Requests that a connection may have under way.
const CONNECTION_REQUESTS: usize = 256;
/// Bytes of replies that may wait to be sent before further requests start. What waits longer than that has left the
/// cache when it is sent.
const UNSENT: usize = 256 * 1024;
/// Bytes of requests that start before those that have completed meanwhile are answered: their data is still in the
/// cache, their memory can be used for the next, and the client works on them while the server goes on.
const STRIDE: usize = 32 * 1024;
/// A receive chunk has at least this much room when it is received into.
const ROOM: usize = 64 * 1024;
/// Receive chunks that writes may pin; further payloads are copied out.
const PINNED_CHUNKS: usize = 64;
/// A payload from which on the next receive takes little more than a header, so that the payload after it lands in
/// its own buffer at once.
const LARGE: usize = 64 * 1024;
/// What is received then.
const LITTLE: usize = 4096;

/// Where a connection is.
enum Phase {
    Handshake { negotiation: Negotiation, input: Vec<u8> },
    Transmission(Box<Transmission>),
    Closed,
}

/// The part of a connection that exists only once an export was chosen.
struct Transmission {
    session: Session,
    export: Box<dyn Export>,
    device: Arc<dyn BlockDevice>,
    attached: Device,
    receiving: Receiving,
    /// The front of a header.
    stash: [u8; REQUEST_LEN],
    stashed: usize,
    /// Received bytes that wait because the connection may hold no more.
    waiting: Option<Waiting>,
    /// The last payload was a large one.
    large: bool,
    shutdown: bool,
}

/// What the next bytes are.
enum Receiving {
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
struct Waiting {
    chunk: ChunkId,
    at: usize,
    end: usize,
    /// The connection may hold no more for now; otherwise it is only the others' turn.
    held_back: bool,
    /// Bytes of buffer that its next request needs.
    needs: usize,
}

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Hangup {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Refused(#[from] negotiate::Refusal),
    #[error("cannot receive: {0}")]
    Receive(Errno),
}

/// What a connection wants to be woken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// A connection.
pub(super) struct Connection {
    number: usize,
    socket: OwnedFd,
    phase: Phase,
    out: Outbox,
    /// The socket took no more.
    full: bool,
    /// Requests under way.
    in_flight: usize,
    /// Bytes that count against it.
    held: usize,
    /// Nothing more is received: the client has closed or asked to.
    ended: bool,
    /// Nothing more can be sent.
    broken: bool,
}

impl Connection {
    /// Begins with the server's greeting.
    pub(super) fn new(number: usize, socket: OwnedFd, client: Client) -> Self {
        let (negotiation, greeting) = Negotiation::new(client);
        let mut out = Outbox::default();
        out.put(|bytes| bytes.extend_from_slice(&greeting));
        let phase = Phase::Handshake { negotiation, input: Vec::new() };
        Self { number, socket, phase, out, full: false, in_flight: 0, held: 0, ended: false, broken: false }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The name of its export, if it has one.
    pub(super) fn export(&self) -> Option<String> {
        match &self.phase {
            Phase::Transmission(t) => Some(t.export.info().name),
            _ => None,
        }
    }

    /// Requests under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// What to wake it for now.
    pub(super) fn interest(&self) -> Interest {
        let waiting = self.is_waiting();
        let handshake = matches!(&self.phase, Phase::Handshake { .. });
        // In the handshake a client takes its replies before it is listened to again.
        let read = !(self.ended || waiting || handshake && self.full);
        Interest { read, write: self.full && !self.broken }
    }

    /// Whether it is over: nothing comes in, nothing is under way, and nothing can or need go out.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.in_flight == 0 && (self.broken || self.out.is_empty()) && !self.is_waiting()
    }

    /// Whether received bytes wait for the connection's next turn.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(t) if t.waiting.is_some())
    }

    /// Whether they wait until the connection may hold more.
    pub(super) fn is_held_back(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(t) if t.waiting.as_ref().is_some_and(|w| w.held_back))
    }

    /// Whether its next request waits for memory of the worker, which others hold.
    pub(super) fn lacks_memory(&self, engine: &Engine) -> bool {
        let waiting = match &self.phase {
            Phase::Transmission(t) => t.waiting.as_ref(),
            _ => None,
        };
        waiting.is_some_and(|waiting| !engine.has_memory(waiting.needs))
    }

    /// For how long, in nanoseconds, nothing has come of a payload that has begun; `None` if none has.
    pub(super) fn payload_stalled(&self, now: Nanos) -> Option<u64> {
        match &self.phase {
            Phase::Transmission(t) => match &t.receiving {
                Receiving::Payload { since, .. } => Some(now.since(*since)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Receives nothing more; what is under way is still answered.
    pub(super) fn end(&mut self, engine: &mut Engine) {
        self.ended = true;
        if let Phase::Transmission(t) = &mut self.phase {
            t.forget_input(&mut engine.pool, &mut self.held);
        }
    }

    /// Ends the connection for the client, at once.
    pub(super) fn hang_up(&self) {
        // A client that has gone already need not be told.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// From now on requests are answered ESHUTDOWN, options REP_ERR_SHUTDOWN.
    pub(super) fn shut_down(&mut self) {
        match &mut self.phase {
            Phase::Handshake { negotiation, .. } => negotiation.shut_down(),
            Phase::Transmission(t) => t.shutdown = true,
            Phase::Closed => {}
        }
    }

    /// After [`shut_down`](Self::shut_down): refuses what was received, then receives nothing more.
    pub(super) fn finish_input(&mut self, engine: &mut Engine, exports: &dyn Exports) {
        // An error is no news any more: the connection ends either way.
        let _ = self.resume(engine, exports);
        self.end(engine);
    }

    /// Gives everything back. Nothing may be under way.
    pub(super) fn close(mut self, engine: &mut Engine) {
        assert_eq!(self.in_flight, 0, "a connection is closed while its device has bios of it");
        self.end(engine);
        self.out.clear(&mut engine.pool, &mut self.held);
        if let Phase::Transmission(t) = std::mem::replace(&mut self.phase, Phase::Closed) {
            let Transmission { export, device, attached, .. } = *t;
            engine.detach(attached);
            drop(device);
            drop(export);
        }
    }

    /// Sends what waits. A client that has gone loses its replies; its requests run on.
    pub(super) fn send(&mut self, engine: &mut Engine) {
        if self.out.is_empty() {
            return;
        }
        let mut freed = 0;
        match self.out.send(self.socket.as_fd(), &mut engine.pool, &mut freed) {
            Ok(sent) => self.full = sent == Sent::Full,
            Err(_) => {
                self.broken = true;
                self.full = false;
                self.out.clear(&mut engine.pool, &mut freed);
            }
        }
        self.held -= freed;
    }

    /// Receives once and handles what came. True when there may be more to receive.
    pub(super) fn receive(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<bool, Hangup> {
        if !self.interest().read {
            return Ok(false);
        }
        match &mut self.phase {
            Phase::Handshake { .. } => self.receive_handshake(engine, exports),
            Phase::Transmission(_) => self.receive_requests(engine),
            Phase::Closed => Ok(false),
        }
    }

    fn receive_handshake(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<bool, Hangup> {
        let chunk = engine.pool.open_chunk(ROOM);
        let got = receive(self.socket.as_fd(), &mut [IoSliceMut::new(&mut engine.pool.room(chunk)[..ROOM])])?;
        let Some(got) = got else { return Ok(false) };
        let Phase::Handshake { input, .. } = &mut self.phase else { return Ok(false) };
        if got == 0 {
            self.ended = true;
            return Ok(false);
        }
        input.extend_from_slice(&engine.pool.room(chunk)[..got]);
        self.negotiate(engine, exports)?;
        Ok(true)
    }

    /// Answers options while the client takes the answers.
    fn negotiate(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<(), Hangup> {
        loop {
            let Phase::Handshake { negotiation, input } = &mut self.phase else { return Ok(()) };
            if self.full {
                return Ok(());
            }
            let mut step = Ok((0, Step::More));
            self.out.put(|out| step = negotiation.step(input, out, exports));
            let (used, step) = step?;
            input.drain(..used);
            match step {
                Step::Again => {}
                Step::More => {
                    debug_assert!(input.len() < OPTION_LEN + MAX_OPTION_DATA, "an option is bounded");
                    if input.is_empty() {
                        *input = Vec::new();
                    }
                    return Ok(());
                }
                Step::Close => {
                    self.ended = true;
                    return Ok(());
                }
                Step::Start(started) => {
                    let rest = std::mem::take(input);
                    tracing::debug!("{} opens {:?}", negotiation.client(), started.export.info().name);
                    self.phase = Phase::Transmission(Box::new(Transmission::new(*started, engine, &rest)));
                    return self.resume(engine, exports);
                }
            }
            self.send(engine);
        }
    }

    /// Goes on with what waited, as far as the connection may hold more.
    pub(super) fn resume(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<(), Hangup> {
        let number = self.number;
        match &mut self.phase {
            Phase::Handshake { .. } if !self.ended => self.negotiate(engine, exports),
            Phase::Transmission(t) if t.waiting.is_some() => {
                let mut link = Link::new(number, &mut self.out, &mut self.in_flight, &mut self.held, &mut self.ended);
                Ok(t.parse(engine, &mut link)?)
            }
            _ => Ok(()),
        }
    }

    fn receive_requests(&mut self, engine: &mut Engine) -> Result<bool, Hangup> {
        let Phase::Transmission(t) = &mut self.phase else { return Ok(false) };
        let chunk = engine.pool.open_chunk(ROOM);
        let wanted = if t.large { LITTLE } else { CHUNK };
        let room = engine.pool.room(chunk);
        let wanted = wanted.min(room.len());
        room[..t.stashed].copy_from_slice(&t.stash[..t.stashed]);
        let (into, direct) = (&mut room[t.stashed..wanted], t.receiving.missing());
        let direct_len = direct.as_ref().map_or(0, |rest| rest.len());
        let got = match direct {
            // The payload may be longer than the socket ever holds: then the chunk is not needed.
            Some(rest) if rest.len() >= CHUNK => receive(self.socket.as_fd(), &mut [IoSliceMut::new(rest)])?,
            Some(rest) => receive(self.socket.as_fd(), &mut [IoSliceMut::new(rest), IoSliceMut::new(into)])?,
            None => receive(self.socket.as_fd(), &mut [IoSliceMut::new(into)])?,
        };
        let Some(got) = got else { return Ok(false) };
        if got == 0 {
            self.end(engine);
            return Ok(false);
        }
        let more = got == direct_len + wanted - t.stashed;
        let to_payload = got.min(direct_len);
        let filled = t.stashed + got - to_payload;
        t.stashed = 0;
        engine.pool.use_chunk(chunk);
        let range = engine.pool.fill(chunk, filled);
        t.waiting = Some(Waiting { chunk, at: range.start, end: range.end, held_back: false, needs: 0 });
        let mut link = Link::new(self.number, &mut self.out, &mut self.in_flight, &mut self.held, &mut self.ended);
        t.receiving.advance(to_payload, engine, &mut link);
        t.parse(engine, &mut link)?;
        Ok(more)
    }

    /// Answers a request that is over.
    pub(super) fn finish(&mut self, finished: Finished, engine: &mut Engine) {
        let Finished { cookie, offset, freed, outcome, .. } = finished;
        self.in_flight -= 1;
        self.held -= freed;
        let Phase::Transmission(t) = &self.phase else { return };
        if self.broken {
            if let Outcome::Data(buf, _) = outcome {
                self.held -= buf.capacity();
                engine.pool.give(buf);
            }
            return;
        }
        match outcome {
            Outcome::Done => self.out.put(|out| out.extend_from_slice(&reply::simple(None, cookie))),
            Outcome::Data(buf, len) => {
                self.out.put(|out| match t.session.structured {
                    // A payload is at most 32 MiB.
                    true => out.extend_from_slice(&reply::only_data_chunk(cookie, offset, len as u32)),
                    false => out.extend_from_slice(&reply::simple(None, cookie)),
                });
                self.out.put_data(buf, len);
            }
            Outcome::Failed(error, message) => fail(&mut self.out, t.session.structured, cookie, error, message),
        }
    }

    /// Bytes of replies that wait.
    pub(super) fn unsent(&self) -> usize {
        self.out.bytes()
    }
}

/// The parts of a connection that its transmission writes to.
struct Link<'a> {
    number: usize,
    out: &'a mut Outbox,
    in_flight: &'a mut usize,
    held: &'a mut usize,
    ended: &'a mut bool,
}

impl<'a> Link<'a> {
    fn new(
        number: usize,
        out: &'a mut Outbox,
        in_flight: &'a mut usize,
        held: &'a mut usize,
        ended: &'a mut bool,
    ) -> Self {
        Self { number, out, in_flight, held, ended }
    }

    /// Whether a request that needs `len` bytes of buffer may start now. A connection that holds nothing always may,
    /// as long as the worker has memory for it.
    fn admits(&self, engine: &Engine, len: usize) -> bool {
        let size = if len == 0 { 0 } else { Pool::size_for(len) };
        *self.in_flight < CONNECTION_REQUESTS
            && self.out.bytes() <= UNSENT
            && (*self.held == 0 || *self.held + size <= CONNECTION_BYTES)
            && engine.has_memory(len)
    }
}

impl Transmission {
    fn new(started: Started, engine: &mut Engine, rest: &[u8]) -> Self {
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

    /// Forgets what has been received of requests that did not start.
    fn forget_input(&mut self, pool: &mut Pool, held: &mut usize) {
        if let Some(waiting) = self.waiting.take() {
            pool.leave_chunk(waiting.chunk);
        }
        if let Receiving::Payload { buf, .. } = std::mem::replace(&mut self.receiving, Receiving::Header) {
            *held -= buf.capacity();
            pool.give(buf);
        }
    }

    /// Handles the bytes that wait: starts requests until the bytes are used up or no more may start.
    fn parse(&mut self, engine: &mut Engine, link: &mut Link<'_>) -> Result<(), WireError> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(()) };
        let held = *link.held;
        let result = loop {
            if *link.held >= held + STRIDE {
                self.waiting = Some(Waiting { held_back: false, ..waiting });
                return Ok(());
            }
            match self.parse_one(&mut waiting, engine, link) {
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

    fn parse_one(
        &mut self,
        waiting: &mut Waiting,
        engine: &mut Engine,
        link: &mut Link<'_>,
    ) -> Result<Parsed, WireError> {
        if let Receiving::Skip { cookie, left, error, message } = &mut self.receiving {
            let skipped = (*left).min(waiting.end - waiting.at);
            waiting.at += skipped;
            *left -= skipped;
            if *left > 0 {
                return Ok(Parsed::NeedsInput);
            }
            fail(link.out, self.session.structured, *cookie, *error, message);
            self.receiving = Receiving::Header;
        }
        if waiting.at == waiting.end || *link.ended {
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
        if !link.admits(engine, needs) {
            return Ok(Parsed::MustWait(needs));
        }
        waiting.at += REQUEST_LEN;
        self.start(&request, action, waiting, engine, link);
        Ok(Parsed::One)
    }

    fn start(
        &mut self,
        request: &Request,
        action: Action,
        waiting: &mut Waiting,
        engine: &mut Engine,
        link: &mut Link<'_>,
    ) {
        let cookie = request.cookie;
        let device = self.attached;
        let target = |start: Sector, length: Sectors| Target { conn: link.number, cookie, device, start, length };
        match action {
            Action::Read(start, length) => {
                let target = target(start, length);
                *link.in_flight += 1;
                *link.held += engine.read(target);
            }
            Action::Write(start, length, durability) => {
                let target = target(start, length);
                self.write(target, durability, waiting, engine, link);
            }
            Action::Range(op, flags, start, length, durability) => {
                let target = target(start, length);
                *link.in_flight += 1;
                let fast = request.flags & udm_io::nbd::wire::consts::cmd_flag::FAST_ZERO != 0;
                if op == Op::WriteZeroes && !self.session.fast_zero {
                    engine.write_zeroes(target, durability);
                } else {
                    engine.range(target, op, flags, durability, fast);
                }
            }
            Action::Status(start, length, one) => {
                let found = extents::collect(&*self.device, start, length, one);
                link.out.put(|out| reply::put_block_status(out, cookie, negotiate::ALLOCATION_ID, &found));
            }
            Action::Done => {
                let read = Command::from_wire(request.kind) == Some(Command::Read);
                link.out.put(|out| match read && self.session.structured {
                    true => out.extend_from_slice(&reply::none_chunk(cookie)),
                    false => out.extend_from_slice(&reply::simple(None, cookie)),
                });
            }
            Action::Fail(error, message) => {
                let payload = Command::from_wire(request.kind) == Some(Command::Write);
                let left = if payload { request.length as usize } else { 0 };
                self.receiving = Receiving::Skip { cookie, left, error, message };
            }
            Action::Disconnect => *link.ended = true,
        }
    }

    fn write(
        &mut self,
        target: Target,
        durability: Durability,
        waiting: &mut Waiting,
        engine: &mut Engine,
        link: &mut Link<'_>,
    ) {
        let len = target.length.as_len();
        let here = len.min(waiting.end - waiting.at);
        let range = waiting.at..waiting.at + here;
        waiting.at += here;
        self.large = len >= LARGE;
        if here == len && engine.pool.chunks_in_use() <= PINNED_CHUNKS {
            engine.pool.use_chunk(waiting.chunk);
            let payload = Payload::Chunk(waiting.chunk, range);
            *link.held += payload.held();
            *link.in_flight += 1;
            return engine.write(target, payload, durability);
        }
        let mut buf = engine.pool.take(len);
        *link.held += buf.capacity();
        buf[..here].copy_from_slice(engine.pool.filled(waiting.chunk, range));
        if here == len {
            *link.in_flight += 1;
            engine.write(target, Payload::Buf(buf), durability);
        } else {
            let since = engine.channel.now();
            self.receiving = Receiving::Payload { target, buf, filled: here, len, durability, since };
        }
    }
}

impl Receiving {
    /// The part of a payload's buffer that is still to be received.
    fn missing(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Payload { buf, filled, len, .. } => Some(&mut buf[*filled..*len]),
            _ => None,
        }
    }

    /// Takes note of `got` bytes of the payload; starts the write when it is complete.
    fn advance(&mut self, got: usize, engine: &mut Engine, link: &mut Link<'_>) {
        if let Self::Payload { filled, len, since, .. } = self {
            *filled += got;
            *since = engine.channel.now();
            if filled < len {
                return;
            }
            if let Self::Payload { target, buf, durability, .. } = std::mem::replace(self, Self::Header) {
                *link.in_flight += 1;
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
fn fail(out: &mut Outbox, structured: bool, cookie: u64, error: NbdError, message: &str) {
    out.put(|out| match structured {
        true => reply::put_error_chunk(out, cookie, error, message),
        false => out.extend_from_slice(&reply::simple(Some(error), cookie)),
    });
}

/// Receives once, without blocking: `None` when nothing is there, 0 at the end.
fn receive(socket: BorrowedFd<'_>, into: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Hangup> {
    loop {
        match recvmsg(socket, into, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
            Ok(received) => return Ok(Some(received.bytes)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            // A peer that reset the connection has ended it.
            Err(Errno::CONNRESET) => return Ok(Some(0)),
            Err(errno) => return Err(Hangup::Receive(errno)),
        }
    }
}
