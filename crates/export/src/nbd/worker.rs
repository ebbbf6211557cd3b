//! One thread of the server: a channel, the connections that it serves, and the loop that drives both.

mod late;

use super::connection::{Connection, Interest};
use super::handover::{Handed, Prepared};
use super::inflight::Engine;
use super::shared::{Admission, Handle, Load, Shared};
use super::turns::Turns;
use crate::exports::Client;
use crate::listener::{Listener, hung_up};
use crate::slots::Slots;
use crate::worker::deadline::Due;
use crate::worker::{Rest, Rested, Serve, Turn};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use udm_io::{Channel, Domain, Extent, Nanos, Woken};

/// Keys of listeners lie above those of connections.
const LISTENER: u64 = 1 << 62;
/// How often memory that is not used any more is given back.
const WARM: Duration = Duration::from_secs(1);
/// How long accepting pauses when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How often clients that do not get on, and devices that do not answer, are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Receives from one connection before the others get their turn.
const TURNS: usize = 4;
/// What is started before the sockets are looked at again, as bytes.
const ROUND: usize = 1024 * 1024;
/// Receives from one connection when the server shuts down.
const LAST_RECEIVES: usize = 64;
/// Connections that are accepted at a time.
const ACCEPTS: usize = 64;

/// How often a worker looks for news before it sleeps: some 20 microseconds. A client that has its answers sends more
/// at once (4 KiB random reads at depth 32: 153k a second without, 211k with, for less CPU time each).
const LINGER: u32 = 24;

/// What a worker is told.
pub(super) enum Command {
    /// Serve a connection, or tell it why not.
    Adopt(OwnedFd, Client, Option<String>),
    /// Handle the hang-ups of clients that have closed by now, then answer.
    Reap(mpsc::Sender<()>),
    /// Hang up on the clients of an export, then answer how many there were.
    Disconnect(String, mpsc::Sender<usize>),
    /// Go on with a connection of another process.
    Take(Box<Prepared>),
    /// Answer the names of the exports that are open.
    Exports(mpsc::Sender<Vec<String>>),
    /// After a pause: give everything away, and end.
    HandOver(mpsc::Sender<Handed>),
}

struct Slot {
    connection: Box<Connection>,
    /// No other has had it lately, so that a late event finds nobody.
    generation: u32,
    watched: Option<Interest>,
    /// In the list of connections to look at.
    marked: bool,
    /// In the line of those whose long requests go on.
    in_line: bool,
}

pub(super) struct Worker {
    engine: Engine,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    slots: Slots<Slot>,
    /// That of the last connection.
    generation: u32,
    /// Connections to look at before the next sleep.
    marked: VecDeque<u32>,
    /// Connections with long requests that may go on.
    turns: Turns,
    /// Connections that wait for memory that others hold.
    waiting: Vec<u32>,
    /// How much was held when they were looked at last.
    used: usize,
    /// Connections that negotiate, by number and generation.
    talking: VecDeque<(u32, u32)>,
    listeners: Vec<Listener>,
    /// A descriptor that is given up for a moment when there is no other.
    spare: Option<OwnedFd>,
    accepting: bool,
    /// When accepting goes on after it failed.
    accept_at: Nanos,
    /// When clients and devices that do not get on are looked for again.
    look_at: Nanos,
    /// When memory is looked at again.
    settle_at: Nanos,
    deadline: Option<Nanos>,
    /// Nothing new is taken.
    paused: bool,
    /// Answers that wait until connections whose clients have gone, by number and generation, are closed.
    reaps: Due<Vec<(u32, u32)>>,
}

fn key(number: u32, generation: u32) -> u64 {
    // Slots are as many as descriptors: far below 2^30.
    u64::from(number) << 32 | u64::from(generation)
}

impl Worker {
    /// A worker for the calling thread, and its handle.
    pub(super) fn new(domain: &Domain, shared: Arc<Shared>, listeners: Vec<Listener>) -> io::Result<Self> {
        let engine = Engine::new(domain, shared.memory)?;
        let handle = Arc::new(Handle::new(&engine.channel, Load::default()));
        let paused = shared.paused;
        let mut this = Self {
            engine,
            shared,
            handle,
            slots: Slots::default(),
            generation: 0,
            marked: VecDeque::new(),
            turns: Turns::default(),
            waiting: Vec::new(),
            used: 0,
            talking: VecDeque::new(),
            listeners,
            spare: None,
            accepting: false,
            accept_at: Nanos::default(),
            look_at: Nanos::default(),
            settle_at: Nanos::default(),
            deadline: None,
            paused,
            reaps: Due::default(),
        };
        if !paused {
            this.accept_again()?;
        }
        Ok(this)
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
        if self.looks() {
            return Some(LOOK);
        }
        self.engine.pool.is_warm().then_some(WARM)
    }

