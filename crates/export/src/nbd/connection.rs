//! One connection: what it has sent of a request so far, and the replies that it has not taken yet.

use super::exports::{Client, Exports};
use super::handover::{
    ClientState, ConnectionState, HandedConnection, PhaseState, Prepared, PreparedPhase, SessionState,
};
use super::inflight::{Engine, Finished, Outcome};
use super::negotiate::{Negotiation, Refusal, Started, Step};
use super::outbox::{Outbox, Sent};
use super::pool::CHUNK;
use super::transmission::{Flow, Receiving, Transmission, Waiting, fail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use udm_io::Nanos;
use udm_io::nbd::wire::consts::MAX_OPTION_DATA;
use udm_io::nbd::wire::option::OPTION_LEN;
use udm_io::nbd::wire::{WireError, reply};

/// A receive chunk has at least this much room when it is received into.
const ROOM: usize = 64 * 1024;
/// What is received then.
const LITTLE: usize = 4096;

/// Where a connection is.
enum Phase {
    Handshake { negotiation: Negotiation, input: Vec<u8> },
    Transmission(Box<Transmission>),
    Closed,
}

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum Hangup {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Refused(#[from] Refusal),
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
    socket: OwnedFd,
    phase: Phase,
    flow: Flow,
    /// The socket took no more.
    full: bool,
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
        let flow = Flow { number, out, in_flight: 0, held: 0, ended: false };
        Self { socket, phase, flow, full: false, broken: false }
    }

    /// Goes on where another process left off.
    pub(super) fn resume_from(number: usize, prepared: Prepared, engine: &mut Engine) -> Self {
        let Prepared { socket, client, ended, phase, input, unsent } = prepared;
        let mut flow = Flow { number, out: Outbox::default(), in_flight: 0, held: 0, ended };
        flow.out.put(|bytes| bytes.extend_from_slice(&unsent));
        let phase = match phase {
            PreparedPhase::Handshake(state) => {
                Phase::Handshake { negotiation: Negotiation::resume(client, state), input }
            }
            PreparedPhase::Transmission { export, session, receiving } => {
                let started = Started { export, session };
                let transmission = Transmission::resume(started, client, engine, &mut flow, &receiving, &input);
                Phase::Transmission(Box::new(transmission))
            }
        };
        Self { socket, phase, flow, full: false, broken: false }
    }

    /// What it takes to go on in another process; `None` when there is nothing to go on with. Nothing may be under way.
    pub(super) fn hand_over(mut self, engine: &mut Engine) -> Option<HandedConnection> {
        assert_eq!(self.flow.in_flight, 0, "a connection is given away while its device has bios of it");
        let unsent = self.flow.out.take(&mut engine.pool, &mut self.flow.held);
        let (client, phase, input) = match &mut self.phase {
            Phase::Handshake { negotiation, input } => {
                let phase = PhaseState::Handshake(negotiation.state());
                (negotiation.client().into(), phase, std::mem::take(input))
            }
            Phase::Transmission(t) => {
                let (receiving, input) = t.input(&engine.pool);
                let (export, session) = (t.export.info().name, SessionState::of(&t.session));
                (ClientState::from(&t.client), PhaseState::Transmission { export, session, receiving }, input)
            }
            Phase::Closed => return None,
        };
        let (ended, broken) = (self.flow.ended, self.broken);
        let socket = self.socket.try_clone();
        self.close(engine);
        if broken || ended && unsent.is_empty() {
            return None;
        }
        let state = ConnectionState { client, ended, phase };
        Some(HandedConnection { socket: socket.ok()?, state, input, unsent })
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
        self.flow.in_flight
    }

    /// What to wake it for now.
    pub(super) fn interest(&self) -> Interest {
        let waiting = self.is_waiting();
        let handshake = matches!(&self.phase, Phase::Handshake { .. });
        // In the handshake a client takes its replies before it is listened to again.
        let read = !(self.flow.ended || waiting || handshake && self.full);
        Interest { read, write: self.full && !self.broken }
    }

    /// Whether it is over: nothing comes in, nothing is under way, and nothing can or need go out.
    pub(super) fn is_over(&self) -> bool {
        self.flow.ended && self.flow.in_flight == 0 && (self.broken || self.flow.out.is_empty()) && !self.is_waiting()
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
        self.flow.ended = true;
        if let Phase::Transmission(t) = &mut self.phase {
            t.forget_input(&mut engine.pool, &mut self.flow.held);
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
        assert_eq!(self.flow.in_flight, 0, "a connection is closed while its device has bios of it");
        self.end(engine);
        self.flow.out.clear(&mut engine.pool, &mut self.flow.held);
        if let Phase::Transmission(t) = std::mem::replace(&mut self.phase, Phase::Closed) {
            let Transmission { export, device, attached, .. } = *t;
            engine.detach(attached);
            drop(device);
            drop(export);
        }
    }

    /// Sends what waits. A client that has gone loses its replies; its requests run on.
    pub(super) fn send(&mut self, engine: &mut Engine) {
        if self.flow.out.is_empty() {
            return;
        }
        let mut freed = 0;
        match self.flow.out.send(self.socket.as_fd(), &mut engine.pool, &mut freed) {
            Ok(sent) => self.full = sent == Sent::Full,
            Err(_) => {
                self.broken = true;
                self.full = false;
                self.flow.out.clear(&mut engine.pool, &mut freed);
            }
        }
        self.flow.held -= freed;
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
            self.flow.ended = true;
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
            self.flow.out.put(|out| step = negotiation.step(input, out, exports));
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
                    self.flow.ended = true;
                    return Ok(());
                }
                Step::Start(started) => {
                    let rest = std::mem::take(input);
                    tracing::debug!("{} opens {:?}", negotiation.client(), started.export.info().name);
                    self.phase = Phase::Transmission(Box::new(Transmission::new(
                        *started,
                        negotiation.client().clone(),
                        engine,
                        &rest,
                    )));
                    return self.resume(engine, exports);
                }
            }
            self.send(engine);
        }
    }

    /// Goes on with what waited, as far as the connection may hold more.
    pub(super) fn resume(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<(), Hangup> {
        match &mut self.phase {
            Phase::Handshake { .. } if !self.flow.ended => self.negotiate(engine, exports),
            Phase::Transmission(t) if t.waiting.is_some() => Ok(t.parse(engine, &mut self.flow)?),
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
        t.receiving.advance(to_payload, engine, &mut self.flow);
        t.parse(engine, &mut self.flow)?;
        Ok(more)
    }

    /// Answers a request that is over.
    pub(super) fn finish(&mut self, finished: Finished, engine: &mut Engine) {
        let Finished { cookie, offset, freed, outcome, .. } = finished;
        self.flow.in_flight -= 1;
        self.flow.held -= freed;
        let Phase::Transmission(t) = &self.phase else { return };
        if self.broken {
            if let Outcome::Data(buf, _) = outcome {
                self.flow.held -= buf.capacity();
                engine.pool.give(buf);
            }
            return;
        }
        match outcome {
            Outcome::Done => self.flow.out.put(|out| out.extend_from_slice(&reply::simple(None, cookie))),
            Outcome::Data(buf, len) => {
                self.flow.out.put(|out| match t.session.structured {
                    // A payload is at most 32 MiB.
                    true => out.extend_from_slice(&reply::only_data_chunk(cookie, offset, len as u32)),
                    false => out.extend_from_slice(&reply::simple(None, cookie)),
                });
                self.flow.out.put_data(buf, len);
            }
            Outcome::Failed(error, message) => fail(&mut self.flow.out, t.session.structured, cookie, error, message),
        }
    }

    /// Bytes of replies that wait.
    pub(super) fn unsent(&self) -> usize {
        self.flow.out.bytes()
    }
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
