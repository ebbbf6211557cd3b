//! Clients and devices that do not get on.

use super::{Slot, Worker};
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
        let lacks = |slot: &Slot| slot.connection.lacks_memory(&self.engine);
        if !self.waiting.iter().any(|number| self.slots.get(*number).is_some_and(lacks)) {
            return;
        }
        let stalled = |connection: &Connection| connection.stalled(now) > STALL.as_nanos() as u64;
        let count = self.each(stalled, Connection::break_off);
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
            let slot = self.slots.get_mut(number).filter(|slot| slot.generation == generation);
            let silent = slot.and_then(|slot| Some((slot.connection.negotiating(now)?, &mut slot.connection)));
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
}
