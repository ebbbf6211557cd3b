//! Which blocks are being written, so that no two writes of one block are under way at the same time.

/// Writes that are under way or wait, in the order in which they came. One waits for each before it that has a block
/// in common with it, so that none is overtaken for ever.
#[derive(Default)]
pub(super) struct Ranges {
    next: u64,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    first: u64,
    /// The block after the last.
    end: u64,
}

impl Entry {
    const fn meets(self, other: Self) -> bool {
        self.first < other.end && other.first < self.end
    }
}

impl Ranges {
    /// Adds a write. Returns its number.
    pub(super) fn enter(&mut self, first: u64, end: u64) -> u64 {
        self.next += 1;
        self.entries.push(Entry { id: self.next, first, end });
        self.next
    }

    /// Whether it has to wait. Costs a look at each that came before.
    pub(super) fn waits(&self, id: u64) -> bool {
        // In the order of their numbers.
        self.entries.binary_search_by_key(&id, |e| e.id).is_ok_and(|at| self.waits_at(at))
    }

    fn waits_at(&self, at: usize) -> bool {
        let this = self.entries[at];
        self.entries[..at].iter().any(|before| before.meets(this))
    }

    /// Takes out a write that is done. Returns those that waited for it and for nobody else.
    pub(super) fn leave(&mut self, id: u64) -> Vec<u64> {
        let Ok(at) = self.entries.binary_search_by_key(&id, |e| e.id) else { return Vec::new() };
        let gone = self.entries.remove(at);
        let after = at..self.entries.len();
        let free = after.filter(|at| self.entries[*at].meets(gone) && !self.waits_at(*at));
        free.map(|at| self.entries[at].id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_for_those_before_it_on_its_blocks() {
        let mut ranges = Ranges::default();
        let [a, b, c, d, e] = [(0, 2), (1, 3), (2, 4), (0, 1), (9, 10)].map(|(first, end)| ranges.enter(first, end));
        assert_eq!([a, b, c, d, e].map(|id| ranges.waits(id)), [false, true, true, true, false]);
        assert_eq!(ranges.leave(a), [b, d]);
        assert_eq!([b, c, d].map(|id| ranges.waits(id)), [false, true, false]);
        assert!(ranges.leave(d).is_empty());
        assert_eq!(ranges.leave(b), [c]);
        assert!(ranges.leave(a).is_empty(), "it has left");
    }
}
