//! One thread of the server: a channel, the connections that it serves, and the loop that drives both.

use super::connection::{Connection, Interest};
use super::exports::{Client, Exports};
use super::handover::{Handed, Prepared};
use super::inflight::Engine;
use super::listener::Listener;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use udm_io::{Domain, Nanos, Waker, Woken};

/// Keys of listeners lie above those of connections.
const LISTENER: u64 = 1 << 62;
/// How long memory is kept after the last request.
const WARM: Duration = Duration::from_secs(1);
/// How long accepting pauses when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How often held back connections are looked at when nothing else happens.
const LOOK: Duration = Duration::from_secs(1);
/// How long a client may stop in the middle of a payload while others wait for the memory that it holds.
const STALL: Duration = Duration::from_secs(30);
/// Receives from one connection before the others get their turn.
const TURNS: usize = 4;

/// How often a worker looks for news before it sleeps: some 20 microseconds.
const LINGER: usize = 24;

/// What a worker is told by other threads.
pub(super) enum Command {
    /// Serve a connection.
    Adopt(OwnedFd, Client),
    /// Handle the hang-ups of clients that have closed by now, then answer.
    Reap(mpsc::Sender<()>),
    /// Hang up on the clients of an export, then answer how many there were.
    Disconnect(String, mpsc::Sender<usize>),
    /// Go on with a connection of another process.
    Take(Box<Prepared>),
    /// Answer the names of the exports that are open.
    Exports(mpsc::Sender<Vec<String>>),
    /// Take nothing new, finish what is under way; answer when nothing is.
    Pause(mpsc::Sender<()>),
    /// Go on after a pause.
    Resume,
    /// After a pause: give everything away, and end.
    HandOver(mpsc::Sender<Handed>),
    /// Refuse what is new, finish what is under way, and end; at the latest at this time.
    ShutDown(Nanos),
}

/// The side of a worker that other threads see.
pub(super) struct Handle {
    /// `None` once the worker has ended.
    commands: Mutex<Option<VecDeque<Command>>>,
    pending: AtomicBool,
    waker: Waker,
    /// Connections, those on their way to the worker included.
    pub(super) connections: AtomicUsize,
}

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Command>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the worker something and wakes it. When it has ended, what it is told is dropped: who waits for an answer
    /// finds that there will be none.
    pub(super) fn tell(&self, command: Command) {
        match &mut *self.lock() {
            Some(commands) => commands.push_back(command),
            None => return,
        }
        self.pending.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What all workers of a server share.
pub(super) struct Shared {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) max_connections: usize,
    /// Bytes of buffers that the connections of one worker may hold together.
    pub(super) memory: usize,
    /// Set once, before the first connection.
    pub(super) handles: std::sync::OnceLock<Vec<Arc<Handle>>>,
}

impl Shared {
    fn handles(&self) -> &[Arc<Handle>] {
        self.handles.get().map_or(&[], Vec::as_slice)
    }

    fn connections(&self) -> usize {
        self.handles().iter().map(|h| h.connections.load(Ordering::Relaxed)).sum()
    }

    /// Gives a connection to the worker that has the fewest.
    fn spread(&self, socket: OwnedFd, client: Client) {
        let fewest = self.handles().iter().min_by_key(|h| h.connections.load(Ordering::Relaxed));
        if let Some(handle) = fewest {
            handle.connections.fetch_add(1, Ordering::Relaxed);
            handle.tell(Command::Adopt(socket, client));
        }
    }
}

struct Slot {
    connection: Option<Box<Connection>>,
    /// Changes whenever the slot is used again, so that a late event finds nobody.
    generation: u32,
    watched: Option<Interest>,
    /// In the list of connections to look at.
    marked: bool,
}

pub(super) struct Worker {
    engine: Engine,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Connections to look at before the next sleep.
    marked: Vec<usize>,
    /// The memory of the last such list.
    spare: Vec<usize>,
    /// Connections that may hold no more for now.
    waiting: Vec<usize>,
    listeners: Vec<Listener>,
    accepting: bool,
    /// When accepting goes on after it failed.
    accept_at: Nanos,
    /// When stalled clients are looked for again.
    look_at: Nanos,
    deadline: Option<Nanos>,
    /// Nothing new is taken.
    paused: bool,
    /// Who waits for the pause.
    quiet: Option<mpsc::Sender<()>>,
    /// Hang-ups that somebody waits for.
    reaps: Vec<Reap>,
}

