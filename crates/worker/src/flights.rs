//! Which I/O is still out to where a look-up has sent it, told apart by epochs: a data block is used anew only when
//! whatever could have found its old use has ended.
//!
//! # How
//! A bio enters the open epoch *before* it looks its block up, in the same section of its channel, and leaves that
//! epoch when it has come back from there, or at once if it goes nowhere. A [`Drains`], which the worker owns, closes
//! the epoch by opening another one, lets a grace period pass (who has seen the epoch open has entered by then), and
//! waits until nobody is left in the closed one. Who has entered the new epoch looks blocks up after it was opened, and
//! finds what they are now. So: change the mapping, ask for a drain, and when it is over nobody uses what the mapping
//! was. The other way round, one who has looked up before the change could still enter the new epoch, and nobody would
//! wait for it.
//!
//! # Invariants
//! - A counter is written by one thread at a time, the one inside its channel, and by no atomic read-modify-write.
//! - At most one epoch is closed and not empty: two counters for each channel are enough.
//! - Nothing here waits; what is not over is asked again.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use udm_io::{Cx, Domain, Grace, MAX_CHANNELS};

/// What a bio has to give back when it leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch(u8);

impl Epoch {
    /// As a bit, for the private word of a frame.
    pub(crate) const fn bit(self) -> usize {
        self.0 as usize
    }

    /// From [`bit`](Self::bit).
    pub(crate) const fn from_bit(bit: usize) -> Self {
        Self((bit & 1) as u8)
    }

    const fn other(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// One channel's bios in either epoch, in a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 2]);

/// What leaving has to look at, besides its counter.
const NOBODY_WAITS: u8 = 0;
/// A grace period is under way.
const SECTIONS: u8 = 1;
/// The closed epoch is not empty.
const BIOS: u8 = 2;

/// The bios that are out to data blocks. A cache line for each of a domain's channels: 16 KiB.
pub(crate) struct Flights {
    /// Both are read by every bio and written by drains only.
    open: AtomicU8,
    waits_for: AtomicU8,
    lines: Box<[Line]>,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            open: AtomicU8::new(0),
            waits_for: AtomicU8::new(NOBODY_WAITS),
            lines: (0..MAX_CHANNELS).map(|_| Line::default()).collect(),
        }
    }

    /// A bio of this channel is about to look its data block up, in this section.
    #[inline]
    pub(crate) fn enter(&self, cx: &Cx<'_>) -> Epoch {
        // Acquired: who sees a new epoch sees the mappings that were changed before it was opened.
        let epoch = Epoch(self.open.load(Ordering::Acquire));
        let count = &self.lines[cx.id()].0[epoch.bit() & 1];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        epoch
    }

    /// The bio has come back. True when a drain may get on by it: then the worker is to be kicked.
    #[inline]
    #[must_use = "a drain waits for the worker to look again"]
    pub(crate) fn leave(&self, cx: &Cx<'_>, epoch: Epoch) -> bool {
        let count = &self.lines[cx.id()].0[epoch.bit() & 1];
        let left = count.load(Ordering::Relaxed).wrapping_sub(1);
        debug_assert_ne!(left, u64::MAX, "more bios leave than entered");
        // Whoever sees the counter sees all that the bio did.
        count.store(left, Ordering::Release);
        // No fence: a drain announces itself and then makes every section pass a barrier. A section that does not see
        // the announcement is one that it waits for.
        match self.waits_for.load(Ordering::Relaxed) {
            NOBODY_WAITS => false,
            SECTIONS => true,
            _ => left == 0 && epoch.0 != self.open.load(Ordering::Relaxed),
        }
    }

    /// How many bios are out, in both epochs. Exact when no channel is inside.
    pub(crate) fn count(&self) -> u64 {
        let counts = self.lines.iter().flat_map(|line| &line.0);
        counts.map(|count| count.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
    }

    /// Whether nobody is left in an epoch that nobody enters any more. Then it stays so.
    fn is_empty(&self, epoch: Epoch) -> bool {
        self.lines.iter().all(|line| line.0[epoch.bit() & 1].load(Ordering::Acquire) == 0)
    }
}

/// A drain that was asked for. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The worker's side: drains, one after the other, each for everybody who asked before it began.
#[derive(Default)]
pub(crate) struct Drains {
    wanted: u64,
    begun: u64,
    ended: u64,
    /// Of the one that is under way, until it is over.
    grace: Option<Grace>,
}

/// How often a grace period is asked before it is put off: sections take less than a microsecond, and who puts off
/// waits for the next bio or the workqueue. About as long as the barrier took.
const PATIENCE: usize = 128;

impl Drains {
    /// A drain of all that has entered until now. The mapping must have been changed before.
    pub(crate) fn ask(&mut self) -> Ticket {
        // The one that is under way may have begun before the change.
        self.wanted = self.begun + 1;
        Ticket(self.wanted)
    }

    /// Whether everything that had entered when the ticket was given has left.
    pub(crate) const fn is_over(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.ended
    }

    /// Whether somebody still waits. Then [`advance`](Self::advance) is to be called again: after a `leave` that said
    /// so, and now and then besides, since the end of a section tells nobody.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.ended < self.wanted
    }

    /// Goes as far as it can, and says whether any drain has ended. `cx` is the section that the worker runs in;
    /// nothing up its stack may still be between looking a block up and entering. A drain begun costs a membarrier(2).
    pub(crate) fn advance(&mut self, flights: &Flights, domain: &Domain, cx: &Cx<'_>) -> bool {
        let before = self.ended;
        while self.is_waiting() {
            if self.begun == self.ended {
                let closing = Epoch(flights.open.load(Ordering::Relaxed));
                flights.waits_for.store(SECTIONS, Ordering::Relaxed);
                flights.open.store(closing.other().0, Ordering::Release);
                self.grace = Some(domain.grace_beside(cx));
                self.begun += 1;
            }
            if let Some(grace) = &self.grace {
                let over = (0..PATIENCE).any(|_| {
                    std::hint::spin_loop();
                    grace.is_over()
                });
                if !over {
                    break;
                }
                self.grace = None;
                flights.waits_for.store(BIOS, Ordering::Relaxed);
            }
            if !flights.is_empty(Epoch(flights.open.load(Ordering::Relaxed)).other()) {
                break;
            }
            self.ended = self.begun;
            flights.waits_for.store(NOBODY_WAITS, Ordering::Relaxed);
        }
        self.ended != before
    }
}
