//! The thread behind a remote export: sends requests, receives replies, ends bios.

use super::handshake::{Agreed, has};
use super::lost::Lost;
use super::receive::{Event, Receiver};
use super::received::Received;
use crate::wire::consts::{cmd_flag, transmission};
use crate::wire::request::{REQUEST_LEN, Request};
use crate::wire::{Command, NbdError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use udm_base::{Sector, Sectors};
use udm_io::{Bio, Clock, Extent, ExtentsReply, Nanos, Op, OpFlags, Outstanding, Segments, Status};

/// Requests for bios that are under way at most; more wait here.
const DEPTH: usize = 1024;
/// Questions that are under way at most, beside bios: a server may take long to answer them, and bios do not wait for
/// that.
const QUESTIONS: usize = 16;
/// Pieces in one send.
const GATHER: usize = 128;
/// Receives before it is the senders' turn again.
const TURNS: usize = 4;

/// What the device hands to its driver.
pub(super) enum Item {
    Bio(Bio),
    /// The extents of a range are asked for.
    Status(Sector, Sectors, ExtentsReply),
    /// How the driver stands. Nothing is sent for it.
    Report(mpsc::Sender<Outstanding>),
}

impl Item {
    fn fail(self) {
        match self {
            Self::Bio(bio) => bio.end(Status::Io),
            // Nothing is known.
            Self::Status(..) => {}
            Self::Report(answer) => {
                let lost = Outstanding { requests: 0, queued: 0, oldest_ns: 0, silent_ns: 0, lost: true };
                // Who asked may have stopped waiting.
                let _ = answer.send(lost);
            }
        }
    }
}

#[derive(Default)]
struct Waiting {
    items: VecDeque<Item>,
    questions: VecDeque<Item>,
    /// Of the items, those that are answered before all others.
    reports: usize,
    stop: bool,
    /// The connection is lost.
    dead: bool,
}

/// The way from the device to its driver.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// The driver is about to sleep, or sleeps.
    sleeping: AtomicBool,
    wake: OwnedFd,
}

