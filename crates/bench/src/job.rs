//! The generator: one job's loop, the same for every subject.

use crate::error::JobError;
use crate::lane::Lane;
use crate::latency::{ByOp, Timing};
use crate::load::{Load, Span};
use crate::pattern::Pattern;
use crate::queue::{Queue, Slot};
use std::hint::black_box;
use udm_io::{Clock, Nanos, Op, Status};

/// What one job did.
#[derive(Clone)]
pub(crate) struct JobTally {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// When all began.
    pub(crate) start: Nanos,
    pub(crate) end: Nanos,
    pub(crate) latencies: ByOp,
}

/// Requests between two looks at the clock: few enough to end on time, enough to hide the 25 ns that a look takes.
fn batch(bs: u64) -> u64 {
    ((1 << 20) / bs).clamp(16, 256)
}

/// Keeps `slots` requests in flight until the time since `start` or the number is used up, then waits for what is out.
///
/// Each request's buffer is touched: a write is stamped before, a word of a read is used after.
// Never inlined, so that instructions can be counted by its name.
#[inline(never)]
pub(crate) fn run<L: Lane, T: Timing>(
    queue: &mut Queue<L>,
    slots: Vec<Slot>,
    mut pattern: Pattern,
    load: &Load,
    span: Span,
    (clock, start): (&dyn Clock, Nanos),
    mut timing: T,
) -> Result<JobTally, JobError> {
    let deadline = load.runtime.map_or(Nanos(u64::MAX), |time| start.after(time.as_nanos() as u64));
    let limit = load.number_ios.unwrap_or(u64::MAX);
    let batch = batch(span.bs);
    let mut out = Out { issued: 0, writes: 0, at: vec![0; slots.len()].into(), bs: span.bs };
    let mut sum = 0u64;
    for slot in slots.into_iter().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        out.send(queue, slot, &mut pattern, &mut timing);
    }
    while out.issued < limit && clock.now() < deadline {
        for _ in 0..batch.min(limit - out.issued) {
            let Some((mut slot, status)) = queue.completed() else {
                queue.idle()?;
                break;
            };
            out.check(&slot, status)?;
            timing.completed(slot.index());
            sum ^= u64::from_ne_bytes(*word(queue, &mut slot));
            out.send(queue, slot, &mut pattern, &mut timing);
        }
        // Requests that complete at once would keep the others' completions out.
        queue.poll();
    }
    queue.drain(|queue, mut slot, status| {
        timing.completed(slot.index());
        sum ^= u64::from_ne_bytes(*word(queue, &mut slot));
        out.check(&slot, status)
    })?;
    black_box(sum);
    let reads = out.issued - out.writes;
    Ok(JobTally { reads, writes: out.writes, start, end: clock.now(), latencies: timing.result() })
}

/// What went out.
struct Out {
    issued: u64,
    writes: u64,
    /// For each slot twice the block of its request, plus 1 for a write.
    at: Box<[u64]>,
    bs: u64,
}

impl Out {
    #[inline(always)]
    fn send<L: Lane>(&mut self, queue: &mut Queue<L>, mut slot: Slot, pattern: &mut Pattern, timing: &mut impl Timing) {
        let (op, block) = pattern.next();
        self.issued += 1;
        if op == Op::Write {
            self.writes += 1;
            *word(queue, &mut slot) = self.issued.to_ne_bytes();
        }
        self.at[slot.index()] = block << 1 | u64::from(op == Op::Write);
        timing.submitted(slot.index(), op);
        queue.submit(slot, op, block * self.bs);
    }

    #[inline(always)]
    fn check(&self, slot: &Slot, status: Status) -> Result<(), JobError> {
        if status.is_ok() { Ok(()) } else { Err(self.failed(slot, status)) }
    }

    #[cold]
    fn failed(&self, slot: &Slot, status: Status) -> JobError {
        let at = self.at[slot.index()];
        let op = if at & 1 == 1 { Op::Write } else { Op::Read };
        JobError::Failed { op, byte: (at >> 1) * self.bs, bytes: self.bs as usize, status }
    }
}

/// The word of a slot's buffer that is touched. Not the first of each: buffers begin at multiples of their length, so
/// that those words would push each other out of the few places of the cache that their addresses share.
#[inline(always)]
fn word<'a, L: Lane>(queue: &'a mut Queue<L>, slot: &'a mut Slot) -> &'a mut [u8; 8] {
    let at = slot.index() % 8 * 64;
    queue.buffer(slot)[at..].first_chunk_mut().expect("a buffer has 512 bytes or more")
}
