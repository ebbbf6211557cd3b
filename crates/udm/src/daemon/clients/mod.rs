//! The clients of `control.sock` and `udm.sock`.
//!
//! One thread waits for all of them. It collects a request until it is complete, gives it to a thread of the pool, and
//! sends the answer as the client takes it. So a client that is idle, sends half a request, or does not read costs some
//! memory and no thread.
//!
//! # When resources run out
//! - *Descriptors*: some are reserved. When no others are left, the client that has been idle longest is disconnected
//!   (it connects again for its next request), and then the reserved ones are used. They remain usable even if the
//!   limit is lowered.
//! - *Connections*: the same at the limit; when no client is idle, the new one is refused with a message.
//! - *Threads*: some are reserved for commands that do not wait, two of them from the start.
//!
//! # How it ends
//! [`Clients::stop`] takes no request any more and lets those under way finish. After that every conversation is
//! between two requests: it can go on in another daemon ([`Clients::leave`]), or is told that this one ends
//! ([`Clients::refuse`]). Every client that has connected by then is told, so that none of them starts another daemon.

mod connection;
mod event_loop;
mod pool;
mod results;
mod spare;

pub(super) use event_loop::EventLoop;

use super::conversation::{Conversation, Done, Left, Task};
use super::socket::{Listener, Peer};
use super::stop::Ending;
use connection::{Collected, Connection};
use results::{Promise, WAKE};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as Os;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use udm_base::Errno;

/// The most clients at a time.
const MAX_CLIENTS: usize = 4096;
/// Of these, the most without the right to use this daemon: they are told so and disconnected.
const MAX_STRANGERS: usize = 64;
/// Half requests and untaken answers of all clients together.
const MAX_HELD: usize = 256 << 20;
/// A client that has just connected is about to send a request.
const JUST: Duration = Duration::from_secs(1);
/// A client that takes nothing of its answer for this long does not delay the end of the daemon.
const TAKES: Duration = Duration::from_secs(1);
/// How often late clients are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// The most connections accepted in a turn.
const BURST: usize = 64;

const DIED: &str = "the thread of the clients has died";

const STOP: u64 = 1;
const CONTROL: u64 = 2;
const SECOND: u64 = 3;
/// The first number of a client.
const FIRST: u64 = 4;

/// Does what a client asks for; see [`commands`](super::commands).
pub(super) type Commands = dyn Fn(&UnixStream, Peer, Task) -> Done + Send + Sync;

/// The clients, and the sockets that they connect to.
pub(super) struct Clients {
    commands: Arc<Commands>,
    ending: Arc<Ending>,
    control: Listener,
    second: Listener,
    event_loop: EventLoop,
    all: HashMap<u64, Connection>,
    next: u64,
    /// New clients are accepted as they come.
    accepting: bool,
    /// No request is begun.
    stopped: bool,
    /// The lack of descriptors has been logged.
    short: bool,
    /// A client may have to be disconnected, or accepted, after a time.
    restless: bool,
    /// When that was last checked.
    looked: Instant,
}

/// Clients that a thread serves.
pub(super) struct Serving(Receiver<Clients>);

impl Serving {
    /// Waits until the daemon stops.
    pub(super) fn join(self) -> Result<Clients, String> {
        self.0.recv().map_err(|_| DIED.to_owned())
    }
}

impl Clients {
    /// For a daemon that has everything else.
    pub(super) fn new(
        commands: Arc<Commands>,
        ending: Arc<Ending>,
        control: Listener,
        second: Listener,
        event_loop: EventLoop,
    ) -> Result<Self, String> {
        for (listener, id) in [(&control, CONTROL), (&second, SECOND)] {
            epoll::add(&event_loop.epoll, listener.as_fd(), EventData::new_u64(id), EventFlags::empty())
                .map_err(|error| format!("cannot wait for clients: {error}"))?;
        }
        Ok(Self {
            commands,
            ending,
            control,
            second,
            event_loop,
            all: HashMap::new(),
            next: FIRST,
            accepting: false,
            stopped: true,
            short: false,
            restless: false,
            looked: Instant::now(),
        })
    }

