//! Clients and devices that do not get on.

use super::Worker;
use crate::nbd::connection::Connection;
use std::time::Duration;
use udm_io::Nanos;

/// How long a client may stop in the middle of what it sends or takes while others wait for the memory that it holds.
const STALL: Duration = Duration::from_secs(30);
/// How long a client may negotiate. A server of others (QEMU's) gives as much.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Worker {
    /// Looks after those who do not get on.
    pub(super) fn look(&mut self, now: Nanos) {
        self.end_stalled(now);
        self.end_silent(now);
        while let Some((number, long)) = self.engine.next_late(now) {
            self.answered(number, long, &[]);
        }
    }

    /// Hangs up on clients that keep others waiting for memory with which they do nothing.
    fn end_stalled(&mut self, now: Nanos) {
        if self.waiting.iter().all(|n| self.slots[*n].connection.as_ref().is_none_or(|c| !c.lacks_memory(&self.engine)))
        {
            return;
        }
        let count = self.break_off_where(|connection| connection.stalled(now) > STALL.as_nanos() as u64);
        if count > 0 {
            tracing::warn!(
                "{count} NBD clients are hung up on: they stopped in the middle of a request that holds memory"
            );
        }
    }

    /// Hangs up on clients that have not finished their handshake in time. In the order in which they came.
    fn end_silent(&mut self, now: Nanos) {
        let mut count = 0;
        while let Some(&(number, generation)) = self.talking.front() {
            let slot = &mut self.slots[number];
            let connection = slot.connection.as_mut().filter(|_| slot.generation == generation);
            let silent = connection.and_then(|c| Some((c.negotiating(now)?, c)));
            if let Some((ns, connection)) = silent {
                if ns < HANDSHAKE.as_nanos() as u64 {
                    break;
                }
                connection.break_off(&mut self.engine);
                count += 1;
                self.mark(number);
            }
            self.talking.pop_front();
        }
        if count > 0 {
            let limit = HANDSHAKE.as_secs();
            tracing::info!("{count} NBD clients are hung up on: they had not chosen an export after {limit} s");
        }
    }

    fn break_off_where(&mut self, which: impl Fn(&Connection) -> bool) -> usize {
        let mut count = 0;
        for number in 0..self.slots.len() {
            let connection = self.slots[number].connection.as_mut();
            if let Some(connection) = connection.filter(|connection| which(connection)) {
                connection.break_off(&mut self.engine);
                count += 1;
                self.mark(number);
            }
        }
        count
    }
}
