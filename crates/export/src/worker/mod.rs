//! The skeleton of the threads that serve exports: a thread with a channel, told by others what to do.
//!
//! # Layout
//! - this file: what is particular to a kind of worker ([`Serve`]), and the loop that drives it ([`run`])
//! - [`mailbox`]: what a worker is told, and how it is woken for that
//! - [`group`]: the workers of one server: their start, their pause, their end
//! - [`deadline`]: waiting for answers until a time
//!
//! # How it goes
//! A worker does what it was told, then a [`turn`](Serve::turn): all that there is to do. When that is nothing it looks
//! for news a few times ([`Rest::linger`]), and then sleeps in its channel. A command ends the sleep.
//!
//! # Invariants
//! - What belongs to a worker is touched by its thread alone. Others send commands.
//! - A thread that asks a worker that has ended learns that there will be no answer.
//! - A pause is answered when nothing is under way, and not at all when the worker is told to go on before.

pub(crate) mod deadline;
pub(crate) mod group;
pub(crate) mod mailbox;

use mailbox::{Handle, Order};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use udm_io::{Channel, Nanos, Woken};

/// What is particular to a kind of worker.
pub(crate) trait Serve {
    /// What it is told, beside what all workers are.
    type Command: Send;
    /// What others may know of it at any time.
    type Status: Send + Sync;
    /// What it waits for, in the log.
    const CLIENTS: &'static str;

    /// The side of it that other threads see.
    fn handle(&self) -> &Arc<Handle<Self::Command, Self::Status>>;

    /// What it sleeps in.
    fn channel(&self) -> &Channel;

    /// Does what it was told.
    fn command(&mut self, command: Self::Command);

    /// Does what there is to do. What is next.
    fn turn(&mut self) -> io::Result<Turn>;

    /// Whether there is news. Asked while it [lingers](Rest::linger); what is ready may go to `woken`.
    fn look(&mut self, woken: &mut Vec<Woken>) -> io::Result<bool> {
        self.channel().wait(Some(Duration::ZERO), woken)?;
        Ok(!woken.is_empty())
    }

    /// Asks for a wake-up when there is work. Returns whether there is none already.
    fn may_sleep(&mut self) -> bool {
        true
    }

    /// The rest is over; these descriptors that it watches are ready.
    fn rested(&mut self, rest: Rest, how: Rested, woken: &[Woken]);

    /// Takes nothing new from now on.
    fn pause(&mut self);

    /// Whether nothing is under way.
    fn is_quiet(&self) -> bool;

    /// Goes on after a pause.
    fn resume(&mut self);

    /// Takes nothing new, finishes what is under way, and ends; at the latest at this time.
    fn end(&mut self, deadline: Nanos);

    /// It cannot sleep, which is in the log. Whether it goes on.
    fn cannot_wait(&mut self, _error: &io::Error) -> bool {
        false
    }

    /// Does what is to be done last, with the mailbox still open.
    fn finish(&mut self) {}
}

/// What follows a turn.
pub(crate) enum Turn {
    /// Another.
    Again,
    /// A rest.
    Rest(Rest),
    /// The end.
    Over,
}

/// How a worker waits for news.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    /// There is more to do: what is ready is only looked at.
    pub(crate) more: bool,
    /// How often it looks for news before it sleeps. Other threads get the CPU in between.
    pub(crate) linger: u32,
    /// How long it sleeps at most.
    pub(crate) timeout: Option<Duration>,
}

/// How a rest ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rested {
    /// There was something to do before it slept.
    Awake,
    /// It slept, and was woken.
    Woken,
    /// It slept, and nobody has woken it by way of what it watches, nor told it anything.
    InVain,
}

/// Serves until the worker is over.
pub(crate) fn run<W: Serve>(mut worker: W) {
    let handle = worker.handle().clone();
    let open = Open(&handle);
    let mut woken = Vec::new();
    let mut pausing: Option<mpsc::Sender<()>> = None;
    loop {
        for order in handle.mailbox.take() {
            match order {
                Order::Command(command) => worker.command(command),
                Order::Pause(asked) => {
                    worker.pause();
                    pausing = Some(asked);
                }
                Order::Resume => {
                    pausing = None;
                    worker.resume();
                }
                Order::End(deadline, _heard) => worker.end(deadline),
            }
        }
        let turn = worker.turn();
        if pausing.is_some()
            && worker.is_quiet()
            && let Some(asked) = pausing.take()
        {
            // The one that asked may have stopped waiting.
            let _ = asked.send(());
        }
        woken.clear();
        let rested = match turn {
            Ok(Turn::Again) => continue,
            Ok(Turn::Over) => break,
            Ok(Turn::Rest(rest)) => self::rest(&mut worker, &handle, rest, &mut woken).map(|how| (rest, how)),
            Err(error) => Err(error),
        };
        match rested {
            Ok((rest, how)) => worker.rested(rest, how, &woken),
            Err(error) => {
                tracing::error!("cannot wait for {}: {error}", W::CLIENTS);
                if !worker.cannot_wait(&error) {
                    break;
                }
            }
        }
    }
    worker.finish();
    drop(open);
}

/// Closes the mailbox of a worker that has ended, however that was.
struct Open<'a, C, S>(&'a Handle<C, S>);

impl<C, S> Drop for Open<'_, C, S> {
    fn drop(&mut self) {
        self.0.mailbox.close();
    }
}

/// Waits for news: what came soon is found by looking, for less than it costs to be woken across CPUs.
fn rest<W: Serve>(
    worker: &mut W,
    handle: &Handle<W::Command, W::Status>,
    rest: Rest,
    woken: &mut Vec<Woken>,
) -> io::Result<Rested> {
    if rest.more {
        worker.channel().wait(Some(Duration::ZERO), woken)?;
        return Ok(Rested::Awake);
    }
    for _ in 0..rest.linger {
        std::thread::yield_now();
        if worker.look(woken)? || handle.mailbox.is_pending() {
            return Ok(Rested::Awake);
        }
    }
    if !worker.may_sleep() || handle.mailbox.is_pending() {
        return Ok(Rested::Awake);
    }
    worker.channel().wait(rest.timeout, woken)?;
    Ok(if woken.is_empty() && !handle.mailbox.is_pending() { Rested::InVain } else { Rested::Woken })
}
