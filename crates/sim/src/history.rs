//! What a block device promises about its content: which values a sector may have, now and after a power cut.
//!
//! # Rules
//! - Every sector that is written gets a number of its own; 0 stands for zeroes.
//! - A read sees the last write that has completed. What failed, or was discarded in part, may read as before or after.
//! - After a power cut a sector may have the value that the last completed FLUSH or FUA covers, or any of those that
//!   were written or in flight after it.

use std::ops::Range;

/// The value of a sector that nobody can know: any may be read.
const ANY: u64 = u64::MAX;

/// What one operation may have made of a sector.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    /// Values, one of which it has.
    values: Vec<u64>,
    /// When the operation completed, as counted by [`History::done`]; `None` while it is in flight.
    done: Option<u64>,
    /// Which operation.
    op: u64,
}

/// The history of a device's sectors. Operations in flight at a time must not overlap.
#[derive(Clone, Debug)]
pub struct History {
    /// Each sector's steps, oldest first. The first is durable.
    sectors: Vec<Vec<Step>>,
    now: u64,
    next_op: u64,
}

/// An operation that has been submitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    id: u64,
    range: Range<u64>,
    /// What had completed when it was submitted.
    since: u64,
}

/// What an operation does to each sector of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The values `first`, `first + 1` and so on; see [`fill`].
    Write(u64),
    /// Zeroes.
    Zero,
    /// Zeroes, or what was there before.
    MayZero,
    /// Nothing: a flush.
    Nothing,
}

impl History {
    /// A device of `sectors` whose content is zeroes, durably.
    pub fn zeroes(sectors: u64) -> Self {
        Self::of(vec![vec![0]; sectors as usize])
    }

    /// A device of `sectors` of whose content nobody knows anything.
    pub fn unknown(sectors: u64) -> Self {
        Self::of(vec![vec![ANY]; sectors as usize])
    }

    fn of(values: Vec<Vec<u64>>) -> Self {
        let sectors = values.into_iter().map(|values| vec![Step { values, done: Some(0), op: 0 }]).collect();
        Self { sectors, now: 1, next_op: 1 }
    }

    /// How many sectors it has.
    pub fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// An operation is submitted.
    pub fn submit(&mut self, range: Range<u64>, effect: Effect) -> Operation {
        let op = Operation { id: self.next_op, range: range.clone(), since: self.now };
        self.next_op += 1;
        for sector in range.clone() {
            let values = match effect {
                Effect::Write(first) => vec![first + (sector - range.start)],
                Effect::Zero => vec![0],
                Effect::MayZero => {
                    let mut values = self.now(sector).to_vec();
                    values.push(0);
                    values.dedup();
                    values
                }
                Effect::Nothing => continue,
            };
            self.sectors[sector as usize].push(Step { values, done: None, op: op.id });
        }
        op
    }

    /// It has completed: with `durable`, what it wrote is durable; failed, it may have done anything between nothing
    /// and all.
    pub fn done(&mut self, op: &Operation, ok: bool, durable: bool) {
        let now = self.now;
        self.now += 1;
        for sector in op.range.clone() {
            let steps = &mut self.sectors[sector as usize];
            let Some(at) = steps.iter().position(|step| step.op == op.id) else { continue };
            if !ok {
                let before = steps[at - 1].values.clone();
                steps[at].values.extend(before);
                steps[at].values.sort_unstable();
                steps[at].values.dedup();
            }
            steps[at].done = Some(now);
            if durable && ok {
                steps.drain(..at);
            }
        }
    }

    /// A flush has completed: what had completed when it was submitted is durable.
    pub fn flushed(&mut self, flush: &Operation) {
        for steps in &mut self.sectors {
            let covered = steps.iter().rposition(|step| step.done.is_some_and(|done| done < flush.since));
            if let Some(at) = covered {
                steps.drain(..at);
            }
        }
    }

