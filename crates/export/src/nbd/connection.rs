//! One connection: what it has sent of a request so far, and the replies that it has not taken yet.

use super::handover::{ConnectionState, HandedConnection, LongState, PhaseState, Prepared, PreparedPhase};
use super::inflight::{Engine, Finished, Outcome, Target};
use super::negotiate::{Negotiation, Refusal, Started, Step};
use super::outbox::Sent;
use super::pool::CHUNK;
use super::transmission::{Flow, Receiving, Transmission, Waiting, fail};
use crate::exports::{Client, Exports};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use udm_io::{Extent, Nanos};
use udm_nbd::wire::consts::MAX_OPTION_DATA;
use udm_nbd::wire::option::OPTION_LEN;
use udm_nbd::wire::{WireError, reply};

/// A receive chunk has at least this much room when it is received into.
const ROOM: usize = 64 * 1024;
/// What is received then.
const LITTLE: usize = 4096;

/// Options that are answered before others have their turn.
const OPTIONS: usize = 16;
/// What one costs, as bytes.
const OPTION: usize = 16 * 1024;

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
    /// More of the handshake can be done at once; it is only the others' turn.
    more: bool,
    /// Since when it has taken nothing, or the client is negotiating.
    since: Nanos,
}

impl Connection {
    /// Begins with the server's greeting. `refusal`: why the client gets nothing.
    pub(super) fn new(number: u32, socket: OwnedFd, client: Client, refusal: Option<String>, now: Nanos) -> Self {
        let (mut negotiation, greeting) = Negotiation::new(client);
        if let Some(why) = refusal {
            negotiation.refuse(why);
        }
        let mut flow = Flow::new(number);
        flow.out.put(|bytes| bytes.extend_from_slice(&greeting));
        let phase = Phase::Handshake { negotiation, input: Vec::new() };
        Self { socket, phase, flow, full: false, more: false, since: now }
    }

    /// Goes on where another process left off.
    pub(super) fn resume_from(number: u32, prepared: Prepared, engine: &mut Engine) -> Self {
        let Prepared { socket, client, ended, phase, input, unsent } = prepared;
        let mut flow = Flow { ended, ..Flow::new(number) };
        flow.out.put(|bytes| bytes.extend_from_slice(&unsent));
        let phase = match phase {
            PreparedPhase::Handshake(state) => {
                Phase::Handshake { negotiation: Negotiation::resume(client, state), input }
            }
            PreparedPhase::Transmission { export, session, receiving, longs } => {
                let (started, left) = (Started { export, session }, (&receiving, longs));
                Phase::Transmission(Box::new(Transmission::resume(started, client, engine, &mut flow, left, &input)))
            }
        };
        let since = engine.channel.now();
        Self { socket, phase, flow, full: false, more: false, since }
    }

    /// What it takes to go on in another process; `None` when there is nothing to go on with. Nothing may be under way.
    pub(super) fn hand_over(mut self, engine: &mut Engine) -> Option<HandedConnection> {
        assert_eq!(self.flow.bios, 0, "a connection is given away while its device has bios of it");
        let mut freed = 0;
        let unsent = self.flow.out.take(&mut engine.pool, &mut freed);
        self.flow.release(freed);
        let (client, phase, input) = match &mut self.phase {
            Phase::Handshake { negotiation, input } => {
                let phase = PhaseState::Handshake(negotiation.state());
                (negotiation.client().clone(), phase, std::mem::take(input))
            }
            Phase::Transmission(t) => {
                let (receiving, input) = t.input(&engine.pool);
                let (export, session) = (t.export.name(), t.session.clone());
                let longs = t.longs.iter().filter_map(LongState::of).collect();
                (t.client.clone(), PhaseState::Transmission { export, session, receiving, longs }, input)
            }
            Phase::Closed => return None,
        };
        let (ended, broken, idle) = (self.flow.ended, self.flow.broken, self.flow.in_flight == 0);
        let socket = self.socket.try_clone();
        if let Phase::Transmission(t) = &mut self.phase {
            t.abandon(engine, &mut self.flow);
        }
        self.close(engine);
        if broken || ended && idle && unsent.is_empty() {
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
            Phase::Transmission(t) => Some(t.export.name()),
            _ => None,
        }
    }

