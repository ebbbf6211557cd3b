//! What a power cut leaves of the writes that a disk had in its volatile cache, as chance has it.
//!
//! A disk may have written back any of them, in any order, whole or in part, but for its atomic unit. This decides;
//! whoever has the writes does it: the simulator's disks, and the devices that `udm cut` cuts off. The same writes and
//! the same seed leave the same.

use crate::{Rng, Sector, Sectors};
use std::ops::Range;

/// A long write is torn in so many pieces at most, so that it costs little.
const PIECES: u64 = 1024;

/// Decides what is left of `writes`, the oldest first, each with where it goes and how long it is. `keep` is called for
/// each part that reached the disk, in the order in which the parts did: with the write's place in the list, and the
/// sectors from its start. Writes are torn at multiples of `atomic` on the disk only.
///
/// # Panics
/// When `atomic` is zero.
pub fn survivors(
    writes: &[(Sector, Sectors)],
    atomic: Sectors,
    rng: &mut Rng,
    mut keep: impl FnMut(usize, Range<u64>),
) {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    // Mostly in order; sometimes the cache was written back in another.
    if rng.one_in(4) {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    // How lucky this cut is: all, none, or any mix.
    let luck = rng.below(5);
    for at in order {
        let units = Units::of(writes[at], atomic);
        match (luck, rng.below(4)) {
            (0, _) | (2.., 0) => {}
            (1, _) | (2.., 1) => keep(at, units.sectors(0..units.count)),
            // Torn: cut off after some units.
            (_, 2) => keep(at, units.sectors(0..rng.below(units.count + 1))),
            // Torn: some units here and there.
            _ => {
                let piece = units.count.div_ceil(PIECES).max(1);
                for first in (0..units.count).step_by(piece as usize).filter(|_| rng.one_in(2)) {
                    keep(at, units.sectors(first..first + piece));
                }
            }
        }
    }
}

/// The atomic units that a write touches.
struct Units {
    start: u64,
    len: u64,
    atomic: u64,
    count: u64,
}

impl Units {
    fn of((sector, sectors): (Sector, Sectors), atomic: Sectors) -> Self {
        let (start, len, atomic) = (sector.get(), sectors.get(), atomic.get());
        let count = if len == 0 { 0 } else { (start + len - 1) / atomic - start / atomic + 1 };
        Self { start, len, atomic, count }
    }

    /// Those of the write's sectors that lie in some of its units.
    fn sectors(&self, units: Range<u64>) -> Range<u64> {
        let first = self.start / self.atomic;
        let at = |unit: u64| {
            (first.saturating_add(unit)).saturating_mul(self.atomic).saturating_sub(self.start).min(self.len)
        };
        at(units.start)..at(units.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of writes of `count` sectors of which each is the write's number, on a disk of zeroes.
    fn disk(writes: &[(u64, u64)], atomic: u64, seed: u64) -> Vec<usize> {
        let mut disk = vec![0; 64];
        let places: Vec<_> = writes.iter().map(|(at, len)| (Sector::new(*at), Sectors::new(*len))).collect();
        survivors(&places, Sectors::new(atomic), &mut Rng::new(seed), |write, part| {
            let at = writes[write].0;
            assert!(part.end <= writes[write].1, "{part:?}");
            disk[(at + part.start) as usize..(at + part.end) as usize].fill(write + 1);
        });
        disk
    }

    #[test]
    fn a_seed_says_it_all_and_every_end_is_seen() {
        let writes = [(0, 8), (3, 2), (40, 1)];
        let ends: Vec<Vec<usize>> = (0..2000).map(|seed| disk(&writes, 1, seed)).collect();
        for seed in [0, 7, 1999] {
            assert_eq!(ends[seed], disk(&writes, 1, seed as u64));
        }
        let seen = |what: &str, is: &dyn Fn(&[usize]) -> bool| assert!(ends.iter().any(|end| is(end)), "{what}");
        seen("nothing", &|d| d.iter().all(|n| *n == 0));
        seen("everything", &|d| d[..8] == [1, 1, 1, 2, 2, 1, 1, 1] && d[40] == 3);
        seen("the first overtook the second", &|d| d[..8] == [1; 8]);
        seen("the last alone", &|d| d[..8] == [0; 8] && d[40] == 3);
        seen("a beginning", &|d| d[..8] == [1, 1, 0, 0, 0, 0, 0, 0]);
        seen("here and there", &|d| d[0] == 1 && d[1] == 0 && d[2] == 1);
    }

    #[test]
    fn units_are_whole() {
        for seed in 0..2000 {
            // From within a unit to within another.
            let disk = disk(&[(5, 20)], 8, seed);
            for unit in [5..8, 8..16, 16..24, 24..25] {
                let part = &disk[unit.clone()];
                assert!(part.iter().all(|n| *n == part[0]), "seed {seed}: {unit:?}: {disk:?}");
            }
        }
    }

    #[test]
    fn nothing_and_more_than_there_can_be() {
        survivors(&[], Sectors::new(1), &mut Rng::new(1), |_, _| panic!("there is nothing"));
        for seed in 0..100 {
            let all = (Sector::ZERO, Sectors::new(u64::MAX >> 9));
            let mut parts = 0;
            survivors(&[all, (Sector::new(9), Sectors::ZERO)], Sectors::new(1), &mut Rng::new(seed), |_, part| {
                assert!(part.end <= u64::MAX >> 9);
                parts += 1;
            });
            assert!(parts <= PIECES + 1);
        }
    }
}