    /// Whether there is somebody to look after who may not get on.
    fn looks(&self) -> bool {
        !self.waiting.is_empty() || !self.talking.is_empty() || self.engine.is_asking()
    }

    /// Does what is done at times rather than at events. `idle`: nothing has happened meanwhile.
    fn tick(&mut self, idle: bool) {
        let now = self.engine.channel.now();
        if idle && self.engine.len() == 0 {
            self.engine.pool.trim();
        } else if now >= self.settle_at {
            self.settle_at = now.after(WARM.as_nanos() as u64);
            self.engine.pool.settle();
        }
        if self.looks() && now >= self.look_at {
            self.look_at = now.after(LOOK.as_nanos() as u64);
            self.look(now);
        }
        let due = !self.accepting && !self.paused && self.deadline.is_none() && now >= self.accept_at;
        if due && let Err(error) = self.accept_again() {
            tracing::warn!("cannot accept NBD clients: {error}");
        }
    }

    fn answered(&mut self, number: u32, long: u32, extents: &[Extent]) {
        if let Some(slot) = self.slots.get_mut(number) {
            slot.connection.answered(long, extents, &mut self.engine);
            self.mark(number);
        }
    }

    /// Completes, answers and goes on, as much as is done before sockets are looked at again. Whether there is more to
    /// do: what is short comes first, long requests have what is left of the round, in turns.
    fn work(&mut self) -> bool {
        let start = self.engine.cost();
        loop {
            self.engine.channel.poll();
            while let Some(finished) = self.engine.next_finished() {
                let number = finished.target.conn;
                // It outlives its requests.
                self.slots[number].connection.finish(finished, &mut self.engine);
                self.mark(number);
            }
            for _ in 0..self.marked.len() {
                if self.engine.cost().wrapping_sub(start) >= ROUND {
                    break;
                }
                let Some(number) = self.marked.pop_front() else { break };
                self.service(number);
            }
            self.go_on(start);
            // A device may have answered at once.
            while let Some((number, long, extents)) = self.engine.next_answer() {
                self.answered(number, long, &extents);
            }
            let used = self.engine.pool.budget.used();
            if used < std::mem::replace(&mut self.used, used) {
                self.mark_waiting();
            }
            if self.engine.cost().wrapping_sub(start) >= ROUND {
                return true;
            }
            if self.marked.is_empty() && !self.engine.has_completions() {
                return false;
            }
        }
    }

    /// Goes on with long requests, those of one connection after those of another, until the round is over.
    fn go_on(&mut self, start: usize) {
        while !self.paused && self.engine.cost().wrapping_sub(start) < ROUND {
            let Some(number) = self.turns.first() else { return };
            let before = self.engine.cost();
            let slot = &mut self.slots[number];
            if slot.connection.wants_turn(&self.engine) {
                slot.connection.go_on(&mut self.engine);
                self.turns.charge(self.engine.cost().wrapping_sub(before));
            } else {
                slot.in_line = false;
                self.turns.leave();
            }
        }
    }

    /// Something was freed that a connection may wait for.
    fn mark_waiting(&mut self) {
        while let Some(number) = self.waiting.pop() {
            self.mark(number);
        }
    }

