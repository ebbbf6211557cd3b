//! Copies between devices that lend their memory: done at once, without pages.

use super::{Departure, Inner, State};
use crate::job::CopyTo;
use std::sync::Arc;
use std::sync::MutexGuard;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Cx, Op};

/// Where a part of a piece goes.
struct Place {
    dev: Arc<dyn BlockDevice>,
    range: (Sector, Sectors),
    /// How much of the piece comes before it.
    skip: Sectors,
}

impl Inner {
    /// Does a whole piece in place of its read, if its devices lend their memory: else gives the read back.
    pub(super) fn copy_at_once(&self, cx: &Cx<'_>, departure: Departure) -> Result<MutexGuard<'_, State>, Departure> {
        let (sector, sectors) = departure.range;
        let piece = departure.landing.io.piece;
        if departure.op != Op::Read {
            return Err(departure);
        }
        let Some(from) = departure.dev.direct_access(cx, Op::Read, sector, sectors) else { return Err(departure) };
        let Some(places) = self.lock().places(piece) else { return Err(departure) };
        let lent: Option<Vec<_>> =
            places.iter().map(|p| p.dev.direct_access(cx, Op::Write, p.range.0, p.range.1)).collect();
        let Some(lent) = lent else { return Err(departure) };
        for (place, to) in places.iter().zip(&lent) {
            from.copy_to(to, place.skip);
        }
        from.used();
        // One hold of the lock from here to the job's end: it waits for what the copy has stored.
        let mut state = self.lock();
        state.used += places.len() as u32;
        for place in &places {
            state.count(Op::Write, place.range.1);
        }
        state.pieces.get_mut(piece).left = 0;
        state.finish(piece, self);
        state.spare.push(departure.landing.emptied());
        Ok(state)
    }
}

impl State {
    /// Where the parts of a piece go; none, if there is more to be written than that.
    fn places(&self, number: usize) -> Option<Vec<Place>> {
        let piece = self.pieces.get(number);
        if piece.pads.iter().any(|pad| !pad.is_zero()) {
            return None;
        }
        let place = |to: &CopyTo| {
            let (start, len) = to.overlap(piece.at, piece.sectors)?;
            let range = (to.sector + (start - to.skip), len);
            Some(Place { dev: to.dev.clone(), range, skip: start - piece.at })
        };
        Some(self.under_way.get(piece.jobs[0]).to.iter().filter_map(place).collect())
    }
}
