//! The clients of `control.sock` and `udm.sock`.
//!
//! One thread waits for all of them. It collects a request until it is whole, gives it to a thread of the pool, and
//! sends the answer as the client takes it. So who is idle, sends half a request, or does not read costs some memory
//! and no thread.
//!
//! # What there is when there is not enough
//! - *Descriptors*: some are kept. When no others are left, the client that has been idle longest is hung up on (it
//!   connects again when it has something to ask), and then those that are kept are used up. They are of use whatever
//!   the limit is lowered to.
//! - *Connections*: at the limit the same; when none is idle, the new one is told.
//! - *Threads*: some are kept for commands that do not wait, and two whatever the system says.
//!
//! # How it ends
//! [`Clients::stop`] takes no request any more and lets those under way finish. After it every conversation is between
//! two requests: it can go on in another daemon ([`Clients::leave`]), or is told that this one ends
//! ([`Clients::refuse`]), which nobody who has connected by then is spared: so that none of them starts another daemon.

mod connection;
mod event_loop;
mod pool;
mod spare;

pub(super) use connection::encoded;
pub(super) use event_loop::EventLoop;

use super::Daemon;
use super::conversation::{Conversation, Done, Left};
use super::socket::{Listener, Peer};
use connection::{Collected, Connection};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as Os;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use udm_base::Errno;

/// Clients at a time.
const MAX_CLIENTS: usize = 4096;
/// Of these, such that may not use this daemon: they are told, and go.
const MAX_STRANGERS: usize = 64;
/// Half requests and untaken answers of all clients together.
const MAX_HELD: usize = 256 << 20;
/// One that has just connected is about to ask.
const JUST: Duration = Duration::from_secs(1);
/// Who takes nothing of an answer for so long does not keep a daemon from ending.
const TAKES: Duration = Duration::from_secs(1);
/// How often it is looked who is late.
const LOOK: Duration = Duration::from_secs(1);
/// Accepted in a turn.
const BURST: usize = 64;

const DIED: &str = "the thread of the clients has died";

const WAKE: u64 = 0;
const STOP: u64 = 1;
const CONTROL: u64 = 2;
const SECOND: u64 = 3;
/// The first number of a client.
const FIRST: u64 = 4;

/// What threads of the pool have done, and how they say so.
struct Results {
    done: Mutex<Vec<(u64, Done)>>,
    wake: OwnedFd,
}

impl Results {
    fn put(&self, id: u64, done: Done) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((id, done));
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request under way: whatever becomes of its thread, there is a result.
struct Promise {
    id: u64,
    results: Arc<Results>,
    done: Option<Done>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.results.put(self.id, self.done.take().unwrap_or(Done::Broken));
    }
}

