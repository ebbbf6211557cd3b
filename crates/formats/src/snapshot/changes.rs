//! What changed since a snapshot, as ranges of sectors of the origin.

use super::{ChunkSize, Exception};
use std::ops::Range;
use udm_base::{Sector, Sectors};

/// A range of an origin's sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Where it begins.
    pub start: Sector,
    /// How long it is.
    pub length: Sectors,
}

impl Change {
    /// As sector numbers.
    pub fn range(&self) -> Range<u64> {
        self.start.get()..(self.start + self.length).get()
    }
}

/// Ranges in ascending order, joined where they meet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes(Vec<Change>);

impl Changes {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chunks that have exceptions, up to the origin's end where it is known. Cost: a sort.
    pub fn of_exceptions(exceptions: &[Exception], chunk: ChunkSize, origin: Option<Sectors>) -> Self {
        let mut chunks: Vec<u64> = exceptions.iter().map(|e| e.old).collect();
        chunks.sort_unstable();
        let mut changes = Self::new();
        for old in chunks {
            let start = chunk.start(old);
            let end = start + chunk.sectors();
            let end = origin.map_or(end, |size| end.min(size.from_start()));
            if start < end {
                changes.push(start, end - start);
            }
        }
        changes
    }

    /// Adds a range that begins at or after the end of the last.
    pub fn push(&mut self, start: Sector, length: Sectors) {
        match self.0.last_mut() {
            Some(last) if last.start + last.length == start => last.length += length,
            _ => self.0.push(Change { start, length }),
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Change] {
        &self.0
    }

    /// Their lengths together.
    pub fn total(&self) -> Sectors {
        self.0.iter().fold(Sectors::ZERO, |sum, change| sum + change.length)
    }

    /// Where the last ends.
    pub fn end(&self) -> Sector {
        self.0.last().map_or(Sector::ZERO, |last| last.start + last.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_become_ranges() {
        let check = |olds: &[u64], origin: Option<u64>, expect: &[(u64, u64)]| {
            let list: Vec<_> = olds.iter().zip(2..).map(|(old, new)| Exception { old: *old, new }).collect();
            let chunk = ChunkSize::new(Sectors::new(8)).unwrap();
            let changes = Changes::of_exceptions(&list, chunk, origin.map(Sectors::new));
            let ranges: Vec<_> = changes.ranges().iter().map(|c| (c.start.get(), c.length.get())).collect();
            assert_eq!(ranges, expect, "{olds:?}");
            assert_eq!(changes.total().get(), expect.iter().map(|(_, len)| len).sum::<u64>());
        };
        check(&[], None, &[]);
        check(&[3, 1, 2, 7], None, &[(8, 24), (56, 8)]);
        check(&[3, 4, 5], Some(35), &[(24, 11)]);
        check(&[0, 9], Some(35), &[(0, 8)]);
    }
}