    /// A copy, as a snapshot of it starts out: what may be lost of the one may be lost of the other.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        self.clone()
    }

    /// From now on these sectors show what another device has there, or may have.
    pub fn show(&mut self, range: Range<u64>, other: &Self) {
        for sector in range {
            let mut values: Vec<u64> =
                other.sectors[sector as usize].iter().flat_map(|step| step.values.iter().copied()).collect();
            values.sort_unstable();
            values.dedup();
            self.sectors[sector as usize] = vec![Step { values, done: Some(0), op: 0 }];
        }
    }

    /// The device becomes as long as `like`, and has from its old end on what may be read there now, durably.
    pub fn grow(&mut self, like: &Self) {
        for sector in self.len()..like.len() {
            let values = like.now(sector).to_vec();
            self.sectors.push(vec![Step { values, done: Some(0), op: 0 }]);
        }
    }

    /// What a read may see now.
    fn now(&self, sector: u64) -> &[u64] {
        let steps = &self.sectors[sector as usize];
        let last = steps.iter().rfind(|step| step.done.is_some()).expect("the first step is done");
        &last.values
    }

    /// Whether a read may see this value of a sector.
    pub fn may_read(&self, sector: u64, value: u64) -> bool {
        allows(self.now(sector), value)
    }

    /// Whether a sector may have this value after a power cut.
    pub fn may_survive(&self, sector: u64, value: u64) -> bool {
        self.sectors[sector as usize].iter().any(|step| allows(&step.values, value))
    }

    /// After a power cut: the sector was read, and this is what it has from now on.
    pub fn settle(&mut self, sector: u64, value: u64) {
        self.sectors[sector as usize] = vec![Step { values: vec![value], done: Some(0), op: 0 }];
    }

    /// What is known of a sector, for a message.
    pub fn describe(&self, sector: u64) -> String {
        let step = |step: &Step| {
            let values: Vec<String> = step.values.iter().map(|v| show(*v)).collect();
            format!("{}{}", values.join("|"), if step.done.is_some() { "" } else { " (in flight)" })
        };
        self.sectors[sector as usize].iter().map(step).collect::<Vec<_>>().join(", then ")
    }
}

fn allows(values: &[u64], value: u64) -> bool {
    values.iter().any(|v| *v == value || *v == ANY)
}

fn show(value: u64) -> String {
    if value == ANY { "anything".to_owned() } else { format!("{value:#x}") }
}

/// Fills memory with the sectors of [`Effect::Write`]: each has its number in every word.
pub fn fill(memory: &mut [u8], first: u64) {
    for (value, sector) in (first..).zip(memory.chunks_exact_mut(udm_base::SECTOR_SIZE)) {
        sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    }
}

/// The value of a sector that was read, or `None` when it is neither zeroes nor what [`fill`] writes.
///
/// # Panics
/// When it is shorter than a word.
pub fn value(sector: &[u8]) -> Option<u64> {
    let word = sector.first_chunk::<8>().expect("a sector");
    sector.chunks_exact(8).all(|w| w == word).then(|| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_may_be_lost_until_a_flush() {
        let mut history = History::zeroes(2);
        let write = history.submit(0..2, Effect::Write(7));
        assert!(history.may_survive(1, 8) && history.may_survive(1, 0) && !history.may_read(1, 8));
        history.done(&write, true, false);
        assert!(history.may_read(0, 7) && !history.may_read(0, 0) && history.may_survive(0, 0));
        let flush = history.submit(0..0, Effect::Nothing);
        let late = history.submit(0..1, Effect::Write(9));
        history.done(&late, true, false);
        history.flushed(&flush);
        assert!(!history.may_survive(0, 0) && history.may_survive(0, 7) && history.may_survive(0, 9));
        assert!(history.may_read(0, 9) && !history.may_read(0, 7));
    }

    #[test]
    fn what_has_grown_is_as_it_was_there() {
        let (mut short, mut long) = (History::zeroes(1), History::zeroes(3));
        let write = long.submit(0..2, Effect::Write(7));
        long.done(&write, true, false);
        short.grow(&long);
        assert_eq!(short.len(), 3);
        assert!(short.may_read(0, 0) && !short.may_read(0, 7) && short.may_read(1, 8) && short.may_read(2, 0));
        assert!(!short.may_survive(1, 0));
    }

    #[test]
    fn failures_fua_and_discards() {
        let mut history = History::zeroes(1);
        let fua = history.submit(0..1, Effect::Write(1));
        history.done(&fua, true, true);
        assert!(!history.may_survive(0, 0));
        let failed = history.submit(0..1, Effect::Write(2));
        history.done(&failed, false, false);
        assert!(history.may_read(0, 1) && history.may_read(0, 2) && !history.may_read(0, 0));
        let discard = history.submit(0..1, Effect::MayZero);
        history.done(&discard, true, false);
        assert!(history.may_read(0, 0) && history.may_read(0, 2));
        history.settle(0, 2);
        assert_eq!(history.describe(0), "0x2");
        assert!(!history.may_survive(0, 0));
    }

    #[test]
    fn memory() {
        let mut memory = [0; 1024];
        fill(&mut memory, 5);
        assert_eq!((value(&memory[..512]), value(&memory[512..])), (Some(5), Some(6)));
        memory[600] = 1;
        assert_eq!(value(&memory[512..]), None);
    }
}