    /// The rest, when the sockets belong to another daemon.
    pub(super) fn into_desk(self) -> EventLoop {
        for (_, listener) in self.sockets() {
            listener.keep();
            // The poller would go on reporting a socket that others have as well.
            let _ = epoll::delete(&self.event_loop.epoll, listener.as_fd());
        }
        self.event_loop
    }

    /// The sockets, and their names.
    pub(super) fn sockets(&self) -> [(&'static str, &Listener); 2] {
        [("control.sock", &self.control), ("udm.sock", &self.second)]
    }

    /// Conversations that have left off, here or in another daemon.
    pub(super) fn take(&mut self, all: Vec<Left>) {
        let now = Instant::now();
        for Left { stream, conversation, input, output } in all {
            match Peer::of(&stream) {
                Ok(peer) => {
                    let mut client = Connection::new(stream, peer, conversation, input, now);
                    client.answer(output, false, now);
                    self.add(client);
                }
                Err(error) => warn!("a client is hung up on: {error}"),
            }
        }
    }

    /// Makes the event loop's thread serve until the daemon stops.
    pub(super) fn serve(self) -> Result<Serving, String> {
        let (back, clients) = channel();
        let thread = self.event_loop.thread.clone();
        let mut serving = self;
        let work = move || {
            serving.run();
            let _ = back.send(serving);
        };
        thread.send(Box::new(work)).map_err(|_| DIED.to_owned())?;
        Ok(Serving(clients))
    }

    fn run(&mut self) {
        if let Err(error) =
            epoll::add(&self.event_loop.epoll, self.ending.stop().fd(), EventData::new_u64(STOP), EventFlags::IN)
        {
            warn!("the daemon's end is looked for every second: {error}");
        }
        self.stopped = false;
        self.accept_from_now_on(true);
        // Requests that came while none was begun.
        let ids: Vec<u64> = self.all.keys().copied().collect();
        ids.into_iter().for_each(|id| self.look_at(id));
        while !self.ending.stop().is_set() {
            self.turn(self.restless.then_some(LOOK));
        }
        self.stopped = true;
        self.accept_from_now_on(false);
        let _ = epoll::delete(&self.event_loop.epoll, self.ending.stop().fd());
    }

    /// Lets requests under way finish, for a limited time. Returns how many are left. Answers may not have been sent
    /// yet.
    pub(super) fn stop(&mut self, patience: Duration) -> usize {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.all.values().filter(|client| client.busy).count();
            let time = deadline.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() {
                return left;
            }
            self.turn(Some(time.min(LOOK)));
        }
    }

    /// Sends answers as long as clients take some, for a limited time.
    fn let_answers_go(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        loop {
            let now = Instant::now();
            let takes = |client: &Connection| client.has_output() && client.waits_for(now) < TAKES;
            if now >= deadline || !self.all.values().any(takes) {
                return;
            }
            self.turn(Some(TAKES));
        }
    }

    /// All conversations, where they can go on.
    pub(super) fn leave(&mut self) -> Vec<Left> {
        let clients = std::mem::take(&mut self.all).into_values();
        let mut left = Vec::new();
        for client in clients {
            let _ = epoll::delete(&self.event_loop.epoll, &*client.stream);
            let pid = client.peer.pid;
            let Some((stream, conversation, [input, output])) = client.into_parts() else { continue };
            match Arc::try_unwrap(stream) {
                Ok(stream) => left.push(Left { stream, conversation, input, output }),
                Err(_) => warn!("process {pid} is hung up on: it is still being served"),
            }
        }
        left
    }