/// Connections whose clients have gone, by number and generation, and who waits for their end.
struct Reap {
    gone: Vec<(usize, u32)>,
    answer: mpsc::Sender<()>,
}

fn key(number: usize, generation: u32) -> u64 {
    // Slots are as many as descriptors: far below 2^30.
    (number as u64) << 32 | u64::from(generation)
}

impl Worker {
    /// A worker for the calling thread, and its handle.
    pub(super) fn new(domain: &Domain, shared: Arc<Shared>, listeners: Vec<Listener>) -> io::Result<Self> {
        let engine = Engine::new(domain, shared.memory)?;
        let handle = Arc::new(Handle {
            commands: Mutex::new(Some(VecDeque::new())),
            pending: AtomicBool::new(false),
            waker: engine.channel.waker(),
            connections: AtomicUsize::new(0),
        });
        let mut this = Self {
            engine,
            shared,
            handle,
            slots: Vec::new(),
            free: Vec::new(),
            marked: Vec::new(),
            spare: Vec::new(),
            waiting: Vec::new(),
            listeners,
            accepting: false,
            accept_at: Nanos::default(),
            look_at: Nanos::default(),
            deadline: None,
            paused: false,
            quiet: None,
            reaps: Vec::new(),
        };
        this.accept_again()?;
        Ok(this)
    }

    pub(super) fn handle(&self) -> Arc<Handle> {
        self.handle.clone()
    }

    /// Serves until told to shut down.
    pub(super) fn run(mut self) {
        let mut woken = Vec::new();
        loop {
            if self.handle.pending.swap(false, Ordering::Acquire) {
                self.commands();
            }
            self.work();
            self.answer_reaps();
            self.answer_pause();
            if self.deadline.is_some_and(|at| self.is_empty() || self.engine.channel.now() >= at) {
                return;
            }
            let timeout = self.timeout();
            woken.clear();
            if let Err(error) = self.linger(&mut woken).and_then(|()| self.sleep(timeout, &mut woken)) {
                tracing::error!("cannot wait for NBD clients: {error}");
                return;
            }
            if timeout.is_some() {
                self.tick(woken.is_empty());
            }
            for event in &woken {
                self.ready(event);
            }
        }
    }

    fn has_news(&self, woken: &[Woken]) -> bool {
        !woken.is_empty() || self.handle.pending.load(Ordering::Acquire)
    }

    /// Looks for news a few times before it sleeps: a client that has its answers sends more at once, and to be woken
    /// across CPUs costs both more than this (4 KiB random reads at depth 32: 153k a second without, 211k with, for
    /// less CPU time each). Whoever else wants the CPU gets it in between.
    fn linger(&self, woken: &mut Vec<Woken>) -> io::Result<()> {
        // With bios under way the device decides when there is news.
        let rounds = if self.engine.len() == 0 { LINGER } else { 0 };
        for _ in 0..rounds {
            std::thread::yield_now();
            self.engine.channel.wait(Some(Duration::ZERO), woken)?;
            if self.has_news(woken) {
                break;
            }
        }
        Ok(())
    }

