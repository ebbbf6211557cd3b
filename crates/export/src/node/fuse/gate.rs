//! The order of writes to one node: those of parts of blocks are alone.
//!
//! A write of a part of a block reads the block, changes the part and writes the block. Another write of that block in
//! between would be undone. Writes of whole blocks need no order among themselves.

use std::collections::VecDeque;

/// A write that waits: the worker that has it, and its slot there.
pub(super) type Waiter = (usize, u32);

/// Who writes, and who waits to.
#[derive(Default)]
pub(super) struct Gate {
    shared: usize,
    alone: bool,
    /// Whether it is to be alone, and who it is, in the order of arrival.
    queue: VecDeque<(bool, Waiter)>,
}

impl Gate {
    /// Whether the write may begin at once; else it is told later, by an answer of [`leave`](Self::leave).
    pub(super) fn enter(&mut self, alone: bool, who: Waiter) -> bool {
        // Behind those that wait, so that whole blocks cannot keep parts out for ever.
        if self.alone || alone && self.shared > 0 || !self.queue.is_empty() {
            self.queue.push_back((alone, who));
            return false;
        }
        self.admit(alone);
        true
    }

    fn admit(&mut self, alone: bool) {
        self.alone = alone;
        self.shared += usize::from(!alone);
    }

    /// A write has ended. Returns those that may begin now.
    pub(super) fn leave(&mut self, alone: bool) -> Vec<Waiter> {
        if alone {
            self.alone = false;
        } else {
            self.shared -= 1;
        }
        let mut next = Vec::new();
        while let Some(&(alone, who)) = self.queue.front() {
            if self.alone || alone && self.shared > 0 {
                break;
            }
            self.queue.pop_front();
            self.admit(alone);
            next.push(who);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_alone_and_in_order() {
        let mut gate = Gate::default();
        assert!(gate.enter(false, (0, 1)) && gate.enter(false, (1, 2)));
        assert!(!gate.enter(true, (0, 3)));
        assert!(!gate.enter(false, (0, 4)) && !gate.enter(false, (1, 5)) && !gate.enter(true, (0, 6)));
        assert_eq!(gate.leave(false), []);
        assert_eq!(gate.leave(false), [(0, 3)]);
        assert_eq!(gate.leave(true), [(0, 4), (1, 5)]);
        assert_eq!(gate.leave(false), []);
        assert_eq!(gate.leave(false), [(0, 6)]);
        assert_eq!(gate.leave(true), []);
        assert!(gate.enter(true, (0, 7)) && !gate.enter(false, (0, 8)));
        assert_eq!(gate.leave(true), [(0, 8)]);
    }
}