    /// Tells every connected client that the daemon ends, and hangs up. A later client finds no socket.
    pub(super) fn refuse(mut self, why: &str, patience: Duration) {
        self.let_answers_go(patience);
        self.control.unlink();
        self.second.unlink();
        let now = Instant::now();
        for conversation in [Conversation::CONTROL, Conversation::SECOND] {
            loop {
                let accepted = self.listener_of(&conversation).accept();
                match accepted {
                    Ok((stream, peer)) => {
                        self.add(Connection::new(stream, peer, conversation.clone(), Vec::new(), now))
                    }
                    Err(Os::INTR | Os::CONNABORTED) => {}
                    Err(error)
                        if is_short(error) && self.listener_of(&conversation).has_client() && self.make_room(now) => {}
                    Err(_) => break,
                }
            }
        }
        let mut told = 0;
        for (_, mut client) in self.all.drain() {
            if !client.busy && !client.has_output() {
                client.refuse(Errno::ESHUTDOWN, why, now);
                client.send(now);
                told += 1;
            }
        }
        debug!("{told} clients are told that the daemon ends");
    }

    fn listener_of(&self, conversation: &Conversation) -> &Listener {
        match conversation {
            Conversation::Control { .. } => &self.control,
            Conversation::Second { .. } => &self.second,
        }
    }

    fn accept_from_now_on(&mut self, accepting: bool) {
        let flags = if accepting { EventFlags::IN } else { EventFlags::empty() };
        for (listener, id) in [(&self.control, CONTROL), (&self.second, SECOND)] {
            let _ = epoll::modify(&self.event_loop.epoll, listener.as_fd(), EventData::new_u64(id), flags);
        }
        self.accepting = accepting;
    }

