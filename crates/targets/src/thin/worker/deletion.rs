//! Deleting devices. A device is gone, durably, before anything else is done; what it has mapped is given back a step
//! at a time, when there is nothing else to do, and under no suspension. The metadata tell what is left, so that it
//! goes on after a resume, and after the pool was closed or the power went.

use super::{Reply, Worker};
use crate::thin::pool::{Gate, PoolMode};
use crate::thin::worker::control::Done;
use std::collections::VecDeque;
use udm_base::Errno;
use udm_core::Error;
use udm_formats::thin::{Change, Deletion};

/// What deleted devices have left.
pub(super) struct Deletions {
    /// Under way, in turns, and who waits for them.
    queue: VecDeque<(Deletion, Option<Reply<Done>>)>,
    /// The metadata may know of more.
    more: bool,
}

impl Deletions {
    /// Of a pool that was just opened.
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), more: true }
    }

    /// Steps that were not committed came to nothing.
    pub(super) fn begin_again(&mut self) {
        self.queue.iter_mut().for_each(|(deletion, _)| deletion.begin_again());
    }

    /// Looks for what earlier ones have left, as when metadata ran out in their middle.
    pub(super) const fn look_again(&mut self) {
        self.more = true;
    }
}

impl Worker {
    pub(super) async fn delete(&mut self, id: u32, reply: Reply<Done>) {
        if self.devices.get(&id).is_some_and(|device| device.strong_count() > 0) {
            return reply.give(Err(Error::new(Errno::EBUSY, format!("thin device {id} is in use: a table has it"))));
        }
        self.parted = true;
        let left = match self.metadata.delete(id).await {
            Ok(deletion) if !deletion.is_over() => deletion,
            done => return self.finish_message(done.map(drop), &reply).await,
        };
        if !self.commit().await {
            return reply.give(Err(Error::new(
                Errno::EIO,
                "the metadata could not be committed; the pool's status tells more",
            )));
        }
        self.deletions.queue.push_back((left, Some(reply)));
        if self.pool.gate() == Gate::Suspended {
            self.pause_deletions();
        }
    }

    /// Whether there is something to do for deletions now.
    pub(super) fn is_deleting(&self) -> bool {
        let Deletions { queue, more } = &self.deletions;
        match self.pool.mode() {
            PoolMode::Write | PoolMode::OutOfDataSpace => {
                self.pool.gate() == Gate::Open && (*more || !queue.is_empty())
            }
            // Who waits is to know that it will not go on.
            _ => !queue.is_empty(),
        }
    }

    /// Nobody waits any more: the devices are gone, and the rest is done when the pool is resumed.
    pub(super) fn pause_deletions(&mut self) {
        let waiting = self.deletions.queue.iter_mut().filter_map(|(_, reply)| reply.take());
        waiting.for_each(|reply| reply.give(Ok(())));
    }

    /// Goes on with the first deletion. Returns whether there was one.
    pub(super) async fn step_deletion(&mut self) -> bool {
        if !self.is_deleting() {
            return false;
        }
        if self.pool.mode() > PoolMode::OutOfDataSpace {
            self.give_deletions_up();
            return true;
        }
        let Some((mut deletion, reply)) = self.next_deletion().await else { return false };
        if !self.make_room(Change::Delete).await {
            self.deletions.queue.push_front((deletion, reply));
            return true;
        }
        self.parted = true;
        let step = deletion.step(&mut self.metadata).await;
        let done = match self.made_of(step).await {
            Ok(false) => {
                self.deletions.queue.push_back((deletion, reply));
                return true;
            }
            done => done.map(drop),
        };
        match (reply, done) {
            (Some(reply), done) => self.finish_message(done, &reply).await,
            // So that the blocks can be had.
            (None, Ok(())) => _ = self.commit().await,
            (None, Err(e)) => self.metadata_failed("giving back what a deleted device has left", &e).await,
        }
        true
    }

    async fn next_deletion(&mut self) -> Option<(Deletion, Option<Reply<Done>>)> {
        if let Some(next) = self.deletions.queue.pop_front() {
            return Some(next);
        }
        match self.metadata.remains().await {
            Ok(Some(deletion)) => Some((deletion, None)),
            Ok(None) => {
                self.deletions.more = false;
                None
            }
            Err(e) => {
                tracing::error!("thin-pool: what deleted devices have left cannot be found: {e}");
                self.deletions.more = false;
                None
            }
        }
    }

    /// The pool has become read-only. What is left is looked for again if it ever is otherwise.
    fn give_deletions_up(&mut self) {
        self.deletions.more = true;
        for (_, reply) in self.deletions.queue.drain(..) {
            let message = "the device is gone, but its blocks are not given back: the pool has become read-only";
            reply.into_iter().for_each(|reply| reply.give(Err(Error::new(Errno::EIO, message))));
        }
    }
}
