//! Checking what a device gives back.
//!
//! Each job has a part of the device for itself. It counts a *generation* for each of its blocks, and a block's content
//! follows from seed, place and generation; so a write that was lost, torn, or that landed elsewhere is found as well
//! as a flipped bit. A block is in one request at a time, since what overlapping requests leave is not defined.
//!
//! Contents, little-endian, with `random` from seed, place and generation:
//! - `pattern`: each sector is its byte offset (8), the generation (8), then random.
//! - `crc32c`: each block is `udmverfy` (8), its byte offset (8), the generation (4), the CRC-32C of what follows (4),
//!   then random.

use crate::error::JobError;
use crate::lane::Lane;
use crate::load::{Load, Span, Verify};
use crate::pattern::Pattern;
use crate::queue::{Queue, Slot};
use crate::rng::{Rng, mix};
use crate::{Error, fill};
use udm_base::SECTOR_SIZE;
use udm_io::{Clock, Nanos, Op, Status};

const MAGIC: &[u8; 8] = b"udmverfy";
const HEADER: usize = 24;
/// A block that is in a request.
const BUSY: u32 = 1 << 31;
/// A GiB of generations; more blocks want a larger `--bs` or a smaller `--size`.
const BLOCKS_MAX: u64 = 1 << 28;

/// How contents are made.
#[derive(Clone, Copy)]
struct Content {
    kind: Verify,
    seed: u64,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

impl Content {
    fn rng(self, byte: u64, generation: u32) -> Rng {
        Rng::new(self.seed ^ mix(byte), u64::from(generation))
    }

    /// Makes the content of the block at `byte`.
    fn make(self, block: &mut [u8], byte: u64, generation: u32) {
        match self.kind {
            Verify::Pattern => {
                for (sector, at) in block.chunks_exact_mut(SECTOR_SIZE).zip((byte..).step_by(SECTOR_SIZE)) {
                    sector[..8].copy_from_slice(&at.to_le_bytes());
                    sector[8..16].copy_from_slice(&u64::from(generation).to_le_bytes());
                    fill::random(&mut sector[16..], &mut self.rng(at, generation));
                }
            }
            Verify::Crc32c => {
                fill::random(&mut block[HEADER..], &mut self.rng(byte, generation));
                block[..8].copy_from_slice(MAGIC);
                block[8..16].copy_from_slice(&byte.to_le_bytes());
                block[16..20].copy_from_slice(&generation.to_le_bytes());
                let crc = crc32c::crc32c(&block[HEADER..]);
                block[20..HEADER].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }

    /// Checks the block at `byte`. `scratch` is as long.
    fn check(self, block: &[u8], byte: u64, generation: u32, scratch: &mut [u8]) -> Result<(), JobError> {
        match self.kind {
            Verify::Pattern => self.check_pattern(block, byte, generation, scratch),
            Verify::Crc32c => check_crc(block, byte, generation),
        }
    }

    fn check_pattern(self, block: &[u8], byte: u64, generation: u32, scratch: &mut [u8]) -> Result<(), JobError> {
        self.make(scratch, byte, generation);
        let Some(at) = block.iter().zip(&*scratch).position(|(found, expected)| found != expected) else {
            return Ok(());
        };
        let sector = at / SECTOR_SIZE * SECTOR_SIZE;
        let detail = format!(
            "expected 0x{:02x}, found 0x{:02x}; its sector should be byte {}, generation {generation}, and begins as byte \
             {}, generation {}",
            scratch[at],
            block[at],
            byte + sector as u64,
            word(block, sector),
            word(block, sector + 8),
        );
        Err(JobError::Wrong { byte: byte + at as u64, detail })
    }
}

fn check_crc(block: &[u8], byte: u64, generation: u32) -> Result<(), JobError> {
    let wrong = |at: u64, detail: String| Err(JobError::Wrong { byte: byte + at, detail });
    if !block.starts_with(MAGIC) {
        return wrong(0, "the block does not begin with the mark of a verified block".to_owned());
    }
    if word(block, 8) != byte {
        return wrong(8, format!("the block is that of byte {}", word(block, 8)));
    }
    let (found, crc) = (word(block, 16) as u32, (word(block, 16) >> 32) as u32);
    if found != generation {
        return wrong(16, format!("expected generation {generation}, found {found}"));
    }
    let computed = crc32c::crc32c(&block[HEADER..]);
    if computed != crc {
        return wrong(HEADER as u64, format!("the CRC-32C from here on is {computed:08x}, the header says {crc:08x}"));
    }
    Ok(())
}

/// A job's part of the device, and what it wrote there.
pub(crate) struct Verifier {
    content: Content,
    first: u64,
    bs: u64,
    /// For each block its generation, 0 where what it holds is not known; and [`BUSY`].
    blocks: Vec<u32>,
    /// For each slot its block.
    at: Vec<u64>,
    op: Vec<Op>,
    scratch: Vec<u8>,
}

/// What a job did while it was checked.
pub(crate) struct Checked {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) start: Nanos,
    pub(crate) end: Nanos,
}

/// Whether so many blocks can be accounted for.
pub(crate) fn check_span(span: Span) -> Result<(), Error> {
    if span.blocks > BLOCKS_MAX {
        let text = format!("--verify: {} blocks; expected at most {BLOCKS_MAX}: a larger --bs, or --size", span.blocks);
        return Err(Error::Load(text));
    }
    Ok(())
}

impl Verifier {
    /// The part of job `job`.
    pub(crate) fn new(load: &Load, kind: Verify, span: Span, job: usize) -> Self {
        let border = |job: usize| (u128::from(span.blocks) * job as u128 / load.numjobs as u128) as u64;
        let (first, end) = (border(job), border(job + 1));
        Self {
            content: Content { kind, seed: load.seed },
            first,
            bs: span.bs,
            blocks: vec![0; (end - first) as usize],
            at: vec![0; load.iodepth],
            op: vec![Op::Read; load.iodepth],
            scratch: vec![0; span.bs as usize],
        }
    }