    fn sleep(&self, timeout: Option<Duration>, woken: &mut Vec<Woken>) -> io::Result<()> {
        match self.has_news(woken) {
            true => Ok(()),
            false => self.engine.channel.wait(timeout, woken),
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn timeout(&self) -> Option<Duration> {
        let now = self.engine.channel.now();
        let until = |at: Nanos| Some(Duration::from_nanos(at.since(now)));
        if let Some(at) = self.deadline {
            return until(at);
        }
        if !self.accepting && !self.paused && !self.listeners.is_empty() {
            return until(self.accept_at);
        }
        if !self.waiting.is_empty() {
            return Some(LOOK);
        }
        (self.engine.len() == 0 && self.engine.pool.is_warm()).then_some(WARM)
    }

    /// Does what is done at times rather than at events. `idle`: nothing has happened meanwhile.
    fn tick(&mut self, idle: bool) {
        let now = self.engine.channel.now();
        if idle && self.engine.len() == 0 {
            self.engine.pool.trim();
        }
        if !self.waiting.is_empty() && now >= self.look_at {
            self.look_at = now.after(LOOK.as_nanos() as u64);
            self.end_stalled(now);
        }
        let due = !self.accepting && !self.paused && self.deadline.is_none() && now >= self.accept_at;
        if due && let Err(error) = self.accept_again() {
            tracing::warn!("cannot accept NBD clients: {error}");
        }
    }

    /// Hangs up on clients that keep others waiting for memory into which they do not send.
    fn end_stalled(&mut self, now: Nanos) {
        if self.waiting.iter().all(|n| self.slots[*n].connection.as_ref().is_none_or(|c| !c.lacks_memory(&self.engine)))
        {
            return;
        }
        let stalled =
            |connection: &Connection| connection.payload_stalled(now).is_some_and(|ns| ns > STALL.as_nanos() as u64);
        let count = self.end_where(stalled);
        if count > 0 {
            tracing::warn!("{count} NBD clients are hung up on: they stopped in the middle of a write");
        }
    }

    /// Completes, answers and goes on until there is nothing left to do but sleep.
    fn work(&mut self) {
        loop {
            self.engine.channel.poll();
            while let Some(finished) = self.engine.next_finished() {
                let number = finished.conn;
                let connection = self.slots[number].connection.as_mut().expect("a connection outlives its requests");
                connection.finish(finished, &mut self.engine);
                self.mark(number);
            }
            if self.marked.is_empty() {
                return;
            }
            self.mark_waiting();
            let in_use = self.engine.pool.in_use();
            let mut turn = std::mem::replace(&mut self.marked, std::mem::take(&mut self.spare));
            for number in turn.drain(..) {
                self.slots[number].marked = false;
                self.service(number);
            }
            self.spare = turn;
            if self.engine.pool.in_use() < in_use {
                self.mark_waiting();
            }
            if self.marked.is_empty() && !self.engine.has_completions() {
                return;
            }
        }
    }

    /// Something was freed that a connection may wait for.
    fn mark_waiting(&mut self) {
        while let Some(number) = self.waiting.pop() {
            self.mark(number);
        }
    }

    fn mark(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if !slot.marked && slot.connection.is_some() {
            slot.marked = true;
            self.marked.push(number);
        }
    }

    /// Sends what waits, goes on with what was held back, and closes a connection that is over.
    fn service(&mut self, number: usize) {
        let Some(connection) = self.slots[number].connection.as_mut() else { return };
        connection.send(&mut self.engine);
        if self.paused {
            return match connection.is_over() {
                true => self.close(number),
                false => self.watch(number),
            };
        }
        if let Err(hangup) = connection.resume(&mut self.engine, &*self.shared.exports) {
            tracing::debug!("an NBD client is hung up on: {hangup}");
            connection.end(&mut self.engine);
        }
        if connection.unsent() > 0 && !connection.interest().write {
            connection.send(&mut self.engine);
        }
        let (over, waits, held_back) = (connection.is_over(), connection.is_waiting(), connection.is_held_back());
        if over {
            return self.close(number);
        }
        if waits && !held_back {
            // Its next turn comes at once: what it watches need not change for it.
            return self.mark(number);
        }
        if held_back {
            self.waiting.push(number);
        }
        self.watch(number);
    }

    fn watch(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let Some(connection) = &slot.connection else { return };
        let mut interest = connection.interest();
        interest.read &= !self.paused;
        // A hang-up wakes whoever watches at all: nobody must watch who would not act on it.
        let wanted = (interest.read || interest.write).then_some(interest);
        if wanted == slot.watched {
            return;
        }
        let (channel, socket) = (&self.engine.channel, connection.socket());
        let key = key(number, slot.generation);
        let result = match (slot.watched, wanted) {
            (None, Some(new)) => channel.watch(socket, key, new.read, new.write),
            (Some(_), Some(new)) => channel.rewatch(socket, key, new.read, new.write),
            (_, None) => channel.unwatch(socket),
        };
        slot.watched = wanted;
        if let Err(error) = result {
            // Out of memory in the kernel; without events the connection cannot go on.
            tracing::warn!("cannot watch an NBD client: {error}");
            if let Some(connection) = &mut self.slots[number].connection {
                connection.end(&mut self.engine);
            }
        }
    }

    fn close(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let Some(connection) = slot.connection.take() else { return };
        if slot.watched.take().is_some() {
            // Closing the socket would do it as well.
            let _ = self.engine.channel.unwatch(connection.socket());
        }
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number);
        self.waiting.retain(|n| *n != number);
        connection.close(&mut self.engine);
        self.handle.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn ready(&mut self, event: &Woken) {
        if event.key >= LISTENER {
            return self.accept((event.key - LISTENER) as usize);
        }
        let (number, generation) = ((event.key >> 32) as usize, event.key as u32);
        let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.generation == generation) else { return };
        let Some(connection) = slot.connection.as_mut() else { return };
        if event.readable && !self.paused {
            for _ in 0..TURNS {
                match connection.receive(&mut self.engine, &*self.shared.exports) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(hangup) => {
                        tracing::debug!("an NBD client is hung up on: {hangup}");
                        connection.end(&mut self.engine);
                        break;
                    }
                }
            }
        }
        self.mark(number);
    }