    /// Waits for an event, for a limited time, and handles it.
    fn turn(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(BURST);
        match epoll::wait(&self.event_loop.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Os::INTR) => {}
            Err(error) => warn!("cannot wait for clients: {error}"),
        }
        for Event { data, .. } in events {
            match data.u64() {
                WAKE => self.take_results(),
                STOP => {}
                CONTROL => self.accept(&Conversation::CONTROL),
                SECOND => self.accept(&Conversation::SECOND),
                id => self.look_at(id),
            }
        }
        if self.restless && self.looked.elapsed() >= LOOK {
            self.tidy_up();
        }
    }

    fn take_results(&mut self) {
        let all = self.event_loop.results.take();
        let now = Instant::now();
        for (id, done) in all {
            let Some(client) = self.all.get_mut(&id) else { continue };
            client.busy = false;
            match done {
                Done::Answer { bytes, ends, greeted } => {
                    if let Conversation::Second { greeted: known } = &mut client.conversation {
                        *known = greeted;
                    }
                    client.answer(bytes, ends, now);
                    self.look_at(id);
                    self.bound_answers(id);
                }
                Done::Again(request) => {
                    if let Conversation::Control { pending, .. } = &mut client.conversation {
                        *pending = Some(request);
                    }
                    self.look_at(id);
                }
                Done::Taken | Done::Broken => self.drop_client(id),
            }
        }
    }

    /// Does what can be done for a client: sends, receives, begins a request.
    fn look_at(&mut self, id: u64) {
        let now = Instant::now();
        let Some(client) = self.all.get_mut(&id).filter(|client| !client.busy) else { return };
        if !client.send(now) {
            return self.drop_client(id);
        }
        if client.has_output() {
            return self.wait_for(id, EventFlags::OUT);
        }
        if self.stopped {
            // What it sends from now on is for later, and stays in the socket.
            return;
        }
        if let Some(task) = client.conversation.take_pending() {
            return self.begin(id, task);
        }
        let before = client.held();
        match client.collect(now) {
            Collected::Whole(task) => self.begin(id, task),
            Collected::HungUp => self.drop_client(id),
            Collected::Broken(error) => {
                debug!("process {}: {error}", client.peer.pid);
                client.refuse(Errno::EPROTO, &error.to_string(), now);
                self.look_at(id);
            }
            Collected::Some => {
                let grown = client.held() > before;
                if grown && self.all.values().map(Connection::held).sum::<usize>() > MAX_HELD {
                    self.refuse_one(id, Errno::EAGAIN, "too much of what clients send and do not take is held already");
                }
                self.wait_for(id, EventFlags::IN);
            }
        }
    }

    /// Disconnects the clients that have taken nothing for longest, if with this answer too much is held.
    fn bound_answers(&mut self, id: u64) {
        if self.all.get(&id).is_none_or(|client| !client.has_output()) {
            return;
        }
        let mut held: usize = self.all.values().map(Connection::held).sum();
        while held > MAX_HELD {
            let now = Instant::now();
            let slow = self.all.iter().filter(|(_, client)| client.has_output());
            let Some((id, client)) = slow.max_by_key(|(_, client)| client.waits_for(now)) else { return };
            let (id, pid) = (*id, client.peer.pid);
            held -= client.held();
            warn!("process {pid} is hung up on: too much of what clients do not take is held already");
            self.drop_client(id);
        }
    }

    fn refuse_one(&mut self, id: u64, errno: Errno, why: &str) {
        if let Some(client) = self.all.get_mut(&id) {
            warn!("process {}: {why}", client.peer.pid);
            client.refuse(errno, why, Instant::now());
            self.look_at(id);
        }
    }

    /// One-shot: input that comes while a request is under way is not looked at.
    fn wait_for(&mut self, id: u64, what: EventFlags) {
        let Some(client) = self.all.get(&id) else { return };
        self.restless |= !client.is_idle();
        let what = what | EventFlags::ONESHOT;
        if let Err(error) = epoll::modify(&self.event_loop.epoll, &*client.stream, EventData::new_u64(id), what) {
            warn!("process {} is hung up on: {error}", client.peer.pid);
            self.drop_client(id);
        }
    }

    /// Gives a request to a thread.
    fn begin(&mut self, id: u64, task: Task) {
        let Some(client) = self.all.get_mut(&id) else { return };
        client.busy = true;
        let (long, commands, peer) = (task.may_wait(), self.commands.clone(), client.peer);
        let (stream, results) = (client.stream.clone(), self.event_loop.results.clone());
        let work = move || {
            let mut promise = Promise::new(id, results);
            promise.done = Some(commands(&stream, peer, task));
            // Before the result is seen: then nobody else has it.
            drop(stream);
        };
        if !self.event_loop.pool.run(Box::new(work), long) {
            client.busy = false;
            let why = "too many commands that wait are under way; `udm daemon --status` lists them";
            self.refuse_one(id, Errno::EAGAIN, why);
        }
    }

    fn accept(&mut self, conversation: &Conversation) {
        let now = Instant::now();
        for _ in 0..BURST {
            if !self.accepting {
                return;
            }
            match self.listener_of(conversation).accept() {
                Ok((stream, peer)) => self.welcome(stream, peer, conversation.clone(), now),
                Err(Os::AGAIN) => return,
                Err(Os::INTR | Os::CONNABORTED) => {}
                // The system looks for a descriptor before it looks for a client.
                Err(error) if is_short(error) && !self.listener_of(conversation).has_client() => return,
                Err(error) if is_short(error) => {
                    if !std::mem::replace(&mut self.short, true) {
                        self.restless = true;
                        warn!(
                            "clients find no descriptor ({error}): those that are kept are used, and idle ones hung up on"
                        );
                    }
                    if !self.make_room(now) {
                        // Until a client goes; and another look every second.
                        self.accept_from_now_on(false);
                        self.restless = true;
                    }
                }
                Err(error) => {
                    warn!("a client is lost: {error}");
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream, peer: Peer, conversation: Conversation, now: Instant) {
        let mut client = Connection::new(stream, peer, conversation, Vec::new(), now);
        if !peer.is_allowed() && self.all.values().filter(|client| !client.peer.is_allowed()).count() >= MAX_STRANGERS {
            return;
        }
        if self.all.len() >= MAX_CLIENTS && !self.drop_longest_idle(now, Duration::ZERO) {
            client.refuse(
                Errno::EMFILE,
                &format!("{MAX_CLIENTS} clients are there, and each waits for an answer"),
                now,
            );
            client.send(now);
            return;
        }
        self.add(client);
    }

    fn add(&mut self, client: Connection) {
        let id = self.next;
        self.next += 1;
        self.restless |= !client.peer.is_allowed() || !client.is_idle();
        // The first look is at the next event, which comes at once if there is input already.
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        match epoll::add(&self.event_loop.epoll, &*client.stream, EventData::new_u64(id), flags) {
            Ok(()) => drop(self.all.insert(id, client)),
            Err(error) => warn!("process {} is hung up on: {error}", client.peer.pid),
        }
    }

    fn drop_client(&mut self, id: u64) {
        if let Some(client) = self.all.remove(&id) {
            let _ = epoll::delete(&self.event_loop.epoll, &*client.stream);
            // The thread that has served it may still be releasing it.
            if let Ok(stream) = Arc::try_unwrap(client.stream) {
                self.event_loop.spare.recycle(stream.into());
            }
            self.event_loop.spare.fill();
            if !self.accepting && !self.stopped {
                self.accept_from_now_on(true);
            }
        }
    }

    /// Makes sure that there is a descriptor; false when nothing can be given up.
    fn make_room(&mut self, now: Instant) -> bool {
        self.drop_longest_idle(now, JUST)
            || self.event_loop.spare.give_up()
            || self.drop_longest_idle(now, Duration::ZERO)
    }

    /// Disconnects the client that has been idle longest, if that is long enough.
    fn drop_longest_idle(&mut self, now: Instant, at_least: Duration) -> bool {
        let idle = self.all.iter().filter(|(_, client)| client.is_idle() && client.waits_for(now) >= at_least);
        let Some(id) = idle.max_by_key(|(_, client)| client.waits_for(now)).map(|(id, _)| *id) else { return false };
        // Without refilling the reserve: the descriptor is needed now.
        if let Some(client) = self.all.remove(&id) {
            let _ = epoll::delete(&self.event_loop.epoll, &*client.stream);
        }
        true
    }

    /// Disconnects late clients, and refills the reserve.
    fn tidy_up(&mut self) {
        let now = Instant::now();
        let late: Vec<(u64, String)> = self.all.iter().filter_map(|(id, c)| Some((*id, c.is_late(now)?))).collect();
        for (id, why) in late {
            match self.all.get_mut(&id) {
                Some(client) if !client.has_output() => {
                    client.refuse(Errno::ETIMEDOUT, &why, now);
                    client.send(now);
                }
                _ => {}
            }
            debug!("a client is hung up on: {why}");
            self.drop_client(id);
        }
        if !self.accepting && !self.stopped {
            self.accept_from_now_on(true);
        }
        self.short = !self.event_loop.spare.fill();
        (self.looked, self.restless) = (now, self.short || self.all.values().any(Connection::may_be_late));
    }
}

/// Whether a client could be accepted if others were disconnected.
fn is_short(error: Os) -> bool {
    matches!(error, Os::MFILE | Os::NFILE | Os::NOBUFS | Os::NOMEM)
}

impl Listener {
    /// Whether a client has connected that was not accepted.
    fn has_client(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// A client that has connected, and its identity. Does not block.
    fn accept(&self) -> Result<(UnixStream, Peer), Os> {
        let stream: UnixStream = rustix::net::accept_with(self.as_fd(), rustix::net::SocketFlags::CLOEXEC)?.into();
        let peer = Peer::of(&stream).map_err(|error: io::Error| Os::from_io_error(&error).unwrap_or(Os::IO))?;
        Ok((stream, peer))
    }
}