    /// Requests under way.
    pub(super) fn in_flight(&self) -> usize {
        self.flow.in_flight
    }

    /// Bios of theirs that the device has.
    pub(super) fn bios(&self) -> usize {
        self.flow.bios
    }

    /// What to wake it for now. In any case it is woken when its client has gone.
    pub(super) fn interest(&self) -> Interest {
        let waiting = self.is_waiting() || matches!(&self.phase, Phase::Transmission(t) if t.is_starved());
        let handshake = matches!(&self.phase, Phase::Handshake { .. });
        // In the handshake a client takes its replies before it is listened to again.
        let read = !(self.flow.ended || waiting || handshake && self.full);
        Interest { read, write: self.full && !self.flow.broken }
    }

    /// Whether it is over: nothing comes in, nothing is under way, and nothing can or need go out.
    pub(super) fn is_over(&self) -> bool {
        let quiet = self.flow.broken || self.flow.out.is_empty();
        self.flow.ended && self.flow.in_flight == 0 && self.flow.bios == 0 && quiet && !self.is_waiting()
    }

    /// Whether nobody takes its replies any more.
    pub(super) fn is_broken(&self) -> bool {
        self.flow.broken
    }

    /// Whether received bytes wait for the connection's next turn.
    pub(super) fn is_waiting(&self) -> bool {
        self.more || matches!(&self.phase, Phase::Transmission(t) if t.waiting.is_some())
    }

