//! The order of clients when several have more work than is done at once: round robin by bytes.
//!
//! Each client in line gets a quantum when its turn comes, and goes on while some of it is left. If it overdraws, the
//! excess is taken from its next turns. So clients with small pieces and with large ones get the same share in the long
//! run, and no client waits for more than one piece of each of the others.

use std::collections::VecDeque;

/// The quantum of a turn, in bytes.
const QUANTUM: i64 = 256 * 1024;
/// The most turns that can be overdrawn.
const OVERDRAWN: i64 = 64;

struct Place {
    who: u32,
    /// The rest of the quantum; below 0 when overdrawn.
    credit: i64,
}

/// A line of clients with more work, by number, each at most once.
#[derive(Default)]
pub(super) struct Turns {
    line: VecDeque<Place>,
}

impl Turns {
    /// Adds a client at the end of the line. It must not be in the line already.
    pub(super) fn join(&mut self, who: u32) {
        debug_assert!(self.line.iter().all(|place| place.who != who), "in line already");
        self.line.push_back(Place { who, credit: QUANTUM });
    }

    /// The client whose turn it is.
    pub(super) fn first(&mut self) -> Option<u32> {
        loop {
            let place = self.line.front()?;
            if place.credit > 0 {
                return Some(place.who);
            }
            let mut place = self.line.pop_front()?;
            place.credit += QUANTUM;
            self.line.push_back(place);
        }
    }

    /// The [first](Self::first) has used this much.
    pub(super) fn charge(&mut self, bytes: usize) {
        if let Some(first) = self.line.front_mut() {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).min(OVERDRAWN * QUANTUM);
            first.credit = (first.credit - bytes).max(-OVERDRAWN * QUANTUM);
        }
    }

    /// The [first](Self::first) has no more work now.
    pub(super) fn leave(&mut self) {
        self.line.pop_front();
    }

    /// Removes a client from the line.
    pub(super) fn remove(&mut self, who: u32) {
        self.line.retain(|place| place.who != who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_whatever_the_pieces() {
        let mut turns = Turns::default();
        let pieces = [64 * 1024, 1024 * 1024, 700_000];
        (0..3).for_each(|who| turns.join(who));
        let mut done = [0usize; 3];
        for _ in 0..3000 {
            let who = turns.first().expect("all stay in line");
            turns.charge(pieces[who as usize]);
            done[who as usize] += pieces[who as usize];
            let (most, least) = (done.iter().max().unwrap(), done.iter().min().unwrap());
            assert!(most - least <= 1024 * 1024 + 2 * QUANTUM as usize, "{done:?}");
        }
    }

    #[test]
    fn who_leaves_is_not_first_again() {
        let mut turns = Turns::default();
        (0..3).for_each(|who| turns.join(who));
        turns.leave();
        turns.remove(2);
        assert_eq!(turns.first(), Some(1));
        turns.charge(usize::MAX);
        assert_eq!(turns.first(), Some(1), "it pays with its next turns");
        turns.leave();
        assert_eq!(turns.first(), None);
    }
}
