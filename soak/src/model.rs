//! What a volume may read, block by block.
//!
//! # Rules
//! - A read sees the last write that was acknowledged.
//! - A write that failed may have happened or not, a discard may have made zeroes of a block or not: the next read
//!   settles it.
//! - After a kill of the daemon a block may have what the last flush covered, or whatever was written after it, each
//!   block for itself. One that was in flight may be a mixture.
//! - A snapshot of a volume in use has, of each block, what was there when it was asked for, or what was written until
//!   it was there.

use crate::content::{self, BLOCK, ZEROES};
use std::collections::{BTreeSet, HashMap};

/// What a request does to the blocks that it touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// They have this stamp.
    Write(u64),
    /// They have zeroes, or what they had.
    MayZero,
}

/// Stamps that a block may have, without order.
type Stamps = Vec<u64>;

/// The blocks of a volume.
#[derive(Clone, Default)]
pub struct Model {
    /// What each block has, where there is no doubt.
    now: Vec<u64>,
    /// What a block may have, where there is.
    doubt: HashMap<u64, Stamps>,
    /// What a block had since the last flush, besides what it has now: a kill may bring it back.
    undone: HashMap<u64, Stamps>,
    /// What is being done to a block.
    flying: HashMap<u64, Effect>,
    /// Blocks that were written to when the daemon was killed, and may be mixtures.
    torn: BTreeSet<u64>,
    /// Blocks of which nothing is known until they are written again.
    unknown: BTreeSet<u64>,
    /// While a snapshot is being taken: what was written since.
    journal: Option<HashMap<u64, Stamps>>,
}

fn add(stamps: &mut Stamps, more: impl IntoIterator<Item = u64>) {
    for stamp in more {
        if !stamps.contains(&stamp) {
            stamps.push(stamp);
        }
    }
}

impl Model {
    /// So many blocks of zeroes.
    pub fn zeroes(blocks: u64) -> Self {
        Self { now: vec![ZEROES; blocks as usize], ..Self::default() }
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.now.len() as u64
    }

    /// The volume has grown; what is new has zeroes.
    pub fn grow(&mut self, blocks: u64) {
        let blocks = (blocks as usize).max(self.now.len());
        self.now.resize(blocks, ZEROES);
    }

    /// The volume has grown, and shows what another has there.
    pub fn grow_as(&mut self, other: &Self) {
        let (from, to) = (self.blocks(), other.blocks());
        self.grow(to);
        for block in from..to {
            let mut may = other.possible(block);
            add(&mut may, other.undone.get(&block).into_iter().flatten().copied());
            match other.flying.get(&block) {
                Some(Effect::Write(stamp)) => add(&mut may, [*stamp]),
                Some(Effect::MayZero) => add(&mut may, [ZEROES]),
                None => {}
            }
            self.doubt.insert(block, may);
        }
    }

    /// What a block may have, what is in flight aside.
    fn possible(&self, block: u64) -> Stamps {
        match self.doubt.get(&block) {
            Some(stamps) => stamps.clone(),
            None => vec![self.now[block as usize]],
        }
    }

    /// A request is sent. Nothing else that touches the block may be in flight.
    pub fn send(&mut self, block: u64, effect: Effect) {
        self.flying.insert(block, effect);
        if let (Some(journal), Effect::Write(stamp)) = (&mut self.journal, effect) {
            add(journal.entry(block).or_default(), [stamp]);
        }
        if let (Some(journal), Effect::MayZero) = (&mut self.journal, effect) {
            add(journal.entry(block).or_default(), [ZEROES]);
        }
    }

    /// It has been answered. With `durable` what it did survives a kill.
    pub fn done(&mut self, block: u64, ok: bool, durable: bool) {
        let Some(effect) = self.flying.remove(&block) else { return };
        let before = self.possible(block);
        let mut history = self.undone.remove(&block).unwrap_or_default();
        match (effect, ok) {
            (Effect::Write(stamp), true) => {
                self.now[block as usize] = stamp;
                self.doubt.remove(&block);
                self.torn.remove(&block);
                self.unknown.remove(&block);
            }
            (Effect::Write(stamp), false) => add(self.doubt.entry(block).or_insert_with(|| before.clone()), [stamp]),
            (Effect::MayZero, _) => add(self.doubt.entry(block).or_insert_with(|| before.clone()), [ZEROES]),
        }
        if !(durable && ok && matches!(effect, Effect::Write(_))) {
            add(&mut history, before);
            self.undone.insert(block, history);
        }
    }

    /// A flush was answered, and nothing was in flight beside it.
    pub fn flushed(&mut self) {
        self.undone.clear();
    }