    fn mark(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number)
            && !std::mem::replace(&mut slot.marked, true)
        {
            self.marked.push_back(number);
        }
    }

    /// Does something to all connections that are so, which are then looked at. How many they are.
    fn each(&mut self, is_so: impl Fn(&Connection) -> bool, act: impl Fn(&mut Connection, &mut Engine)) -> usize {
        let mut count = 0;
        for number in self.slots.numbers() {
            if let Some(slot) = self.slots.get_mut(number).filter(|slot| is_so(&slot.connection)) {
                act(&mut slot.connection, &mut self.engine);
                count += 1;
                self.mark(number);
            }
        }
        count
    }

    /// Sends what waits, goes on with what was held back, and closes a connection that is over.
    fn service(&mut self, number: u32) {
        let Some(Slot { connection, marked, .. }) = self.slots.get_mut(number) else { return };
        *marked = false;
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
        let turn = connection.wants_turn(&self.engine);
        let lacks = held_back && connection.lacks_memory(&self.engine);
        if over {
            return self.close(number);
        }
        if turn && !std::mem::replace(&mut self.slots[number].in_line, true) {
            self.turns.join(number);
        }
        if waits && !held_back {
            // Its next turn comes at once: what it watches need not change for it.
            return self.mark(number);
        }
        if lacks {
            self.waiting.push(number);
            // What is given back from here on is for it, whatever others have taken before.
            self.used = self.used.max(self.engine.pool.budget.used());
        }
        self.watch(number);
    }

    fn watch(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number) else { return };
        let connection = &mut slot.connection;
        let mut interest = connection.interest();
        interest.read &= !self.paused;
        // That the client has gone wakes whoever watches at all: nobody must watch who would not act on it.
        let wanted = (!connection.is_broken()).then_some(interest);
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
            connection.end(&mut self.engine);
        }
    }

    /// Takes a connection out of everything.
    fn take_out(&mut self, number: u32) -> Option<Box<Connection>> {
        let Slot { connection, watched, in_line, .. } = self.slots.remove(number)?;
        if watched.is_some() {
            // Closing the socket would do it as well.
            let _ = self.engine.channel.unwatch(connection.socket());
        }
        self.waiting.retain(|n| *n != number);
        if in_line {
            self.turns.remove(number);
        }
        Some(connection)
    }

    fn close(&mut self, number: u32) {
        if let Some(connection) = self.take_out(number) {
            connection.close(&mut self.engine);
            self.handle.status.remove();
        }
    }

    fn ready(&mut self, event: &Woken) {
        if event.key >= LISTENER {
            return self.accept((event.key - LISTENER) as usize);
        }
        let (number, generation) = ((event.key >> 32) as u32, event.key as u32);
        let Some(slot) = self.slots.get_mut(number).filter(|slot| slot.generation == generation) else { return };
        let connection = &mut slot.connection;
        if event.gone {
            // Whatever it has sent, nobody was told that it would be done.
            connection.break_off(&mut self.engine);
            return self.mark(number);
        }
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
        for _ in 0..ACCEPTS {
            match listener.accept() {
                Ok(Some((socket, client))) => match self.shared.admit(&client) {
                    Admission::Serve => self.shared.spread(Command::Adopt(socket, client, None)),
                    Admission::Refuse(why) => {
                        tracing::warn!("{client} is refused: {why}");
                        self.shared.spread(Command::Adopt(socket, client, Some(why)));
                    }
                    Admission::HangUp(why) => tracing::warn!("{client} is hung up on: {why}"),
                },
                Ok(None) => return,
                Err(error) if error.raw_os_error().is_some_and(|e| [libc::EMFILE, libc::ENFILE].contains(&e)) => {
                    return self.refuse_without_descriptor(index, &error);
                }
                Err(error) => {
                    // The listener stays readable: look away for a while.
                    tracing::warn!("cannot accept an NBD client: {error}");
                    return self.stop_accepting();
                }
            }
        }
    }

    /// Tells a client that there is no descriptor for it, with one that was kept for that. The next is told a while
    /// later.
    fn refuse_without_descriptor(&mut self, index: usize, error: &io::Error) {
        tracing::warn!("cannot accept an NBD client: {error}");
        if self.spare.take().is_some()
            && let Ok(Some((socket, client))) = self.listeners[index].accept()
        {
            self.handle.status.add();
            self.adopt(socket, client, Some("the server has no descriptor left".into()));
        }
        self.stop_accepting();
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
        if self.spare.is_none() && !self.listeners.is_empty() {
            // While there is none, whoever was refused last has it.
            self.spare = self.listeners[0].socket().try_clone_to_owned().ok();
        }
        if !self.accepting {
            for (listener, index) in self.listeners.iter().zip(0..) {
                self.engine.channel.watch(listener.socket(), LISTENER + index, true, false)?;
            }
            self.accepting = true;
        }
        Ok(())
    }

    fn adopt(&mut self, socket: OwnedFd, client: Client, refusal: Option<String>) {
        if self.deadline.is_some() {
            self.handle.status.remove();
            return;
        }
        self.add(|number, engine| Connection::new(number, socket, client, refusal, engine.channel.now()));
    }

    /// Serves a connection from now on.
    fn add(&mut self, connect: impl FnOnce(u32, &mut Engine) -> Connection) {
        self.generation = self.generation.wrapping_add(1);
        let (generation, engine) = (self.generation, &mut self.engine);
        let number = self.slots.insert_with(|number| {
            let connection = Box::new(connect(number, engine));
            Slot { connection, generation, watched: None, marked: false, in_line: false }
        });
        self.talking.push_back((number, generation));
        self.mark(number);
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
        for number in self.slots.numbers() {
            if let Some(connection) = self.take_out(number) {
                self.handle.status.remove();
                handed.connections.extend(connection.hand_over(&mut self.engine));
            }
        }
        self.deadline = Some(self.engine.channel.now());
        handed
    }

    /// Finds the connections whose clients have closed. Their hang-ups are handled like any event; the answer is
    /// sent when the last of them is gone.
    fn reap(&mut self, answer: mpsc::Sender<()>) {
        let gone = hung_up(self.slots.iter().map(|(_, slot)| slot.connection.socket()));
        let gone = self.slots.iter().zip(gone).filter(|(_, gone)| *gone);
        let gone = gone.map(|((number, slot), _)| (number, slot.generation)).collect();
        self.reaps.push(gone, answer);
    }

    fn answer_reaps(&mut self) {
        let slots = &self.slots;
        self.reaps.answer(|gone| {
            gone.retain(|(number, generation)| slots.get(*number).is_some_and(|slot| slot.generation == *generation));
            gone.is_empty()
        });
    }
}

