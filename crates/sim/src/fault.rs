//! Errors that a simulated device gives on purpose.

use std::ops::Range;
use udm_base::{Sector, Sectors};
use udm_io::{Op, Status};

/// An error to give: for which operations, where, when, how often, and how much is done before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    op: Option<Op>,
    range: Range<Sector>,
    skip: u64,
    times: u64,
    part: Sectors,
    status: Status,
}

impl Fault {
    /// Every operation fails with `status`, for ever.
    pub const fn new(status: Status) -> Self {
        let range = Sector::ZERO..Sector::new(u64::MAX);
        Self { op: None, range, skip: 0, times: u64::MAX, part: Sectors::ZERO, status }
    }

    /// Only these operations.
    #[must_use]
    pub const fn on(mut self, op: Op) -> Self {
        self.op = Some(op);
        self
    }

    /// Only operations that touch these sectors. A flush touches none.
    #[must_use]
    pub const fn within(mut self, range: Range<Sector>) -> Self {
        self.range = range;
        self
    }

    /// Not the first `n` that would fail.
    #[must_use]
    pub const fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// Only `n` times.
    #[must_use]
    pub const fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Done up to the first `sectors`, then the error: how a short transfer looks to a bio.
    #[must_use]
    pub const fn partial(mut self, sectors: Sectors) -> Self {
        self.part = sectors;
        self
    }

    /// Whether an operation fails, how, and after how many sectors. Counts it.
    pub(crate) fn hits(&mut self, op: Op, sector: Sector, sectors: Sectors) -> Option<(Status, Sectors)> {
        let everywhere = self.range == (Sector::ZERO..Sector::new(u64::MAX));
        let touches = sector < self.range.end && self.range.start < sector + sectors;
        if self.op.is_some_and(|only| only != op) || !(everywhere || touches) || self.times == 0 {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times -= 1;
        Some((self.status, self.part.min(sectors)))
    }
}
