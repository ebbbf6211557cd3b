//! The page pool's book: which pages are free. The memory itself is the runner's.

use std::collections::BTreeMap;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Pages in a row: the first, and how many.
pub(super) type PageRange = (u32, u32);

/// Free pages, as runs that never touch each other.
pub(super) struct Pages {
    free: BTreeMap<u32, u32>,
    left: u32,
    total: u32,
    least: u32,
}

impl Pages {
    pub(super) fn new(total: u32) -> Self {
        Self { free: BTreeMap::from([(0, total)]), left: total, total, least: total }
    }

    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The most that were ever taken at a time.
    pub(super) fn peak(&self) -> u32 {
        self.total - self.least
    }

    /// Takes `n` pages, in one run if there is one, into `runs`; or nothing when fewer are left.
    pub(super) fn take(&mut self, n: u32, runs: &mut Vec<PageRange>) -> bool {
        if n > self.left {
            return false;
        }
        self.left -= n;
        self.least = self.least.min(self.left);
        let whole = self.free.iter().find(|(_, len)| **len >= n).map(|(start, _)| *start);
        let mut wanted = n;
        while wanted > 0 {
            let start = whole.or_else(|| self.free.keys().next().copied()).expect("counted as left");
            let len = self.free.remove(&start).expect("just found");
            let taken = len.min(wanted);
            if taken < len {
                self.free.insert(start + taken, len - taken);
            }
            runs.push((start, taken));
            wanted -= taken;
        }
        true
    }

    /// Gives pages back that were taken.
    pub(super) fn give(&mut self, runs: &mut Vec<PageRange>) {
        for (mut start, mut len) in runs.drain(..) {
            self.left += len;
            if let Some((before, more)) = self.free.range(..start).next_back().map(|(s, l)| (*s, *l)) {
                assert!(before + more <= start, "a page is given back twice");
                if before + more == start {
                    self.free.remove(&before);
                    (start, len) = (before, more + len);
                }
            }
            if let Some(more) = self.free.remove(&(start + len)) {
                len += more;
            }
            self.free.insert(start, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_one_run_if_they_can_and_back_together() {
        let mut pages = Pages::new(10);
        let mut runs: Vec<Vec<PageRange>> = vec![Vec::new(); 4];
        for (n, runs) in [2, 3, 2, 3].into_iter().zip(&mut runs) {
            assert!(pages.take(n, runs));
        }
        assert_eq!(runs, [vec![(0, 2)], vec![(2, 3)], vec![(5, 2)], vec![(7, 3)]]);
        let mut more = Vec::new();
        assert!(!pages.take(1, &mut more) && more.is_empty());
        pages.give(&mut runs[0]);
        pages.give(&mut runs[2]);
        assert!(pages.take(4, &mut more));
        assert_eq!(more, [(0, 2), (5, 2)]);
        pages.give(&mut more);
        pages.give(&mut runs[1]);
        pages.give(&mut runs[3]);
        assert_eq!((pages.free, pages.left, pages.least), (BTreeMap::from([(0, 10)]), 10, 0));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn twice_is_caught() {
        let mut pages = Pages::new(4);
        pages.give(&mut vec![(1, 1)]);
    }
}
