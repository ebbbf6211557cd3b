//! Deleting devices. First the device is removed durably. Its blocks are then freed in steps, when there is nothing
//! else to do and the pool is not suspended. The metadata say what is left, so this goes on after a resume, and after
//! the pool was closed or a power cut.

use super::{Reply, Worker};
use crate::thin::event::Done;
use crate::thin::pool::{Gate, PoolMode};
use std::collections::VecDeque;
use udm_base::Errno;
use udm_core::Error;
use udm_formats::thin::{Change, Deletion};

/// The remains of deleted devices.
pub(super) struct Deletions {
    /// Deletions under way, which take turns, and the waiting commands.
    queue: VecDeque<(Deletion, Option<Reply<Done>>)>,
    /// The metadata may have more remains.
    more: bool,
}

impl Deletions {
    /// For a pool that was just opened.
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), more: true }
    }

    /// Steps that were not committed are undone.
    pub(super) fn begin_again(&mut self) {
        self.queue.iter_mut().for_each(|(deletion, _)| deletion.begin_again());
    }

    /// Looks for remains of earlier deletions, for example when metadata ran out in their middle.
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

    /// Whether there is work for deletions now.
    pub(super) fn is_deleting(&self) -> bool {
        let Deletions { queue, more } = &self.deletions;
        match self.pool.mode() {
            PoolMode::Write | PoolMode::OutOfDataSpace => {
                self.pool.gate() == Gate::Open && (*more || !queue.is_empty())
            }
            // The waiting commands have to learn that it will not go on.
            _ => !queue.is_empty(),
        }
    }

    /// Answers the waiting commands: the devices are gone, and the rest is done when the pool is resumed.
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
            // So that the blocks can be allocated.
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

    /// The pool has become read-only. Remains are looked for again when it is writeable again.
    fn give_deletions_up(&mut self) {
        self.deletions.more = true;
        for (_, reply) in self.deletions.queue.drain(..) {
            let message = "the device is gone, but its blocks are not given back: the pool has become read-only";
            reply.into_iter().for_each(|reply| reply.give(Err(Error::new(Errno::EIO, message))));
        }
    }
}
