//! The order of writes to one node: a write of a part of a block runs alone.
//!
//! A write of a part of a block reads the block, changes the part and writes the block. Another write of that block in
//! between would be undone. Writes of whole blocks need no order among themselves.

use std::collections::VecDeque;

/// A write that waits: the worker that has it, and its slot there.
pub(super) type Waiter = (usize, u32);

/// The writes that are in, and those that wait.
#[derive(Default)]
pub(super) struct WriteLock {
    shared: usize,
    alone: bool,
    /// For each waiting write, whether it has to be alone, in the order of arrival.
    queue: VecDeque<(bool, Waiter)>,
}

impl WriteLock {
    /// Returns whether the write may begin at once; else a later [`leave`](Self::leave) returns it.
    pub(super) fn enter(&mut self, alone: bool, who: Waiter) -> bool {
        // Behind waiting writes, so that writes of whole blocks cannot starve those of parts.
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
        let mut write_lock = WriteLock::default();
        assert!(write_lock.enter(false, (0, 1)) && write_lock.enter(false, (1, 2)));
        assert!(!write_lock.enter(true, (0, 3)));
        assert!(
            !write_lock.enter(false, (0, 4)) && !write_lock.enter(false, (1, 5)) && !write_lock.enter(true, (0, 6))
        );
        assert_eq!(write_lock.leave(false), []);
        assert_eq!(write_lock.leave(false), [(0, 3)]);
        assert_eq!(write_lock.leave(true), [(0, 4), (1, 5)]);
        assert_eq!(write_lock.leave(false), []);
        assert_eq!(write_lock.leave(false), [(0, 6)]);
        assert_eq!(write_lock.leave(true), []);
        assert!(write_lock.enter(true, (0, 7)) && !write_lock.enter(false, (0, 8)));
        assert_eq!(write_lock.leave(true), [(0, 8)]);
    }
}