    /// Whether they wait until the connection may hold more.
    pub(super) fn is_held_back(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(t) if t.waiting.as_ref().is_some_and(|w| w.held_back))
    }

    /// Whether its next request waits for memory of the worker, which others hold.
    pub(super) fn lacks_memory(&self, engine: &Engine) -> bool {
        match &self.phase {
            Phase::Transmission(t) => t.waiting.as_ref().is_some_and(|waiting| waiting.needs.lack(engine)),
            _ => false,
        }
    }

    /// For how long, in nanoseconds, the client has neither sent what it has announced nor taken what it has asked for,
    /// while it holds memory.
    pub(super) fn stalled(&self, now: Nanos) -> u64 {
        let Phase::Transmission(t) = &self.phase else { return 0 };
        let sends = match &t.receiving {
            Receiving::Payload(incoming) => now.since(incoming.since),
            _ => 0,
        };
        let takes = if self.full { now.since(self.since) } else { 0 };
        if self.flow.held > 0 { sends.max(takes) } else { 0 }
    }

    /// For how long, in nanoseconds, the client has been negotiating; `None` when it is done with that.
    pub(super) fn negotiating(&self, now: Nanos) -> Option<u64> {
        matches!(&self.phase, Phase::Handshake { .. }).then(|| now.since(self.since))
    }

    /// Whether one of its long requests may go on.
    pub(super) fn wants_turn(&self, engine: &Engine) -> bool {
        matches!(&self.phase, Phase::Transmission(t) if t.longs.is_ready(&self.flow, &engine.pool.budget))
    }

    /// Begins one piece of a long request, if it [may](Self::wants_turn).
    pub(super) fn go_on(&mut self, engine: &mut Engine) {
        if let Phase::Transmission(t) = &mut self.phase {
            t.go_on(engine, &mut self.flow);
        }
    }

    /// The device has told what a range holds; nothing, if it took too long.
    pub(super) fn answered(&mut self, long: u32, extents: &[Extent], engine: &mut Engine) {
        if let Phase::Transmission(t) = &mut self.phase {
            t.answered(long, extents, engine, &mut self.flow);
        }
    }

    /// Nobody is there any more: nothing that was asked for begins, and nothing is answered.
    pub(super) fn break_off(&mut self, engine: &mut Engine) {
        (self.flow.broken, self.flow.ended, self.full, self.more) = (true, true, false, false);
        let mut freed = 0;
        self.flow.out.clear(&mut engine.pool, &mut freed);
        self.flow.release(freed);
        if let Phase::Transmission(t) = &mut self.phase {
            t.abandon(engine, &mut self.flow);
        }
    }

    /// Receives nothing more; what is under way is still answered.
    pub(super) fn end(&mut self, engine: &mut Engine) {
        (self.flow.ended, self.more) = (true, false);
        if let Phase::Transmission(t) = &mut self.phase {
            t.forget_input(engine, &mut self.flow);
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
        assert_eq!(self.flow.bios, 0, "a connection is closed while its device has bios of it");
        self.break_off(engine);
        if let Phase::Transmission(t) = std::mem::replace(&mut self.phase, Phase::Closed) {
            let Transmission { export, device, attached, .. } = *t;
            engine.detach(attached);
            drop(device);
            drop(export);
        }
    }

    /// Sends what waits. A client that has gone loses its replies, and what it has asked for does not begin.
    pub(super) fn send(&mut self, engine: &mut Engine) {
        if self.flow.out.is_empty() {
            return;
        }
        let (mut freed, before) = (0, self.flow.out.bytes());
        let sent = self.flow.out.send(self.socket.as_fd(), &mut engine.pool, &mut freed);
        self.flow.release(freed);
        match sent {
            Ok(sent) => {
                let full = sent == Sent::Full;
                if full
                    && (!self.full || self.flow.out.bytes() < before)
                    && !matches!(self.phase, Phase::Handshake { .. })
                {
                    self.since = engine.channel.now();
                }
                self.full = full;
            }
            Err(_) => self.break_off(engine),
        }
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
        self.more = false;
        for steps in 1.. {
            let Phase::Handshake { negotiation, input } = &mut self.phase else { return Ok(()) };
            if self.full || self.flow.broken {
                return Ok(());
            }
            if steps > OPTIONS {
                self.more = true;
                return Ok(());
            }
            engine.charge(OPTION);
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
                    tracing::debug!("{} opens {:?}", negotiation.client(), started.export.name());
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
        Ok(())
    }

    /// Goes on with what waited, as far as the connection may hold more.
    pub(super) fn resume(&mut self, engine: &mut Engine, exports: &dyn Exports) -> Result<(), Hangup> {
        match &mut self.phase {
            Phase::Handshake { .. } if !self.flow.ended => self.negotiate(engine, exports),
            Phase::Transmission(t) if t.waiting.is_some() || t.is_starved() => Ok(t.parse(engine, &mut self.flow)?),
            _ => Ok(()),
        }
    }

    fn receive_requests(&mut self, engine: &mut Engine) -> Result<bool, Hangup> {
        let Phase::Transmission(t) = &mut self.phase else { return Ok(false) };
        let chunk = engine.pool.open_chunk(ROOM);
        let wanted = if t.large || engine.pool.is_crowded() { LITTLE } else { CHUNK };
        let room = engine.pool.room(chunk);
        let wanted = wanted.min(room.len());
        room[..t.stashed].copy_from_slice(&t.stash[..t.stashed]);
        let (stashed, into) = (t.stashed, &mut room[t.stashed..wanted]);
        let direct = t.missing();
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
        let more = got == direct_len + wanted - stashed;
        let to_payload = got.min(direct_len);
        let filled = t.stashed + got - to_payload;
        t.stashed = 0;
        engine.pool.use_chunk(chunk);
        let range = engine.pool.fill(chunk, filled);
        t.waiting = Some(Waiting::new(chunk, range));
        t.advance(to_payload, engine, &mut self.flow);
        t.parse(engine, &mut self.flow)?;
        Ok(more)
    }

    /// Answers a request that is over, or goes on with the long one that this was a piece of.
    pub(super) fn finish(&mut self, finished: Finished, engine: &mut Engine) {
        self.flow.bios -= 1;
        self.flow.release(finished.freed);
        let Phase::Transmission(t) = &mut self.phase else { return };
        if let Some(long) = finished.target.part {
            return t.finish(long, finished, engine, &mut self.flow);
        }
        self.flow.in_flight -= 1;
        let Finished { target: Target { cookie, start, .. }, outcome, .. } = finished;
        match outcome {
            Outcome::Data(buf, _) if self.flow.broken => self.flow.give(engine, buf),
            _ if self.flow.broken => {}
            Outcome::Done => self.flow.out.put(|out| out.extend_from_slice(&reply::simple(None, cookie))),
            Outcome::Data(buf, len) => {
                self.flow.out.put(|out| match t.session.structured {
                    // A payload is at most 32 MiB.
                    true => out.extend_from_slice(&reply::only_data_chunk(cookie, start.bytes(), len as u32)),
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