    /// Writes every block if `fills`, does the load, reads everything back. `ready` is called when the load is about to
    /// begin.
    pub(crate) fn run<L: Lane>(
        mut self,
        lane: L,
        load: &Load,
        fills: bool,
        clock: &dyn Clock,
        ready: impl FnOnce() -> Nanos,
    ) -> Result<Checked, JobError> {
        let own = Span { blocks: self.blocks.len() as u64, bs: self.bs };
        let mut pattern = Pattern::new(load, own, 0);
        Queue::run(
            lane,
            load.iodepth,
            self.bs as usize,
            |_| (),
            |queue, mut slots| {
                if fills {
                    slots = self.sweep(queue, slots, Op::Write)?;
                }
                ready();
                let start = clock.now();
                let deadline = load.runtime.map_or(Nanos(u64::MAX), |time| start.after(time.as_nanos() as u64));
                let mut checked = Checked { reads: 0, writes: 0, start, end: start };
                let mut back = Vec::with_capacity(slots.len());
                queue.pump::<JobError>(slots, |queue, mut slot, done| {
                    self.done(queue, &mut slot, done)?;
                    let issued = checked.reads + checked.writes;
                    if load.number_ios.is_some_and(|limit| issued >= limit) || clock.now() >= deadline {
                        back.push(slot);
                        return Ok(());
                    }
                    let (op, block) = pattern.next();
                    *(if op == Op::Read { &mut checked.reads } else { &mut checked.writes }) += 1;
                    self.send(queue, slot, op, block);
                    Ok(())
                })?;
                checked.end = clock.now();
                self.sweep(queue, back, Op::Read)?;
                Ok(checked)
            },
        )
    }