    fn accept(&mut self, index: usize) {
        let Some(listener) = self.listeners.get(index) else { return };
        loop {
            match listener.accept() {
                Ok(Some((socket, client))) if self.shared.connections() >= self.shared.max_connections => {
                    tracing::warn!("{client} is refused: {} NBD clients are connected", self.shared.max_connections);
                    drop(socket);
                }
                Ok(Some((socket, client))) => self.shared.spread(socket, client),
                Ok(None) => return,
                Err(error) => {
                    // Most likely no descriptor is left. The listener stays readable: look away for a while.
                    tracing::warn!("cannot accept an NBD client: {error}");
                    return self.stop_accepting();
                }
            }
        }
    }

    fn stop_accepting(&mut self) {
        self.accept_at = self.engine.channel.now().after(PAUSE.as_nanos() as u64);
        if std::mem::take(&mut self.accepting) {
            for listener in &self.listeners {
                let _ = self.engine.channel.unwatch(listener.socket());
            }
        }
    }

    fn accept_again(&mut self) -> io::Result<()> {
        if !self.accepting {
            for (listener, index) in self.listeners.iter().zip(0..) {
                self.engine.channel.watch(listener.socket(), LISTENER + index, true, false)?;
            }
            self.accepting = true;
        }
        Ok(())
    }

    fn commands(&mut self) {
        let commands = self.handle.lock().as_mut().map(std::mem::take);
        for command in commands.into_iter().flatten() {
            match command {
                Command::Adopt(socket, client) => self.adopt(socket, client),
                Command::Reap(answer) => self.reap(answer),
                Command::Disconnect(name, answer) => {
                    let count = self.end_where(|connection| connection.export().as_deref() == Some(&name));
                    // Who asked may have stopped waiting.
                    let _ = answer.send(count);
                }
                Command::Exports(answer) => {
                    let connections = self.slots.iter().filter_map(|slot| slot.connection.as_ref());
                    let _ = answer.send(connections.filter_map(|c| c.export()).collect());
                }
                Command::Take(prepared) => self.take(*prepared),
                Command::Pause(answer) => {
                    self.stop_accepting();
                    (self.paused, self.quiet) = (true, Some(answer));
                    (0..self.slots.len()).for_each(|number| self.mark(number));
                }
                Command::Resume => {
                    (self.paused, self.quiet) = (false, None);
                    (0..self.slots.len()).for_each(|number| self.mark(number));
                    if let Err(error) = self.accept_again() {
                        tracing::warn!("cannot accept NBD clients: {error}");
                    }
                }
                Command::HandOver(answer) => {
                    let _ = answer.send(self.hand_over());
                }
                Command::ShutDown(deadline) => self.shut_down(deadline),
            }
        }
    }