    /// The daemon was killed: what was not flushed may be gone.
    pub fn killed(&mut self) {
        for (block, older) in std::mem::take(&mut self.undone) {
            let mut may = self.possible(block);
            add(&mut may, older);
            self.doubt.insert(block, may);
        }
        for (block, effect) in std::mem::take(&mut self.flying) {
            let mut may = self.possible(block);
            add(&mut may, [if let Effect::Write(stamp) = effect { stamp } else { ZEROES }]);
            self.doubt.insert(block, may);
            self.torn.insert(block);
        }
    }

    /// Begins to note what is written, for a snapshot.
    pub fn begin_snapshot(&mut self) {
        self.journal = Some(HashMap::new());
    }

    /// The snapshot is there: what may be in it.
    pub fn end_snapshot(&mut self, before: Self) -> Self {
        let mut snapshot = before;
        // What was in flight when it was asked for may be in it.
        let mut later = self.journal.take().unwrap_or_default();
        for (block, effect) in std::mem::take(&mut snapshot.flying) {
            let stamp = if let Effect::Write(stamp) = effect { stamp } else { ZEROES };
            add(later.entry(block).or_default(), [stamp]);
        }
        let blocks = snapshot.blocks();
        for (block, stamps) in later.into_iter().filter(|(block, _)| *block < blocks) {
            let mut may = snapshot.possible(block);
            add(&mut may, stamps);
            snapshot.doubt.insert(block, may);
        }
        snapshot.journal = None;
        snapshot
    }

    /// Nobody knows any more what is in there: each block has to be written first.
    pub fn forget(&mut self) {
        self.unknown = (0..self.blocks()).collect();
    }

    /// A block was read: whether it has what it may have. From now on it has that.
    pub fn read(&mut self, block: u64, bytes: &[u8]) -> Result<(), String> {
        if self.unknown.contains(&block) {
            return Ok(());
        }
        let may = self.possible(block);
        let found = match content::read(bytes, block) {
            Ok(stamp) if may.contains(&stamp) => {
                self.now[block as usize] = stamp;
                self.doubt.remove(&block);
                self.torn.remove(&block);
                return Ok(());
            }
            Ok(stamp) => format!("stamp {stamp:#x}"),
            Err(_) if self.torn.contains(&block) && content::is_mix(bytes, block, &may) => {
                self.torn.remove(&block);
                self.unknown.insert(block);
                return Ok(());
            }
            Err(text) => text,
        };
        Err(format!("block {block} (byte {}): expected {}, found {found}", block * BLOCK as u64, show(&may)))
    }
}

fn show(stamps: &[u64]) -> String {
    let one = |stamp: &u64| if *stamp == ZEROES { "zeroes".to_owned() } else { format!("stamp {stamp:#x}") };
    stamps.iter().map(one).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(stamp: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        content::fill(&mut bytes, stamp, 0);
        bytes
    }

    fn write(model: &mut Model, stamp: u64, ok: bool) {
        model.send(0, Effect::Write(stamp));
        model.done(0, ok, false);
    }

    /// Which of the stamps 0 to 9 may be read.
    fn may(model: &Model) -> Vec<u64> {
        (0..10).filter(|stamp| model.clone().read(0, &block(*stamp)).is_ok()).collect()
    }

    #[test]
    fn what_was_acknowledged_is_read() {
        let mut model = Model::zeroes(1);
        assert_eq!(may(&model), [0]);
        write(&mut model, 1, true);
        assert_eq!(may(&model), [1]);
        write(&mut model, 2, false);
        assert_eq!(may(&model), [1, 2]);
        assert!(model.read(0, &block(2)).is_ok());
        assert_eq!(may(&model), [2]);
        model.send(0, Effect::MayZero);
        model.done(0, true, false);
        assert_eq!(may(&model), [0, 2]);
    }

    #[test]
    fn a_kill_takes_what_was_not_flushed() {
        let mut model = Model::zeroes(1);
        write(&mut model, 1, true);
        write(&mut model, 2, true);
        model.flushed();
        write(&mut model, 3, true);
        model.send(0, Effect::Write(4));
        model.killed();
        assert_eq!(may(&model), [2, 3, 4]);
        let mut torn = block(3);
        torn[1024..].copy_from_slice(&block(4)[1024..]);
        assert!(model.clone().read(0, &torn).is_ok());
        assert!(model.read(0, &block(3)).is_ok());
        assert_eq!(may(&model), [3]);
        assert!(model.read(0, &torn).is_err());
    }

    #[test]
    fn a_snapshot_has_what_was_there_in_between() {
        let mut model = Model::zeroes(1);
        write(&mut model, 1, true);
        model.send(0, Effect::Write(2));
        model.begin_snapshot();
        let before = model.clone();
        model.done(0, true, false);
        write(&mut model, 3, true);
        let snapshot = model.end_snapshot(before);
        write(&mut model, 4, true);
        assert_eq!((may(&snapshot), may(&model)), (vec![1, 2, 3], vec![4]));
    }
}
