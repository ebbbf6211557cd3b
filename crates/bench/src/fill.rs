//! Filling a subject before it is read, so that reads find memory that is there, and data that no one can guess.

use crate::error::JobError;
use crate::lane::Lane;
use crate::queue::Queue;
use crate::rng::Rng;
use udm_io::Op;

/// Bytes of one write.
pub const BLOCK: usize = 1 << 20;
/// Writes in flight.
pub const FILL_DEPTH: usize = 4;

/// Fills a buffer with pseudo-random numbers.
pub fn random(buffer: &mut [u8], rng: &mut Rng) {
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_ne_bytes());
    }
}

/// Writes the first `bytes` (a multiple of 512) of what the lane, [`FILL_DEPTH`] deep, leads to.
pub fn fill<L: Lane>(lane: L, bytes: u64, seed: u64) -> Result<(), JobError> {
    let mut rng = Rng::new(seed, u64::MAX);
    let (mut next, mut at) = (0u64, [0u64; FILL_DEPTH]);
    let touch = |_: &mut [u8]| ();
    Queue::run(lane, FILL_DEPTH, BLOCK, touch, |queue, slots| {
        queue.pump::<JobError>(slots, |queue, mut slot, done| {
            if let Some(bad) = done.filter(|status| !status.is_ok()) {
                let byte = at[slot.index()];
                return Err(JobError::Failed {
                    op: Op::Write,
                    byte,
                    bytes: BLOCK.min((bytes - byte) as usize),
                    status: bad,
                });
            }
            let len = (bytes - next).min(BLOCK as u64) as usize;
            if len > 0 {
                random(queue.buffer(&mut slot), &mut rng);
                at[slot.index()] = next;
                queue.submit_part(slot, Op::Write, next, len);
                next += len as u64;
            }
            Ok(())
        })
    })
}