    /// Writes every block once, or reads back every one whose content is known.
    fn sweep<L: Lane>(&mut self, queue: &mut Queue<L>, slots: Vec<Slot>, op: Op) -> Result<Vec<Slot>, JobError> {
        let mut next = 0u64;
        let mut back = Vec::with_capacity(slots.len());
        queue.pump::<JobError>(slots, |queue, mut slot, done| {
            self.done(queue, &mut slot, done)?;
            while op == Op::Read && self.blocks.get(next as usize) == Some(&0) {
                next += 1;
            }
            if next < self.blocks.len() as u64 {
                self.send(queue, slot, op, next);
                next += 1;
            } else {
                back.push(slot);
            }
            Ok(())
        })?;
        Ok(back)
    }

    /// Sends a request for `block`, or for the next that is in none.
    fn send<L: Lane>(&mut self, queue: &mut Queue<L>, mut slot: Slot, op: Op, block: u64) {
        let mut block = block as usize;
        while self.blocks[block] & BUSY != 0 {
            block = (block + 1) % self.blocks.len();
        }
        let byte = (self.first + block as u64) * self.bs;
        if op == Op::Write {
            // Generation 0 stands for what is not known.
            self.blocks[block] = (self.blocks[block] + 1) % BUSY;
            self.blocks[block] = self.blocks[block].max(1);
            self.content.make(queue.buffer(&mut slot), byte, self.blocks[block]);
        }
        self.blocks[block] |= BUSY;
        self.at[slot.index()] = block as u64;
        self.op[slot.index()] = op;
        queue.submit(slot, op, byte);
    }

    /// Takes in a completion.
    fn done<L: Lane>(&mut self, queue: &mut Queue<L>, slot: &mut Slot, done: Option<Status>) -> Result<(), JobError> {
        let Some(status) = done else { return Ok(()) };
        let (block, op) = (self.at[slot.index()], self.op[slot.index()]);
        let byte = (self.first + block) * self.bs;
        if !status.is_ok() {
            return Err(JobError::Failed { op, byte, bytes: self.bs as usize, status });
        }
        let state = &mut self.blocks[block as usize];
        *state &= !BUSY;
        if op == Op::Read && *state != 0 {
            return self.content.check(queue.buffer(slot), byte, *state, &mut self.scratch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Verify, spoil: impl FnOnce(&mut Vec<u8>), expect: Option<(u64, &str)>) {
        let content = Content { kind, seed: 3 };
        let mut block = vec![0; 2048];
        content.make(&mut block, 4096, 5);
        spoil(&mut block);
        match (content.check(&block, 4096, 5, &mut vec![0; 2048]), expect) {
            (Ok(()), None) => {}
            (Err(JobError::Wrong { byte, detail }), Some((at, text))) => {
                assert_eq!(byte, at, "{detail}");
                assert!(detail.contains(text), "{detail}");
            }
            (_, expect) => panic!("expected {expect:?}"),
        }
    }

    #[test]
    fn contents_are_checked() {
        let other =
            |kind, byte, generation| move |block: &mut Vec<u8>| Content { kind, seed: 3 }.make(block, byte, generation);
        let p = Verify::Pattern;
        check(p, |_| (), None);
        check(p, |b| b[1000] ^= 1, Some((5096, "should be byte 4608, generation 5")));
        check(p, |b| b[2047] ^= 128, Some((6143, "expected 0x")));
        check(p, other(p, 8192, 5), Some((4097, "begins as byte 8192, generation 5")));
        check(p, other(p, 4096, 4), Some((4104, "begins as byte 4096, generation 4")));
        let c = Verify::Crc32c;
        check(c, |_| (), None);
        check(c, |b| b[24] ^= 1, Some((4120, "CRC-32C")));
        check(c, |b| b[2047] ^= 1, Some((4120, "CRC-32C")));
        check(c, |b| b[0] = 0, Some((4096, "mark")));
        check(c, other(c, 8192, 5), Some((4104, "byte 8192")));
        check(c, other(c, 4096, 4), Some((4112, "expected generation 5, found 4")));
    }
}
