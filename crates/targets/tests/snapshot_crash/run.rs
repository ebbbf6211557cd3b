//! One seed: an origin and its snapshots in a few lives, each of which ends with a power cut.

use crate::life::Life;
use crate::stack::{self, All, Kind, SIZE, Setup, room_for};
use std::collections::BTreeMap;
use udm_sim::Rng;

/// What kind of life they lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// Each COW device has room for all.
    Roomy,
    /// Snapshots come and go, and pass from table to table.
    Handover,
    /// Snapshots are merged, one after the other.
    Merging,
    /// COW devices have too little room.
    Full,
    /// Origin and COW devices are volumes of one pool.
    Thin,
    /// Everything grows.
    Growing,
    /// One operation fails.
    Failing,
}

impl Plan {
    /// Whether snapshots may become invalid.
    pub(crate) fn spoils(self) -> bool {
        matches!(self, Self::Full | Self::Failing)
    }
}

/// What was looked at.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Outcome {
    pub(crate) points: u64,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) flushes: u64,
    /// Changes of tables.
    pub(crate) controls: u64,
    /// Merges that came to their end.
    pub(crate) merges: u64,
    /// Looks in the middle of a merge.
    pub(crate) half_merged: u64,
    /// Snapshots that became invalid, or overflowed.
    pub(crate) invalid: u64,
    /// Snapshots that grew.
    pub(crate) grown: u64,
    pub(crate) errors: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, more: Self) {
        self.points += more.points;
        self.writes += more.writes;
        self.reads += more.reads;
        self.flushes += more.flushes;
        self.controls += more.controls;
        self.merges += more.merges;
        self.half_merged += more.half_merged;
        self.invalid += more.invalid;
        self.grown += more.grown;
        self.errors += more.errors;
    }
}

/// Lives of one origin.
const LIVES: u64 = 3;

/// Runs one seed.
pub(crate) fn run(plan: Plan, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut setup = setup(plan, &mut rng);
    let (mut images, top) = stack::first(&setup);
    let mut known = All { top, merging: None, snapshots: BTreeMap::new() };
    let mut outcome = Outcome::default();
    for _ in 0..LIVES {
        let mut life = Life::begin(plan, &setup, images, &known, &mut rng);
        life.lead();
        known = life.known();
        setup = life.setup.clone();
        let (left, more) = life.end();
        images = left;
        outcome += more;
        known = stack::look(&setup, images.clone(), &known, rng.next());
        outcome.points += 1;
        if plan == Plan::Failing {
            break;
        }
    }
    outcome
}

fn setup(plan: Plan, rng: &mut Rng) -> Setup {
    let size = |rng: &mut Rng| match plan {
        Plan::Full => 40 + 8 * rng.below(30),
        Plan::Growing => room_for(SIZE),
        _ => 512,
    };
    Setup {
        size: SIZE,
        grows: plan == Plan::Growing,
        cows: (0..4).map(|_| size(rng)).collect(),
        short: plan == Plan::Full,
        thin: plan == Plan::Thin,
        fua: rng.one_in(2),
    }
}

/// What a new snapshot on a COW device of so many sectors is like.
pub(crate) fn kind(plan: Plan, sectors: u64, rng: &mut Rng) -> Kind {
    let store = match rng.below(9) {
        0..4 => "P",
        4..8 => "PO",
        _ => "N",
    };
    let chunks = [1, 2, 4, 8, 8, 16, 32, 64];
    let mut chunk = chunks[rng.below(8) as usize];
    // Beside what is there at first, one has to fit.
    while chunk * 3 > sectors {
        chunk /= 2;
    }
    Kind { store, chunk, discards: plan != Plan::Thin && rng.one_in(3) }
}
