//! Who goes on next, when several have more to do than is done at once: round robin by bytes.
//!
//! Each who is in line gets a quantum when its turn comes, and goes on while it has some of it left. What it overdraws
//! it pays for with its next turns. So those who do little at a time and those who do much get the same in the long
//! run, and nobody waits for more than one piece of each of the others.

use std::collections::VecDeque;

/// What a turn is worth, in bytes.
const QUANTUM: i64 = 256 * 1024;
/// Turns that are overdrawn at most.
const OVERDRAWN: i64 = 64;

struct Place {
    who: u32,
    /// What is left of the turn; below 0 what was overdrawn.
    credit: i64,
}

/// A line of those who have more to do, by number, each at most once.
#[derive(Default)]
pub(super) struct Turns {
    line: VecDeque<Place>,
}

impl Turns {
    /// Joins the line at its end. Who is in it must not join again.
    pub(super) fn join(&mut self, who: u32) {
        debug_assert!(self.line.iter().all(|place| place.who != who), "in line already");
        self.line.push_back(Place { who, credit: QUANTUM });
    }

    /// Whose turn it is.
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

    /// The [first](Self::first) has done so much.
    pub(super) fn charge(&mut self, bytes: usize) {
        if let Some(first) = self.line.front_mut() {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).min(OVERDRAWN * QUANTUM);
            first.credit = (first.credit - bytes).max(-OVERDRAWN * QUANTUM);
        }
    }

    /// The [first](Self::first) has nothing more to do now.
    pub(super) fn leave(&mut self) {
        self.line.pop_front();
    }

    /// Takes somebody out of the line.
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
