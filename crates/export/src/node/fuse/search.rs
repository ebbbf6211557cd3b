//! What a device holds where, found out by questions: SEEK_DATA and SEEK_HOLE, and what is left of data after a
//! discard. No I/O.
//!
//! A device answers when it knows, and of a part of what it was asked: so this is a state between two questions. After
//! many of them the rest is taken to hold data, which is always true enough.

use super::steps::Range;
use udm_base::{Errno, Sector, Sectors};
use udm_io::{Extent, ExtentKind};

/// Questions to a device about one range.
const MAX_QUESTIONS: usize = 1024;

/// What is looked for.
#[derive(Debug)]
enum Goal {
    /// The runs of data.
    Runs(Vec<Range>),
    /// Where data, or a hole, is next: from this byte on.
    Next { hole: bool, from: u64, found: Option<Sector> },
}

/// A search under way.
#[derive(Debug)]
pub(super) struct Search {
    at: Sector,
    left: Sectors,
    asked: usize,
    goal: Goal,
}

/// What it comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Runs(Vec<Range>),
    At(Result<u64, Errno>),
}

impl Search {
    /// For the runs of data in a range.
    pub(super) fn runs(range: Range) -> Self {
        Self { at: range.start, left: range.sectors, asked: 0, goal: Goal::Runs(Vec::new()) }
    }

    /// For data, or a hole, from byte `from` on, on a device of that size. The end of the device is a hole.
    ///
    /// # Errors
    /// ENXIO at the end and behind it.
    pub(super) fn next(size: Sectors, from: u64, hole: bool) -> Result<Self, Errno> {
        if from >= size.checked_bytes().unwrap_or(!0x1ff) {
            return Err(Errno::ENXIO);
        }
        let at = Sector::containing(from);
        let left = size.from_start().checked_since(at).unwrap_or(Sectors::ZERO);
        Ok(Self { at, left, asked: 0, goal: Goal::Next { hole, from, found: None } })
    }

    /// What the device is to be asked next; `None` when it is over.
    pub(super) fn question(&mut self) -> Option<(Sector, Sectors)> {
        let found = matches!(self.goal, Goal::Next { found: Some(_), .. });
        if found || self.left.is_zero() || self.asked == MAX_QUESTIONS {
            return None;
        }
        self.asked += 1;
        Some((self.at, self.left))
    }

    /// Its answer to the last question.
    pub(super) fn answered(&mut self, extents: &[Extent]) {
        for extent in extents {
            let sectors = extent.sectors.min(self.left);
            let data = extent.kind == ExtentKind::Data;
            match &mut self.goal {
                Goal::Runs(runs) if data => add(runs, self.at, sectors),
                Goal::Runs(_) => {}
                Goal::Next { hole, found, .. } if data != *hole => {
                    *found = Some(self.at);
                    return;
                }
                Goal::Next { .. } => {}
            }
            self.at += sectors;
            self.left -= sectors;
        }
    }

    /// What was found.
    pub(super) fn found(self) -> Found {
        let Self { at, left, goal, .. } = self;
        match goal {
            Goal::Runs(mut runs) => {
                if !left.is_zero() {
                    add(&mut runs, at, left);
                }
                Found::Runs(runs)
            }
            Goal::Next { from, found: Some(found), .. } => Found::At(Ok(found.bytes().max(from))),
            Goal::Next { hole: true, .. } => Found::At(Ok((at + left).bytes())),
            Goal::Next { from, .. } if !left.is_zero() => Found::At(Ok(at.bytes().max(from))),
            Goal::Next { .. } => Found::At(Err(Errno::ENXIO)),
        }
    }
}

fn add(runs: &mut Vec<Range>, start: Sector, sectors: Sectors) {
    match runs.last_mut() {
        Some(last) if last.start + last.sectors == start => last.sectors += sectors,
        _ => runs.push(Range { start, sectors }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as a device of runs of data (true) and holes, each so many sectors, `step` runs at a time.
    fn find(mut search: Search, runs: &[(u64, bool)], step: usize) -> Found {
        while let Some((sector, sectors)) = search.question() {
            let mut at = 0;
            let extents = runs.iter().filter_map(|(len, data)| {
                let start = at.max(sector.get());
                at += len;
                let end = at.min(sector.get() + sectors.get());
                let kind = if *data { ExtentKind::Data } else { ExtentKind::Hole };
                (start < end).then(|| Extent { sectors: Sectors::new(end - start), kind })
            });
            search.answered(&extents.take(step).collect::<Vec<_>>());
        }
        search.found()
    }

    #[test]
    fn data_and_holes() {
        let runs = [(8, true), (8, false), (4, true), (4, true), (8, false)];
        let size = Sectors::new(32);
        for step in [1, 2, 9] {
            for (from, hole, expect) in [
                (0, false, Ok(0)),
                (10, false, Ok(10)),
                (10, true, Ok(8 * 512)),
                (8 * 512, false, Ok(16 * 512)),
                (16 * 512, true, Ok(24 * 512)),
                (24 * 512 + 1, true, Ok(24 * 512 + 1)),
                (24 * 512, false, Err(Errno::ENXIO)),
            ] {
                let search = Search::next(size, from, hole).unwrap();
                assert_eq!(find(search, &runs, step), Found::At(expect), "from {from}, hole {hole}");
            }
            let range = |start, sectors| Range { start: Sector::new(start), sectors: Sectors::new(sectors) };
            let found = find(Search::runs(range(2, 20)), &runs, step);
            assert_eq!(found, Found::Runs(vec![range(2, 6), range(16, 6)]));
        }
        assert_eq!(Search::next(size, 32 * 512, true).err(), Some(Errno::ENXIO));
        let all = find(Search::next(size, 5, true).unwrap(), &[(32, true)], 1);
        assert_eq!(all, Found::At(Ok(32 * 512)), "the end is a hole");
    }

    #[test]
    fn what_takes_too_many_questions_counts_as_data() {
        let holes = vec![(1, false); 5000];
        let search = |hole| Search::next(Sectors::new(5000), 0, hole).unwrap();
        assert_eq!(find(search(false), &holes, 1), Found::At(Ok(1024 * 512)));
        let range = Range { start: Sector::ZERO, sectors: Sectors::new(5000) };
        let rest = Range { start: Sector::new(1024), sectors: Sectors::new(5000 - 1024) };
        assert_eq!(find(Search::runs(range), &holes, 1), Found::Runs(vec![rest]));
    }
}
