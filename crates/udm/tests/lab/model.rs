//! What must be on the volumes, and what is done to them.

use std::collections::BTreeMap;
use udm_sim::Rng;
use udm_sim::golden::pattern;

/// Sectors of a volume of a pool: no whole number of blocks.
pub(crate) const SECTORS: u64 = 16384 + 40;

/// Something done to a pool.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create(u32),
    Snap {
        id: u32,
        of: u32,
    },
    Delete(u32),
    Put {
        id: u32,
        sector: u64,
        count: u64,
        generation: u32,
    },
    /// Zeroes, by plain writes.
    Zero {
        id: u32,
        sector: u64,
        count: u64,
    },
    Discard {
        id: u32,
        sector: u64,
        count: u64,
    },
}

/// The volumes of a pool by their ids.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) volumes: BTreeMap<u32, Vec<u8>>,
    block: u64,
    next_id: u32,
    generation: u32,
}

impl Pool {
    pub(crate) fn new(block: u64) -> Self {
        Self { block, ..Self::default() }
    }

    /// Applies it: a discard takes whole blocks only, as the kernel's does.
    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create(id) => drop(self.volumes.insert(id, vec![0; SECTORS as usize * 512])),
            Op::Snap { id, of } => drop(self.volumes.insert(id, self.volumes[&of].clone())),
            Op::Delete(id) => drop(self.volumes.remove(&id)),
            Op::Put { id, sector, count, generation } => {
                let bytes = pattern(id as u16, sector, count, generation);
                self.volumes.get_mut(&id).unwrap()[sector as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
            }
            Op::Zero { id, sector, count } => {
                self.volumes.get_mut(&id).unwrap()[sector as usize * 512..][..count as usize * 512].fill(0);
            }
            Op::Discard { id, sector, count } => {
                let (from, to) = (sector.next_multiple_of(self.block), (sector + count) / self.block * self.block);
                if from < to {
                    self.volumes.get_mut(&id).unwrap()[from as usize * 512..to as usize * 512].fill(0);
                }
            }
        }
    }

    fn any(&self, rng: &mut Rng) -> u32 {
        *self.volumes.keys().nth(rng.below(self.volumes.len() as u64) as usize).unwrap()
    }

    /// So many operations, chosen at random and applied.
    pub(crate) fn random(&mut self, rng: &mut Rng, many: usize) -> Vec<Op> {
        let mut ops = Vec::new();
        while ops.len() < many {
            let op = self.choose(rng);
            self.apply(&op);
            ops.push(op);
        }
        ops
    }

    fn choose(&mut self, rng: &mut Rng) -> Op {
        let volumes = self.volumes.len();
        if volumes < 2 || (volumes < 9 && rng.one_in(6)) {
            let id = self.next_id;
            self.next_id += 1;
            return if volumes < 2 || rng.one_in(4) { Op::Create(id) } else { Op::Snap { id, of: self.any(rng) } };
        }
        if volumes > 4 && rng.one_in(15) {
            return Op::Delete(self.any(rng));
        }
        let id = self.any(rng);
        let block = self.block;
        let blocks = SECTORS / block;
        let (sector, count) = match rng.below(4) {
            // Some sectors anywhere; a whole block; a run of blocks; a run with ragged ends.
            0 | 1 => (rng.below(SECTORS), 1 + rng.below(24)),
            2 => (rng.below(blocks) * block, (1 + rng.below(4.min(1 + blocks / 16))) * block),
            _ => (rng.below(SECTORS), 1 + rng.below(block * 3)),
        };
        let count = count.min(SECTORS - sector);
        match rng.below(10) {
            0 | 1 => return Op::Discard { id, sector, count },
            2 => return Op::Zero { id, sector, count },
            _ => {}
        }
        self.generation += 1;
        Op::Put { id, sector, count, generation: self.generation }
    }
}
