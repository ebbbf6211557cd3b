//! `base:allocation` from a device's extents.

use udm_base::{Sector, Sectors};
use udm_io::{Extent, ExtentKind};
use udm_nbd::wire::consts::base_allocation::{STATE_HOLE, STATE_ZERO};
use udm_nbd::wire::reply::{MAX_EXTENTS, StatusExtent};

/// Most sectors in one extent of the protocol, whose lengths are 32-bit bytes: a multiple of 64 KiB, so that pieces
/// end on block borders.
const MAX_SECTORS: u64 = (u32::MAX as u64 & !0xffff) >> 9;

/// Most questions to the device for one request. Stripes of one sector would take millions for 4 GiB of one kind.
const MAX_QUESTIONS: usize = 1024;

/// The extents of a range, as far as the device has told.
pub(super) struct Survey {
    at: Sector,
    left: u64,
    most: usize,
    questions: usize,
    found: Vec<StatusExtent>,
}

impl Survey {
    /// Of a range that is not empty; its first extent alone if `one`.
    pub(super) fn new(start: Sector, length: Sectors, one: bool) -> Self {
        let most = if one { 1 } else { MAX_EXTENTS };
        Self { at: start, left: length.get(), most, questions: 0, found: Vec::new() }
    }

    /// Whether the first extent is all that is asked for.
    pub(super) fn is_one(&self) -> bool {
        self.most == 1
    }

    /// What is to be asked next.
    pub(super) fn question(&self) -> (Sector, Sectors) {
        (self.at, Sectors::new(self.left))
    }

    /// Takes an answer. Whether there is nothing more to ask: neighbours of a kind are merged, and the survey may stop
    /// short of the range when there are many extents, or many questions were needed.
    pub(super) fn answer(&mut self, extents: &[Extent]) -> bool {
        let before = self.left;
        for extent in extents {
            if !self.add(extent) {
                return true;
            }
        }
        self.questions += 1;
        self.left == 0 || self.left == before || self.questions == MAX_QUESTIONS
    }

    /// Adds a run. False when there is no room for it.
    fn add(&mut self, extent: &Extent) -> bool {
        let flags = match extent.kind {
            ExtentKind::Data => 0,
            ExtentKind::Zero => STATE_ZERO,
            ExtentKind::Hole => STATE_HOLE | STATE_ZERO,
        };
        let mut sectors = extent.sectors.get().min(self.left);
        self.at += Sectors::new(sectors);
        self.left -= sectors;
        while sectors > 0 {
            let piece = sectors.min(MAX_SECTORS);
            sectors -= piece;
            // At most MAX_SECTORS: fits 32 bits of bytes.
            let bytes = (piece << 9) as u32;
            let same = self.found.last_mut().filter(|last| last.flags == flags);
            if let Some((length, last)) = same.and_then(|last| Some((last.length.checked_add(bytes)?, last))) {
                last.length = length;
                continue;
            }
            if self.found.len() == self.most {
                return false;
            }
            self.found.push(StatusExtent { length: bytes, flags });
        }
        true
    }

    /// The reply, which is not empty: where the device has told nothing, there is data.
    pub(super) fn found(mut self) -> Vec<StatusExtent> {
        if self.found.is_empty() {
            self.found.push(StatusExtent { length: (self.left.min(MAX_SECTORS) << 9) as u32, flags: 0 });
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that answers from a list, at most so many extents a call.
    struct Listed(Vec<(u64, ExtentKind)>, usize);

    impl Listed {
        fn extents(&self, (sector, sectors): (Sector, Sectors)) -> Vec<Extent> {
            let (mut pos, mut out) = (0, Vec::new());
            let (start, end) = (sector.get(), sector.get() + sectors.get());
            for &(len, kind) in &self.0 {
                let (from, to) = (pos.max(start), (pos + len).min(end));
                pos += len;
                if from < to && out.len() < self.1 {
                    out.push(Extent { sectors: Sectors::new(to - from), kind });
                }
            }
            out
        }
    }

    #[track_caller]
    fn check(device: &Listed, start: u64, length: u64, one: bool, expect: &[(u32, u32)]) {
        let mut survey = Survey::new(Sector::new(start), Sectors::new(length), one);
        while !survey.answer(&device.extents(survey.question())) {}
        let found = survey.found();
        assert_eq!(found.iter().map(|e| (e.length / 512, e.flags)).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn extents_are_cut_merged_and_counted() {
        use ExtentKind::{Data, Hole, Zero};
        for step in [1, 2, 100] {
            let device = Listed(vec![(8, Data), (8, Data), (16, Hole), (8, Zero)], step);
            check(&device, 0, 40, false, &[(16, 0), (16, 3), (8, 2)]);
            check(&device, 4, 20, false, &[(12, 0), (8, 3)]);
            check(&device, 4, 20, true, &[(12, 0)]);
            check(&device, 39, 1, true, &[(1, 2)]);
        }
        check(&Listed(vec![], 1), 0, 8, false, &[(8, 0)]);
    }

    #[test]
    fn questions_are_bounded() {
        let device = Listed(vec![(2, ExtentKind::Data); MAX_QUESTIONS + 1], 1);
        check(&device, 0, 2 * MAX_QUESTIONS as u64 + 2, false, &[(2 * MAX_QUESTIONS as u32, 0)]);
    }

    #[test]
    fn a_run_beyond_32_bits_is_split() {
        let device = Listed(vec![(1 << 24, ExtentKind::Hole)], 9);
        let most = MAX_SECTORS as u32;
        check(&device, 0, 1 << 24, false, &[(most, 3), (most, 3), ((1 << 24) - 2 * most, 3)]);
    }
}
