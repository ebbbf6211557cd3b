//! How much memory the clients of a thread may hold together, and in which pieces they get it.
//!
//! Memory that a client holds while it does nothing must not be what another waits for. So a long payload never lies in
//! memory as a whole: it goes through in pieces, which are small when memory is short, and a small piece there always
//! is. What has to be held as a whole, the data of a read that must be one reply, is what may wait.
//!
//! - Small pieces are counted apart: who holds nothing gets one in any case, more only while all of them are within the
//!   limit too.
//! - Pieces of long requests are long while a quarter of the memory suffices.
//! - What is held as a whole and longer than a piece leaves a quarter to the others.

/// The longest piece of a long request.
pub(super) const PIECE: usize = 1024 * 1024;
/// Pieces up to this length are counted apart, so that each client can go on with one.
pub(super) const SMALL: usize = 64 * 1024;

/// The memory of one thread's clients, as numbers.
#[derive(Default)]
pub(super) struct Budget {
    limit: usize,
    used: usize,
    small: usize,
}

impl Budget {
    /// At most `limit` bytes, and as much in small pieces.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0, small: 0 }
    }

    /// Bytes that are held, small pieces aside.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether `bytes` may be held as a whole. Who is alone may always.
    pub(super) fn has(&self, bytes: usize) -> bool {
        let limit = if bytes <= PIECE { self.limit } else { self.limit / 4 * 3 };
        bytes <= SMALL || self.used == 0 || self.used + bytes <= limit
    }

    /// Whether somebody who holds something may have another piece of so many bytes. What it waits for is then its own:
    /// with what it holds comes its next turn.
    pub(super) fn has_another(&self, piece: usize) -> bool {
        piece > SMALL || self.small < self.limit
    }

    /// How long the next piece of what is `left` may be.
    pub(super) fn piece(&self, left: usize) -> usize {
        let most = if self.used + PIECE <= self.limit / 4 { PIECE } else { SMALL };
        left.min(most)
    }

    /// A piece is held from now on.
    pub(super) fn take(&mut self, piece: usize) {
        *self.count(piece) += piece;
    }

    /// A piece is not held any more.
    pub(super) fn give(&mut self, piece: usize) {
        *self.count(piece) -= piece;
    }

    fn count(&mut self, piece: usize) -> &mut usize {
        if piece <= SMALL { &mut self.small } else { &mut self.used }
    }

    /// The pieces of a whole are held from now on.
    pub(super) fn take_all(&mut self, whole: usize) {
        self.used += whole / PIECE * PIECE;
        self.take(whole % PIECE);
    }

    /// They are not held any more.
    pub(super) fn give_all(&mut self, whole: usize) {
        self.used -= whole / PIECE * PIECE;
        self.give(whole % PIECE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_shrink_and_never_end() {
        let mut budget = Budget::new(16 * PIECE);
        assert!(budget.has(32 * PIECE), "who is alone is served");
        assert_eq!((budget.piece(100), budget.piece(32 * PIECE)), (100, PIECE));
        (0..3).for_each(|_| budget.take(PIECE));
        assert_eq!((budget.piece(32 * PIECE), budget.has(32 * PIECE)), (PIECE, false));
        budget.take(PIECE);
        (0..255).for_each(|_| budget.take(SMALL));
        assert!(budget.has_another(SMALL));
        budget.take(SMALL);
        assert!(!budget.has_another(SMALL) && budget.has_another(PIECE));
        // All that stalled clients can bring about: there is as much left for what is held as a whole.
        assert_eq!((budget.piece(32 * PIECE), budget.has(8 * PIECE), budget.has(8 * PIECE + 1)), (SMALL, true, false));
        budget.take_all(8 * PIECE + SMALL);
        assert_eq!((budget.has(PIECE + 1), budget.has(PIECE)), (false, true));
        (0..4).for_each(|_| budget.take(PIECE));
        assert_eq!((budget.has(PIECE), budget.has(SMALL), budget.piece(PIECE)), (false, true, SMALL));
        budget.give_all(8 * PIECE + SMALL);
        (0..8).for_each(|_| budget.give(PIECE));
        (0..256).for_each(|_| budget.give(SMALL));
        assert_eq!((budget.used(), budget.small), (0, 0));
    }
}