impl Queue {
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waiting: Mutex::default(), sleeping: AtomicBool::new(false), wake })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over an item; fails it when the connection is lost. The lock is held for a moment only: no I/O is done
    /// under it.
    pub(super) fn push(&self, item: Item) {
        let mut waiting = self.lock();
        if waiting.dead {
            drop(waiting);
            return item.fail();
        }
        waiting.reports += usize::from(matches!(item, Item::Report(_)));
        match item {
            Item::Status(..) => waiting.questions.push_back(item),
            _ => waiting.items.push_back(item),
        }
        drop(waiting);
        self.rouse();
    }

    /// Ends the driver once it has nothing under way.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.rouse();
    }

    fn rouse(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // A full counter means that a wake-up is already due.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// A request under way.
struct InFlight {
    item: Item,
    /// What its reply is known by: its slot, and a number that makes an answer which comes twice nobody's.
    cookie: u64,
    /// What was sent last for it.
    command: Command,
    /// When the driver took it.
    begun: Nanos,
    /// It has not been sent whole.
    unsent: bool,
    /// Data received.
    received: Received,
    /// The first error that the server told.
    error: Option<NbdError>,
    extents: Vec<Extent>,
}

impl InFlight {
    fn range(&self) -> (u64, u64) {
        match &self.item {
            Item::Bio(bio) => (bio.sector().bytes(), bio.sectors().bytes()),
            Item::Status(start, length, _) => (start.bytes(), length.bytes()),
            Item::Report(_) => (0, 0),
        }
    }
}

/// A request that is being sent.
struct Outgoing {
    slot: usize,
    header: [u8; REQUEST_LEN],
    /// Bytes of payload after the header.
    payload: usize,
}

pub(super) struct Driver {
    socket: OwnedFd,
    agreed: Agreed,
    queue: Arc<Queue>,
    name: String,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Of the requests under way, so many are questions.
    questions: usize,
    /// Of the last request that was made.
    serial: u32,
    outgoing: VecDeque<Outgoing>,
    /// How much of the first one has been sent.
    sent: usize,
    receiver: Receiver,
    clock: Arc<dyn Clock>,
    /// When something came last, or was asked for after nothing had been.
    heard: Nanos,
}

impl Driver {
    pub(super) fn new(socket: OwnedFd, agreed: Agreed, queue: Arc<Queue>, name: String, clock: Arc<dyn Clock>) -> Self {
        let heard = clock.now();
        Self {
            socket,
            agreed,
            queue,
            name,
            slots: Vec::new(),
            free: Vec::new(),
            questions: 0,
            serial: 0,
            outgoing: VecDeque::new(),
            sent: 0,
            receiver: Receiver::new(),
            clock,
            heard,
        }
    }

    /// Drives until stopped or lost.
    pub(super) fn run(mut self) {
        let lost = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return self.say_goodbye(),
                Err(lost) => break lost,
            }
        };
        let under_way = self.under_way();
        tracing::error!("{}: connection lost, {under_way} requests fail: {lost}", self.name);
        let items = {
            let mut waiting = self.queue.lock();
            waiting.dead = true;
            [std::mem::take(&mut waiting.items), std::mem::take(&mut waiting.questions)]
        };
        let in_flight = self.slots.drain(..).flatten().map(|request| request.item);
        in_flight.chain(items.into_iter().flatten()).for_each(Item::fail);
    }

    /// One round: takes in what is new, sends, receives, and sleeps if there was nothing of it. False when it was
    /// told to stop and is done.
    fn turn(&mut self) -> Result<bool, Lost> {
        let stop = self.take_items();
        let mut moved = self.send()?;
        let mut heard = false;
        for _ in 0..TURNS {
            if !self.receive()? {
                break;
            }
            heard = true;
        }
        if heard {
            // Once for all that has come: a clock costs more than to look at a reply.
            self.heard = self.clock.now();
            moved = true;
        }
        if moved {
            return Ok(true);
        }
        if stop && self.may_stop() {
            return Ok(false);
        }
        self.sleep()?;
        Ok(true)
    }

    fn sleep(&mut self) -> Result<(), Lost> {
        self.queue.sleeping.store(true, Ordering::SeqCst);
        let has_news = {
            let waiting = self.queue.lock();
            waiting.reports > 0
                || (!waiting.items.is_empty() && self.has_room())
                || (!waiting.questions.is_empty() && self.questions < QUESTIONS)
                || (waiting.stop && self.may_stop())
        };
        if !has_news {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !self.outgoing.is_empty());
            let mut fds = [
                PollFd::from_borrowed_fd(self.socket.as_fd(), events),
                PollFd::from_borrowed_fd(self.queue.wake.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if !fds[1].revents().is_empty() {
                // Empty means that somebody else's wake-up came first.
                let _ = rustix::io::read(&self.queue.wake, &mut [0u8; 8]);
            }
        }
        self.queue.sleeping.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no bio is under way. A question is not waited for: who asked it takes it that nothing is known.
    fn may_stop(&self) -> bool {
        self.under_way() == self.questions
    }

    fn has_room(&self) -> bool {
        self.under_way() - self.questions < DEPTH
    }

    /// Answers who asks how it stands, before anything else: they must not wait for a server that does not answer.
    #[cold]
    fn report(&self, waiting: &mut Waiting) {
        let (mut asked, mut others) = (Vec::new(), VecDeque::new());
        for item in waiting.items.drain(..) {
            match item {
                Item::Report(answer) => asked.push(answer),
                other => others.push_back(other),
            }
        }
        waiting.items = others;
        waiting.reports = 0;
        let now = self.clock.now();
        let oldest = self.slots.iter().flatten().map(|request| now.since(request.begun)).max();
        let requests = self.under_way();
        let silent_ns = if requests == 0 { 0 } else { now.since(self.heard) };
        let report = Outstanding {
            requests,
            queued: waiting.items.len() + waiting.questions.len(),
            oldest_ns: oldest.unwrap_or_default(),
            silent_ns,
            lost: false,
        };
        // Who asked may have stopped waiting.
        for answer in asked {
            let _ = answer.send(report);
        }
    }

    /// Makes requests of what waits. Returns whether the driver is to stop.
    fn take_items(&mut self) -> bool {
        let queue = self.queue.clone();
        let mut waiting = queue.lock();
        if waiting.reports > 0 {
            self.report(&mut waiting);
        }
        if waiting.items.is_empty() && waiting.questions.is_empty() {
            return waiting.stop;
        }
        let now = self.clock.now();
        if self.under_way() == 0 {
            self.heard = now;
        }
        while self.has_room() {
            let Some(item) = waiting.items.pop_front() else { break };
            self.begin(item, now);
        }
        while self.questions < QUESTIONS {
            let Some(item) = waiting.questions.pop_front() else { break };
            self.questions += 1;
            self.begin(item, now);
        }
        waiting.stop
    }

    /// Makes a request of an item.
    fn begin(&mut self, item: Item, now: Nanos) {
        let command = match &item {
            // Answered before.
            Item::Report(_) => return,
            Item::Status(..) => Command::BlockStatus,
            Item::Bio(bio) => match bio.op() {
                Op::Read => Command::Read,
                Op::Write => Command::Write,
                Op::Flush => Command::Flush,
                Op::Discard => Command::Trim,
                Op::WriteZeroes => Command::WriteZeroes,
            },
        };
        let request = InFlight {
            item,
            cookie: 0,
            command,
            begun: now,
            unsent: true,
            received: Received::default(),
            error: None,
            extents: Vec::new(),
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(request);
        self.enqueue(slot, command);
    }

    fn enqueue(&mut self, slot: usize, command: Command) {
        let Some(request) = self.slots[slot].as_mut() else { return };
        self.serial = self.serial.wrapping_add(1);
        request.cookie = u64::from(self.serial) << 32 | slot as u64;
        request.command = command;
        request.unsent = true;
        let (offset, length) = if command == Command::Flush { (0, 0) } else { request.range() };
        let flags = match &request.item {
            Item::Bio(bio) if command != Command::Flush => request_flags(&self.agreed, bio.op(), bio.flags()),
            _ => 0,
        };
        // Lengths were checked against the limits, which fit 32 bits; a status may ask for more than one answer has.
        let length = u32::try_from(length).unwrap_or(!0xffff);
        let header = Request { flags, kind: command as u16, cookie: request.cookie, offset, length }.encode();
        let payload = if command == Command::Write { length as usize } else { 0 };
        self.outgoing.push_back(Outgoing { slot, header, payload });
    }

    /// Sends what the socket takes. True when something went out.
    fn send(&mut self) -> Result<bool, Lost> {
        let mut moved = false;
        while !self.outgoing.is_empty() {
            let mut gathered = [IoSlice::new(&[]); GATHER];
            let count = self.gather(&mut gathered);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = match sendmsg(&self.socket, &gathered[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => sent,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Lost::HungUp),
                Err(errno) => return Err(errno.into()),
            };
            moved = true;
            self.sent += sent;
            while let Some(first) = self.outgoing.front() {
                let whole = REQUEST_LEN + first.payload;
                if self.sent < whole {
                    break;
                }
                self.sent -= whole;
                if let Some(Some(request)) = self.slots.get_mut(first.slot) {
                    request.unsent = false;
                }
                self.outgoing.pop_front();
            }
        }
        Ok(moved)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; GATHER]) -> usize {
        let (mut count, mut skip) = (0, self.sent);
        for out in &self.outgoing {
            if count == GATHER {
                break;
            }
            if skip < REQUEST_LEN {
                slices[count] = IoSlice::new(&out.header[skip..]);
                count += 1;
            }
            let skip_payload = std::mem::take(&mut skip).saturating_sub(REQUEST_LEN);
            if out.payload == 0 {
                continue;
            }
            let Some(Item::Bio(bio)) = self.slots[out.slot].as_ref().map(|request| &request.item) else { continue };
            for segment in bio.segments().skip_bytes(skip_payload) {
                if count == GATHER {
                    return count;
                }
                // SAFETY: the memory of a write is valid for reads until the bio ends, and it does not before its
                // reply, which cannot come before all of it was sent: a reply that does ends the connection.
                slices[count] = IoSlice::new(unsafe { std::slice::from_raw_parts(segment.as_ptr(), segment.len()) });
                count += 1;
            }
        }
        count
    }

    /// Receives once and handles what came. True when something came.
    fn receive(&mut self) -> Result<bool, Lost> {
        let slots = &self.slots;
        if !self.receiver.fill(self.socket.as_fd(), |cookie| payload_target(slots, cookie))? {
            return Ok(false);
        }
        while let Some(event) =
            self.receiver.next(self.agreed.structured, |cookie| payload_target(&self.slots, cookie))?
        {
            self.handle(event)?;
        }
        Ok(true)
    }

    fn slot(&mut self, cookie: u64) -> Result<(usize, &mut InFlight), Lost> {
        let slot = slot_of(cookie);
        match self.slots.get_mut(slot) {
            Some(Some(request)) if request.cookie == cookie => Ok((slot, request)),
            _ => Err(Lost::Protocol("a reply to no request, or to one that was answered")),
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Lost> {
        match event {
            Event::Data { cookie, at, bytes } => self.slot(cookie)?.1.received.add(at, bytes)?,
            Event::Error { cookie, error } => {
                self.slot(cookie)?.1.error.get_or_insert(error);
            }
            Event::Status { cookie, context, extents } => {
                let expected = self.agreed.allocation;
                let request = self.slot(cookie)?.1;
                if request.command == Command::BlockStatus && Some(context) == expected {
                    request.extents = extents;
                }
            }
            Event::Done { cookie } => self.done(cookie)?,
        }
        Ok(())
    }

    /// The last reply to a request has come.
    fn done(&mut self, cookie: u64) -> Result<(), Lost> {
        let knows_fua = has(self.agreed.flags, transmission::SEND_FUA);
        let flushes = has(self.agreed.flags, transmission::SEND_FLUSH);
        let (slot, request) = self.slot(cookie)?;
        // The memory of a write belongs to its sending until that is over.
        if request.unsent {
            return Err(Lost::Protocol("a reply to a request that was not sent whole"));
        }
        let status = request.error.map_or(Status::Ok, status_of);
        if request.command == Command::Read && status.is_ok() && !request.received.is_whole(request.range().1) {
            return Err(Lost::Protocol("a read that was answered in part"));
        }
        // A server without FUA is sent a flush after the write.
        let wants_flush = match &request.item {
            Item::Bio(bio) => flushes && bio.op().is_write() && bio.flags().contains(OpFlags::FUA) && !knows_fua,
            Item::Status(..) | Item::Report(_) => false,
        };
        if wants_flush && status.is_ok() && request.command != Command::Flush {
            self.enqueue(slot, Command::Flush);
            return Ok(());
        }
        if let Some(InFlight { item, extents, .. }) = self.slots[slot].take() {
            match item {
                Item::Bio(bio) => bio.end(status),
                Item::Status(_, _, reply) => {
                    self.questions -= 1;
                    reply.give(extents);
                }
                Item::Report(_) => {}
            }
        }
        self.free.push(slot);
        Ok(())
    }

    /// Tells the server that nothing more comes.
    fn say_goodbye(&self) {
        if self.sent > 0 {
            // It would be taken for a part of the request that is half sent.
            return;
        }
        let header = Request { flags: 0, kind: Command::Disc as u16, cookie: 0, offset: 0, length: 0 }.encode();
        // A server that has gone needs no goodbye.
        let _ = rustix::net::send(&self.socket, &header, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// The slot of the request that a cookie is of, if it is of any.
fn slot_of(cookie: u64) -> usize {
    cookie as u32 as usize
}

/// Where the data of a read goes, and the byte range that it was asked for; `None` if the cookie is no read's.
fn payload_target(slots: &[Option<InFlight>], cookie: u64) -> Option<(Segments<'_>, u64, u64)> {
    let request = slots.get(slot_of(cookie))?.as_ref().filter(|request| request.cookie == cookie)?;
    let (offset, length) = request.range();
    match &request.item {
        Item::Bio(bio) if request.command == Command::Read => Some((bio.segments(), offset, length)),
        _ => None,
    }
}

/// The status of a bio that the server answered with an error.
fn status_of(error: NbdError) -> Status {
    match error {
        NbdError::Perm => Status::ReadOnly,
        NbdError::Inval | NbdError::Overflow => Status::Invalid,
        NbdError::NoSpc => Status::NoSpace,
        NbdError::NotSup => Status::NotSupported,
        NbdError::NoMem | NbdError::Io | NbdError::Shutdown => Status::Io,
    }
}

/// The flags of a bio as those of a request; FUA only if the server knows it.
pub(super) fn request_flags(agreed: &Agreed, op: Op, flags: OpFlags) -> u16 {
    let mut wire = 0;
    if op.is_write() && flags.contains(OpFlags::FUA) && has(agreed.flags, transmission::SEND_FUA) {
        wire |= cmd_flag::FUA;
    }
    if op == Op::WriteZeroes && flags.contains(OpFlags::NO_UNMAP) {
        wire |= cmd_flag::NO_HOLE;
    }
    wire
}
