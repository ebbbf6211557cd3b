//! Chance, which a seed can decide.
//!
//! With a seed (`udm set NAME fault-seed=…`) each draw follows from the seed, the sector, the direction, and how often
//! that sector was asked for in that direction since the seed was set. So it does not depend on how the requests of
//! several threads come between each other. What is drawn for whom stays the same in later versions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use udm_base::Sectors;
use udm_core::Ctr;
use udm_io::{Bio, Op};

/// How many sectors are counted at most, each direction for itself: about 100 MiB. For those beyond, every request
/// counts as the first.
const SECTORS_MAX: usize = 1 << 22;

/// What a request does, as far as chance tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Way {
    Read,
    /// Discards and zeroes too.
    Write,
    Flush,
}

impl Way {
    pub(crate) fn of(bio: &Bio) -> Self {
        match bio.op() {
            Op::Read => Self::Read,
            Op::Flush => Self::Flush,
            Op::Write | Op::Discard | Op::WriteZeroes => Self::Write,
        }
    }
}

/// The chance of one target.
pub(crate) struct Draws {
    /// Where the draws without a seed are.
    unseeded: AtomicU64,
    seeded: Mutex<Option<Seeded>>,
}

struct Seeded {
    seed: u64,
    asked: HashMap<(u64, Way), u64>,
}

/// What is drawn for one request: as many numbers as it wants.
pub(crate) struct Draw(u64);

impl Draws {
    /// Without a seed: other draws each time.
    pub(crate) fn new(ctr: &Ctr<'_>) -> Self {
        let minor = u64::from(ctr.owner.devt().minor);
        let start = mix(ctr.domain.clock().now().0 ^ mix(minor));
        Self { unseeded: AtomicU64::new(start), seeded: Mutex::new(None) }
    }

    /// The draw for a request that begins `at` sectors into the target. With a seed it takes a lock, for the look-up of
    /// a count.
    pub(crate) fn draw(&self, way: Way, at: Sectors) -> Draw {
        match &mut *self.seeded.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Draw(self.unseeded.fetch_add(STEP, Ordering::Relaxed)),
            Some(seeded) => {
                let times = seeded.asked(way, at.get());
                Draw(keyed(seeded.seed, way, at.get(), times))
            }
        }
    }

    /// `fault-seed=N`, or `fault-seed=none`. From here on all counts begin anew.
    pub(crate) fn set_option(&self, key: &str, value: &str) -> Option<()> {
        if key != "fault-seed" {
            return None;
        }
        let seed = if value == "none" { None } else { Some(value.parse().ok()?) };
        let seeded = seed.map(|seed| Seeded { seed, asked: HashMap::new() });
        *self.seeded.lock().unwrap_or_else(PoisonError::into_inner) = seeded;
        Some(())
    }
}

impl Seeded {
    /// How often that sector was asked for before.
    fn asked(&mut self, way: Way, sector: u64) -> u64 {
        if self.asked.len() >= SECTORS_MAX && !self.asked.contains_key(&(sector, way)) {
            return 0;
        }
        let count = self.asked.entry((sector, way)).or_default();
        *count += 1;
        *count - 1
    }
}

impl Draw {
    /// The next number, any of 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// The next number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> u64::BITS) as u64
    }
}

#[cfg(test)]
impl From<u64> for Draw {
    fn from(start: u64) -> Self {
        Self(start)
    }
}

/// What SplitMix64 counts in.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the draws of a request begin.
const fn keyed(seed: u64, way: Way, sector: u64, times: u64) -> u64 {
    let one = mix(seed.wrapping_add(STEP)) ^ sector;
    let two = mix(one.wrapping_add(STEP)) ^ times;
    mix(two.wrapping_add(STEP)) ^ way as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(seed: u64) -> Draws {
        let draws = Draws { unseeded: AtomicU64::new(0), seeded: Mutex::new(None) };
        draws.set_option("fault-seed", &seed.to_string()).unwrap();
        draws
    }

    fn drawn(draws: &Draws, way: Way, at: u64) -> u64 {
        draws.draw(way, Sectors::new(at)).next()
    }

    #[test]
    fn a_draw_follows_from_seed_sector_direction_and_count() {
        let (a, b) = (seeded(7), seeded(7));
        // In another order.
        let one: Vec<_> = [1, 2, 1, 3].map(|at| drawn(&a, Way::Read, at)).into();
        let (three, first, second, two) =
            (drawn(&b, Way::Read, 3), drawn(&b, Way::Read, 1), drawn(&b, Way::Read, 1), drawn(&b, Way::Read, 2));
        assert_eq!(one, [first, two, second, three]);
        assert_ne!(first, second);
        assert_ne!(drawn(&seeded(7), Way::Write, 1), first);
        assert_ne!(drawn(&seeded(8), Way::Read, 1), first);
        // A recorded seed stands for these.
        assert_eq!(first, 3_642_079_336_031_410_661);
    }

    #[test]
    fn a_seed_begins_anew_and_can_be_taken_away() {
        let draws = seeded(3);
        let first = drawn(&draws, Way::Write, 5);
        drawn(&draws, Way::Write, 5);
        draws.set_option("fault-seed", "3").unwrap();
        assert_eq!(drawn(&draws, Way::Write, 5), first);
        for (key, value, good) in [
            ("fault-seed", "none", true),
            ("fault-seed", "18446744073709551615", true),
            ("fault-seed", "-1", false),
            ("fault-seed", "", false),
            ("fault_seed", "1", false),
        ] {
            assert_eq!(draws.set_option(key, value).is_some(), good, "{key}={value}");
        }
    }

    #[test]
    fn draws_are_spread_evenly() {
        let draws = seeded(1);
        let low = (0..10_000).filter(|at| draws.draw(Way::Read, Sectors::new(*at)).below(10) == 3).count();
        assert!((850..1150).contains(&low), "{low}");
        assert!((0..1000).all(|at| draws.draw(Way::Read, Sectors::new(at)).below(1) == 0));
    }
}
