//! Which bytes of a read have come. Chunks may come in any order; each byte comes once, or what is counted is not what
//! is there.

use super::lost::Lost;
use std::ops::Range;

/// Parts that lie apart from each other at most. Of a server that sends them in order there is one.
const APART: usize = 4096;

/// What of a read has come.
#[derive(Default)]
pub(super) struct Received {
    /// What came first, with all that touches it. Most reads have nothing else, and need no memory for this.
    first: Range<u64>,
    /// Parts that do not touch it, nor each other, in order.
    others: Vec<Range<u64>>,
}

impl Received {
    /// Notes that `bytes` have come at `at` of the read, at least one.
    pub(super) fn add(&mut self, at: u64, bytes: u64) -> Result<(), Lost> {
        let new = at..at + bytes;
        if self.first.is_empty() {
            self.first = new;
            return Ok(());
        }
        let next = self.others.partition_point(|part| part.start < new.start);
        let meets = |part: &Range<u64>| part.start < new.end && new.start < part.end;
        let mut near = self.others[next.saturating_sub(1)..].iter().take(2);
        if meets(&self.first) || near.any(meets) {
            return Err(Lost::Protocol("data of a read that came twice"));
        }
        if new.start == self.first.end {
            self.first.end = new.end;
        } else if new.end == self.first.start {
            self.first.start = new.start;
        } else if self.others.len() == APART {
            return Err(Lost::Protocol("a read in too many pieces"));
        } else {
            self.others.insert(next, new);
            self.join(next);
        }
        self.others.retain(|part| {
            let (before, behind) = (part.end == self.first.start, part.start == self.first.end);
            if before {
                self.first.start = part.start;
            } else if behind {
                self.first.end = part.end;
            }
            !before && !behind
        });
        Ok(())
    }

    /// Makes one part of the one at `i` and its neighbours, as far as they touch.
    fn join(&mut self, i: usize) {
        for i in [i, i.wrapping_sub(1)] {
            if let Some([a, b]) = self.others.get(i..i.saturating_add(2))
                && a.end == b.start
            {
                self.others[i].end = b.end;
                self.others.remove(i + 1);
            }
        }
    }

    /// Whether all of a read of `bytes` has come.
    pub(super) fn is_whole(&self, bytes: u64) -> bool {
        self.first == (0..bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_of_pieces_is_whole_at_its_end_and_no_piece_comes_twice() {
        // All orders of six pieces of different lengths, by the factorial number system.
        let starts = [0, 1, 3, 6, 10, 15, 21];
        for order in 0..720 {
            let (mut left, mut order) = ((0..6).collect::<Vec<_>>(), order);
            let mut received = Received::default();
            let mut come: Vec<usize> = Vec::new();
            while !left.is_empty() {
                assert!(!received.is_whole(21));
                let piece = left.remove(order % left.len());
                order /= left.len() + 1;
                received.add(starts[piece], starts[piece + 1] - starts[piece]).expect("it is new");
                come.push(piece);
                for piece in &come {
                    assert!(received.add(starts[piece + 1] - 1, 1).is_err(), "{come:?}: {piece} comes twice");
                    assert!(received.add(starts[*piece], 1).is_err(), "{come:?}: {piece} comes twice");
                }
            }
            assert!(received.is_whole(21) && received.others.is_empty(), "{come:?}");
        }
    }

    #[test]
    fn pieces_that_lie_apart_are_not_remembered_for_ever() {
        let mut received = Received::default();
        let refused = (0..).find(|i| received.add(2 * i, 1).is_err());
        assert_eq!(refused, Some(APART as u64 + 1));
    }
}