/// The clients, and the sockets that they come by.
pub(super) struct Clients {
    daemon: Arc<Daemon>,
    control: Listener,
    second: Listener,
    event_loop: EventLoop,
    all: HashMap<u64, Connection>,
    next: u64,
    /// New clients are accepted as they come.
    accepting: bool,
    /// No request is begun.
    stopped: bool,
    /// It was said that descriptors are short.
    short: bool,
    /// Somebody may have to be hung up on, or let in, after a time.
    restless: bool,
    /// When that was looked at.
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
    /// Of a daemon that has everything else.
    pub(super) fn new(
        daemon: Arc<Daemon>,
        control: Listener,
        second: Listener,
        event_loop: EventLoop,
    ) -> Result<Self, String> {
        for (listener, id) in [(&control, CONTROL), (&second, SECOND)] {
            epoll::add(&event_loop.epoll, listener.as_fd(), EventData::new_u64(id), EventFlags::empty())
                .map_err(|error| format!("cannot wait for clients: {error}"))?;
        }
        Ok(Self {
            daemon,
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

    /// What is left when the sockets are another's.
    pub(super) fn into_desk(self) -> EventLoop {
        for (_, listener) in self.sockets() {
            listener.keep();
            // It would go on to tell of a socket that others have as well.
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

    /// Has the event loop's thread serve, until the daemon stops.
    pub(super) fn serve(self) -> Result<Serving, String> {
        let (back, clients) = channel();
        let thread = self.event_loop.thread.clone();
        thread.send((self, back)).map_err(|_| DIED.to_owned())?;
        Ok(Serving(clients))
    }

    fn run(&mut self) {
        if let Err(error) =
            epoll::add(&self.event_loop.epoll, self.daemon.stop.fd(), EventData::new_u64(STOP), EventFlags::IN)
        {
            warn!("the daemon's end is looked for every second: {error}");
        }
        self.stopped = false;
        self.accept_from_now_on(true);
        // What came while nothing was begun.
        let ids: Vec<u64> = self.all.keys().copied().collect();
        ids.into_iter().for_each(|id| self.look_at(id));
        while !self.daemon.stop.is_set() {
            self.turn(self.restless.then_some(LOOK));
        }
        self.stopped = true;
        self.accept_from_now_on(false);
        let _ = epoll::delete(&self.event_loop.epoll, self.daemon.stop.fd());
    }

    /// Lets requests under way finish, at most so long. Returns how many are left. Their answers may not have gone.
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

    /// Lets answers go, as long as somebody takes some, and at most so long.
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

    /// Tells everybody who has connected that the daemon ends, and hangs up. Who connects later finds no socket.
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

    /// Waits for something to happen, at most so long, and does what follows.
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
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event_loop.results.wake, &mut count);
        let all = std::mem::take(&mut *self.event_loop.results.done.lock().unwrap_or_else(PoisonError::into_inner));
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
            // What it sends from now on is for later, and lies in the socket.
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

    /// Hangs up on those who have taken nothing for longest, when too much is held since the answer to this one.
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

    /// Once: what comes while a request is under way is not looked at.
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
    fn begin(&mut self, id: u64, task: super::conversation::Task) {
        let Some(client) = self.all.get_mut(&id) else { return };
        client.busy = true;
        let (long, daemon, peer) = (task.may_wait(), self.daemon.clone(), client.peer);
        let (stream, results) = (client.stream.clone(), self.event_loop.results.clone());
        let work = move || {
            let mut promise = Promise { id, results, done: None };
            promise.done = Some(daemon.perform(&stream, peer, task));
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
                        // Until somebody goes; and another look every second.
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

    fn welcome(
        &mut self,
        stream: std::os::unix::net::UnixStream,
        peer: Peer,
        conversation: Conversation,
        now: Instant,
    ) {
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
        // The first look is when something comes; what has come already tells at once.
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        match epoll::add(&self.event_loop.epoll, &*client.stream, EventData::new_u64(id), flags) {
            Ok(()) => drop(self.all.insert(id, client)),
            Err(error) => warn!("process {} is hung up on: {error}", client.peer.pid),
        }
    }

    fn drop_client(&mut self, id: u64) {
        if let Some(client) = self.all.remove(&id) {
            let _ = epoll::delete(&self.event_loop.epoll, &*client.stream);
            // The thread that has served it may still be letting go of it.
            if let Ok(stream) = Arc::try_unwrap(client.stream) {
                self.event_loop.spare.recycle(stream.into());
            }
            self.event_loop.spare.fill();
            if !self.accepting && !self.stopped {
                self.accept_from_now_on(true);
            }
        }
    }

    /// Sees to it that there is a descriptor; false when there is nothing that could be given up.
    fn make_room(&mut self, now: Instant) -> bool {
        self.drop_longest_idle(now, JUST)
            || self.event_loop.spare.give_up()
            || self.drop_longest_idle(now, Duration::ZERO)
    }

    /// Hangs up on the client that has been idle longest, if it has been for so long.
    fn drop_longest_idle(&mut self, now: Instant, at_least: Duration) -> bool {
        let idle = self.all.iter().filter(|(_, client)| client.is_idle() && client.waits_for(now) >= at_least);
        let Some(id) = idle.max_by_key(|(_, client)| client.waits_for(now)).map(|(id, _)| *id) else { return false };
        // Without filling up what is kept: it is needed now.
        if let Some(client) = self.all.remove(&id) {
            let _ = epoll::delete(&self.event_loop.epoll, &*client.stream);
        }
        true
    }

    /// Hangs up on those who are late, and takes back what was given up.
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

/// Whether a client could be accepted if others went.
fn is_short(error: Os) -> bool {
    matches!(error, Os::MFILE | Os::NFILE | Os::NOBUFS | Os::NOMEM)
}

impl Listener {
    /// Whether somebody has connected who was not accepted.
    fn has_client(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// A client that has connected, and who it is. Does not block.
    fn accept(&self) -> Result<(std::os::unix::net::UnixStream, Peer), Os> {
        let stream: std::os::unix::net::UnixStream =
            rustix::net::accept_with(self.as_fd(), rustix::net::SocketFlags::CLOEXEC)?.into();
        let peer = Peer::of(&stream).map_err(|error: io::Error| Os::from_io_error(&error).unwrap_or(Os::IO))?;
        Ok((stream, peer))
    }
}