impl Serve for Worker {
    type Command = Command;
    type Status = Load;
    const CLIENTS: &'static str = "NBD clients";

    fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn channel(&self) -> &Channel {
        &self.engine.channel
    }

    fn command(&mut self, command: Command) {
        // Who asked may have stopped waiting.
        match command {
            Command::Adopt(socket, client, refusal) => self.adopt(socket, client, refusal),
            Command::Reap(answer) => self.reap(answer),
            Command::Disconnect(name, answer) => {
                let _ = answer.send(self.each(|c| c.export().as_deref() == Some(&name), Connection::end));
            }
            Command::Exports(answer) => {
                let _ = answer.send(self.slots.iter().filter_map(|(_, slot)| slot.connection.export()).collect());
            }
            Command::Take(prepared) => {
                self.add(|number, engine| Connection::resume_from(number, *prepared, engine));
            }
            Command::HandOver(answer) => drop(answer.send(self.hand_over())),
        }
    }

    fn turn(&mut self) -> io::Result<Turn> {
        let more = self.work();
        self.answer_reaps();
        if self.deadline.is_some_and(|at| self.slots.len() == 0 || self.engine.channel.now() >= at) {
            return Ok(Turn::Over);
        }
        // With bios or questions under way the device decides when there is news. Its answer ends one wait, which must
        // be the last before the worker looks for it.
        let linger = if self.engine.len() == 0 && !self.engine.is_asking() { LINGER } else { 0 };
        // If there is more, those who have sent something meanwhile come before it.
        Ok(Turn::Rest(Rest { more, linger, timeout: self.timeout() }))
    }

    fn rested(&mut self, rest: Rest, how: Rested, woken: &[Woken]) {
        if rest.timeout.is_some() {
            self.tick(how == Rested::InVain);
        }
        woken.iter().for_each(|event| self.ready(event));
    }

    fn pause(&mut self) {
        self.stop_accepting();
        self.paused = true;
        self.each(|_| true, |_, _| {});
    }

    /// What clients do not take of their replies goes along.
    fn is_quiet(&self) -> bool {
        !self.slots.iter().any(|(_, slot)| slot.connection.bios() > 0)
    }

    fn resume(&mut self) {
        self.paused = false;
        self.each(|_| true, |_, _| {});
        if let Err(error) = self.accept_again() {
            tracing::warn!("cannot accept NBD clients: {error}");
        }
    }

    fn end(&mut self, deadline: Nanos) {
        self.stop_accepting();
        self.listeners.clear();
        self.deadline = Some(deadline);
        let exports = self.shared.exports.clone();
        let refuse = |connection: &mut Connection, engine: &mut Engine| {
            connection.shut_down();
            // What was sent before is still received, and refused; not what goes on to come.
            for _ in 0..LAST_RECEIVES {
                let Ok(true) = connection.receive(engine, &*exports) else { break };
            }
            connection.finish_input(engine, &*exports);
        };
        self.each(|_| true, refuse);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        for number in self.slots.numbers() {
            let Some(Slot { connection, .. }) = self.slots.get(number) else { continue };
            if connection.bios() == 0 {
                self.close(number);
                continue;
            }
            // The device still works for it: its export stays open, as its bios are.
            tracing::warn!("{} requests of an NBD client are left behind", connection.in_flight());
            connection.hang_up();
            std::mem::forget(self.slots.remove(number));
        }
    }
}