    fn adopt(&mut self, socket: OwnedFd, client: Client) {
        if self.deadline.is_some() {
            self.handle.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let number = self.free_slot();
        self.slots[number].connection = Some(Box::new(Connection::new(number, socket, client)));
        self.mark(number);
    }

    fn free_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { connection: None, generation: 0, watched: None, marked: false });
            self.slots.len() - 1
        })
    }

    /// Goes on with a connection of another process.
    fn take(&mut self, prepared: Prepared) {
        let number = self.free_slot();
        let connection = Connection::resume_from(number, prepared, &mut self.engine);
        self.slots[number].connection = Some(Box::new(connection));
        self.mark(number);
    }

    /// Tells who waits for the pause that nothing is under way. What clients do not take of their replies goes along.
    fn answer_pause(&mut self) {
        let busy = |slot: &Slot| slot.connection.as_ref().is_some_and(|c| c.in_flight() > 0);
        if self.quiet.is_some()
            && !self.slots.iter().any(busy)
            && let Some(answer) = self.quiet.take()
        {
            let _ = answer.send(());
        }
    }

    /// Gives everything away, and ends.
    fn hand_over(&mut self) -> Handed {
        let mut handed = Handed::default();
        for listener in std::mem::take(&mut self.listeners) {
            match listener.hand_over() {
                Ok(listener) => handed.listeners.push(listener),
                Err(error) => tracing::error!("a listening socket is lost: {error}"),
            }
        }
        for number in 0..self.slots.len() {
            let slot = &mut self.slots[number];
            let Some(connection) = slot.connection.take() else { continue };
            if slot.watched.take().is_some() {
                let _ = self.engine.channel.unwatch(connection.socket());
            }
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(number);
            self.handle.connections.fetch_sub(1, Ordering::Relaxed);
            handed.connections.extend(connection.hand_over(&mut self.engine));
        }
        self.waiting.clear();
        self.deadline = Some(self.engine.channel.now());
        handed
    }

    fn end_where(&mut self, which: impl Fn(&Connection) -> bool) -> usize {
        let mut count = 0;
        for number in 0..self.slots.len() {
            let connection = self.slots[number].connection.as_mut();
            if let Some(connection) = connection.filter(|connection| which(connection)) {
                connection.end(&mut self.engine);
                count += 1;
                self.mark(number);
            }
        }
        count
    }

    fn shut_down(&mut self, deadline: Nanos) {
        self.stop_accepting();
        self.listeners.clear();
        self.deadline = Some(deadline);
        for number in 0..self.slots.len() {
            if let Some(connection) = &mut self.slots[number].connection {
                connection.shut_down();
                // What was sent before is still received, and refused.
                while let Ok(true) = connection.receive(&mut self.engine, &*self.shared.exports) {}
                connection.finish_input(&mut self.engine, &*self.shared.exports);
                self.mark(number);
            }
        }
    }

    /// Finds the connections whose clients have closed. Their hang-ups are handled like any event; the answer is
    /// sent when the last of them is gone.
    fn reap(&mut self, answer: mpsc::Sender<()>) {
        let used: Vec<usize> = (0..self.slots.len()).filter(|n| self.slots[*n].connection.is_some()).collect();
        let sockets = used.iter().filter_map(|n| self.slots[*n].connection.as_ref());
        let mut polled: Vec<PollFd<'_>> =
            sockets.map(|c| PollFd::from_borrowed_fd(c.socket(), PollFlags::RDHUP)).collect();
        let mut gone = Vec::new();
        if poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() {
            let hung_up = |p: &PollFd<'_>| p.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
            let which = used.iter().zip(&polled).filter(|(_, p)| hung_up(p));
            gone.extend(which.map(|(n, _)| (*n, self.slots[*n].generation)));
        }
        self.reaps.push(Reap { gone, answer });
    }

    fn answer_reaps(&mut self) {
        let slots = &self.slots;
        self.reaps.retain_mut(|Reap { gone, answer }| {
            gone.retain(|(number, generation)| slots[*number].generation == *generation);
            if gone.is_empty() {
                // Who asked may have stopped waiting.
                let _ = answer.send(());
            }
            !gone.is_empty()
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let unheard = self.handle.lock().take();
        drop(unheard);
        for number in 0..self.slots.len() {
            let Some(connection) = &mut self.slots[number].connection else { continue };
            if connection.in_flight() == 0 {
                self.close(number);
                continue;
            }
            // The device still works for it: its export stays open, as its bios are.
            tracing::warn!("{} requests of an NBD client are left behind", connection.in_flight());
            connection.hang_up();
            std::mem::forget(self.slots[number].connection.take());
        }
    }
}
